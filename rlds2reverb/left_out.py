"""What is in a dataset, but in no transition of its episodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlds2reverb import fields
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import locate_discontinuity
from rlds2reverb.specs import leaves


@dataclass(kw_only=True)
class LeftOut:
    """Counts of the values that no transition has.

    Attributes:
      dropped_last_transition: number of transitions dropped because their truncated episode has no final observation.
      discontinuities: number of rows inside episodes whose `next_observations` differs from the next row's observation.
      first_discontinuity: location of the first one, or ''.
      boundary_values: number of episodes with a reward or an action other than zero in their last step, which belongs
        to no transition.
      first_boundary_values: index of the first of these episodes, or None.
    """

    dropped_last_transition: int = 0
    discontinuities: int = 0
    first_discontinuity: str = ""
    boundary_values: int = 0
    first_boundary_values: int | None = None

    def count_left_out(self, batch: EpisodeBatch) -> None:
        """Adds the counts of some episodes, valid or not."""
        for episode in batch.episodes:
            self.dropped_last_transition += episode.dropped_last_transition
            if episode.discontinuities:
                self.discontinuities += len(episode.discontinuities)
                self.first_discontinuity = self.first_discontinuity or locate_discontinuity(episode)
        found = np.flatnonzero(_find_boundary_values(batch))
        if len(found):
            self.boundary_values += len(found)
            self._set_first(batch.episodes[int(found[0])].index)

    def merge_left_out(self, other: LeftOut) -> None:
        """Adds the counts of later episodes of the same dataset, or of another shard of it."""
        self.dropped_last_transition += other.dropped_last_transition
        self.discontinuities += other.discontinuities
        self.first_discontinuity = self.first_discontinuity or other.first_discontinuity
        self.boundary_values += other.boundary_values
        if other.first_boundary_values is not None:
            self._set_first(other.first_boundary_values)

    def describe_left_out(self) -> tuple[str, ...]:
        """Returns one sentence for each kind of value that the episodes leave out."""
        sentences = []
        if self.dropped_last_transition:
            sentences.append(
                f"the last transitions of {self.dropped_last_transition:,} truncated episodes are left out because "
                "their next observations are unknown; provide next_observations, or one more observation than actions"
            )
        if self.discontinuities:
            sentences.append(
                f"next_observations differs from the observation of the next row in {self.discontinuities:,} rows "
                f"inside episodes, first in {self.first_discontinuity}, and the next row's observation is used; if "
                "D4RL's end flags are missing there, set split_at_discontinuity=True to split the episodes"
            )
        if self.boundary_values:
            sentences.append(
                f"the last steps of {self.boundary_values:,} episodes, first of episode {self.first_boundary_values}, "
                "have a reward or an action other than zero; no transition begins there, so they are neither used nor "
                "counted in returns"
            )
        return tuple(sentences)

    def _set_first(self, index: int) -> None:
        first = self.first_boundary_values
        self.first_boundary_values = index if first is None else min(first, index)


def _find_boundary_values(batch: EpisodeBatch) -> np.ndarray:
    """Returns which episodes have a reward or an action other than zero in a last step of no transition: bool `[E]`.

    The last step of an episode that lost its last transition has those of that transition, which is counted anyway.
    """
    ends = np.cumsum(batch.num_steps)
    columns = [column for _, column in leaves({name: batch.steps[name] for name in (fields.ACTION, fields.REWARD)})]
    if not ends[-1] or any(len(column) != ends[-1] for column in columns):
        return np.zeros(len(ends), bool)
    has_values = np.array([not episode.dropped_last_transition for episode in batch.episodes])
    return has_values & np.any([_is_nonzero(column[ends - 1]) for column in columns], axis=0)


def _is_nonzero(rows: np.ndarray) -> np.ndarray:
    zero = b"" if rows.dtype == object else 0
    return np.asarray(rows.reshape(len(rows), -1) != zero, bool).any(axis=1)
