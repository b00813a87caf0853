"""Episodes as columns of steps, and the checks of their validity."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tree

from rlds2reverb.errors import ErrorFinding, SourceError, SpecMismatchError

from . import fields
from .short_repr import shorten
from .specs import ArraySpec, Nest, describe, leaves, make_step_spec, map_structure, path_name, require_match

_FINITE_FIELDS = (fields.OBSERVATION, fields.ACTION, fields.REWARD, fields.DISCOUNT)
_SAME_SPEC_ADVICE = "convert all episodes to the same spec, or convert them into separate tables"


class Contradiction(NamedTuple):
    """Two statements of a dataset about an episode that differ: the step (None for the whole episode), and both.

    `check` is the name of the finding that reports it, a key of `findings.CHECKS`.
    """

    step: int | None
    field: str
    message: str
    check: str = "contradiction"


class FinalRow(IntEnum):
    """The content of an episode's last step."""

    #: The observation after the last action.
    OBSERVATION = 0
    #: The last action of a truncated episode, after which there is no observation; no transition begins there.
    ACTION = 1
    #: Zeros in place of an unknown observation after the last action.
    PLACEHOLDER = 2


@dataclass(frozen=True)
class Episode:
    """One episode as RLDS columns.

    Attributes:
      steps: dict of nests of arrays `[N, ...]`: `observation, action, reward, discount, is_first, is_last,
        is_terminal`, and any further fields of the source. `N` includes the step of the final observation.
      index: position in the source, from 0.
      unterminated: whether the source ends in the middle of this episode, which is then closed as truncated.
      dropped_last_transition: whether the source has one more transition, which is dropped because no observation
        follows it. The episode is then truncated, and its final observation is missing.
      unknown_final_observation: whether zeros stand for an unknown final observation. The discount of the last
        transition is then 0, also if the episode is truncated, so that nothing is bootstrapped from the zeros. No
        format stores the zeros; see `write_dataset`.
      discontinuities: rows inside the episode whose `next_observations` differs from the observation of the next row,
        which is used instead. Row numbers count from the start of the source for D4RL's columns, from the start of
        the episode for logs.
      seed: seed with which the environment was reset for this episode, or None if it is unknown.
      timestamps: times in seconds `[T]` that the source has for the transitions apart from `steps`, or None.
      metadata: fields of the episode apart from its steps, such as RLDS's `episode_metadata`: nested dicts of arrays.
        Strings are bytes in arrays of objects, and a single value is an array of shape `[]`.
      contradictions: statements of the dataset about this episode that differ from its rows.
    """

    steps: dict[str, Nest]
    index: int
    unterminated: bool = False
    dropped_last_transition: bool = False
    discontinuities: tuple[int, ...] = ()
    seed: int | None = None
    unknown_final_observation: bool = False
    timestamps: np.ndarray | None = None
    metadata: dict[str, Nest] = field(default_factory=dict)
    contradictions: tuple[Contradiction, ...] = ()

    @property
    def num_steps(self) -> int:
        """The number of steps, including the one of the final observation."""
        return len(self.steps[fields.IS_FIRST])

    @property
    def num_transitions(self) -> int:
        """The number of pairs of adjacent steps."""
        return max(self.num_steps - 1, 0)

    @cached_property
    def columns(self) -> list[tuple[tuple[Any, ...], np.ndarray]]:
        """The arrays of the steps with their paths; see `specs.leaves`."""
        return leaves(self.steps)

    @cached_property
    def num_bytes(self) -> int:
        """The size of all columns."""
        return sum([column.nbytes for _, column in self.columns])

    @property
    def total_reward(self) -> float:
        """The undiscounted return: the sum of the rewards of all transitions; NaN unless the reward is a scalar."""
        reward = self.steps[fields.REWARD]
        is_scalar = isinstance(reward, np.ndarray) and reward.ndim == 1
        return float(np.sum(reward[: self.num_transitions], dtype=np.float64)) if is_scalar else float("nan")

    @property
    def is_terminal(self) -> bool:
        """True if the episode ends in a terminal state, whose value is 0, rather than being truncated."""
        return bool(self.num_steps and self.steps[fields.IS_TERMINAL][-1])

    def __repr__(self) -> str:
        names = [name for name in (fields.OBSERVATION, fields.ACTION) if name in self.steps]
        shown = ", ".join(f"{name} {shorten(make_step_spec(self.steps[name]))}" for name in names)
        end = "unterminated" if self.unterminated else "terminal" if self.is_terminal else "truncated"
        return f"Episode({self.num_steps:,} steps, {shown}, {end}, index {self.index})"

    @property
    def is_end_known(self) -> bool:
        """True if the last step is the final observation after the last action of the source."""
        return self.final_row is FinalRow.OBSERVATION

    @property
    def final_row(self) -> FinalRow:
        """The content of the last step."""
        if self.dropped_last_transition:
            return FinalRow.ACTION
        return FinalRow.PLACEHOLDER if self.unknown_final_observation else FinalRow.OBSERVATION


