"""Episodes as columns: the inner unit of the package, and what may be wrong with one."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tree

from rlds2reverb import fields
from rlds2reverb.errors import Problem, SpecMismatchError
from rlds2reverb.specs import Nest, describe, leaves, make_step_spec, map_structure, path_name, require_match

_FINITE_FIELDS = (fields.OBSERVATION, fields.ACTION, fields.REWARD, fields.DISCOUNT)


@dataclass(frozen=True)
class Episode:
    """One episode as RLDS columns.

    Attributes:
      steps: dict of nests of arrays `[N, ...]`: `observation, action, reward, discount, is_first, is_last,
        is_terminal`, and whatever else the source has. `N` counts the step of the final observation.
      index: position in the source, from 0.
      unterminated: True if the source just stops inside this episode; it is then closed as truncated.
      dropped_last_transition: True if the source holds one more transition, the last one, that is left out because no observation
        follows it: the episode is truncated, and its final observation is not there.
      discontinuities: the rows inside of it whose `next_observations` is not the observation of the next row, which
        takes its place. Rows of the whole source for D4RL's columns, of the episode for logs.
    """

    steps: dict[str, Nest]
    index: int
    unterminated: bool = False
    dropped_last_transition: bool = False
    discontinuities: tuple[int, ...] = ()

    @property
    def num_steps(self) -> int:
        """Steps, the one of the final observation included."""
        return len(self.steps[fields.IS_FIRST])

    @property
    def num_transitions(self) -> int:
        """Pairs of adjacent steps: one less than the steps."""
        return max(self.num_steps - 1, 0)

    @cached_property
    def columns(self) -> list[tuple[tuple[Any, ...], np.ndarray]]:
        """The arrays of the steps with their paths; see `specs.leaves`."""
        return leaves(self.steps)

    @property
    def num_bytes(self) -> int:
        """Bytes of all its columns."""
        return sum([column.nbytes for _, column in self.columns])

    @property
    def total_reward(self) -> float:
        """The undiscounted return; NaN where the reward is not one number a step."""
        reward = self.steps[fields.REWARD]
        single = isinstance(reward, np.ndarray) and reward.ndim == 1
        return float(np.sum(reward, dtype=np.float64)) if single else float("nan")

    @property
    def is_terminal(self) -> bool:
        """Whether it ended in a terminal state, where the value is 0 (a truncated one does not)."""
        return bool(self.num_steps and self.steps[fields.IS_TERMINAL][-1])


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
    reward. If none is given, a terminated episode gets a final observation of zeros (its value is never used: the
    discount of the transition into it is 0), and a truncated one ends at its last observation, so that its last
    transition is lost.

    Args:
      observations: nest of arrays, `[T, ...]`, or `[T + 1, ...]` where the final observation is included.
      actions: nest of arrays `[T, ...]`.
      rewards: float `[T]`.
      terminated: whether the last transition led into a terminal state.
      final_observation: nest of arrays `[...]`, the observation after the last action.
      extras: more columns `[T, ...]`; a final step that is added has zeros there.

    Returns:
      dict of columns `[N, ...]`; discount is float32 and 1, but 0 on the transition into a terminal state and
      on the terminal step itself. A truncated episode keeps 1 everywhere.

    Raises:
      SpecMismatchError: if the final observation has another dtype or shape than the others.
    """
    num_transitions = len(rewards)
    if final_observation is None and len(tree.flatten(observations)[0]) == num_transitions + 1:
        final_observation = map_structure(lambda column: column[-1], observations)
        observations = map_structure(lambda column: column[:-1], observations)
    if final_observation is not None:
        final_observation = tree.map_structure(_as_row_of, observations, final_observation)
    steps, _ = joined_transitions(
        observations,
        actions,
        rewards=rewards,
        num_transitions=np.array([num_transitions]),
        terminated=np.array([terminated], bool),
        final_observations=final_observation,
        extras=extras,
    )
    return steps


