"""The steps of a dataset at any rows, from arrays in memory or in memory-mapped files."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from rlds2reverb.errors import CorruptFileError
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.fingerprints import Fingerprint
from rlds2reverb.types.specs import Nest

from .image_files import Decoder, decode_images, keep_files
from .layout import ATTRIBUTES, EPISODES, ROWS, Layout, array_name, blank_images, fill_structure, read_attributes

#: Size from which on a part in memory is followed by another one.
PART_BYTES = 32 << 20
#: Maximum number of steps of several episodes that are read at a time.
_BATCH_ROWS = 8192
#: Minimum time between two comparisons of the sizes of mapped files.
CHECK_SECS = 0.05


class StepColumns:
    """The steps of consecutive episodes, which can be read at any rows.

    Attributes:
      layout: the layout.
      num_steps: int64 `[E]`, the number of steps of each episode.
      starts: int64 `[E]`, the first row of each episode.
      ends: int64 `[E]`, the row after the last one of each episode.
      final_rows: uint8 `[E]`, the content of the last step of each episode; see `FinalRow`.
    """

    def __init__(self, layout: Layout, parts: Sequence[Mapping[str, np.ndarray]]):
        """
        Args:
          layout: the layout of all parts.
          parts: the arrays of each part, whose episodes follow those of the part before.
        """
        self.layout, self._parts = layout, list(parts)
        records = [part[EPISODES] for part in self._parts]
        self._records = np.concatenate(records) if records else np.zeros(0, layout.array_specs()[EPISODES].dtype)
        self.num_steps: np.ndarray = self._records["num_steps"].astype(np.int64)
        self.final_rows: np.ndarray = self._records["final_row"]
        self.ends = np.cumsum(self.num_steps)
        self.starts: np.ndarray = self.ends - self.num_steps
        has_steps = self.num_steps > 0
        #: How many episodes with steps precede each episode.
        self._num_earlier: np.ndarray = np.cumsum(has_steps) - has_steps
        arrays = (part[name] for part in self._parts for name in part)
        mapped = [array if isinstance(array, np.memmap) else array.base for array in arrays]
        self._mapped: list[Any] = [array for array in mapped if isinstance(array, np.memmap)]
        self._checked_at = float("-inf")
        self._first_rows = _find_firsts([len(part[ROWS]) for part in self._parts])
        self._first_episodes = _find_firsts([len(part[EPISODES]) for part in self._parts])

    def __len__(self) -> int:
        """Returns the number of steps."""
        return int(self.num_steps.sum())

    @property
    def has_images(self) -> bool:
        """True if there are images, which `take` can leave out."""
        return any(column.is_image for column in self.layout.columns)

    @property
    def num_bytes(self) -> int:
        """The size of all arrays."""
        return sum(array.nbytes for part in self._parts for array in part.values())

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the episodes with steps, as they were stored; see `fingerprints.Fingerprint`."""
        return Fingerprint(self._records["digest"][self.num_steps > 0].tobytes()).hexdigest()

    def take(
        self,
        rows: np.ndarray,
        names: Sequence[str] | None = None,
        *,
        decode: Decoder = decode_images,
        with_images: bool = True,
    ) -> dict[str, Nest]:
        """Returns the steps at some rows.

        Args:
          rows: int64 `[N]`, each at least 0 and below `len(self)`.
          names: fields to read, or dotted paths of their parts, such as 'observation.state'; None for all.
          decode: function that decodes images.
          with_images: whether images are read; read-only zeros stand for them otherwise.

        Returns:
          dict of nests of arrays `[N, ...]`; text is bytes. The other arrays belong to the caller.

        Raises:
          SourceError: If an image does not have the spec of the first one.
          CorruptFileError: If a file has been truncated.
        """
        self._require_mapped()
        values: dict[int, np.ndarray] = {}
        packed = None
        structure = self.layout.select(names)
        for number in tree.flatten(structure):
            column = self.layout.columns[number]
            if column.is_image and not with_images:
                values[number] = blank_images(len(rows), column.pixels or column.spec)
            elif column.kind == "packed":
                packed = self._gather(ROWS, rows, self._first_rows) if packed is None else packed
                values[number] = self.layout.unpack(packed, number)
            elif column.kind == "frames":
                frames = self._take_frames(number, rows)
                values[number] = np.moveaxis(frames, 1, -1) if column.stack else frames[:, 0]
            else:
                texts = self._take_bytes(number, rows)
                if column.pixels is None:
                    values[number] = np.array(texts, object)
                else:
                    values[number] = column.decode(texts, decode, lambda place: self._locate(int(rows[place])))
        return fill_structure(structure, values)

    def _locate(self, row: int) -> tuple[int, int]:
        """Returns the index of the episode of a row, and its step."""
        episode = int(np.searchsorted(self.ends, row, side="right"))
        return episode, int(row - self.starts[episode])

    def read_episodes(
        self, first: int = 0, stop: int | None = None, *, image_decoding: bool = True, with_images: bool = True
    ) -> Iterator[Episode]:
        """Yields the episodes from `first` to before `stop`.

        Args:
          first: index of the first episode.
          stop: index after the last one; None for all.
          image_decoding: whether images are decoded; their files otherwise.
          with_images: see `take`.
        """
        for index in range(*slice(first, stop).indices(len(self.num_steps))):
            rows = np.arange(self.starts[index], self.ends[index])
            steps = self.take(rows, decode=decode_images if image_decoding else keep_files, with_images=with_images)
            yield Episode(steps, index, **self._read_attributes(index))

    def read_batches(self, names: Sequence[str] | None = None) -> Iterator[tuple[dict[str, Nest], np.ndarray]]:
        """Yields the steps of some episodes after the other, and how many each of them has, int64 `[E]`.

        Args:
          names: fields to read; None for all.
        """
        first = 0
        while first < len(self.num_steps):
            start = int(self.starts[first])
            stop = max(int(np.searchsorted(self.ends, start + _BATCH_ROWS, side="right")), first + 1)
            yield self.take(np.arange(start, self.ends[stop - 1]), names), self.num_steps[first:stop]
            first = stop

    def _gather(self, name: str, places: np.ndarray, firsts: np.ndarray) -> np.ndarray:
        """Returns the elements of an array at places that count over all parts, `firsts` being those of the parts."""
        arrays = [part[name] for part in self._parts]
        if len(arrays) == 1:
            return _take(arrays[0], places)
        result = np.empty((len(places), *arrays[0].shape[1:]), arrays[0].dtype)
        numbers = np.searchsorted(firsts, places, side="right") - 1
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(len(arrays) + 1))
        for number, array in enumerate(arrays):
            chosen = order[bounds[number] : bounds[number + 1]]
            if len(chosen):
                result[chosen] = _take(array, places[chosen] - firsts[number])
        return result

    def _take_frames(self, number: int, rows: np.ndarray) -> np.ndarray:
        """Returns the frames of some steps, `[N, K, ...]`, where K is 1 without stacks."""
        column, name = self.layout.columns[number], array_name(number, "frames")
        if not column.stack:
            return self._gather(name, rows, self._first_rows)[:, None]
        episodes = np.searchsorted(self.ends, rows, side="right")
        first_frames = rows + column.num_more_frames * self._num_earlier[episodes]
        places = (first_frames[:, None] + np.arange(column.stack)).ravel()
        firsts = _find_firsts([len(part[name]) for part in self._parts])
        return self._gather(name, places, firsts).reshape(len(rows), column.stack, *column.frame_shape)

    def _take_bytes(self, number: int, rows: np.ndarray) -> list[bytes]:
        ends = self._gather(array_name(number, "ends"), rows, self._first_rows)
        starts = self._gather(array_name(number, "ends"), np.maximum(rows - 1, 0), self._first_rows)
        parts = np.searchsorted(self._first_rows, rows, side="right") - 1
        starts[rows == self._first_rows[parts]] = 0
        contents = [part[array_name(number, "bytes")] for part in self._parts]
        for part, content in enumerate(contents):
            if isinstance(content, np.memmap):
                wanted = np.unique(starts[parts == part], return_index=True)
                _read_ahead(content, wanted[0], ends[parts == part][wanted[1]] - wanted[0])
        views = [content.view(np.ndarray) for content in contents]
        places = zip(parts.tolist(), starts.tolist(), ends.tolist(), strict=True)
        return [views[part][start:end].tobytes() for part, start, end in places]

    def _read_attributes(self, index: int) -> dict[str, Any]:
        number = int(np.searchsorted(self._first_episodes, index, side="right")) - 1
        part, place = self._parts[number], index - int(self._first_episodes[number])
        self._require_mapped()
        ends = part[EPISODES]["attributes_end"]
        return read_attributes(part[ATTRIBUTES][ends[place - 1] if place else 0 : ends[place]].tobytes())

    def _require_mapped(self) -> None:
        """Raises `CorruptFileError` if a file that is mapped into memory has been truncated since it was opened.

        Reading what is no longer there would end the process (SIGBUS). The sizes are compared every 50 ms, because that
        takes as long as reading a small batch.
        """
        now = time.monotonic()
        if now - self._checked_at < CHECK_SECS:
            return
        self._checked_at = now
        for mapped in self._mapped:
            if mapped._mmap.size() < mapped.nbytes:
                raise CorruptFileError(
                    f"{mapped.filename} was truncated while it was read; delete the store, and build it again"
                )


