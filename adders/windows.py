"""An adder of windows of some fields of the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count

from .arrays import Array, namespace
from .places import Places, Take
from .window_adder import Ranges, WindowAdder, unpadded


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