def joined_transitions(
    observations: Nest,
    actions: Nest,
    *,
    rewards: np.ndarray,
    num_transitions: np.ndarray,
    terminated: np.ndarray,
    final_observations: Nest | None = None,
    extras: dict[str, Nest] | None = None,
) -> tuple[dict[str, Nest], np.ndarray]:
    """Returns the RLDS steps of several episodes, one after the other, each as `from_transitions` makes them.

    For example, two episodes of 2 and 1 transitions with final observations become 3 and 2 steps: the rows 0 1 2 of
    the transitions go to the places 0 1 3, and the final observations to the places 2 and 4.

    Args:
      observations: nest of arrays `[T, ...]`, all episodes one after the other.
      actions: nest of arrays `[T, ...]`.
      rewards: float `[T]`.
      num_transitions: int64 `[E]`, the transitions of each episode.
      terminated: bool `[E]`.
      final_observations: nest of arrays `[E, ...]`, or None if there are none.
      extras: more columns `[T, ...]`.

    Returns:
      The columns `[R, ...]`, and the steps of each episode, int64 `[E]`.
    """
    is_added = terminated if final_observations is None else np.ones(len(terminated), bool)
    num_steps = num_transitions + is_added
    places = np.arange(len(rewards)) + np.repeat(np.cumsum(is_added) - is_added, num_transitions)
    ends = np.cumsum(num_steps)
    total = int(num_steps.sum())

    def spread(column: np.ndarray) -> np.ndarray:
        steps = np.full((total, *column.shape[1:]), b"" if column.dtype == object else 0, column.dtype)
        steps[places] = column
        return steps

    def with_finals(column: np.ndarray, finals: np.ndarray) -> np.ndarray:
        steps = spread(column)
        steps[ends - 1] = finals
        return steps

    if final_observations is None:
        steps = map_structure(spread, observations)
    else:
        steps = tree.map_structure(with_finals, observations, final_observations)
    discount = np.ones(total, np.float32)
    flags = {name: np.zeros(total, bool) for name in fields.FLAG_FIELDS}
    has_steps = num_steps > 0
    flags[fields.IS_FIRST][(ends - num_steps)[has_steps]] = True
    flags[fields.IS_LAST][ends[has_steps] - 1] = True
    flags[fields.IS_TERMINAL][ends[terminated] - 1] = True
    discount[ends[terminated] - 1] = 0
    discount[ends[terminated & (num_steps > 1)] - 2] = 0
    rest = map_structure(spread, {fields.ACTION: actions, fields.REWARD: rewards, **(extras or {})})
    return {fields.OBSERVATION: steps, **rest, fields.DISCOUNT: discount, **flags}, num_steps


def one_step_episodes(
    observations: Nest,
    actions: Nest,
    *,
    rewards: np.ndarray,
    terminated: np.ndarray,
    next_observations: Nest,
    extras: dict[str, Nest] | None = None,
    first_index: int = 0,
) -> Iterator[Episode]:
    """Yields each of `T` transitions as an episode of its own: two steps, as `from_transitions` makes them.

    Args:
      observations: nest of arrays `[T, ...]`.
      actions: nest of arrays `[T, ...]`.
      rewards: float `[T]`.
      terminated: bool `[T]`, whether a transition led into a terminal state; the others are truncated.
      next_observations: nest of arrays `[T, ...]`, of the structure, dtypes and shapes of the observations.
      extras: more columns `[T, ...]`.
      first_index: of the first episode.

    Raises:
      SpecMismatchError: if the next observations have another dtype or shape than the observations.
    """
    got, expected = make_step_spec(next_observations), make_step_spec(observations)
    require_match(got, expected, holder="observations", advice="make them alike", root="next_observations")
    rest = {fields.ACTION: actions, fields.REWARD: rewards, **(extras or {})}
    columns = {  # [T, 2, ...]
        fields.OBSERVATION: tree.map_structure(
            lambda now, after: np.stack([now, after], axis=1), observations, next_observations
        ),
        **map_structure(
            lambda column: np.stack([column, np.broadcast_to(_nothing(column), column.shape)], axis=1), rest
        ),
        fields.DISCOUNT: np.where(terminated[:, None], np.zeros(2, np.float32), np.ones(2, np.float32)),
        fields.IS_FIRST: np.broadcast_to(np.array([True, False]), (len(rewards), 2)),
        fields.IS_LAST: np.broadcast_to(np.array([False, True]), (len(rewards), 2)),
        fields.IS_TERMINAL: terminated[:, None] & np.array([False, True]),
    }
    for row in range(len(rewards)):
        yield Episode(map_structure(operator.itemgetter(row), columns), first_index + row)


