"""Adders of windows of some fields of the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count

from .arrays import Array, namespace
from .padding import MASK, pad
from .places import Places, Take
from .window_adder import ContextAdder, Ranges, WindowAdder, unpadded


@dataclass(frozen=True)
class Windows(WindowAdder):
    """All windows of consecutive steps of an episode, `[length, ...]`, the row of the final observation included.

    Both ends of an episode: the first window begins with the first step, the last one ends with the last step. An
    episode with fewer rows has no window.

    Attributes:
      length: number of steps, at least 1.
      field_names: fields of the items; None for those of RLDS.
    """

    length: int
    field_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require_count("length", self.length)

    @property
    def item_length(self) -> int:  # type: ignore[override]
        """Implements `ItemAdder.item_length`."""
        return self.length

    def count(self, num_steps: Array) -> Array:
        """Implements `ItemAdder.count`."""
        return namespace(num_steps).maximum(num_steps - self.length + 1, 0)

    def find_ranges(self, places: Places) -> Ranges:
        """Implements `WindowAdder.find_ranges`."""
        return unpadded(places.row, places.row + self.length)

    def read_rows(self, take: Take, rows: Array, is_real: Array, places: Places) -> Any:
        """Implements `WindowAdder.read_rows`."""
        return take(rows, self.field_names or fields.STEP_FIELDS)


@dataclass(frozen=True)
class PaddedWindows(ContextAdder):
    """Windows of up to `length` steps from each step on, padded at the start, as sequence models learn from them.

    Chen et al. (2021), "Decision Transformer", arXiv:2106.01345; the authors' code, gym/experiment.py.

    Item: `[length, ...]` of the fields, and `mask`, bool `[length]`. An item starts at each step but the last one,
    which has no action and is in no item. The items at the end of an episode have fewer steps, which follow zeros; the
    mask is False for these.

    Attributes:
      length: maximum number of steps, at least 1.
      field_names: fields of the items; None for those of RLDS.
    """

    length: int
    field_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require_count("length", self.length)
        require_no_mask(self.field_names or ())

    def read_rows(self, take: Take, rows: Array, is_real: Array, places: Places) -> Any:
        """Implements `WindowAdder.read_rows`."""
        return {**pad(take(rows, self.field_names or fields.STEP_FIELDS), is_real), MASK: is_real}


def require_no_mask(field_names: Sequence[str], names: Sequence[str] = (MASK,)) -> None:
    """Raises `ValueError` if fields of steps have the names of fields that an adder adds."""
    for name in names:
        if name in field_names:
            raise ValueError(f"field_names must not contain {name!r}, which is in each item; leave it out")
