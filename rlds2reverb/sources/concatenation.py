"""Several datasets read one after the other as a single source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError

from .source import EpisodeRanges, Source


def concatenate_sources(sources: Sequence[Source]) -> Source:
    """Returns a source with the episodes of several sources in order, which are numbered consecutively.

    Metadata and spaces are kept if they are the same in all sources. A single source is returned unchanged.

    Args:
      sources: the sources, at least one. Their episodes must have the same fields, which `ingest` checks.

    Raises:
      SourceError: If the sources are of different kinds.
    """
    if len(sources) == 1:
        return sources[0]
    name = f"{sources[0].name} and {len(sources) - 1} more"
    kinds = sorted({source.kind for source in sources})
    if len(kinds) > 1:
        raise SourceError(f"{name} mixes datasets of the kinds {' and '.join(kinds)}; convert them separately")
    ranges = [source.ranges for source in sources if source.ranges is not None]
    return Source(
        name,
        kinds[0],
        _Concatenation(sources).read,
        num_episodes=_sum([source.num_episodes for source in sources]),
        num_rows=_sum([source.num_rows for source in sources]),
        warnings=tuple(dict.fromkeys(warning for source in sources for warning in source.warnings)),
        metadata=_common([source.metadata for source in sources]) or {},
        env_spec=_common([source.env_spec for source in sources]),
        action_space=_common([source.action_space for source in sources]),
        observation_space=_common([source.observation_space for source in sources]),
        ranges=_ConcatenatedRanges(ranges) if len(ranges) == len(sources) else None,
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _common(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


@dataclass(frozen=True)
class _Concatenation:
    sources: Sequence[Source]

    def read(self) -> Iterator[Episode]:
        index = 0
        for source in self.sources:
            for episode in source.read():
                yield replace(episode, index=index)
                index += 1


@dataclass(frozen=True)
class _ConcatenatedRanges:
    """The episodes of several `EpisodeRanges`, numbered consecutively."""

    parts: Sequence[EpisodeRanges]

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((part.count() for part in self.parts), initial=0))

    def count(self) -> int:
        return self._starts[-1]

    def read(self, first: int, stop: int) -> Iterator[Episode]:
        for part, start, end in zip(self.parts, self._starts, self._starts[1:], strict=False):
            if start < stop and first < end:
                for episode in part.read(max(first, start) - start, min(stop, end) - start):
                    yield replace(episode, index=episode.index + start)