def notes(dropped_last_transition: int, discontinuities: int, first_discontinuity: str) -> tuple[str, ...]:
    """Returns a sentence for each count above 0 of what a source holds and its episodes do not.

    Args:
      dropped_last_transition: episodes with that flag.
      discontinuities: rows, of all episodes.
      first_discontinuity: where the first one is; see `discontinuity_place`.
    """
    sentences = []
    if dropped_last_transition:
        sentences.append(
            f"{dropped_last_transition:,} transitions are left out, the last ones of truncated episodes without a final "
            "observation: nothing says where they led; give next_observations, or one observation more than actions"
        )
    if discontinuities:
        sentences.append(
            f"in {discontinuities:,} rows inside episodes next_observations is not the observation of the next row, "
            f"which is taken instead, first in {first_discontinuity}; if D4RL's rows lack flags of ends there, "
            "split_at_discontinuity=True (--split-at-discontinuity) cuts them"
        )
    return tuple(sentences)


def discontinuity_place(episode: Episode) -> str:
    """Returns the place of an episode's first discontinuity, such as 'row 1,999 (episode 3)'; '' if it has none."""
    rows = episode.discontinuities
    return f"row {rows[0]:,} (episode {episode.index})" if rows else ""


def _nothing(column: np.ndarray) -> np.ndarray:
    """Returns a row of zeros, or of empty strings."""
    return np.full(column.shape[1:], b"" if column.dtype == object else 0, column.dtype)


def _as_row_of(column: np.ndarray, row: Any) -> np.ndarray:
    """Returns a final observation as a column of one row; `SpecMismatchError` if it is not like the others."""
    row = np.asarray(row, object if column.dtype == object else None)
    if row.shape != column.shape[1:] or row.dtype != column.dtype:
        others = f"{column.dtype} {list(column.shape[1:])}"
        raise SpecMismatchError(f"the final observation is {describe(row)}, the others are {others}; make them alike")
    return row[None]


def find_problems(episode: Episode, step_spec: Nest | None = None) -> list[Problem]:
    """Returns everything that is wrong with an episode, in the order of its fields' importance.

    Checked: at least one step; columns of one length; `is_first` at the first step and nowhere else; `is_last` at
    the last and nowhere else; `is_terminal` only there; discounts in [0, 1]; no NaN or Inf in observation, action,
    reward and discount; and fields, dtypes and shapes, if `step_spec` is given. Where TF-Agents has a message for a
    problem, ours begins with it.
    """
    problems = list(_length_problems(episode))
    if not problems:
        problems = [*_flag_problems(episode), *_number_problems(episode)]
    if step_spec is not None and episode.num_steps:
        try:
            require_same_spec(episode, step_spec)
        except SpecMismatchError as error:
            problems.append(Problem(episode.index, None, fields.STEPS, str(error)))
    return problems


