"""Reading of datasets some of whose episodes cannot be read or are invalid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from rlds2reverb.errors import ErrorFinding, SourceError, UnusableSourceError
from rlds2reverb.types.episode_batches import batch_episodes
from rlds2reverb.types.episodes import Episode, find_errors

from .source import Source, SourceReader, identify_step

#: Field of the error of an episode that cannot be read.
FILES = "files"
#: Number of episodes in a row for which reading may fail with the same message.
_MAX_REPEATS = 100


def read_readable(
    source: Source, on_error: Callable[[ErrorFinding], None], first: int = 0, stop: int | None = None
) -> Iterator[Episode]:
    """Yields the episodes of a range that can be read; calls `on_error` with the error of each of the others.

    Raises:
      SourceError: If the source can only be read from the first episode, and one cannot be read; or if many in a row
        cannot be read for the same reason, which is then that of the whole source.
    """
    if source.count is None:
        yield from source.read_range(first, stop)
        return
    end, reason, repeats = source.count() if stop is None else stop, "", 0
    while first < end:
        try:
            for episode in source.read(first, end):
                yield episode
                first = max(first, episode.index) + 1
            return
        except UnusableSourceError:
            raise
        except SourceError as error:
            repeats = repeats + 1 if str(error) == reason else 0
            reason = str(error)
            if repeats == _MAX_REPEATS:
                raise UnusableSourceError(reason) from error
            on_error(ErrorFinding(first, None, FILES, str(error)))
            first += 1


@dataclass(frozen=True)
class _ValidEpisodes(SourceReader):
    """The episodes of a source that can be read and are valid; `skipped` receives the first error of the others.

    With `keeps_invalid`, those that can be read are not checked.
    """

    skipped: dict[int, ErrorFinding] = field(default_factory=dict)
    keeps_invalid: bool = False

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        """Yields the valid episodes of a range, numbered as in the source."""
        if self.keeps_invalid:
            yield from self._read_readable(first, stop)
            return
        spec = None
        if first:
            spec = next((self.source.make_step_spec(episode) for episode in self.read()), None)
        for batch in batch_episodes(self._read_readable(first, stop)):
            is_valid = spec is not None and batch.is_valid(spec)
            for episode in batch.episodes:
                errors = [] if is_valid else find_errors(episode, spec)
                if errors:
                    self._skip(errors[0])
                else:
                    spec = self.source.make_step_spec(episode) if spec is None else spec
                    yield episode

    def _read_readable(self, first: int, stop: int | None) -> Iterator[Episode]:
        for episode in read_readable(self.source, self._skip, first, stop):
            self.skipped.pop(episode.index, None)  # It may have been skipped because of a field that is left out now.
            yield episode

    def _skip(self, error: ErrorFinding) -> None:
        self.skipped[error.episode] = error


def skip_invalid(source: Source, *, keeps_invalid: bool = False) -> Source:
    """Returns a source without the episodes that cannot be read or have errors, which its `skipped` lists.

    With `keeps_invalid`, only those that cannot be read are left out: the caller checks the others. A source that
    leaves them out already is returned unchanged. Episodes keep their numbers, and `num_episodes` and `count` include
    those that are left out. A source that can only be read from the first episode, such as a function, ends with an
    error at an episode that cannot be read.
    """
    if source.skipped is not None:
        return source
    valid = _ValidEpisodes(source, keeps_invalid=keeps_invalid)
    kept = "readable episodes" if keeps_invalid else "valid episodes"
    return identify_step(source, replace(source, read=valid.read, skipped=valid.skipped), kept)


def count_skipped(source: Source, num_read: int) -> int:
    """Returns the number of episodes that `skip_invalid` left out, in any process, given the number of the others."""
    if source.skipped is None:
        return 0
    return len(source.skipped) if source.count is None else source.count() - num_read


def describe_skipped(source: Source, num_skipped: int) -> list[str]:
    """Returns a sentence about the episodes that are left out, or an empty list."""
    if not num_skipped:
        return []
    first = min(source.skipped or (), default=None)
    about_first = "" if first is None or source.skipped is None else f", such as: {source.skipped[first]}"
    return [f"{num_skipped:,} invalid episodes are left out{about_first}"]
