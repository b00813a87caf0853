"""Rows of zeros before or behind those of an episode, and the masks that say which rows are which."""

from __future__ import annotations

import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb.specs import Nest

#: True for the rows of an episode, False for those that fill it up.
MASK = "mask"

#: True for the rows of an episode whose action was taken: all except the row of the final observation.
ACTION_TAKEN = "action_taken"


def masked_spec(row_spec: Nest, who: str) -> Nest:
    """Returns the spec of a row with its masks.

    Raises:
      ValueError: if the rows are not a dict, or have a field of such a name.
    """
    for name in (MASK, ACTION_TAKEN):
        if not isinstance(row_spec, dict) or name in row_spec:
            raise ValueError(f"{who} adds a field {name!r}, expected steps that are a dict without one")
    return {**row_spec, MASK: tf.TensorSpec((), tf.bool), ACTION_TAKEN: tf.TensorSpec((), tf.bool)}


def masks(rows: Nest, real: tf.Tensor) -> Nest:
    """Returns both masks of rows, from the bools `[R]` that say which are of an episode."""
    last = rows.get(fields.IS_LAST, tf.zeros_like(real))  # rows of NStep have an action each
    return {MASK: real, ACTION_TAKEN: real & ~last}


def masked(rows: Nest, before: tf.Tensor | int, behind: tf.Tensor | int, *, ended: bool = False) -> Nest:
    """Returns rows `[R, ...]` with rows of zeros around them, and their masks.

    Args:
      rows: dict of nests of tensors.
      before: how many rows to add in front.
      behind: how many rows to add at the end.
      ended: whether the added rows are marked as last and terminal, where the rows have such marks.
    """

    def fill(path: tuple[str, ...], row: tf.Tensor) -> tf.Tensor:
        pads = [[before, behind]] + [[0, 0]] * (row.shape.rank - 1)
        if row.dtype == tf.string:
            return tf.pad(row, pads, constant_values="")
        marks = ended and path[0] in (fields.IS_LAST, fields.IS_TERMINAL)
        return tf.pad(row, pads, constant_values=tf.cast(int(marks), row.dtype))

    num_rows = tf.shape(tree.flatten(rows)[0])[0]
    real = tf.pad(tf.fill([num_rows], True), [[before, behind]])
    filled = tree.map_structure_with_path(fill, rows)
    return {**filled, **masks(filled, real)}
