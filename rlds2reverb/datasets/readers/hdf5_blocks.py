"""Fast reading of HDF5 columns in blocks, one block ahead of the consumer.

HDF5 itself unpacks gzip chunks one after the other, with zlib. Here each chunk is a task for libdeflate, which is about
twice as fast; a background thread works on the tasks, and so does the consumer when it would otherwise wait.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import deflate
import h5py
import numpy as np
from h5py._objects import phil

_Task = Callable[[], None]
#: Function of `start` and `stop` that returns an array for these rows and the tasks that fill it.
_RangeReader = Callable[[int, int], tuple[np.ndarray, list[_Task]]]

_BLOCKS_AHEAD = 1
#: Minimum size of a chunk; for smaller ones a task costs more than it saves.
MIN_CHUNK_BYTES = 4 << 10
#: Maximum unpacked size of the chunks of a column that a block keeps for the next one.
MAX_KEPT_BYTES = 32 << 20


def read_blocks(
    columns: Mapping[str, Any], bounds: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
    """Yields the rows of all columns block by block, as `(start, stop, rows)`, and reads one block ahead.

    Args:
      columns: arrays, or datasets of an open HDF5 file, `[N, ...]`.
      bounds: start and stop of each block; each block starts where the previous one stops.

    Raises:
      OSError: If a chunk of an HDF5 file cannot be read or unpacked.
    """
    readers = {name: _make_reader(column) for name, column in columns.items()}
    thread = ThreadPoolExecutor(1)
    pending: deque[_Block] = deque()
    try:
        for start, stop in bounds:
            arrays = {name: reader(start, stop) for name, reader in readers.items()}
            tasks = deque(task for _, column_tasks in arrays.values() for task in column_tasks)
            rows = {name: array for name, (array, _) in arrays.items()}
            pending.append(_Block(start, stop, rows, tasks, thread.submit(_run_tasks, tasks)))
            if len(pending) > _BLOCKS_AHEAD:
                yield _finish(pending.popleft())
        yield from map(_finish, pending)
    finally:  # Garbage collection may drop the iterator while h5py's lock is held, so nothing waits for the thread.
        for block in pending:
            block.tasks.clear()
        thread.shutdown(wait=False, cancel_futures=True)


class _Block(NamedTuple):
    """The rows of one block, the tasks that no thread has started, and the future of the background thread."""

    start: int
    stop: int
    rows: dict[str, np.ndarray]
    tasks: deque[_Task]
    reading: Future[None]


def _finish(block: _Block) -> tuple[int, int, dict[str, np.ndarray]]:
    _run_tasks(block.tasks)
    block.reading.result()
    return block[:3]


def _run_tasks(tasks: deque[_Task]) -> None:
    """Runs the tasks that no other thread has started."""
    while True:
        try:
            task = tasks.popleft()
        except IndexError:
            return
        task()


def _make_reader(column: Any) -> _RangeReader:
    if not isinstance(column, h5py.Dataset):
        return lambda start, stop: (column[start:stop], [])
    if _is_plain_gzip(column):
        return _GzipReader(column).read
    return partial(_read_by_hdf5, column)


def _read_by_hdf5(dataset: h5py.Dataset, start: int, stop: int) -> tuple[np.ndarray, list[_Task]]:
    out = np.empty((stop - start, *dataset.shape[1:]), dataset.dtype)
    return out, [lambda: dataset.read_direct(out, np.s_[start:stop])]


def _is_plain_gzip(dataset: h5py.Dataset) -> bool:
    """Returns whether the chunks are gzip of numpy's representation, and neither tiny nor too large for memory."""
    if dataset.chunks is None or math.prod(dataset.shape) == 0:
        return False
    filters = dataset.id.get_create_plist()
    if filters.get_nfilters() != 1 or filters.get_filter(0)[0] != h5py.h5z.FILTER_DEFLATE:
        return False
    chunk_bytes = dataset.dtype.itemsize * math.prod(dataset.chunks)
    axes = zip(dataset.shape[1:], dataset.chunks[1:], strict=True)
    chunks_per_row = math.prod(-(-size // chunk) for size, chunk in axes)
    has_good_size = chunk_bytes >= MIN_CHUNK_BYTES and chunk_bytes * chunks_per_row <= MAX_KEPT_BYTES
    return has_good_size and bool(dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype))


class _GzipReader:
    """Reader of consecutive blocks of a dataset; a chunk that extends into the next block is kept for it."""

    def __init__(self, dataset: h5py.Dataset):
        self._dataset = dataset
        self._shape, self._dtype, self._chunk_shape = dataset.shape, dataset.dtype, dataset.chunks
        self._kept: dict[tuple[int, ...], _Chunk] = {}

    def read(self, start: int, stop: int) -> tuple[np.ndarray, list[_Task]]:
        """Returns an array for the rows from start to stop, and a task for each chunk that contains some of them."""
        row_shape, (num_rows, *widths) = self._shape[1:], self._chunk_shape
        out = np.empty((stop - start, *row_shape), self._dtype)
        corners = itertools.product(
            range(start - start % num_rows, stop, num_rows), *map(range, itertools.repeat(0), row_shape, widths)
        )
        chunks = {corner: self._kept.get(corner) or _Chunk(corner, self._unpack) for corner in corners}
        self._kept = {corner: chunk for corner, chunk in chunks.items() if corner[0] + num_rows > stop}
        return out, [partial(chunk.copy_to, out, start) for chunk in chunks.values()]

    def _unpack(self, corner: tuple[int, ...]) -> np.ndarray:
        """Returns the values of a chunk; HDF5 handles anything but gzip of exactly that size, and reports damage."""
        shape = self._chunk_shape
        with contextlib.suppress(OSError, RuntimeError, ValueError, deflate.DeflateError):
            with phil:  # In h5py 3.14, it does not take h5py's lock itself.
                unfiltered, stored = self._dataset.id.read_direct_chunk(corner)
            if not unfiltered:
                values = deflate.zlib_decompress(stored, self._dtype.itemsize * math.prod(shape))
                return np.frombuffer(values, self._dtype).reshape(shape)
        return self._dataset[tuple(slice(begin, begin + size) for begin, size in zip(corner, shape, strict=True))]


class _Chunk:
    """One chunk of a dataset, unpacked by the first thread that needs it."""

    def __init__(self, corner: tuple[int, ...], unpack: Callable[[tuple[int, ...]], np.ndarray]):
        self._corner, self._unpack = corner, unpack
        self._values: np.ndarray | None = None
        self._lock = threading.Lock()

    def copy_to(self, out: np.ndarray, start: int) -> None:
        """Copies its values to their place in `out`, the rows of the dataset from `start`."""
        with self._lock:
            if self._values is None:
                self._values = self._unpack(self._corner)
        row, *others = self._corner
        values = self._values[max(start - row, 0) : start + len(out) - row]
        place = out[(slice(max(row - start, 0), None), *(slice(corner, None) for corner in others))]
        common = tuple(map(slice, map(min, place.shape, values.shape)))  # The last chunks extend past the data's end.
        _merge_last_axis(place[common])[...] = _merge_last_axis(values[common])


def _merge_last_axis(values: np.ndarray) -> np.ndarray:
    """Returns a view in which the last axis is merged into one value, which numpy copies faster."""
    return values.view(f"V{values.shape[-1] * values.itemsize}") if values.ndim > 1 else values
