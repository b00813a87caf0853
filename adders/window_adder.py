"""The base class of adders whose items are consecutive steps of an episode, possibly with padding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rlds2reverb.types.items import ItemBatch, Items
from rlds2reverb.types.short_repr import short_repr
from rlds2reverb.types.specs import Nest, map_structure

from .adder import ItemAdder
from .arrays import Array, arange, namespace, repeat, split_axis
from .padding import pad
from .places import Places, Take, find_ends, find_places, take_from


class Ranges(NamedTuple):
    """The rows of some windows, int64 `[N]` each. Those outside of the real rows are padding.

    Attributes:
      start: the first row of the window.
      stop: the row after its last one.
      first_real: the first row that is not padding.
      stop_real: the row after the last one that is not padding.
    """

    start: Array
    stop: Array
    first_real: Array
    stop_real: Array

    def __repr__(self) -> str:
        return short_repr(self)


class WindowAdder(ItemAdder):
    """Base class of adders whose items are ranges of the steps of an episode, possibly with padding.

    A subclass overrides `count`, `find_ranges`, and `item_length` if all items have the same length. The rows of
    overlapping windows are written to a table once. For example, an adder of the last steps of each episode:

        @dataclass(frozen=True)
        class LastSteps(WindowAdder):
            item_length: int

            def count(self, num_steps):
                return namespace(num_steps).where(num_steps >= self.item_length, 1, 0)

            def find_ranges(self, places):
                return unpadded(places.last - self.item_length + 1, places.last + 1)
    """

    squeeze: ClassVar[bool] = False
    must_be_last: ClassVar[bool] = True

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if cls.squeeze:
            raise TypeError(
                f"{cls.__name__} cannot set squeeze, because windows have a time axis; derive from ItemAdder"
            )

    def find_ranges(self, places: Places) -> Ranges:
        """Returns the rows of windows, the starts and the ends of those of an episode in ascending order."""
        raise NotImplementedError(f"{type(self).__name__} must override find_ranges")

    def read_rows(self, take: Take, rows: Array, is_real: Array, places: Places) -> Any:
        """Returns rows of windows, a nest of arrays `[R, ...]`, by default all fields of the steps.

        Args:
          take: function that reads steps at rows int64 `[R]`.
          rows: int64 `[R]`, the rows; for padding, rows of the same episode.
          is_real: bool `[R]`, False for padding, for which fields must be zeros or empty strings.
          places: the place of the window of each row.
        """
        return pad(take(rows, None), is_real)

    def read(self, take: Take, places: Places) -> Any:
        """Implements `ItemAdder.read`: nest of arrays `[N, length, ...]`.

        Raises:
          ValueError: If items differ in length.
        """
        xp, ranges = namespace(places.number), self.find_ranges(places)
        length = self.item_length
        if length is None:
            length = xp.amax(ranges.stop - ranges.start)
            if isinstance(length, np.generic) and (ranges.stop - ranges.start < length).any():
                raise ValueError(f"the items of {self} differ in length; use an adder whose items have the same length")
        rows = inside = ranges.start[:, None] + arange(length, places.number)
        if ranges.first_real is not ranges.start or ranges.stop_real is not ranges.stop:
            inside = xp.maximum(xp.minimum(rows, ranges.stop_real[:, None] - 1), ranges.first_real[:, None])
        repeated = Places(*(repeat(part, length) for part in places))
        columns = self.read_rows(take, xp.ravel(inside), xp.ravel(inside == rows), repeated)
        return map_structure(lambda column: split_axis(column, rows), columns)

    def _read_none(self, take: Take, none: Places) -> Nest:
        return self.read_rows(take, none.number, none.number == 0, none)

    def _convert_dataset(self, columns: Any) -> Any:
        from .tf_data import map_to_windows

        return map_to_windows(self, columns)

    def transform(self, columns: Nest, num_steps: Array) -> tuple[Nest, Array]:
        """Raises `TypeError`, because no adder can follow."""
        raise TypeError(f"{self} must be the last adder")

    def cut(self, columns: Nest, num_steps: np.ndarray) -> ItemBatch:
        """Implements `ItemAdder.cut`."""
        return self.cut_rows(num_steps, partial(self.read_rows, take_from(columns)))

    def cut_rows(self, num_steps: np.ndarray, read: Callable[[np.ndarray, np.ndarray, Places], Nest]) -> ItemBatch:
        """Returns all windows; a row of overlapping ones occurs once, unless it is padding in only one of them.

        Args:
          num_steps: int64 `[E]`, the number of steps of each episode.
          read: function that returns rows, see `read_rows`.
        """
        counts = self.count(num_steps)
        places = find_places(num_steps, find_ends(num_steps), counts)
        starts, stops, first_real, stop_real = self.find_ranges(places)
        # How many rows a window shares with the one before it; less than 0 if there are rows between them.
        overlap = np.zeros_like(starts)
        shared = np.minimum(starts[1:], stops[:-1]), stops[:-1]
        is_same = places.first[1:] == places.first[:-1]
        for bound in (first_real, stop_real):  # The same of these rows must be padding.
            is_same &= np.clip(bound[1:], *shared) == np.clip(bound[:-1], *shared)
        overlap[1:] = np.where(is_same, stops[:-1] - starts[1:], 0)
        # Rows after the last window of an episode count in its digest, and so in the keys of its items.
        is_last = np.append(places.first[1:] != places.first[:-1], True)[: len(starts)]
        num_after = np.where(is_last, np.maximum(stop_real - stops, 0), 0)
        lengths, num_new = stops - starts, stops - starts - overlap + num_after
        ends = np.cumsum(num_new)
        item = np.repeat(np.arange(len(starts)), num_new)
        rows = np.arange(len(item)) + (stops + num_after - ends)[item]
        inside = np.clip(rows, first_real[item], stop_real[item] - 1)
        made = read(inside, inside == rows, Places(*(part[item] for part in places)))
        num_rows = np.bincount(np.repeat(np.arange(len(counts)), counts), num_new, len(counts)).astype(np.int64)
        return ItemBatch(Items(made, ends - num_after - lengths, lengths), num_rows, counts)


class ContextAdder(WindowAdder):
    """Base class of adders of windows of up to `length` steps from each step on, which are padded at the start."""

    length: int

    @property
    def item_length(self) -> int:  # type: ignore[override]
        """Implements `ItemAdder.item_length`."""
        return self.length

    def find_ranges(self, places: Places) -> Ranges:
        """Implements `WindowAdder.find_ranges`."""
        return find_context(places, self.length, places.last)


def unpadded(start: Array, stop: Array) -> Ranges:
    """Returns windows without padding."""
    return Ranges(start, stop, start, stop)


def find_context(places: Places, length: int, end: Array) -> Ranges:
    """Returns windows of up to `length` rows from each place on, which are padded at the start.

    Args:
      places: the places.
      length: number of rows of a window, with its padding.
      end: int64 `[N]`, the row after the last one that a window may contain.
    """
    stop = namespace(end).minimum(places.row + length, end)
    return Ranges(stop - length, stop, places.row, stop)
