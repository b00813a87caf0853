"""An adder of windows of steps for training a Decision Transformer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.specs import Nest

from .adder import ItemAdder
from .arrays import Array, cast
from .padding import MASK, pad
from .places import Places, Take
from .window_adder import ContextAdder, Ranges, find_context

TIMESTEP = "timestep"


@dataclass(frozen=True)
class StepContextWindows(ContextAdder):
    """Windows of up to `length` steps, one beginning at every step, padded with zeros at the start.

    Chen et al. (2021), "Decision Transformer", algorithm 1: a trajectory is cut at a random step, and the steps from
    there on are taken up to the context length. Put `ReturnToGo` before it: `compose(ReturnToGo(),
    StepContextWindows(20))`.

    Item, a dict of columns `[length, ...]`: the fields of the steps (or of the rows of the preceding adder);
    `timestep`, int32, the index of the step in its episode; and `mask`, bool, False for padding, which is zero in all
    fields. For example, an episode of 3 actions has the windows 0 1, 1 2 and - 2 with length 2.

    Both ends of an episode: the first window begins with the first step. Every real row has an action that was taken:
    the step with the final observation is in no window. Windows that begin less than `length` steps before the end are
    padded. An episode of a single step has no window.

    An episode of T actions has about `length` ** 2 rows in addition to its own in a table, since padded windows cannot
    share rows.

    Attributes:
      length: number of rows per item, at least 1.
    """

    length: int
    _has_boundary: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        require_count("length", self.length)

    def following(self, adder: ItemAdder) -> StepContextWindows:
        """Implements `ItemAdder.following`: every row of NStep has an action that was taken."""
        return replace(self, _has_boundary=not adder.squeeze)

    def count(self, num_steps: Array) -> Array:
        """Implements `ItemAdder.count`."""
        return super().count(num_steps) if self._has_boundary else num_steps

    def require_steps(self, step_spec: Nest) -> None:
        """Implements `ItemAdder.require_steps`."""
        from .step_fields import require_new_fields

        require_new_fields(step_spec, (TIMESTEP, MASK), "StepContextWindows")

    def find_ranges(self, places: Places) -> Ranges:
        """Implements `WindowAdder.find_ranges`."""
        return find_context(places, self.length, places.last + (not self._has_boundary))

    def read_rows(self, take: Take, rows: Array, is_real: Array, places: Places) -> Any:
        """Implements `WindowAdder.read_rows`."""
        steps = super().read_rows(take, rows, is_real, places)
        return {**steps, TIMESTEP: cast(pad(rows - places.first, is_real), np.int32), MASK: is_real}
