"""Rows of columns in a ring, in memory or in files that are mapped into it."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from rlds2reverb.specs import ArraySpec

#: Linux's flag of memory that is not counted before it is written to; `mmap` has no name for it before Python 3.13.
_NORESERVE = 0x4000
_HUGE_PAGES = 1 << 22


class RowRing:
    """Columns `[capacity, ...]`; row `r`, counted from the first ever, lies in place `r % capacity`.

    The columns are there in full from the beginning, and take memory as they are written to. With a folder they are in
    files there, which have no names and so go with the process: their space is taken at once.
    """

    def __init__(self, specs: Sequence[ArraySpec], capacity: int, folder: Path | None = None):
        """Empty.

        Args:
          specs: of a row of each column.
          capacity: places.
          folder: for the files; None for memory.

        Raises:
          OSError: if there is no space in the folder.
        """
        self.capacity, self._folder = capacity, folder
        #: Rows that were written since the beginning.
        self.num_written = 0
        self.columns = [self._new(spec, capacity) for spec in specs]
        #: Is called with the first place and the end of those that are about to be written to; see `snapshots`.
        self.before_write: Callable[[int, int], None] | None = None

    def _new(self, spec: ArraySpec, capacity: int) -> np.ndarray:
        num_bytes = spec.num_bytes * capacity
        shape = (capacity, *(size or 0 for size in spec.shape))
        if not num_bytes:
            return np.zeros(shape, spec.dtype)
        if self._folder is None:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            memory = mmap.mmap(-1, num_bytes, flags=flags)
            if num_bytes >= _HUGE_PAGES:
                memory.madvise(mmap.MADV_HUGEPAGE)
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder) as file:
                os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full disk is an error here, and a crash later
                memory = mmap.mmap(file.fileno(), num_bytes)
        return np.frombuffer(memory, spec.dtype, num_bytes // spec.dtype.itemsize).reshape(shape)

    @property
    def num_used(self) -> int:
        """Places that were written to, the first ones."""
        return min(self.num_written, self.capacity)

    def write(self, columns: Sequence[np.ndarray]) -> None:
        """Writes rows `[R, ...]`, R up to the capacity, into the next places."""
        count = len(columns[0])
        begin = self.num_written % self.capacity
        cut = min(count, self.capacity - begin)
        for rows, place in ((slice(0, cut), begin), (slice(cut, count), 0)):
            size = rows.stop - rows.start
            if size and self.before_write is not None:
                self.before_write(place, place + size)
            for ring, column in zip(self.columns, columns, strict=True):
                ring[place : place + size] = column[rows]
        self.num_written += count

    def skip(self, count: int) -> None:
        """Counts rows as written that would be overwritten at once; what is written next has to fill all places."""
        self.num_written += count

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """Copies of rows by their numbers, int64 of any shape: for each column `[*shape, ...]`."""
        places = rows % self.capacity
        return [column.take(places, axis=0) for column in self.columns]

    def widen(self, dtypes: Mapping[int, np.dtype]) -> None:
        """Gives columns other dtypes, in which their numbers are the same."""
        before = {at: self.columns[at] for at in dtypes}
        wider = {at: self._new(ArraySpec(before[at].shape[1:], dtypes[at]), self.capacity) for at in dtypes}
        for at, column in wider.items():
            column[: self.num_used] = before[at][: self.num_used]
            self.columns[at] = column

    def grow(self, capacity: int, first_row: int) -> None:
        """Gets more places; the rows from `first_row` on are kept."""
        before, end = self.columns, self.num_written
        self.columns = [self._new(ArraySpec(c.shape[1:], c.dtype), capacity) for c in before]
        seams = [(first_row // size + 1) * size for size in (self.capacity, capacity)]  # where either ring begins again
        cuts = sorted({first_row, end, *(min(seam, end) for seam in seams)})
        for first, last in pairwise(cuts):
            old, new = first % self.capacity, first % capacity
            for target, source in zip(self.columns, before, strict=True):
                target[new : new + last - first] = source[old : old + last - first]
        self.capacity = capacity
        self.before_write = None  # who reads the columns of before finds them as they are for good
