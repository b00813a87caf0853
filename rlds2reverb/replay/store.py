"""The data of a buffer's elements: each is a run of rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .item_spec import ItemSpec, Rows, is_exact
from .rows import RowRing

#: Places of a ring to begin with, where elements have any length.
_FIRST_ROWS = 4096


class Store:
    """Elements of one spec by their numbers, which count from the first ever.

    Without a time axis element `n` is row `n`. With one it is the rows from `starts[n % max_size]` on, and elements may
    share rows: overlapping sequences of an episode are stored once. Elements leave in the order of their numbers as far
    as the store goes; one that left early keeps its rows until its number is `max_size` back.
    """

    def __init__(self, spec: ItemSpec, max_size: int, folder: Path | None = None, *, capacity: int | None = None):
        """Empty.

        Args:
          spec: of the elements.
          max_size: how many are kept.
          folder: see `rows.RowRing`.
          capacity: of the ring; None for that to begin with.
        """
        self.spec, self.max_size = spec, max_size
        rows = _FIRST_ROWS if spec.length is None else max_size * spec.length
        self.ring = RowRing(spec.leaves, capacity or rows, folder)
        self.starts = np.zeros(max_size if spec.has_time else 0, np.int64)
        self.lengths = np.zeros(max_size if spec.length is None else 0, np.int64)

    @classmethod
    def loaded(
        cls, spec: ItemSpec, max_size: int, folder: Path | None, arrays: Mapping[str, np.ndarray], push_count: int
    ) -> Store:
        """The store of which `arrays` were taken, after so many pushes.

        Raises:
          KeyError, ValueError: if they do not fit.
        """
        num_written, capacity = (int(number) for number in arrays["ring"])
        store = cls(spec, max_size, folder, capacity=capacity)
        used = min(push_count, max_size)
        for own, name in ((store.starts, "starts"), (store.lengths, "lengths")):
            if len(own):
                own[:used] = _of_length(arrays[name], used)
        store.ring.num_written = num_written
        for column, own in enumerate(store.ring.columns):
            own[: store.ring.num_used] = _of_length(arrays[f"column_{column}"], store.ring.num_used)
        return store

    def arrays(self, push_count: int) -> dict[str, np.ndarray]:
        """Copies of all but the columns, after so many pushes."""
        used = min(push_count, self.max_size)
        ring = np.array([self.ring.num_written, self.ring.capacity])
        return {"ring": ring, "starts": self.starts[:used].copy(), "lengths": self.lengths[:used].copy()}

    def widen(self, spec: ItemSpec) -> None:
        """Takes over a wider spec.

        Raises:
          SpecMismatchError: if a number that is stored would change; nothing is changed then.
        """
        wider = [i for i, (have, want) in enumerate(zip(self.spec.leaves, spec.leaves, strict=True)) if have != want]
        for column in wider:
            stored = self.ring.columns[column][: self.ring.num_used]
            if not is_exact(stored, spec.leaves[column].dtype):
                self.spec.refuse_widening(column)
        self.ring.widen({column: spec.leaves[column].dtype for column in wider})
        self.spec = spec

    def write(self, number: int, rows: Rows, starts: np.ndarray | None = None) -> None:
        """Adds elements; those `max_size` before them are gone, and of too many the last ones are kept.

        Args:
          number: of the first.
          rows: of the elements.
          starts: int64 `[N]`, where they begin in the rows; None if they lie one after the other.
        """
        columns, too_many = rows.columns, max(0, len(rows.lengths) - self.max_size)
        if not self.spec.has_time:
            self.ring.skip(too_many)
            self.ring.write([column[too_many:] for column in columns])
            return
        starts = np.cumsum(rows.lengths) - rows.lengths if starts is None else starts
        starts, lengths = starts[too_many:], rows.lengths[too_many:]
        columns = [column[starts[0] : starts[-1] + lengths[-1]] for column in columns]
        numbers = np.arange(number + too_many, number + len(rows.lengths))
        if self.spec.length is None:
            self._make_room(len(columns[0]), int(numbers[-1]) + 1 - self.max_size, int(numbers[0]))
            self.lengths[numbers % self.max_size] = lengths
        self.starts[numbers % self.max_size] = self.ring.num_written + starts - starts[0]
        self.ring.write(columns)

    def _make_room(self, count: int, oldest: int, newest: int) -> None:
        """Grows until so many rows fit beside those of the elements from `oldest` to before `newest`."""
        ring, oldest = self.ring, max(oldest, 0)
        first_row = int(self.starts[oldest % self.max_size]) if oldest < newest else ring.num_written
        needed = ring.num_written - first_row + count
        if needed > ring.capacity:
            ring.grow(max(2 * ring.capacity, needed), first_row)

    def lengths_of(self, numbers: np.ndarray) -> np.ndarray:
        """Rows of elements, int64 `[M]`."""
        if self.spec.length is None:
            return self.lengths[numbers % self.max_size]
        return np.full(len(numbers), self.spec.length)

    def read(
        self, numbers: np.ndarray, offsets: np.ndarray | int = 0, num_rows: int | None = None
    ) -> tuple[list[np.ndarray], np.ndarray | None]:
        """Copies of elements, or of windows of them.

        Args:
          numbers: int64 `[M]`.
          offsets: rows of each element before its window.
          num_rows: of a window; None for whole elements.

        Returns:
          For each column `[M, ...]`, or with a time axis `[M, T, ...]`, T the rows of a window or of the longest
          element; and which of these rows there are, bool `[M, T]`, None if all. The others are zeros.
        """
        if not self.spec.has_time:
            return self.ring.read(numbers), None
        lengths = self.lengths_of(numbers)
        wanted = int(lengths.max(initial=0)) if num_rows is None else num_rows
        steps = np.add.outer(np.zeros(len(numbers), np.int64) + offsets, np.arange(wanted))
        rows = self.starts[numbers % self.max_size][:, None] + steps
        there = steps < lengths[:, None]
        if there.all():
            return self.ring.read(rows), None
        columns = self.ring.read(np.where(there, rows, rows[:, :1]))
        for column in columns:
            column[~there] = 0
        return columns, there

    def elements(self, numbers: np.ndarray) -> Any:
        """Copies of whole elements: a nest of columns `[M, ...]`, or where lengths vary a list of nests."""
        columns, _ = self.read(numbers)
        if self.spec.length is not None:
            return self.spec.nest(columns)
        lengths = self.lengths_of(numbers).tolist()
        return [self.spec.nest([c[i, :length] for c in columns]) for i, length in enumerate(lengths)]


def _of_length(array: np.ndarray, length: int) -> np.ndarray:
    if len(array) != length:
        raise ValueError(f"there are {len(array)} rows, expected {length}")
    return array
