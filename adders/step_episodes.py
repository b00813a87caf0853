"""An adder of whole episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from rlds2reverb._arguments import require_count, require_one_of
from rlds2reverb.specs import Nest

from .column_adder import ColumnAdder
from .padding import add_mask_specs, pad_and_mask

#: Where an episode is padded; see `StepEpisodes`.
PADDINGS = ("none", "end", "start")


@dataclass(frozen=True)
class StepEpisodes(ColumnAdder):
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

    must_be_last: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("max_length", self.max_length)
        require_one_of("padding", self.padding, PADDINGS)

    @property
    def item_length(self) -> int | None:
        """Implements `ColumnAdder.item_length`."""
        return None if self.padding == "none" else self.max_length

    def row_spec(self, step_spec: Nest) -> Nest:
        """Implements `ColumnAdder.row_spec`."""
        return add_mask_specs(step_spec, "StepEpisodes")

    def make_batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """Implements `ColumnAdder.make_batch_rows`."""
        message = (
            f"an episode has more rows than max_length, {self.max_length}; raise max_length, or cut episodes with "
            "StepWindows"
        )
        tf.debugging.assert_less_equal(num_steps, tf.constant(self.max_length, tf.int64), message)
        zeros = tf.zeros_like(num_steps)
        missing = tf.where((num_steps > 0) & (self.padding != "none"), self.max_length - num_steps, zeros)
        before, after = (missing, zeros) if self.padding == "start" else (zeros, missing)
        return pad_and_mask(columns, num_steps, before, after)
