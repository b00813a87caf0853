"""Parts of a dataset that no transition of its episodes contains, and parts of steps that transitions do not have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tree

from rlds2reverb.errors import Message

from . import fields
from .episode_batches import EpisodeBatch
from .episodes import locate_discontinuity


@dataclass(kw_only=True)
class LeftOut:
    """Counts of the values that no transition has, and of transitions without a next observation.

    Attributes:
      dropped_last_transition: number of transitions dropped because their truncated episode has no final observation.
      unbootstrapped: number of truncated episodes whose last transition is kept without a next observation; see
        `Episode.unknown_final_observation`.
      discontinuities: number of rows inside episodes whose `next_observations` differs from the next row's observation.
      first_discontinuity: location of the first one, or ''.
      first_discontinuous_episode: index of its episode, or None.
      boundary_values: number of episodes with a reward or an action other than zero in their last step, which belongs
        to no transition.
      first_boundary_values: index of the first of these episodes, or None.
    """

    dropped_last_transition: int = 0
    unbootstrapped: int = 0
    discontinuities: int = 0
    first_discontinuity: str = ""
    first_discontinuous_episode: int | None = None
    boundary_values: int = 0
    first_boundary_values: int | None = None

    def count_left_out(self, batch: EpisodeBatch, *, uses_all_actions: bool = False) -> None:
        """Adds the counts of some episodes, valid or not, of which an adder may use the last actions."""
        for episode in batch.episodes:
            self.dropped_last_transition += episode.dropped_last_transition and not uses_all_actions
            self.unbootstrapped += episode.unknown_final_observation and not episode.is_terminal
            if rows := episode.discontinuities:
                found = LeftOut(discontinuities=len(rows), first_discontinuous_episode=episode.index)
                found.first_discontinuity = locate_discontinuity(episode)
                self.merge_left_out(found)
        numbers = np.flatnonzero(_find_boundary_values(batch)).tolist()
        if numbers:
            first = min(batch.episodes[number].index for number in numbers)
            self.merge_left_out(LeftOut(boundary_values=len(numbers), first_boundary_values=first))

    def merge_left_out(self, other: LeftOut) -> None:
        """Adds the counts of other episodes of the same dataset, in any order."""
        self.dropped_last_transition += other.dropped_last_transition
        self.unbootstrapped += other.unbootstrapped
        self.discontinuities += other.discontinuities
        if _is_before(other.first_discontinuous_episode, self.first_discontinuous_episode):
            self.first_discontinuity = other.first_discontinuity
            self.first_discontinuous_episode = other.first_discontinuous_episode
        self.boundary_values += other.boundary_values
        if _is_before(other.first_boundary_values, self.first_boundary_values):
            self.first_boundary_values = other.first_boundary_values

    def describe_left_out(self) -> tuple[str, ...]:
        """Returns one sentence for each kind of value that the episodes leave out."""
        sentences = []
        if self.dropped_last_transition:
            sentences.append(
                f"the last transitions of {self.dropped_last_transition:,} truncated episodes are left out, and their "
                "rewards not counted in returns, because their next observations are unknown; provide "
                "next_observations, or one more observation than actions"
            )
        if self.unbootstrapped:
            sentences.append(
                f"the last transitions of {self.unbootstrapped:,} truncated episodes have the discount 0, because "
                "their next observations are unknown and cannot be bootstrapped from"
            )
        if self.discontinuities:
            sentence = (
                f"next_observations differs from the observation of the next row in {self.discontinuities:,} rows "
                f"inside episodes, first in {self.first_discontinuity}, and the next row's observation is used; if "
                "D4RL's end flags are missing there, split the episodes"
            )
            sentences.append(Message(sentence, split_at_discontinuity=True))
        if self.boundary_values:
            sentences.append(
                f"the last steps of {self.boundary_values:,} episodes, first of episode {self.first_boundary_values}, "
                "have a reward or an action other than zero; no transition begins there, so they are neither used nor "
                "counted in returns"
            )
        return tuple(sentences)


def _is_before(index: int | None, other: int | None) -> bool:
    return index is not None and (other is None or index < other)


def _find_boundary_values(batch: EpisodeBatch) -> np.ndarray:
    """Returns which episodes have a reward or an action other than zero in a last step of no transition: bool `[E]`.

    The last step of an episode that lost its last transition has those of that transition, which is counted separately.
    """
    num_rows = int(batch.num_steps.sum())
    columns = tree.flatten([batch.steps[name] for name in (fields.ACTION, fields.REWARD)])
    is_found = np.zeros(len(batch.num_steps), bool)
    if num_rows and all(len(column) == num_rows for column in columns):
        for column in columns:
            is_found |= find_nonzero_final_rows(batch, column)
    if is_found.any():
        is_found &= [not episode.dropped_last_transition for episode in batch.episodes]
    return is_found


def find_nonzero_final_rows(batch: EpisodeBatch, column: np.ndarray) -> np.ndarray:
    """Returns for each episode whether its last row differs from zeros or empty strings: bool `[E]`."""
    rows = column[np.cumsum(batch.num_steps) - 1]
    is_nonzero = np.asarray(rows != (0 if rows.dtype != object else b""), bool)
    return is_nonzero if rows.ndim == 1 else is_nonzero.reshape(len(rows), -1).any(axis=1)
