"""The conventions of RLDS datasets: the meaning of the last row of an episode, and which fields rows may leave out.

In RLDS, the last row is a boundary: it has the final observation, and its action and reward mean nothing. In many
datasets of robots, it is a transition like the others, whose next observation is not stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from rlds2reverb.errors import Message, SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import leaves, map_structure

from .columns import as_columns, as_steps

LastStep = Literal["auto", "boundary", "transition"]
AUTO, BOUNDARY, TRANSITION = get_args(LastStep)
#: Fields that rows must contain, and fields whose value is set or assumed if they do not.
REQUIRED = (fields.OBSERVATION, fields.ACTION)
ASSUMABLE = (fields.REWARD, fields.DISCOUNT, fields.IS_TERMINAL)

_UNKNOWN = "unknown"
_ADVICE = (
    f"choose '{TRANSITION}' if the action and the reward of the last row are real, or '{BOUNDARY}' if they mean nothing"
)


@dataclass(frozen=True)
class Conventions:
    """The meaning of the rows of an RLDS dataset.

    Attributes:
      name: name of the dataset, for messages.
      last_step: 'boundary', or 'transition': a boundary without an observation is then appended to each episode.
      missing: values of fields that rows do not contain; see `loading.load`.
      has_ends: whether `is_last` marks the ends of episodes. If not, it is set on the last row, and the episode is
        `unterminated`.
      is_inferred: whether `last_step` was found in the data, so that an episode that disagrees raises an error.
      is_assumed: whether the data fit a transition as well, because there are no rewards that could tell.
    """

    name: str
    last_step: LastStep
    missing: Mapping[str, float] = field(default_factory=dict)
    has_ends: bool = True
    is_inferred: bool = False
    is_assumed: bool = False

    def make_episode(self, rows: dict[str, Any], index: int, **attributes: Any) -> Episode:
        """Returns the episode of some rows; `attributes` are those of the episode.

        Missing flags of the first and last step follow from the rows, and a missing `is_terminal` from a discount of 0
        at the end. Rewards and discounts `[T, 1]` lose their second axis.

        Raises:
          SourceError: If the rows are not columns, or disagree with an inferred `last_step`.
        """
        if self.is_inferred:
            found = _find_evidence(rows)
            if found not in (None, self.last_step):
                raise SourceError(
                    f"{self.name}: the last row of episode {index} is evidence of a {found}, but those of the first "
                    f"episodes of a {self.last_step}: {_describe_last_rows(rows)}; {_ADVICE}",
                    last_step=...,
                )
        steps = as_steps(self._complete(rows, index), f"{self.name}: episode {index}: step")
        for name in (fields.REWARD, fields.DISCOUNT):
            if isinstance(steps[name], np.ndarray) and steps[name].shape[1:] == (1,):
                steps[name] = steps[name][:, 0]
        if not self.has_ends:
            steps[fields.IS_LAST] = _mark_end(steps[fields.IS_LAST])
            attributes["unterminated"] = True
        is_transition = self.last_step == TRANSITION or attributes.get("unknown_final_observation")
        if is_transition and len(steps[fields.IS_LAST]):
            steps = append_boundary(steps)
            attributes["unknown_final_observation"] = True
        return Episode(steps, index, **attributes)

    def _complete(self, rows: dict[str, Any], index: int) -> dict[str, Any]:
        """Returns the rows with all fields."""
        missing = [name for name in fields.STEP_FIELDS if name not in rows]
        if not missing:
            return rows
        columns = as_columns(rows, f"{self.name}: episode {index}: step")
        num_rows = len(leaves(columns)[0][1])
        is_end = _mark_end(np.zeros(num_rows, bool))
        ends = slice(-1, None) if self.last_step == TRANSITION else slice(-2, None)
        columns.setdefault(fields.IS_FIRST, np.arange(num_rows) == 0)
        columns.setdefault(fields.IS_LAST, is_end)
        if fields.IS_TERMINAL in missing:
            is_terminal = self.missing.get(fields.IS_TERMINAL)
            if is_terminal is None:
                is_terminal = fields.DISCOUNT in columns and bool((columns[fields.DISCOUNT][ends] == 0).any())
            columns[fields.IS_TERMINAL] = is_end & bool(is_terminal)
        if fields.DISCOUNT in missing:
            columns[fields.DISCOUNT] = np.full(num_rows, self.missing.get(fields.DISCOUNT, 1), np.float32)
            if num_rows and columns[fields.IS_TERMINAL][-1]:
                columns[fields.DISCOUNT][ends] = 0
        columns.setdefault(fields.REWARD, np.full(num_rows, self.missing.get(fields.REWARD, 0), np.float32))
        return columns


def append_boundary(steps: dict[str, Any]) -> dict[str, Any]:
    """Returns steps whose last one is a transition, `[T, ...]`, with a boundary after it, `[T + 1, ...]`, T >= 1.

    The boundary has zeros (empty strings) in place of the unknown final observation. The discount of the last
    transition is 0, also if the episode is truncated, so that nothing is bootstrapped from that observation; the
    boundary then has its own.
    """
    is_terminal = bool(steps[fields.IS_TERMINAL][-1])
    steps = map_structure(lambda column: np.concatenate([column, make_boundary_row(column)]), steps)
    for name in (fields.IS_LAST, fields.IS_TERMINAL):
        steps[name][-2:] = False, steps[name][-2]
    for discount in (column for _, column in leaves({"": steps[fields.DISCOUNT]})):
        discount[-2], discount[-1] = 0, 0 if is_terminal else discount[-2]
    return steps


def make_boundary_row(column: np.ndarray) -> np.ndarray:
    """Returns a row of zeros (empty strings) like those of a column: `[1, ...]`."""
    return np.full((1, *column.shape[1:]), b"" if column.dtype == object else 0, column.dtype)


def require_step_fields(name: str, step_spec: Any, missing: Mapping[str, float]) -> None:
    """Raises `SourceError` unless rows are dicts with observations and actions, and do not contain `missing` fields."""
    if not isinstance(step_spec, dict):
        raise SourceError(
            f"{name}: a step must be a dict of {list(fields.STEP_FIELDS)}, got a {type(step_spec).__name__}"
        )
    absent = [field for field in REQUIRED if field not in step_spec]
    if absent:
        raise SourceError(
            f"{name}: a step is missing {', '.join(absent)}; it must contain {list(REQUIRED)}, and usually "
            f"{list(fields.STEP_FIELDS[len(REQUIRED) :])}, got {list(step_spec)}"
        )
    present = [field for field in missing if field in step_spec]
    if present:
        raise SourceError(f"{name}: missing={dict(missing)} sets {present[0]!r}, which the steps contain; leave it out")


def require_missing(missing: Mapping[str, float]) -> None:
    """Raises `ValueError` unless the values of missing fields are finite numbers for fields that can be assumed."""
    for name, value in missing.items():
        if name not in ASSUMABLE:
            raise ValueError(
                f"missing must be values of {', '.join(ASSUMABLE)}, got {name!r}; other fields are derived"
            )
        is_number = isinstance(value, (bool, int, float)) and np.isfinite(value)
        if not is_number or (name != fields.REWARD and not 0 <= value <= 1):
            expected = "a finite number" if name == fields.REWARD else "a number in [0, 1]"
            raise ValueError(f"missing[{name!r}] must be {expected}, got {value!r}")


def describe_missing(name: str, present: Collection[str], missing: Mapping[str, float]) -> tuple[str, ...]:
    """Returns sentences about the values that fields get which the steps of a dataset do not contain."""
    absent = [field for field in fields.STEP_FIELDS if field not in present and field not in missing]
    meanings = {
        fields.REWARD: "0; set it to learn from rewards, which cloning does not need",
        fields.DISCOUNT: "1, and 0 at terminal ends",
        fields.IS_FIRST: "True for the first step",
        fields.IS_LAST: "True for the last step",
        fields.IS_TERMINAL: "True at the end of episodes whose discount is 0 there"
        if fields.DISCOUNT in present
        else "False: all episodes are truncated; set it to 1 if they end in terminal states",
    }
    assumed = find_assumed(present, missing)
    sentences = {field: f"{name} has no {field!r}, which is {meanings[field]}" for field in absent}
    return tuple(Message(text, missing=...) if field in assumed else text for field, text in sentences.items())


def find_assumed(present: Collection[str], missing: Mapping[str, float]) -> tuple[str, ...]:
    """Returns the fields that are invented: they are neither in the data, nor derived from other fields, nor set."""
    absent = [field for field in (fields.REWARD, fields.IS_TERMINAL) if field not in present and field not in missing]
    return tuple(field for field in absent if field == fields.REWARD or fields.DISCOUNT not in present)


def infer_last_step(name: str, episodes: Iterable[dict[str, Any]]) -> LastStep:
    """Returns whether the last rows of episodes are boundaries or transitions.

    A reward other than 0 in the last row is evidence of a transition, and so is an action that is neither zero nor
    that of the row before. A float action that becomes zero in the last row is evidence of a boundary. Anything else
    fits both; without other episodes, it is taken for a boundary, as RLDS defines it.

    Args:
      name: name of the dataset, for messages.
      episodes: the rows of some episodes.

    Raises:
      SourceError: If the episodes disagree, or if none of them tells because they have a single row or actions that
        never change.
    """
    examples: dict[str | None, tuple[int, dict[str, Any]]] = {}
    for index, rows in enumerate(episodes):
        if len(leaves(rows)[0][1]):
            found = _find_evidence(rows) or (_UNKNOWN if _is_constant(rows) else None)
            examples.setdefault(found, (index, rows))
    shown = {found: f"episode {index}: {_describe_last_rows(rows)}" for found, (index, rows) in examples.items()}
    if TRANSITION in examples and BOUNDARY in examples:
        raise SourceError(
            f"{name}: the last rows of some episodes are evidence of transitions ({shown[TRANSITION]}), those of "
            f"others of boundaries ({shown[BOUNDARY]}); {_ADVICE}",
            last_step=...,
        )
    if list(examples) == [_UNKNOWN]:
        sentence = f"{name}: nothing tells what the last row of an episode means ({shown[_UNKNOWN]}); {_ADVICE}"
        raise SourceError(sentence, last_step=...)
    return TRANSITION if TRANSITION in examples else BOUNDARY


def has_rewards(episodes: Iterable[dict[str, Any]]) -> bool:
    """Returns whether the rows of an episode have a reward other than 0."""
    return any(np.any(column != 0) for rows in episodes for _, column in leaves({"": rows.get(fields.REWARD, {})}))


def _find_evidence(rows: dict[str, Any]) -> LastStep | None:
    """Returns what the last row of an episode is evidence of, or None if it fits both conventions."""
    actions = [column for _, column in leaves({fields.ACTION: rows[fields.ACTION]})]
    if not len(actions[0]):
        return None
    if fields.REWARD in rows and any(_is_set(column, -1) for _, column in leaves({"": rows[fields.REWARD]})):
        return TRANSITION
    is_repeated = len(actions[0]) > 1 and all(np.array_equal(column[-1], column[-2]) for column in actions)
    if is_repeated:
        return None
    if any(_is_set(column, -1) for column in actions):
        return TRANSITION
    becomes_zero = any(column.dtype.kind == "f" and len(column) > 1 and _is_set(column, -2) for column in actions)
    return BOUNDARY if becomes_zero else None


def _is_constant(rows: dict[str, Any]) -> bool:
    """Returns whether an episode has a single row, or always the same action other than zero."""
    actions = [column for _, column in leaves({fields.ACTION: rows[fields.ACTION]})]
    is_constant = all((column == column[-1]).all() for column in actions)
    return len(actions[0]) == 1 or (is_constant and any(_is_set(column, -1) for column in actions))


def _is_set(column: np.ndarray, row: int) -> bool:
    """Returns whether a row differs from zeros or empty strings."""
    return bool(np.any(column[row] != (b"" if column.dtype == object else 0)))


def _describe_last_rows(rows: dict[str, Any]) -> str:
    """Returns the action and the reward of the last two rows of an episode."""
    columns = leaves({name: rows[name] for name in (fields.ACTION, fields.REWARD) if name in rows})

    def describe(row: int) -> str:
        values = [np.array2string(np.asarray(column[row]), precision=3, threshold=9) for _, column in columns]
        names = ["/".join(map(str, path)) for path, _ in columns]
        return ", ".join(" ".join(f"{name} {value}".split()) for name, value in zip(names, values, strict=True))

    return "; ".join(f"row {row}: {describe(row)}" for row in range(len(columns[0][1]))[-2:])


def _mark_end(flags: np.ndarray) -> np.ndarray:
    """Returns flags `[T]` of which only the last is set."""
    return np.arange(len(flags)) == len(flags) - 1