#: Called with a stage, such as 'check', 'read' or 'write', and each of its episodes.
ProgressCallback = Callable[[str, Episode], None]


def show_progress(episodes: Iterable[Episode], progress: ProgressCallback, stage: str) -> Iterator[Episode]:
    """Yields episodes, and calls `progress` before each of them."""
    for episode in episodes:
        progress(stage, episode)
        yield episode


def read_until_error(episodes: Iterable[Episode], errors: list[SourceError]) -> Iterator[Episode]:
    """Yields episodes up to the one that cannot be read, whose error is then added to a list."""
    try:
        yield from episodes
    except SourceError as error:
        errors.append(error)


def from_transitions(
    observations: Nest,
    actions: Nest,
    *,
    rewards: np.ndarray,
    terminated: bool,
    final_observation: Nest | None = None,
    extras: dict[str, Nest] | None = None,
) -> dict[str, Nest]:
    """Returns the RLDS steps of one episode of `T` transitions.

    Both ends: the first step has `is_first`. The last step holds the final observation, a zero action and a zero
    reward. If there is no final observation, a terminated episode gets one of zeros (its value is never used, because
    the discount of the transition into it is 0), and a truncated episode ends at its last observation, so that its
    last transition is dropped.

    Args:
      observations: nest of arrays, `[T, ...]`, or `[T + 1, ...]` including the final observation.
      actions: nest of arrays `[T, ...]`.
      rewards: float `[T]`.
      terminated: whether the last transition leads into a terminal state.
      final_observation: nest of arrays `[...]`, the observation after the last action.
      extras: further columns `[T, ...]`; an added final step has zeros there.

    Returns:
      dict of columns `[N, ...]`. The discount is float32: 0 on the transition into a terminal state and on the terminal
      step itself, 1 everywhere else.

    Raises:
      SpecMismatchError: If the final observation has a different dtype or shape than the others.
    """
    num_transitions = len(rewards)
    if final_observation is None and len(tree.flatten(observations)[0]) == num_transitions + 1:
        final_observation = map_structure(lambda column: column[-1], observations)
        observations = map_structure(lambda column: column[:-1], observations)
    if final_observation is not None:
        final_observation = tree.map_structure(_to_final_row, observations, final_observation)
    steps, _ = join_transitions(
        observations,
        actions,
        rewards=rewards,
        num_transitions=np.array([num_transitions]),
        terminated=np.array([terminated], bool),
        final_observations=final_observation,
        extras=extras,
    )
    return steps


