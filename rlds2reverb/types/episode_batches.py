"""Batches of short episodes whose steps are concatenated, so that they can be processed together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import tree

from rlds2reverb.errors import InvalidEpisodeError

from .episodes import Episode, SplitEpisodes, find_errors, has_errors
from .short_repr import short_repr
from .specs import Nest, concatenate, map_structure

#: Size limit of a batch of several episodes: large enough to keep calls few, small enough to stay in the CPU caches.
MAX_BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class EpisodeBatch:
    """Consecutive episodes of one spec with at least one step each, or a single episode of any kind.

    Attributes:
      episodes: the episodes, at least one.
    """

    episodes: Sequence[Episode]

    __repr__ = short_repr

    @classmethod
    def from_columns(
        cls, steps: dict[str, Nest], num_steps: np.ndarray, final_rows: np.ndarray | None = None
    ) -> EpisodeBatch:
        """Returns a batch of concatenated columns, which are split into episodes only if those are accessed.

        Args:
          steps: columns `[R, ...]` of all episodes.
          num_steps: int64 `[E]`, the number of steps of each episode, at least 1.
          final_rows: see `final_rows`; None if all last steps hold final observations.
        """
        final_rows = np.zeros(len(num_steps), np.uint8) if final_rows is None else final_rows
        batch = cls(SplitEpisodes(steps, num_steps))
        vars(batch).update(steps=steps, num_steps=num_steps, final_rows=final_rows)  # The cached properties.
        return batch

    def with_steps(self, steps: dict[str, Nest]) -> EpisodeBatch:
        """Returns the same episodes with other columns `[R, ...]`, which are not copied."""
        parts = SplitEpisodes(steps, self.num_steps)
        batch = EpisodeBatch([replace(one, steps=part.steps) for one, part in zip(self.episodes, parts, strict=True)])
        vars(batch).update(steps=steps, num_steps=self.num_steps, final_rows=self.final_rows)
        return batch

    def select(self, is_kept: np.ndarray) -> EpisodeBatch | None:
        """Returns the concatenated steps of the episodes that are kept, bool `[E]`, or None."""
        if is_kept.all():
            return self
        if not is_kept.any():
            return None
        rows = np.repeat(is_kept, self.num_steps)
        columns = map_structure(lambda column: column[rows], self.steps)
        return EpisodeBatch.from_columns(columns, self.num_steps[is_kept], self.final_rows[is_kept])

    @cached_property
    def steps(self) -> dict[str, Nest]:
        """The concatenated steps of all episodes: dict of nests of arrays `[R, ...]`."""
        if len(self.episodes) == 1:
            return self.episodes[0].steps
        columns = zip(*[[column for _, column in episode.columns] for episode in self.episodes], strict=True)
        return tree.unflatten_as(self.episodes[0].steps, [concatenate(column) for column in columns])

    @cached_property
    def num_steps(self) -> np.ndarray:
        """The number of steps of each episode, int64 `[E]`."""
        return np.array([episode.num_steps for episode in self.episodes], np.int64)

    @cached_property
    def final_rows(self) -> np.ndarray:
        """The content of each episode's last step, uint8 `[E]`; see `FinalRow`."""
        return np.array([episode.final_row for episode in self.episodes], np.uint8)

    def locate(self, row: int) -> tuple[int, int]:
        """Returns the index of the episode of a row of `steps`, and its step."""
        number = int(np.searchsorted(np.cumsum(self.num_steps), row, side="right"))
        return self.episodes[number].index, row - int(self.num_steps[:number].sum())

    def is_valid(self, step_spec: Nest | None = None) -> bool:
        """Returns whether `episodes.find_errors` finds no error in any of the episodes."""
        return not has_errors(self.steps, self.num_steps, step_spec)

    def require_valid(self, step_spec: Nest | None = None) -> None:
        """Raises `InvalidEpisodeError` with the errors of the first episode in which `find_errors` finds some."""
        if self.is_valid(step_spec):
            return
        for episode in self.episodes:
            if errors := find_errors(episode, step_spec):
                raise InvalidEpisodeError(errors)


def batch_episodes(episodes: Iterable[Episode]) -> Iterator[EpisodeBatch]:
    """Yields all episodes in order, joining small consecutive ones of the same spec."""
    batch: list[Episode] = []
    batch_bytes = 0
    batch_spec: tuple[object, ...] = ()
    for episode in episodes:
        spec = _row_spec(episode)
        if batch and (not spec or spec != batch_spec or batch_bytes + episode.num_bytes > MAX_BATCH_BYTES):
            yield EpisodeBatch(batch)
            batch, batch_bytes = [], 0
        batch.append(episode)
        batch_bytes += episode.num_bytes
        batch_spec = spec
    if batch:
        yield EpisodeBatch(batch)


def _row_spec(episode: Episode) -> tuple[object, ...]:
    """Returns the path, dtype and row shape of each column; empty if the episode cannot be joined to others.

    Episodes without steps and episodes with columns of unequal length cannot be joined.
    """
    num_steps = episode.num_steps
    if not num_steps or any(len(column) != num_steps for _, column in episode.columns):
        return ()
    return tuple([(path, column.dtype, column.shape[1:]) for path, column in episode.columns])
