"""A ring of rows with columns in memory or in memory-mapped files."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from rlds2reverb._full_disk import full_disk_as_error
from rlds2reverb.specs import ArraySpec

#: Linux's MAP_NORESERVE, which does not reserve swap space; `mmap` exports it only from Python 3.13 on.
_NORESERVE = 0x4000
_HUGE_PAGES = 1 << 22


class RowRing:
    """Columns `[capacity, ...]`; row `r`, counted from the first push, is at position `r % capacity`.

    The columns are allocated in full, but take physical memory only as they are written. With `mmap_dir` they are in
    unnamed files, which disappear with the process; their disk space is reserved at once.
    """

    def __init__(self, specs: Sequence[ArraySpec], capacity: int, mmap_dir: Path | None = None):
        """Allocates the columns.

        Args:
          specs: specs of one row, one per column.
          capacity: number of rows.
          mmap_dir: directory of the files; None for memory.

        Raises:
          StorageFullError: If there is not enough space in the directory.
        """
        self.capacity, self._mmap_dir = capacity, mmap_dir
        #: Number of rows ever written, including those skipped because later rows of the same push replace them.
        self.num_written = 0
        self.columns = [self._allocate(spec, capacity) for spec in specs]
        #: Called with the first position and the end of the rows that are about to be overwritten; see `snapshots`.
        self.before_write: Callable[[int, int], None] | None = None

    def _allocate(self, spec: ArraySpec, capacity: int) -> np.ndarray:
        num_bytes = spec.num_bytes * capacity
        shape = (capacity, *(size or 0 for size in spec.shape))
        if not num_bytes:
            return np.zeros(shape, spec.dtype)
        if self._mmap_dir is None:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            memory = mmap.mmap(-1, num_bytes, flags=flags)
            if num_bytes >= _HUGE_PAGES:
                memory.madvise(mmap.MADV_HUGEPAGE)
        else:
            advice = f"{capacity} rows take {num_bytes / 1e6:.1f} MB: free some space, or use another mmap_dir"
            with full_disk_as_error(self._mmap_dir, consequence=advice):
                self._mmap_dir.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self._mmap_dir) as file:
                    # Without reserved space, a full disk would be a SIGBUS on a later write.
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
                    memory = mmap.mmap(file.fileno(), num_bytes)
        return np.frombuffer(memory, spec.dtype, num_bytes // spec.dtype.itemsize).reshape(shape)

    @property
    def num_used(self) -> int:
        """Number of positions that were ever written, which are the first ones."""
        return min(self.num_written, self.capacity)

    def write(self, columns: Sequence[np.ndarray]) -> None:
        """Writes rows `[R, ...]`, at most `capacity` of them, to the next positions."""
        count = len(columns[0])
        begin = self.num_written % self.capacity
        cut = min(count, self.capacity - begin)
        for rows, position in ((slice(0, cut), begin), (slice(cut, count), 0)):
            size = rows.stop - rows.start
            if size and self.before_write is not None:
                self.before_write(position, position + size)
            for ring, column in zip(self.columns, columns, strict=True):
                ring[position : position + size] = column[rows]
        self.num_written += count

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns copies of rows by number, int64 of any shape: one array `[*shape, ...]` per column."""
        positions = rows % self.capacity
        return [column.take(positions, axis=0) for column in self.columns]

    def widen(self, dtypes: Mapping[int, np.dtype]) -> None:
        """Converts columns to wider dtypes that keep all values."""
        specs = {index: ArraySpec(self.columns[index].shape[1:], dtype) for index, dtype in dtypes.items()}
        wider = {index: self._allocate(spec, self.capacity) for index, spec in specs.items()}
        for index, column in wider.items():
            column[: self.num_used] = self.columns[index][: self.num_used]
            self.columns[index] = column

    def grow(self, capacity: int, first_row: int) -> None:
        """Increases the capacity and keeps the rows from `first_row` on."""
        old_columns, end = self.columns, self.num_written
        self.columns = [self._allocate(ArraySpec(c.shape[1:], c.dtype), capacity) for c in old_columns]
        seams = [(first_row // size + 1) * size for size in (self.capacity, capacity)]  # Where the rings wrap around.
        cuts = sorted({first_row, end, *(min(seam, end) for seam in seams)})
        for first, last in pairwise(cuts):
            old, new = first % self.capacity, first % capacity
            for target, source in zip(self.columns, old_columns, strict=True):
                target[new : new + last - first] = source[old : old + last - first]
        self.capacity = capacity
        self.before_write = None  # A snapshot keeps the old columns, which do not change any more.
