"""Columns read block by block, the next one ahead; HDF5's gzip chunks are unpacked here, by up to two threads.

HDF5 itself unpacks chunks one after the other, with zlib. Here each chunk is a task: a reading thread takes one after
the other, and so does the consumer as soon as it would have to wait; libdeflate is about twice as fast as zlib.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import deflate
import h5py
import numpy as np

#: Rows from start to stop: the array that will hold them, and what has to be done before it does.
_Task = Callable[[], None]
_Reader = Callable[[int, int], tuple[np.ndarray, list[_Task]]]

_BLOCKS_AHEAD = 1
#: For smaller chunks a task costs more than it saves.
_MIN_CHUNK_BYTES = 4 << 10
#: What one block of a column may keep for the next one: a row of chunks side by side, unpacked.
_MAX_KEPT_BYTES = 32 << 20


def read_blocks(
    columns: Mapping[str, Any], bounds: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
    """Yields the rows of all columns block by block, as `(start, stop, rows)`, and reads one block ahead.

    Args:
      columns: arrays, or data sets of an open HDF5 file, `[N, ...]`.
      bounds: where each block starts and stops; each starts where the one before stopped.

    Raises:
      OSError: if an HDF5 file's chunk cannot be read or unpacked.
    """
    readers = {name: _reader(column) for name, column in columns.items()}
    with ThreadPoolExecutor(1) as thread:
        ahead: deque[tuple[_Block, Future[None]]] = deque()
        for start, stop in bounds:
            block = _Block(readers, start, stop)
            ahead.append((block, thread.submit(block.work)))
            if len(ahead) > _BLOCKS_AHEAD:
                yield _finished(*ahead.popleft())
        while ahead:
            yield _finished(*ahead.popleft())


class _Block:
    """Holds the rows from start to stop, and the tasks that have to be done before they are complete."""

    def __init__(self, readers: Mapping[str, _Reader], start: int, stop: int):
        self.start, self.stop = start, stop
        self.rows: dict[str, np.ndarray] = {}
        self._tasks: deque[_Task] = deque()
        for name, reader in readers.items():
            self.rows[name], tasks = reader(start, stop)
            self._tasks.extend(tasks)

    def work(self) -> None:
        """Does all tasks that no other thread has begun."""
        while True:
            try:
                task = self._tasks.popleft()
            except IndexError:
                return
            task()


def _finished(block: _Block, reading: Future[None]) -> tuple[int, int, dict[str, np.ndarray]]:
    block.work()
    reading.result()
    return block.start, block.stop, block.rows


def _reader(column: Any) -> _Reader:
    if not isinstance(column, h5py.Dataset):
        return lambda start, stop: (column[start:stop], [])
    if _is_gzip(column):
        return _GzipReader(column).read
    return partial(_read_by_hdf5, column)


def _read_by_hdf5(dataset: h5py.Dataset, start: int, stop: int) -> tuple[np.ndarray, list[_Task]]:
    out = np.empty((stop - start, *dataset.shape[1:]), dataset.dtype)
    return out, [lambda: dataset.read_direct(out, np.s_[start:stop])]


def _is_gzip(dataset: h5py.Dataset) -> bool:
    """Whether its chunks hold gzip of values as numpy has them, and are neither tiny nor too large for memory."""
    if dataset.chunks is None or math.prod(dataset.shape) == 0:
        return False
    filters = dataset.id.get_create_plist()
    if filters.get_nfilters() != 1 or filters.get_filter(0)[0] != h5py.h5z.FILTER_DEFLATE:
        return False
    chunk_bytes = dataset.dtype.itemsize * math.prod(dataset.chunks)
    side_by_side = math.prod(map(_ceil_div, dataset.shape[1:], dataset.chunks[1:]))
    return (
        chunk_bytes >= _MIN_CHUNK_BYTES
        and chunk_bytes * side_by_side <= _MAX_KEPT_BYTES
        and dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype)
    )


def _ceil_div(size: int, chunk: int) -> int:
    return -(-size // chunk)


class _GzipReader:
    """Reads a data set in blocks that follow each other; a chunk that reaches into the next one is kept for it."""

    def __init__(self, dataset: h5py.Dataset):
        self._dataset = dataset
        self._shape, self._dtype, self._chunk_shape = dataset.shape, dataset.dtype, dataset.chunks
        self._kept: dict[tuple[int, ...], _Chunk] = {}

    def read(self, start: int, stop: int) -> tuple[np.ndarray, list[_Task]]:
        """Returns the array for the rows from start to stop, and a task for each chunk that has some of them."""
        row_shape, (num_rows, *widths) = self._shape[1:], self._chunk_shape
        out = np.empty((stop - start, *row_shape), self._dtype)
        corners = itertools.product(
            range(start - start % num_rows, stop, num_rows), *map(range, itertools.repeat(0), row_shape, widths)
        )
        chunks = {corner: self._kept.get(corner) or _Chunk(corner, self._unpacked) for corner in corners}
        self._kept = {corner: chunk for corner, chunk in chunks.items() if corner[0] + num_rows > stop}
        return out, [partial(chunk.copy_to, out, start) for chunk in chunks.values()]

    def _unpacked(self, corner: tuple[int, ...]) -> np.ndarray:
        """Returns a chunk's values; what is not gzip of just that size is left to HDF5, to read or to refuse."""
        shape = self._chunk_shape
        try:
            unfiltered, stored = self._dataset.id.read_direct_chunk(corner)
            if not unfiltered:
                values = deflate.zlib_decompress(stored, self._dtype.itemsize * math.prod(shape))
                return np.frombuffer(values, self._dtype).reshape(shape)
        except (OSError, RuntimeError, ValueError, deflate.DeflateError):
            pass
        return self._dataset[tuple(slice(begin, begin + size) for begin, size in zip(corner, shape, strict=True))]


class _Chunk:
    """One chunk of a data set, unpacked by the first thread that needs it."""

    def __init__(self, corner: tuple[int, ...], unpack: Callable[[tuple[int, ...]], np.ndarray]):
        self._corner, self._unpack = corner, unpack
        self._values: np.ndarray | None = None
        self._lock = threading.Lock()

    def copy_to(self, out: np.ndarray, start: int) -> None:
        """Copies its values to where they belong in rows of the data set that begin at `start`."""
        with self._lock:
            if self._values is None:
                self._values = self._unpack(self._corner)
        row, *others = self._corner
        values = self._values[max(start - row, 0) : start + len(out) - row]
        place = out[(slice(max(row - start, 0), None), *(slice(corner, None) for corner in others))]
        common = tuple(map(slice, map(min, place.shape, values.shape)))  # the last chunks reach past the data's end
        _whole(place[common])[...] = _whole(values[common])


def _whole(values: np.ndarray) -> np.ndarray:
    """Returns a view in which the values of the last axis are one value, which numpy copies faster."""
    return values.view(f"V{values.shape[-1] * values.itemsize}") if values.ndim > 1 else values