class MemoryColumns:
    """A builder of `StepColumns` in memory, which joins the arrays of episodes to parts of about 32 MB."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self._parts: list[dict[str, np.ndarray]] = []
        self._start_part()

    def append(self, batch: EpisodeBatch) -> None:
        """Adds episodes; raises as `Layout.encode`."""
        self._pending.append(self.layout.encode(batch, self._sizes))
        for name, added in self._pending[-1].items():
            self._sizes[name] += len(added)
            self._num_bytes += added.nbytes
        if self._num_bytes > PART_BYTES:
            self._end_part()

    def finish(self) -> StepColumns:
        """Returns the steps."""
        self._end_part()
        return StepColumns(self.layout, self._parts)

    def _start_part(self) -> None:
        specs: Any = self.layout.array_specs()
        self._pending = [{name: np.zeros((0, *spec.shape), spec.dtype) for name, spec in specs.items()}]
        self._sizes, self._num_bytes = dict.fromkeys(specs, 0), 0

    def _end_part(self) -> None:
        self._parts.append({name: np.concatenate([part[name] for part in self._pending]) for name in self._sizes})
        self._start_part()


def _take(array: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns elements of an array; those of a file that is mapped as `np.memmap` are read in parallel first."""
    if isinstance(array, np.memmap):
        size = array.dtype.itemsize * int(np.prod(array.shape[1:]))
        _read_ahead(array, np.unique(places) * size, size)
        array = array.view(np.ndarray)
    return array.take(places, axis=0)


def _read_ahead(array: Any, offsets: np.ndarray, sizes: Any) -> None:
    """Asks the system to read parts of a mapped file, and does not wait for them."""
    starts = offsets // mmap.PAGESIZE * mmap.PAGESIZE
    for start, length in zip(starts.tolist(), (offsets + sizes - starts).tolist(), strict=True):
        array._mmap.madvise(mmap.MADV_WILLNEED, start, length)


def _find_firsts(lengths: Sequence[int]) -> np.ndarray:
    """Returns the number of elements before each part, int64."""
    return np.cumsum([0, *lengths[:-1]], dtype=np.int64) if lengths else np.zeros(0, np.int64)
