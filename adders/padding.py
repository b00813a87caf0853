"""Rows of zeros before or behind those of an episode, and the mask that tells them apart."""

from __future__ import annotations

import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb.specs import Nest

#: True for the rows of an episode, False for those that fill it up.
MASK = "mask"


def masked_spec(row_spec: Nest, who: str) -> Nest:
    """The spec of a row with its mask.

    Raises:
      ValueError: if the rows are no dict, or have a field of that name.
    """
    if not isinstance(row_spec, dict) or MASK in row_spec:
        raise ValueError(f"{who} adds a field {MASK!r}, expected steps that are a dict without one")
    return {**row_spec, MASK: tf.TensorSpec((), tf.bool)}


def masked(rows: Nest, before: tf.Tensor | int, behind: tf.Tensor | int, *, ended: bool = False) -> Nest:
    """Rows `[R, ...]` with rows of zeros around them, and their mask.

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
    return {**tree.map_structure_with_path(fill, rows), MASK: real}