def has_problems(steps: dict[str, Nest], num_steps: np.ndarray, step_spec: Nest | None = None) -> bool:
    """Returns whether `find_problems` finds something in one of several episodes, whose steps are one after the other.

    Args:
      steps: columns `[R, ...]` of all episodes.
      num_steps: int64 `[E]`, the steps of each.
      step_spec: see `find_problems`.
    """
    ends = np.cumsum(num_steps)
    if not num_steps.all() or any(len(column) != ends[-1] for _, column in leaves(steps)):
        return True
    begins_here, ends_here = np.zeros((2, ends[-1]), bool)
    begins_here[ends - num_steps] = ends_here[ends - 1] = True
    is_first, is_last, is_terminal = (steps[name] for name in fields.FLAG_FIELDS)
    if (is_first != begins_here).any() or (is_last != ends_here).any() or (is_terminal & ~is_last).any():
        return True
    discount = steps[fields.DISCOUNT]
    if ((discount < 0) | (discount > 1)).any() or (step_spec is not None and make_step_spec(steps) != step_spec):
        return True
    numbers = leaves({name: steps[name] for name in _FINITE_FIELDS})
    return any(column.dtype.kind in "fc" and not np.isfinite(column).all() for _, column in numbers)


def require_same_spec(episode: Episode, step_spec: Nest) -> None:
    """Raises `SpecMismatchError` unless the episode's steps have this spec, the one of the first episode."""
    got = make_step_spec(episode.steps)
    if got != step_spec:
        holder = f"the first episode (this is episode {episode.index})"
        require_match(got, step_spec, holder=holder, advice="make all episodes alike, or convert them apart")


def _length_problems(episode: Episode) -> Iterator[Problem]:
    num_steps = episode.num_steps
    for path, column in leaves(episode.steps):
        if len(column) != num_steps:
            message = f"{path_name(path)} has {len(column)} rows, is_first has {num_steps}; they must be equal"
            yield Problem(episode.index, None, fields.STEPS, message)
    if not num_steps:
        yield Problem(episode.index, None, fields.STEPS, "The episode has no steps; remove it or skip it.")


def _flag_problems(episode: Episode) -> Iterator[Problem]:
    is_first, is_last, is_terminal = (episode.steps[name] for name in fields.FLAG_FIELDS)
    index, end = episode.index, episode.num_steps - 1
    if not is_first[0]:
        yield Problem(index, 0, fields.IS_FIRST, f"{fields.LAST_BEFORE_MID} The first step lacks is_first.")
    for step in np.flatnonzero(is_terminal & ~is_last):
        yield Problem(index, int(step), fields.IS_TERMINAL, f"{fields.TERMINAL_NOT_LAST} It lacks is_last here.")
    for step in np.flatnonzero(is_last[:-1]):
        message = f"{fields.LAST_BEFORE_MID} Here is_last stands before the episode's end at step {end}."
        yield Problem(index, int(step), fields.IS_LAST, message)
    for step in np.flatnonzero(is_first[1:]) + 1:
        message = f"{fields.MID_BEFORE_FIRST} Here is_first stands inside the episode."
        yield Problem(index, int(step), fields.IS_FIRST, message)
    if not is_last[end]:
        message = f"{fields.MID_BEFORE_FIRST} The episode ends here without is_last."
        yield Problem(index, end, fields.IS_LAST, message)


def _number_problems(episode: Episode) -> Iterator[Problem]:
    for path, column in leaves({name: episode.steps[name] for name in _FINITE_FIELDS}):
        if column.dtype.kind not in "fc" or np.isfinite(column).all():
            continue
        bad = ~np.isfinite(column.reshape(len(column), -1)).all(axis=1)
        step = int(np.argmax(bad))
        more = f" (and in {bad.sum() - 1} more steps)" if bad.sum() > 1 else ""
        what = "NaN" if np.isnan(column[step]).any() else "Inf"
        yield Problem(episode.index, step, str(path[0]), f"{path_name(path)} holds {what}{more}.")
    discount = episode.steps[fields.DISCOUNT]
    outside = (discount < 0) | (discount > 1)
    if outside.any():
        step = int(np.argmax(outside.reshape(len(discount), -1).any(axis=1)))
        message = f"The discount is {discount[step]}; it must be in [0, 1]."
        yield Problem(episode.index, step, fields.DISCOUNT, message)
