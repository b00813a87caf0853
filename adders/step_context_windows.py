"""An adder of windows of steps for training a Decision Transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb._arguments import require_count
from rlds2reverb.specs import Nest

from .column_adder import ColumnAdder
from .padding import MASK, take_rows
from .steps import add_field_specs

TIMESTEP = "timestep"


@dataclass(frozen=True)
class StepContextWindows(ColumnAdder):
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

    An episode of T actions has about `length` ** 2 rows in addition to its own, since padded windows cannot share rows.

    Attributes:
      length: number of rows per item, at least 1.
    """

    length: int

    must_be_last: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("length", self.length)

    @property
    def item_length(self) -> int | None:
        """Implements `ColumnAdder.item_length`."""
        return self.length

    def row_spec(self, step_spec: Nest) -> Nest:
        """Implements `ColumnAdder.row_spec`."""
        added = {TIMESTEP: tf.TensorSpec((), tf.int32), MASK: tf.TensorSpec((), tf.bool)}
        return add_field_specs(step_spec, "StepContextWindows", **added)

    def make_rows(self, columns: Nest) -> Nest:
        """Implements `ColumnAdder.make_rows`: all steps if there is a full window, then each padded window."""
        num_rows = tf.shape(tree.flatten(columns)[0])[0]
        # Every row of NStep has an action that was taken.
        num_actions = num_rows - 1 if fields.IS_LAST in columns else num_rows
        num_full = tf.maximum(num_actions - self.length + 1, 0)
        whole = tf.range(tf.where(num_full > 0, num_actions, 0))
        # Every padded window ends with the last action. With 5 actions and length 3, the windows from step 3 and from
        # step 4 on both cover the steps 2 3 4, with padding in place of step 2 and of steps 2 3, respectively.
        covered = tf.range(num_actions - self.length, num_actions)[None, :]
        is_real = covered >= tf.range(num_full, num_actions)[:, None]
        steps = tf.concat([whole, tf.reshape(tf.where(is_real, covered, -1), [-1])], 0)
        return {**take_rows(columns, steps), TIMESTEP: tf.maximum(steps, 0), MASK: steps >= 0}

    def cut_items(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Implements `ColumnAdder.cut_items`."""
        # If there is a full window, there are at least `length` steps and (length - 1) * length rows of padded windows.
        num_rows = tf.cast(num_rows, tf.int64)
        has_full = num_rows >= self.length**2
        num_padded = tf.where(has_full, tf.constant(self.length - 1, tf.int64), num_rows // self.length)
        num_steps = num_rows - num_padded * self.length
        full = tf.range(tf.maximum(num_steps - self.length + 1, 0))
        starts = tf.concat([full, num_steps + tf.range(num_padded) * self.length], 0)
        return starts, tf.fill(tf.shape(starts), tf.constant(self.length, tf.int64))
