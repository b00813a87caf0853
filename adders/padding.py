"""Padding of episodes with rows of zeros, and the masks that mark the real rows."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb.specs import Nest

from .batches import find_source_rows

#: True for the rows of an episode, False for padding.
MASK = "mask"

#: True for the rows of an episode whose action was taken: all except the row of the final observation.
ACTION_TAKEN = "action_taken"


def add_mask_specs(row_spec: Nest, adder: str) -> Nest:
    """Returns the spec of a row including its masks.

    Raises:
      ValueError: If the rows are not a dict, or already have a field with the name of a mask.
    """
    for name in (MASK, ACTION_TAKEN):
        if not isinstance(row_spec, dict) or name in row_spec:
            raise ValueError(f"steps must be a dict without the field {name!r}, which {adder} adds; rename the field")
    return {**row_spec, MASK: tf.TensorSpec((), tf.bool), ACTION_TAKEN: tf.TensorSpec((), tf.bool)}


def pad_and_mask(
    rows: Nest, num_rows: tf.Tensor, num_before: tf.Tensor, num_after: tf.Tensor, *, mark_ended: bool = False
) -> tuple[Nest, tf.Tensor]:
    """Pads the episodes of `rows` with zeros and adds both masks; also returns the new number of rows per episode.

    Args:
      rows: dict of nests of tensors `[R, ...]`, the concatenated rows of the episodes.
      num_rows: int64 `[E]`, the number of rows of each episode.
      num_before: int64 `[E]`, the number of padding rows before each.
      num_after: int64 `[E]`, the number of padding rows after each.
      mark_ended: whether `is_last` and `is_terminal` are True in padding rows, if the rows have these fields.
    """
    sources = find_source_rows(num_rows, num_before, num_after)
    is_real = sources >= 0
    padded = take_rows(rows, sources, marked=(fields.IS_LAST, fields.IS_TERMINAL) if mark_ended else ())
    is_last = padded.get(fields.IS_LAST, tf.zeros_like(is_real))  # Every row of NStep has an action that was taken.
    return {**padded, MASK: is_real, ACTION_TAKEN: is_real & ~is_last}, num_rows + num_before + num_after


def take_rows(rows: Nest, sources: tf.Tensor, *, marked: Sequence[str] = ()) -> Nest:
    """Returns the rows at the indices `sources`, int `[R]`, and padding for each -1.

    Padding is True in the fields `marked`, and zero in all others.
    """

    def take(path: tuple[str, ...], column: tf.Tensor) -> tf.Tensor:
        values = tf.gather(column, tf.maximum(sources, 0))
        is_real = tf.reshape(sources >= 0, [-1] + [1] * (column.shape.rank - 1))
        return tf.where(is_real, values, tf.ones_like(values) if path[0] in marked else tf.zeros_like(values))

    return tree.map_structure_with_path(take, rows)
