"""Windows of steps as a Decision Transformer is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb._arguments import require_count
from rlds2reverb.specs import Nest

from .column_adder import ColumnAdder
from .padding import MASK
from .steps import with_added

TIMESTEP = "timestep"


@dataclass(frozen=True)
class StepContextWindows(ColumnAdder):
    """Windows of up to `length` steps, one that begins at every step, filled up with zeros in front.

    Chen et al. (2021), "Decision Transformer", algorithm 1: a trajectory is cut at a random step, and what follows is
    taken up to the length of the context. Put `ReturnToGo` before it: `compose(ReturnToGo(), StepContextWindows(20))`.

    Item, a dict of columns `[length, ...]`: the fields of the steps (or of the rows of the adder before it);
    `timestep`, int32, the number of the step in its episode, from 0; and `mask`, bool, False for the rows that fill it
    up, which are zeros throughout. For example, an episode of 3 actions and length 2 gives the steps 0 1, 1 2 and - 2.

    Both ends of an episode: the first window begins with the first step. Every row has an action that was taken: the
    step with the final observation is in no window. Windows that begin less than `length` steps before the end are
    the shorter ones. An episode of a single step gives no window.

    An episode of T actions has about `length` ** 2 rows besides its own, since the shorter windows hold zeros that no
    other window has.

    Attributes:
      length: rows of an item, at least 1.
    """

    length: int

    ends_chain: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("length", self.length)

    @property
    def item_length(self) -> int | None:
        """See `ColumnAdder.item_length`."""
        return self.length

    def row_spec(self, step_spec: Nest) -> Nest:
        """See `ColumnAdder.row_spec`."""
        added = {TIMESTEP: tf.TensorSpec((), tf.int32), MASK: tf.TensorSpec((), tf.bool)}
        return with_added(step_spec, "StepContextWindows", **added)

    def rows(self, columns: Nest) -> Nest:
        """See `ColumnAdder.rows`: the steps if they have a full window, then the shorter windows, each filled up."""
        num_rows = tf.shape(tree.flatten(columns)[0])[0]
        num = num_rows - 1 if fields.IS_LAST in columns else num_rows  # rows of NStep have an action each
        num_full = tf.maximum(num - self.length + 1, 0)
        whole = tf.range(tf.where(num_full > 0, num, 0))
        # Every shorter window ends with the last step: with 5 steps and length 3, those from steps 3 and 4 on have the
        # places 2 3 4, of which the first window lacks 2, and the second lacks 2 and 3.
        places = tf.range(num - self.length, num)[None, :]
        is_real = places >= tf.range(num_full, num)[:, None]
        shorter = tf.reshape(tf.where(is_real, places, -1), [-1])
        steps = tf.concat([whole, shorter], 0)
        mask = steps >= 0

        def taken(column: tf.Tensor) -> tf.Tensor:
            some = tf.gather(column, tf.maximum(steps, 0))
            kept = tf.reshape(mask, [-1] + [1] * (column.shape.rank - 1))
            return tf.where(kept, some, tf.zeros_like(some))

        return {**tree.map_structure(taken, columns), TIMESTEP: tf.maximum(steps, 0), MASK: mask}

    def item_bounds(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `ColumnAdder.item_bounds`."""
        # With a full window there are at least `length` rows of steps and (length - 1) * length of shorter windows.
        num_rows = tf.cast(num_rows, tf.int64)
        has_full = num_rows >= self.length**2
        num_shorter = tf.where(has_full, tf.constant(self.length - 1, tf.int64), num_rows // self.length)
        behind = num_rows - num_shorter * self.length
        full = tf.range(tf.maximum(behind - self.length + 1, 0))
        starts = tf.concat([full, behind + tf.range(num_shorter) * self.length], 0)
        return starts, tf.fill(tf.shape(starts), tf.constant(self.length, tf.int64))
