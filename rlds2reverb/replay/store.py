"""The data of a buffer's elements, each stored as a run of rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .item_spec import ItemRows, ItemSpec, is_lossless
from .rows import RowRing

#: Initial capacity in rows if elements can have any length.
_INITIAL_ROWS = 4096


class Store:
    """Elements of one spec by number, counted from the first push.

    Without a time axis, element `n` is row `n`. With one, it begins at row `starts[n % max_size]`, and elements can
    share rows: overlapping sequences of an episode are stored once. Rows are overwritten in the order of the element
    numbers; an element that was removed early keeps its rows until its number is `max_size` back.
    """

    def __init__(self, spec: ItemSpec, max_size: int, mmap_dir: Path | None = None, *, capacity: int | None = None):
        """Creates an empty store.

        Args:
          spec: spec of the elements.
          max_size: number of elements to keep.
          mmap_dir: see `rows.RowRing`.
          capacity: initial number of rows; None for the default.
        """
        self.spec, self.max_size = spec, max_size
        rows = _INITIAL_ROWS if spec.length is None else max_size * spec.length
        self.ring = RowRing(spec.leaves, capacity or rows, mmap_dir)
        self.starts = np.zeros(max_size if spec.has_time_axis else 0, np.int64)
        self.lengths = np.zeros(max_size if spec.length is None else 0, np.int64)

    @classmethod
    def load(
        cls, spec: ItemSpec, max_size: int, mmap_dir: Path | None, arrays: Mapping[str, np.ndarray], push_count: int
    ) -> Store:
        """Restores the store that `arrays` was called on after `push_count` pushes.

        Raises:
          KeyError, ValueError: If an array is missing or has another length.
        """
        num_written, capacity = (int(number) for number in arrays["ring"])
        store = cls(spec, max_size, mmap_dir, capacity=capacity)
        store.ring.num_written = num_written
        num_elements, num_rows = min(push_count, max_size), store.ring.num_used
        if len(store.starts):
            store.starts[:num_elements] = _require_length(arrays["starts"], num_elements)
        if len(store.lengths):
            store.lengths[:num_elements] = _require_length(arrays["lengths"], num_elements)
        for index, column in enumerate(store.ring.columns):
            column[:num_rows] = _require_length(arrays[f"column_{index}"], num_rows)
        return store

    def arrays(self, push_count: int) -> dict[str, np.ndarray]:
        """Returns copies of everything except the columns, after `push_count` pushes."""
        used = min(push_count, self.max_size)
        ring = np.array([self.ring.num_written, self.ring.capacity])
        return {"ring": ring, "starts": self.starts[:used].copy(), "lengths": self.lengths[:used].copy()}

    def widen(self, spec: ItemSpec) -> None:
        """Changes to a wider spec.

        Raises:
          SpecMismatchError: If a stored number would change; nothing is changed then.
        """
        dtypes = {}
        for index, (own, new) in enumerate(zip(self.spec.leaves, spec.leaves, strict=True)):
            if own != new:
                if not is_lossless(self.ring.columns[index][: self.ring.num_used], new.dtype):
                    raise self.spec.make_widening_error(index, "item")
                dtypes[index] = new.dtype
        self.ring.widen(dtypes)
        self.spec = spec

    def write(self, number: int, rows: ItemRows, starts: np.ndarray | None = None) -> None:
        """Adds elements in place of those `max_size` before them; of more than `max_size` it keeps the last ones.

        Args:
          number: number of the first element.
          rows: rows of the elements.
          starts: int64 `[N]`, first row of each element; None if they are contiguous.
        """
        columns, num_skipped = rows.columns, max(0, len(rows.lengths) - self.max_size)
        if not self.spec.has_time_axis:
            self.ring.num_written += num_skipped  # The others fill the whole ring and would overwrite these rows.
            self.ring.write([column[num_skipped:] for column in columns])
            return
        starts = np.cumsum(rows.lengths) - rows.lengths if starts is None else starts
        starts, lengths = starts[num_skipped:], rows.lengths[num_skipped:]
        columns = [column[starts[0] : starts[-1] + lengths[-1]] for column in columns]
        numbers = np.arange(number + num_skipped, number + len(rows.lengths))
        if self.spec.length is None:
            self._reserve(len(columns[0]), int(numbers[-1]) + 1 - self.max_size, int(numbers[0]))
            self.lengths[numbers % self.max_size] = lengths
        self.starts[numbers % self.max_size] = self.ring.num_written + starts - starts[0]
        self.ring.write(columns)

    def _reserve(self, num_rows: int, oldest: int, end: int) -> None:
        """Grows until new rows fit in addition to those of the elements from `oldest` to before `end`."""
        ring, oldest = self.ring, max(oldest, 0)
        first_row = int(self.starts[oldest % self.max_size]) if oldest < end else ring.num_written
        needed = ring.num_written - first_row + num_rows
        if needed > ring.capacity:
            ring.grow(max(2 * ring.capacity, needed), first_row)

    def get_lengths(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the number of rows of each element, int64 `[M]`."""
        if self.spec.length is None:
            return self.lengths[numbers % self.max_size]
        return np.full(len(numbers), self.spec.length)

    def read(
        self, numbers: np.ndarray, offsets: np.ndarray | int = 0, num_rows: int | None = None
    ) -> tuple[list[np.ndarray], np.ndarray | None]:
        """Copies elements, or windows of them.

        Args:
          numbers: int64 `[M]`.
          offsets: first row of the window in each element.
          num_rows: number of rows in a window; None for whole elements.

        Returns:
          One array `[M, ...]` per column, or `[M, T, ...]` with a time axis, where T is the window's or the longest
          element's number of rows, padded with zeros; and bool `[M, T]`, False for padding, or None if there is none.
        """
        if not self.spec.has_time_axis:
            return self.ring.read(numbers), None
        lengths = self.get_lengths(numbers)
        num_rows = int(lengths.max(initial=0)) if num_rows is None else num_rows
        steps = np.add.outer(np.zeros(len(numbers), np.int64) + offsets, np.arange(num_rows))
        rows = self.starts[numbers % self.max_size][:, None] + steps
        mask = steps < lengths[:, None]
        if mask.all():
            return self.ring.read(rows), None
        columns = self.ring.read(np.where(mask, rows, rows[:, :1]))
        for column in columns:
            column[~mask] = 0
        return columns, mask

    def read_elements(self, numbers: np.ndarray) -> Any:
        """Copies whole elements: a nest of columns `[M, ...]`, or a list of nests if lengths vary."""
        columns, _ = self.read(numbers)
        if self.spec.length is not None:
            return self.spec.pack(columns)
        lengths = self.get_lengths(numbers).tolist()
        return [self.spec.pack([c[i, :length] for c in columns]) for i, length in enumerate(lengths)]


def _require_length(array: np.ndarray, length: int) -> np.ndarray:
    if len(array) != length:
        raise ValueError(f"an array must have {length} rows, got {len(array)}")
    return array