def join_transitions(
    observations: Nest,
    actions: Nest,
    *,
    rewards: np.ndarray,
    num_transitions: np.ndarray,
    terminated: np.ndarray,
    final_observations: Nest | None = None,
    extras: dict[str, Nest] | None = None,
) -> tuple[dict[str, Nest], np.ndarray]:
    """Returns the concatenated RLDS steps of several episodes, each as `from_transitions` returns them.

    For example, two episodes of 2 and 1 transitions with final observations become 3 and 2 steps: rows 0, 1 and 2 of
    the transitions become steps 0, 1 and 3, and the final observations become steps 2 and 4.

    Args:
      observations: nest of arrays `[T, ...]`, concatenated over all episodes.
      actions: nest of arrays `[T, ...]`.
      rewards: float `[T]`.
      num_transitions: int64 `[E]`, the number of transitions of each episode.
      terminated: bool `[E]`, whether the last transition of an episode leads into a terminal state.
      final_observations: nest of arrays `[E, ...]`, or None.
      extras: further columns `[T, ...]`.

    Returns:
      The columns `[R, ...]`, and the number of steps of each episode, int64 `[E]`.
    """
    has_final_step = terminated if final_observations is None else np.ones(len(terminated), bool)
    num_steps = num_transitions + has_final_step
    rows = np.arange(len(rewards)) + np.repeat(np.cumsum(has_final_step) - has_final_step, num_transitions)
    ends = np.cumsum(num_steps)
    total = int(num_steps.sum())

    def scatter(column: np.ndarray, final_rows: np.ndarray | None = None) -> np.ndarray:
        scattered = np.full((total, *column.shape[1:]), _zero(column), column.dtype)
        scattered[rows] = column
        if final_rows is not None:
            scattered[ends - 1] = final_rows
        return scattered

    nests = [observations] if final_observations is None else [observations, final_observations]
    step_observations = tree.map_structure(scatter, *nests)
    discount = np.ones(total, np.float32)
    flags = {name: np.zeros(total, bool) for name in fields.FLAG_FIELDS}
    has_steps = num_steps > 0
    flags[fields.IS_FIRST][(ends - num_steps)[has_steps]] = True
    flags[fields.IS_LAST][ends[has_steps] - 1] = True
    flags[fields.IS_TERMINAL][ends[terminated] - 1] = True
    discount[ends[terminated] - 1] = 0
    discount[ends[terminated & (num_steps > 1)] - 2] = 0
    rest = map_structure(scatter, {fields.ACTION: actions, fields.REWARD: rewards, **(extras or {})})
    return {fields.OBSERVATION: step_observations, **rest, fields.DISCOUNT: discount, **flags}, num_steps


class SplitEpisodes(Sequence[Episode]):
    """The episodes of concatenated columns, as views."""

    def __init__(self, steps: dict[str, Nest], num_steps: np.ndarray):
        """Splits columns `[R, ...]` into episodes of `num_steps` steps, int64 `[E]`."""
        self._steps = steps
        self._ends = np.cumsum(num_steps)
        self._starts = self._ends - num_steps

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        rows = slice(int(self._starts[index]), int(self._ends[index]))
        return Episode(map_structure(operator.itemgetter(rows), self._steps), index)


def locate_discontinuity(episode: Episode) -> str:
    """Returns the location of an episode's first discontinuity, such as 'row 1,999 (episode 3)'; '' if it has none."""
    rows = episode.discontinuities
    return f"row {rows[0]:,} (episode {episode.index})" if rows else ""


def _zero(column: np.ndarray) -> Any:
    """Returns the value that pads a column: 0, or an empty string."""
    return b"" if column.dtype == object else 0


def _to_final_row(column: np.ndarray, observation: Any) -> np.ndarray:
    """Returns a final observation as a column of one row; raises `SpecMismatchError` if it does not fit `column`."""
    row = np.asarray(observation, object if column.dtype == object else None)
    if row.shape != column.shape[1:] or row.dtype != column.dtype:
        others = f"{column.dtype} {list(column.shape[1:])}"
        raise SpecMismatchError(f"the final observation must be {others} like the others, got {describe(row)}")
    return row[None]


def find_errors(episode: Episode, step_spec: Nest | None = None) -> list[ErrorFinding]:
    """Returns all errors of an episode.

    Checks that there is at least one step; that all columns have the same length; that `is_first` is set on the first
    step only, `is_last` on the last step only, and `is_terminal` on no other step than the last; that discounts are in
    [0, 1]; that observation, action, reward and discount contain no NaN or Inf; and that the steps match `step_spec`
    unless it is None. If TF-Agents has a message for an error, the error's message begins with it.
    """
    errors = list(_find_length_errors(episode))
    if not errors:
        flag_errors = _find_flag_errors(episode, np.array([episode.num_steps]))
        errors = [*flag_errors, *_find_number_errors(episode)]
    if step_spec is not None and episode.num_steps:
        try:
            require_same_spec(episode.steps, step_spec, episode.index)
        except SpecMismatchError as error:
            errors.append(ErrorFinding(episode.index, None, fields.STEPS, str(error)))
    return errors


def has_errors(steps: dict[str, Nest], num_steps: np.ndarray, step_spec: Nest | None = None) -> bool:
    """Returns whether `find_errors` would find an error in any of several concatenated episodes.

    Args:
      steps: columns `[R, ...]` of all episodes.
      num_steps: int64 `[E]`, the number of steps of each episode.
      step_spec: see `find_errors`.
    """
    joined = Episode(steps, 0)
    if not num_steps.all() or any(_find_length_errors(joined)):
        return True
    if any(_find_flag_errors(joined, num_steps)) or any(_find_number_errors(joined)):
        return True
    return step_spec is not None and make_step_spec(steps) != step_spec


