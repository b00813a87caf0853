"""Batches of episodes: several short ones with their steps one after the other, so that they are worked on together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tree

from rlds2reverb.episodes import Episode, has_problems
from rlds2reverb.specs import Nest, concatenate

#: The most bytes of a batch of several episodes: enough to make calls few, and few enough to stay in the caches.
_BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class EpisodeBatch:
    """Consecutive episodes of one spec, each of at least one step; or a single one of any kind.

    Attributes:
      episodes: at least one.
    """

    episodes: Sequence[Episode]

    @cached_property
    def steps(self) -> dict[str, Nest]:
        """The steps of all episodes, one after the other: dict of nests of arrays `[R, ...]`."""
        if len(self.episodes) == 1:
            return self.episodes[0].steps
        columns = zip(*[[column for _, column in episode.columns] for episode in self.episodes], strict=True)
        return tree.unflatten_as(self.episodes[0].steps, [concatenate(column) for column in columns])

    @cached_property
    def num_steps(self) -> np.ndarray:
        """The steps of each episode, int64 `[E]`."""
        return np.array([episode.num_steps for episode in self.episodes], np.int64)

    def is_valid(self, step_spec: Nest | None = None) -> bool:
        """Returns whether `episodes.find_problems` finds nothing in any of the episodes."""
        return not has_problems(self.steps, self.num_steps, step_spec)


def in_batches(episodes: Iterable[Episode]) -> Iterator[EpisodeBatch]:
    """Yields the episodes in order, those together that are small, follow each other and have one spec."""
    held: list[Episode] = []
    held_bytes = 0
    spec: tuple[object, ...] = ()
    for episode in episodes:
        own = _joinable_spec(episode)
        if held and (not own or own != spec or held_bytes + episode.num_bytes > _BATCH_BYTES):
            yield EpisodeBatch(held)
            held, held_bytes = [], 0
        held.append(episode)
        held_bytes += episode.num_bytes
        spec = own
    if held:
        yield EpisodeBatch(held)


def _joinable_spec(episode: Episode) -> tuple[object, ...]:
    """Returns what episodes have to have in common to be joined; nothing if it has no steps or uneven columns."""
    num_steps = episode.num_steps
    if not num_steps or any(len(column) != num_steps for _, column in episode.columns):
        return ()
    return tuple([(path, column.dtype, column.shape[1:]) for path, column in episode.columns])
