"""An adder of whole episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlds2reverb.types.arguments import require_count, require_one_of
from rlds2reverb.types.specs import Nest

from .arrays import Array, namespace, require_at_most
from .padding import ACTION_TAKEN, MASK, add_masks
from .places import Places, Take
from .window_adder import Ranges, WindowAdder

#: Where an episode is padded; see `StepEpisodes`.
PADDINGS = ("none", "end", "start")


@dataclass(frozen=True)
class StepEpisodes(WindowAdder):
    """One item per episode: all its rows, padded with zeros to `max_length` unless `padding` is 'none'.

    Item, a dict of columns `[max_length, ...]` (`[N, ...]` with padding 'none'): the fields of the steps (or of the
    rows of the preceding adder), and two bool masks: `mask`, True for rows of the episode, and `action_taken`, True
    for those whose action was taken: all but the one with the final observation.

    Both ends of an episode: the item contains all of it, including the step with the final observation, whose flags
    distinguish termination from truncation. Padding follows the episode with 'end' and precedes it with 'start', as in
    Decision Transformer (Chen et al. 2021). An episode of more rows than `max_length` is an error; nothing is cut off.
    An empty episode has no item.

    Attributes:
      max_length: maximum number of rows of an episode, at least 1.
      padding: 'none', 'end' or 'start'.
    """

    max_length: int
    padding: str = "none"

    def __post_init__(self) -> None:
        require_count("max_length", self.max_length)
        require_one_of("padding", self.padding, PADDINGS)

    @property
    def item_length(self) -> int | None:  # type: ignore[override]
        """Implements `ItemAdder.item_length`."""
        return None if self.padding == "none" else self.max_length

    def require_steps(self, step_spec: Nest) -> None:
        """Implements `ItemAdder.require_steps`."""
        from .step_fields import require_new_fields

        require_new_fields(step_spec, (MASK, ACTION_TAKEN), "StepEpisodes")

    def count(self, num_steps: Array) -> Array:
        """Implements `ItemAdder.count`; raises an error if an episode is too long."""
        message = (
            f"an episode has more rows than max_length, {self.max_length}; raise max_length, or cut episodes with "
            "StepWindows"
        )
        require_at_most(num_steps, self.max_length, message)
        return namespace(num_steps).minimum(num_steps, 1)

    def find_ranges(self, places: Places) -> Ranges:
        """Implements `WindowAdder.find_ranges`."""
        first, end = places.first, places.last + 1
        start = end - self.max_length if self.padding == "start" else first
        return Ranges(start, end if self.padding != "end" else start + self.max_length, first, end)

    def read_rows(self, take: Take, rows: Array, is_real: Array, places: Places) -> Any:
        """Implements `WindowAdder.read_rows`."""
        return add_masks(super().read_rows(take, rows, is_real, places), is_real)
