"""Hindsight: recorded episodes as if other goals had been desired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np
import tree

from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count, require_one_of
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.nest_paths import find_leaves, get_part, replace_part
from rlds2reverb.types.ownership import isolate
from rlds2reverb.types.specs import Nest, describe, map_structure

if TYPE_CHECKING:
    from rlds2reverb.datasets import Source

Strategy = Literal["final", "future", "episode"]
Unit = Literal["transition", "episode"]

#: A function of achieved goals `[T, ...]`, desired goals `[T, ...]` and the transitions, that returns `[T]`.
GoalFn = Callable[[np.ndarray, np.ndarray, dict[str, Nest]], Any]


@dataclass(frozen=True)
class GoalRelabel:
    """A transform of episodes that adds copies whose desired goals were achieved later; hindsight experience replay.

    Andrychowicz et al. (2017), "Hindsight Experience Replay", section 3.3 and algorithm 1, with the strategies of
    section 4.5:

        final    the goal achieved in the last step of the episode
        future   goals achieved in steps of the episode after the transition, uniformly at random
        episode  goals achieved in any steps of the episode, uniformly at random

    It is applied before an adder:

        relabel = GoalRelabel(env.unwrapped.compute_reward)
        ingest(relabel(source), server, adder=NStep(1, 0.99))
        relabel(source).to_rlds().apply(NStep(1, 0.99))

    A source becomes a source, and an `Episode` a list. `load` makes a source of an RLDS dataset. Each episode is
    followed by its copies, which `unit` describes:

    - 'transition', as in the paper: each copy is an episode of one transition with a separate goal. There are
      `num_goals` for each of the T transitions.
    - 'episode': all transitions of a copy share a goal, so that items of several steps can be made from it. There are
      `num_goals` copies of each episode. With 'future', a copy ends with the step that achieves its goal. That step is
      uniformly distributed, so that for a given transition it is uniform among the later steps, as in the paper; but
      early transitions occur in more copies than late ones.

    Rewards of copies are those of `reward_fn`, cast to the dtype of the recorded ones, and 0 in the last step.

    Both ends of an episode: each copy has a first and a last step. A copy ends at the first transition for which
    `terminal_fn` returns True. It is then terminal, with the discount 0 on this transition and on the last step.
    Otherwise it is truncated, with the recorded discounts. If the recorded episode is terminal there, but the copy is
    not, its discount is that of the step before, or 1. Episodes of a single step have no copies. If the final
    observation of an `Episode` is unknown, so is the goal achieved in it, and copies end before it.

    ALF's `HindsightExperienceTransformer` relabels batches when they are sampled, with the strategy 'future'.

    Attributes:
      reward_fn: function that returns the rewards of T transitions, `[T]`, given the goals achieved after them
        `[T, ...]`, the desired goals `[T, ...]`, and a dict of the recorded `observation`, `action`, `reward`,
        `next_observation` `[T, ...]` and `is_terminal` `[T]`. It must be deterministic.
      strategy: 'final', 'future' or 'episode'.
      num_goals: number of goals for each transition, or copies of each episode, at least 1; 'final' has always 1.
      unit: 'transition' for a goal per transition, 'episode' for a goal per copy of an episode.
      terminal_fn: function like `reward_fn` that returns bool `[T]`; None to keep the recorded ends, which is wrong if
        reaching the recorded goal ends an episode.
      achieved_goal: path of the achieved goal in the observations, such as 'state.achieved_goal'.
      desired_goal: path of the desired goal, which has the shape of the achieved one.
      keep_original: whether the episodes themselves are part of the result.
      seed: seed of the goals. They depend on it and on the number of the episode among those with steps.
    """

    reward_fn: GoalFn
    strategy: Strategy = "future"
    num_goals: int = 4
    unit: Unit = "transition"
    terminal_fn: GoalFn | None = None
    achieved_goal: str = "achieved_goal"
    desired_goal: str = "desired_goal"
    keep_original: bool = field(default=True, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        require_one_of("strategy", self.strategy, get_args(Strategy))
        require_one_of("unit", self.unit, get_args(Unit))
        require_count("num_goals", self.num_goals)
        require_count("seed", self.seed, 0)

    @overload
    def __call__(self, episodes: Source) -> Source: ...

    @overload
    def __call__(self, episodes: Episode) -> list[Episode]: ...

    def __call__(self, episodes: Any) -> Any:
        """Returns the episodes with their copies.

        Args:
          episodes: a `Source` or one `Episode`.

        Raises:
          ValueError: If there is no such goal in the observations, both goals differ in shape, or a function returns
            another shape than `[T]`.
          TypeError: For anything else.
        """
        if isinstance(episodes, Episode):
            return list(self._make_episodes(episodes, 0, episodes.index))
        if is_dataclass(episodes) and hasattr(episodes, "read"):  # A `Source`, which is of a later part.
            self._find_goals(episodes.step_spec[fields.OBSERVATION])
            return replace(episodes, read=lambda: self._read(episodes), num_episodes=None, num_rows=None, count=None)
        raise TypeError(f"expected a Source or an Episode, got a {type(episodes).__name__}; open it with load")

    def relabel(self, steps: dict[str, Nest], number: int) -> tuple[dict[str, Nest], np.ndarray]:
        """Returns the steps of an episode and its copies, `[R, ...]`, and their numbers of steps, int64 `[E]`.

        Args:
          steps: RLDS columns `[N, ...]` of the episode, N >= 1.
          number: number of the episode, on which its goals depend.
        """
        random = np.random.default_rng((self.seed, number))
        num_transitions = len(steps[fields.IS_LAST]) - 1
        starts, ends, goals = self.choose_segments(num_transitions, random)
        copies, num_steps = self._make_copies(steps, starts, ends, goals)
        if not self.keep_original:
            return copies, num_steps
        joined = tree.map_structure(lambda own, copied: np.concatenate([own, copied]), steps, copies)
        return joined, np.concatenate([[num_transitions + 1], num_steps])

    def choose_segments(
        self, num_transitions: int, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the first step, the last step and the step of the goal of each copy, int64 `[E]`."""
        if not num_transitions:
            return tuple(np.zeros((3, 0), np.int64))
        size = 1 if self.strategy == "final" else self.num_goals
        starts = np.repeat(np.arange(num_transitions if self.unit == "transition" else 1), size)
        if self.strategy == "final":
            goals = np.full(len(starts), num_transitions)
        else:
            goals = random.integers(starts + 1 if self.strategy == "future" else 0, num_transitions + 1, len(starts))
        if self.unit == "transition":
            return starts, starts + 1, goals
        return starts, goals if self.strategy == "future" else np.full(len(starts), num_transitions), goals

    def _make_copies(
        self, steps: dict[str, Nest], starts: np.ndarray, ends: np.ndarray, goals: np.ndarray
    ) -> tuple[dict[str, Nest], np.ndarray]:
        """Returns the steps of the copies, of the given ranges of steps with the goals achieved in the given steps."""
        achieved_keys, desired_keys = self._find_goals(steps[fields.OBSERVATION])
        achieved = get_part(steps[fields.OBSERVATION], achieved_keys)
        num_steps = ends - starts + 1
        offsets = np.arange(num_steps.sum()) - np.repeat(np.cumsum(num_steps) - num_steps, num_steps)
        rows, goal_rows = np.repeat(starts, num_steps) + offsets, np.repeat(goals, num_steps)
        has_next = offsets < np.repeat(num_steps, num_steps) - 1
        rewards, terminals = self._evaluate(steps, achieved, rows[has_next], goal_rows[has_next])

        # Copies end at their first terminal transition: rows after it are dropped.
        is_terminal = np.zeros(len(rows), bool)
        is_terminal[1:][has_next[:-1]] = terminals
        num_before = np.cumsum(is_terminal) - is_terminal
        first_rows = np.cumsum(num_steps) - num_steps
        is_kept = num_before == np.repeat(num_before[first_rows], num_steps)
        num_steps = np.add.reduceat(is_kept, first_rows) if len(num_steps) else num_steps
        is_last = np.zeros(int(is_kept.sum()), bool)
        is_last[np.cumsum(num_steps) - 1] = True
        all_rewards = np.zeros((len(rows), *rewards.shape[1:]), rewards.dtype)
        all_rewards[has_next] = rewards
        rows, goal_rows, is_terminal = rows[is_kept], goal_rows[is_kept], is_terminal[is_kept]

        copies = map_structure(lambda column: column[rows], steps)
        observation = copies[fields.OBSERVATION]
        new_goals = achieved[goal_rows].astype(get_part(observation, desired_keys).dtype, copy=False)
        discounts = _drop_terminal(steps)[rows]
        discounts[is_terminal] = 0
        discounts[:-1][is_terminal[1:]] = 0
        copies |= {
            fields.OBSERVATION: replace_part(observation, desired_keys, lambda _: new_goals),
            fields.REWARD: np.where(is_last, 0, all_rewards[is_kept]).astype(rewards.dtype),
            fields.DISCOUNT: discounts,
            fields.IS_FIRST: np.concatenate([[True], is_last[:-1]])[: len(rows)],
            fields.IS_LAST: is_last,
            fields.IS_TERMINAL: is_terminal,
        }
        return copies, num_steps.astype(np.int64)

    def _evaluate(
        self, steps: dict[str, Nest], achieved: np.ndarray, rows: np.ndarray, goal_rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rewards of the transitions from the given rows, and whether they are terminal."""
        recorded = steps[fields.REWARD]
        if not isinstance(recorded, np.ndarray) or recorded.ndim != 1:
            raise ValueError(f"GoalRelabel requires one reward per step, got {map_structure(describe, recorded)}")
        terminals = steps[fields.IS_TERMINAL][rows + 1]
        if not len(rows):
            return recorded[rows], terminals
        current = {name: steps[name] for name in (fields.OBSERVATION, fields.ACTION, fields.REWARD)}
        transitions = {
            **map_structure(lambda column: column[rows], current),
            "next_observation": map_structure(lambda column: column[rows + 1], steps[fields.OBSERVATION]),
            fields.IS_TERMINAL: terminals,
        }
        arguments = achieved[rows + 1], achieved[goal_rows], transitions
        rewards = _require_row("reward_fn", isolate(self.reward_fn)(*arguments), len(rows)).astype(recorded.dtype)
        if self.terminal_fn is not None:
            terminals = _require_row("terminal_fn", isolate(self.terminal_fn)(*arguments), len(rows)).astype(bool)
        return rewards, terminals

    def _find_goals(self, observation: Nest) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the keys of the achieved and of the desired goal in (the spec of) observations."""
        keys = []
        for name in (self.achieved_goal, self.desired_goal):
            found = find_leaves(observation, name)
            if not found[0][1]:
                raise ValueError(f"the goal {name!r} must be one array, got a nest; use the path of an array in it")
            keys.append(found[0][0])
        achieved, desired = (get_part(observation, part) for part in keys)
        if achieved.shape != desired.shape:
            raise ValueError(
                f"both goals must have the same shape, but {self.achieved_goal!r} is {describe(achieved)}, and "
                f"{self.desired_goal!r} is {describe(desired)}"
            )
        return keys[0], keys[1]

    def _make_episodes(self, episode: Episode, number: int, first_index: int) -> Iterator[Episode]:
        if not episode.num_steps:
            return
        steps, num_steps = self.relabel(_drop_unknown_end(episode), number)
        for position, made in enumerate(EpisodeBatch.from_columns(steps, num_steps).episodes if len(num_steps) else ()):
            is_original = self.keep_original and not position
            yield replace(episode if is_original else made, index=first_index + position)

    def _read(self, source: Source) -> Iterator[Episode]:
        index = 0
        for number, episode in enumerate(episode for episode in source if episode.num_steps):
            for made in self._make_episodes(episode, number, index):
                yield made
                index += 1


def _drop_unknown_end(episode: Episode) -> dict[str, Nest]:
    """Returns the steps of an episode up to its last known observation, because later goals are unknown, too."""
    if not episode.unknown_final_observation:
        return episode.steps
    steps = map_structure(lambda column: column[:-1], episode.steps)
    return {**steps, fields.IS_LAST: np.arange(episode.num_steps - 1) == episode.num_steps - 2}


def _drop_terminal(steps: dict[str, Nest]) -> np.ndarray:
    """Returns a copy of the discounts as if the episode had been truncated."""
    discounts = np.array(steps[fields.DISCOUNT])
    if steps[fields.IS_TERMINAL][-1]:
        discounts[-2:] = discounts[-3] if len(discounts) > 2 else 1
    return discounts


def _require_row(name: str, values: Any, size: int) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != (size,):
        raise ValueError(f"{name} must return one value per transition, shape ({size},), got shape {array.shape}")
    return array
