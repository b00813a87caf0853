"""Several datasets read one after the other as a single source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.types.episodes import Episode

from .readers.episode_metadata import make_metadata
from .source import Identity, Source, keep_images_encoded, leave_out
from .task_texts import TASK_FIELDS

_DESCRIPTIONS = ("env_spec", "action_space", "observation_space", "version")


def concatenate_sources(sources: Sequence[Source]) -> Source:
    """Returns a source with the episodes of several sources in order, which are numbered consecutively.

    Metadata and spaces are kept if they are the same in all sources. Texts of tasks that differ become metadata of the
    episodes. A single source is returned unchanged.

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
    rates = [source.metadata.get("fps") for source in sources]
    about_rates = [] if _common(rates) == rates[0] else [f"{name} have different rates (fps): {_list_rates(rates)}"]
    counts = [source.count for source in sources if source.count is not None]
    read = _Concatenation(sources).read
    return Source(
        name,
        kinds[0],
        read,
        num_episodes=_sum([source.num_episodes for source in sources]),
        num_rows=_sum([source.num_rows for source in sources]),
        warnings=tuple(dict.fromkeys([*about_rates, *(text for source in sources for text in source.warnings)])),
        metadata={
            key: value
            for key, value in sources[0].metadata.items()
            if _common([source.metadata.get(key) for source in sources]) == value
        },
        **{name: _common([getattr(source, name) for source in sources]) for name in _DESCRIPTIONS},
        count=(lambda: sum(count() for count in counts)) if len(counts) == len(sources) else None,
        assumed_fields=tuple(dict.fromkeys(name for source in sources for name in source.assumed_fields)),
        descriptions=_common([source.descriptions for source in sources]) or {},
        unread=tuple(dict.fromkeys(name for source in sources for name in source.unread)),
        identity=Identity(read, "concatenation", sources=tuple(sources)),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _list_rates(rates: Sequence[Any]) -> str:
    return ", ".join(dict.fromkeys("unknown" if rate is None else str(rate) for rate in rates))


def _common(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


@dataclass(frozen=True)
class _Concatenation:
    """The episodes of several sources."""

    sources: Sequence[Source]

    @property
    def encoded(self) -> _Concatenation | None:
        """See `source.keep_images_encoded`."""
        encoded = [keep_images_encoded(source) for source in self.sources]
        return _Concatenation(encoded) if any(source.decodes_images for source in encoded) else None

    def without(self, paths: Sequence[str]) -> tuple[_Concatenation, list[str]]:
        """See `source.leave_out`; a field must be left out of all sources."""
        parts = [leave_out(source, paths) for source in self.sources]
        found = _common([found for _, found in parts])
        return (_Concatenation([source for source, _ in parts]), found) if found else (self, [])

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        """Yields all episodes, or those of a range, numbered consecutively."""
        parts = [(source, ()) for source in self.sources] if stop is None else _divide(self.sources, first, stop)
        index = first
        texts = {name: [source.metadata.get(name) for source in self.sources] for name in TASK_FIELDS}
        differing = [name for name, of_name in texts.items() if None not in of_name and _common(of_name) is None]
        for source, bounds in parts:
            tasks = make_metadata({name: source.metadata[name] for name in differing})
            for episode in source.read(*bounds):
                yield replace(episode, index=index, metadata={**tasks, **episode.metadata})
                index += 1


def _divide(sources: Sequence[Source], first: int, stop: int) -> Iterator[tuple[Source, tuple[int, ...]]]:
    """Yields the sources that contain episodes of a range, and which of their own episodes these are."""
    end = 0
    for source in sources:
        begin, end = end, end + (source.count() if source.count else 0)
        if begin < stop and first < end:
            yield source, (max(first, begin) - begin, min(stop, end) - begin)
