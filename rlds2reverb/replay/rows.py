"""A ring of rows with columns in memory or in memory-mapped files."""

from __future__ import annotations

import mmap
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlds2reverb.system.full_disk import full_disk_as_error
from rlds2reverb.system.platform import reserve_space
from rlds2reverb.types.specs import ArraySpec

#: Linux's MAP_NORESERVE, which does not reserve swap space; `mmap` exports it only from Python 3.13 on.
_NORESERVE = 0x4000
_HUGE_PAGES = 1 << 22


class RowRing:
    """Columns `[capacity, ...]`; row `r`, counted from the first push, is at position `r % capacity`.

    The columns are allocated in full, but take physical memory only as they are written. With `mmap_dir` they are in
    unnamed files, which disappear with the process; their disk space is reserved at once.

    Attributes:
      capacity: number of rows.
      num_written: number of rows ever written.
      columns: the columns.
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
        self._specs, self._mmap_dir = specs, mmap_dir
        self.capacity, self.num_written = capacity, 0
        self.columns = [self._allocate(spec, capacity) for spec in specs]

    def _allocate(self, spec: ArraySpec, capacity: int) -> np.ndarray:
        num_bytes = spec.num_bytes * capacity
        shape = (capacity, *(size or 0 for size in spec.shape))
        if not num_bytes or (self._mmap_dir is None and sys.platform != "linux"):
            return np.zeros(shape, spec.dtype)
        if self._mmap_dir is None:
            memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
            if num_bytes >= _HUGE_PAGES:
                memory.madvise(mmap.MADV_HUGEPAGE)
        else:
            advice = f"{capacity} rows take {num_bytes / 1e6:.1f} MB: free some space, or use another mmap_dir"
            with full_disk_as_error(self._mmap_dir, consequence=advice):
                self._mmap_dir.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self._mmap_dir) as file:
                    # Without reserved space, a full disk would be a SIGBUS on a later write.
                    reserve_space(file.fileno(), num_bytes)
                    memory = mmap.mmap(file.fileno(), num_bytes)
        return np.frombuffer(memory, spec.dtype, num_bytes // spec.dtype.itemsize).reshape(shape)

    def write(self, columns: Sequence[np.ndarray], first_kept: int) -> None:
        """Writes rows `[R, ...]` to the next positions, and grows if rows from `first_kept` on would be overwritten."""
        count = len(columns[0])
        needed = self.num_written - first_kept + count
        if needed > self.capacity:
            self._grow(max(2 * self.capacity, needed), first_kept)
        begin = self.num_written % self.capacity
        cut = min(count, self.capacity - begin)
        for own, column in zip(self.columns, columns, strict=True):
            own[begin : begin + cut] = column[:cut]
            own[: count - cut] = column[cut:]
        self.num_written += count

    def _grow(self, capacity: int, first_kept: int) -> None:
        kept = np.arange(first_kept, self.num_written)
        grown = [self._allocate(spec, capacity) for spec in self._specs]
        for own, column in zip(grown, self.columns, strict=True):
            own[kept % capacity] = column[kept % self.capacity]
        self.columns, self.capacity = grown, capacity

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns copies of rows by number, int64 of any shape: one array `[*shape, ...]` per column."""
        positions = rows % self.capacity
        return [column.take(positions, axis=0) for column in self.columns]

    def state(self) -> dict[str, np.ndarray]:
        """Returns copies of the rows that were written, and their number and the capacity."""
        used = slice(0, min(self.num_written, self.capacity))
        columns = {f"column_{index}": column[used].copy() for index, column in enumerate(self.columns)}
        return {"ring": np.array([self.num_written, self.capacity]), **columns}
