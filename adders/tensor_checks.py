"""Validation of the tensors passed to the functions that compute returns, before anything is traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

#: Anything that TensorFlow can convert to a tensor.
TensorLike = Any


def to_matching_tensors(time_axis: int, **named: TensorLike) -> list[tf.Tensor]:
    """Converts values to tensors; raises `ValueError` unless all have the same float dtype and shape."""
    if time_axis not in (0, 1):
        raise ValueError(f"time_axis must be 0 or 1, got {time_axis}")
    names = list(named)
    first = tf.convert_to_tensor(named[names[0]])
    shapes = "[T] or [T, ...]" if time_axis == 0 else "[B, T]"
    if not first.dtype.is_floating or not first.shape.rank or (time_axis == 1 and first.shape.rank != 2):
        raise ValueError(f"{names[0]} must be floats {shapes}, got {first.dtype.name} {first.shape}")
    tensors = [first]
    for name in names[1:]:
        value = named[name]  # An array has a dtype of its own; plain numbers may take that of the first tensor.
        tensor = tf.convert_to_tensor(value, dtype_hint=None if isinstance(value, np.ndarray) else first.dtype)
        if tensor.dtype != first.dtype or not _is_compatible(tensor.shape, first.shape):
            raise ValueError(
                f"{name} must have the dtype and shape of {names[0]}, {first.dtype.name} {first.shape}, got "
                f"{tensor.dtype.name} {tensor.shape}"
            )
        tensors.append(tensor)
    return tensors


def _is_compatible(one: tf.TensorShape, other: tf.TensorShape) -> bool:
    return one.rank == other.rank and one.is_compatible_with(other)


def to_flags(is_last: TensorLike, rewards: tf.Tensor) -> tf.Tensor:
    """Converts flags to a tensor; raises `ValueError` unless they are bools with the shape of the rewards."""
    flags = tf.convert_to_tensor(is_last)
    if flags.dtype != tf.bool or not _is_compatible(flags.shape, rewards.shape):
        raise ValueError(f"is_last must be bool {rewards.shape}, got {flags.dtype.name} {flags.shape}")
    return flags


def make_continues(is_last: TensorLike | None, rewards: tf.Tensor, time_axis: int) -> tf.Tensor:
    """Returns 1 for steps whose next step in the chunk belongs to the same episode, else 0, in the rewards' dtype.

    The last step of the chunk has 0 as well, since it has no next step.
    """
    ends = tf.zeros_like(rewards, tf.bool) if is_last is None else to_flags(is_last, rewards)
    continues = tf.cast(~ends, rewards.dtype)
    if time_axis == 0:
        return tf.concat([continues[:-1], tf.zeros_like(continues[-1:])], 0)
    return tf.concat([continues[:, :-1], tf.zeros_like(continues[:, -1:])], 1)


def broadcast_bootstrap_value(bootstrap_value: TensorLike, rewards: tf.Tensor, time_axis: int) -> tf.Tensor:
    """Returns the bootstrap value in the shape of the rewards without the time axis."""
    value = tf.convert_to_tensor(bootstrap_value, dtype_hint=rewards.dtype)
    value = tf.cast(value, rewards.dtype) if value.dtype.is_integer else value
    expected = rewards.shape[:time_axis] + rewards.shape[time_axis + 1 :]
    if value.dtype != rewards.dtype or (value.shape.rank and not _is_compatible(value.shape, expected)):
        raise ValueError(
            f"bootstrap_value must be a number or {rewards.dtype.name} {expected}, got {value.dtype.name} {value.shape}"
        )
    shape = tf.shape(rewards)
    return tf.broadcast_to(value, tf.concat([shape[:time_axis], shape[time_axis + 1 :]], 0))


def select_next_values(
    rewards: tf.Tensor,
    values: tf.Tensor,
    bootstrap_value: TensorLike | None,
    next_values: TensorLike | None,
    time_axis: int,
    is_last: TensorLike | None = None,
) -> tf.Tensor:
    """Returns the value after each step: `next_values`, or the next step's value and, at the end, the bootstrap value.

    Raises:
      ValueError: Unless exactly one of `bootstrap_value` and `next_values` is passed, and `next_values` with `is_last`.
    """
    if (bootstrap_value is None) == (next_values is None):
        raise ValueError(
            "pass exactly one of bootstrap_value, the value after the last step, and next_values, one for each step"
        )
    if is_last is not None and next_values is None:
        raise ValueError(
            "is_last requires next_values instead of bootstrap_value: if an episode ends inside the chunk, the next "
            "step belongs to a different episode, so its value cannot be used"
        )
    if next_values is not None:
        return to_matching_tensors(time_axis, rewards=rewards, next_values=next_values)[1]
    final = tf.expand_dims(broadcast_bootstrap_value(bootstrap_value, rewards, time_axis), time_axis)
    later = values[1:] if time_axis == 0 else values[:, 1:]
    is_empty = tf.equal(tf.shape(values)[time_axis], 0)
    return tf.cond(is_empty, lambda: values, lambda: tf.concat([later, final], time_axis))