def require_same_spec(
    columns: Nest, first_spec: Nest, index: int, *, advice: str = _SAME_SPEC_ADVICE, root: str = "step"
) -> None:
    """Raises `SpecMismatchError` unless the columns of the episode at `index` have the spec of the first episode's."""
    got = make_step_spec(columns)
    if got != first_spec:
        require_match(got, first_spec, holder=_describe_first(index), advice=advice, root=root)


def _describe_first(index: int) -> str:
    return f"the first episode (this is episode {index})"


def make_metadata_spec(episode: Episode) -> dict[str, Nest]:
    """Returns the shapes and dtypes of an episode's metadata."""
    return map_structure(lambda value: ArraySpec(value.shape, value.dtype), episode.metadata)


def list_metadata(episode: Episode, metadata_spec: Nest) -> dict[str, np.ndarray]:
    """Returns the values of an episode's metadata by their paths, such as `episode_metadata/file_path`.

    Raises:
      SpecMismatchError: Unless they have the spec of the first episode.
    """
    got, holder = make_metadata_spec(episode), _describe_first(episode.index)
    require_match(got, metadata_spec, holder=holder, advice="drop the field", root="metadata")
    return {"/".join(path): value for path, value in leaves(episode.metadata)}


def _find_length_errors(episode: Episode) -> Iterator[ErrorFinding]:
    num_steps = episode.num_steps
    for path, column in leaves(episode.steps):
        if len(column) != num_steps:
            message = f"{path_name(path)} must have {num_steps} rows like is_first, got {len(column)}"
            yield ErrorFinding(episode.index, None, fields.STEPS, message)
    if not num_steps:
        yield ErrorFinding(episode.index, None, fields.STEPS, "The episode has no steps; remove or skip it.")


def _find_flag_errors(episode: Episode, num_steps: np.ndarray) -> Iterator[ErrorFinding]:
    """Yields the errors of an episode, or of several concatenated ones of `num_steps` steps, int64 `[E]`."""
    is_first, is_last, is_terminal = (episode.steps[name] for name in fields.FLAG_FIELDS)
    ends = np.cumsum(num_steps)
    at_start, at_end = np.zeros((2, ends[-1]), bool)
    at_start[ends - num_steps] = at_end[ends - 1] = True
    too_early = f"{fields.LAST_BEFORE_MID} is_last is set before the last step ({ends[0] - 1}) of the episode."
    rules = (
        (fields.IS_FIRST, ~is_first & at_start, f"{fields.LAST_BEFORE_MID} is_first is not set on the first step."),
        (fields.IS_TERMINAL, is_terminal & ~is_last, f"{fields.TERMINAL_NOT_LAST} is_last is not set here."),
        (fields.IS_LAST, is_last & ~at_end, too_early),
        (fields.IS_FIRST, is_first & ~at_start, f"{fields.MID_BEFORE_FIRST} is_first is set inside the episode."),
        (fields.IS_LAST, ~is_last & at_end, f"{fields.MID_BEFORE_FIRST} is_last is not set on the last step."),
    )
    for name, is_broken, message in rules:
        for step in np.flatnonzero(is_broken):
            yield ErrorFinding(episode.index, int(step), name, message)


def _find_number_errors(episode: Episode) -> Iterator[ErrorFinding]:
    for path, column in leaves({name: episode.steps[name] for name in _FINITE_FIELDS}):
        if column.dtype.kind not in "fc" or np.isfinite(column).all():
            continue
        is_bad = ~np.isfinite(column.reshape(len(column), -1)).all(axis=1)
        step = int(np.argmax(is_bad))
        more = f" (and in {is_bad.sum() - 1} more steps)" if is_bad.sum() > 1 else ""
        value = "NaN" if np.isnan(column[step]).any() else "Inf"
        yield ErrorFinding(episode.index, step, str(path[0]), f"{path_name(path)} holds {value}{more}.")
    discount = episode.steps[fields.DISCOUNT]
    outside = (discount < 0) | (discount > 1)
    if outside.any():
        step = int(np.argmax(outside.reshape(len(discount), -1).any(axis=1)))
        yield ErrorFinding(
            episode.index, step, fields.DISCOUNT, f"The discount must be in [0, 1], got {discount[step]}."
        )
