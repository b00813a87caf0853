"""Whole episodes as items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from rlds2reverb._arguments import require_count, require_one_of
from rlds2reverb.specs import Nest

from .column_adder import ColumnAdder
from .padding import masked, masked_spec

#: Where an episode is filled up; see `StepEpisodes`.
PADDINGS = ("none", "end", "start")


@dataclass(frozen=True)
class StepEpisodes(ColumnAdder):
    """One item an episode: all its rows, filled up with zeros to `max_length` unless padding is 'none'.

    Item, a dict of columns `[max_length, ...]` (`[N, ...]` with padding 'none'): the fields of the steps (or of the
    rows of the adder before it), and two masks, bool: `mask`, True for rows of the episode, and `action_taken`, True
    for those of them whose action was taken: all but the one with the final observation.

    Both ends of an episode: all of it is there, the step with the final observation included; terminated or truncated
    is in its flags. Rows of zeros come behind it with padding 'end', before it with 'start', as a Decision Transformer
    wants it (Chen et al. 2021). An episode of more rows than `max_length` is an error: nothing is cut off. An empty
    one gives nothing.

    Attributes:
      max_length: rows that an episode may have, at least 1.
      padding: 'none', 'end' or 'start'.
    """

    max_length: int
    padding: str = "none"

    ends_chain: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("max_length", self.max_length)
        require_one_of("padding", self.padding, PADDINGS)

    @property
    def item_length(self) -> int | None:
        """See `ColumnAdder.item_length`."""
        return None if self.padding == "none" else self.max_length

    def row_spec(self, step_spec: Nest) -> Nest:
        """See `ColumnAdder.row_spec`."""
        return masked_spec(step_spec, "StepEpisodes")

    def batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """See `ColumnAdder.batch_rows`."""
        too_long = (
            f"an episode has more rows than the max_length of {self.max_length}; raise it, or cut with StepWindows"
        )
        tf.debugging.assert_less_equal(num_steps, tf.constant(self.max_length, tf.int64), too_long)
        none = tf.zeros_like(num_steps)
        is_filled = (num_steps > 0) & (self.padding != "none")
        missing = tf.where(is_filled, self.max_length - num_steps, none)
        return masked(columns, num_steps, *((missing, none) if self.padding == "start" else (none, missing)))
