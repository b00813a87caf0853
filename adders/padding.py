"""Rows of zeros before or behind those of an episode, and the masks that say which rows are which."""

from __future__ import annotations

import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb.specs import Nest

from .batches import filled_places

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


def masked(
    rows: Nest, num_rows: tf.Tensor, before: tf.Tensor, behind: tf.Tensor, *, ended: bool = False
) -> tuple[Nest, tf.Tensor]:
    """Returns rows `[R, ...]` of episodes with rows of zeros around each, and their masks; and how many each has now.

    Args:
      rows: dict of nests of tensors, the episodes one after the other.
      num_rows: int64 `[E]`, the rows of each.
      before: int64 `[E]`, how many rows to add in front of each.
      behind: int64 `[E]`, how many rows to add at the end of each.
      ended: whether the added rows are marked as last and terminal, where the rows have such marks.
    """
    places = filled_places(num_rows, before, behind)
    real = places >= 0

    def fill(path: tuple[str, ...], row: tf.Tensor) -> tf.Tensor:
        some = tf.gather(row, tf.maximum(places, 0))
        marks = ended and path[0] in (fields.IS_LAST, fields.IS_TERMINAL)
        filler = tf.ones_like(some) if marks else tf.zeros_like(some)
        return tf.where(tf.reshape(real, [-1] + [1] * (row.shape.rank - 1)), some, filler)

    filled = tree.map_structure_with_path(fill, rows)
    return {**filled, **masks(filled, real)}, num_rows + before + behind
