"""The adder of the transitions over chunks of actions, for data that are not cut when they are read."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb.adders import NStep
from rlds2reverb.adders.batches import count_steps_left
from rlds2reverb.specs import Nest


@dataclass(frozen=True)
class ChunkNStep(NStep):
    """n-step transitions whose action is the vector of all n actions, as `store.cuts.ChunkTransitions` makes them.

    Items never cross the end of an episode, and none starts at its last n - 1 transitions, whose chunks would be
    incomplete. An episode of fewer than n transitions has no item.
    """

    def row_spec(self, step_spec: Nest) -> Nest:
        """Implements `ColumnAdder.row_spec`."""
        action = step_spec[fields.ACTION]
        chunk = tf.TensorSpec([self.n * action.shape[0]], action.dtype)
        return {**super().row_spec(step_spec), fields.ACTION: chunk}

    def make_batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """Implements `ColumnAdder.make_batch_rows`."""
        rows, _ = super().make_batch_rows(columns, num_steps)
        left = count_steps_left(num_steps)
        is_complete = left[left > 0] >= self.n
        rows = tree.map_structure(lambda column: column[is_complete], rows)
        places = tf.where(left >= self.n) + tf.range(self.n, dtype=tf.int64)
        actions = tf.gather(columns[fields.ACTION], places)
        rows[fields.ACTION] = tf.reshape(actions, [-1, self.n * actions.shape[-1]])
        return rows, tf.maximum(num_steps - self.n, 0)
