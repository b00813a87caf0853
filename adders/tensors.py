"""The tensors that the functions of returns take, checked before anything is traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

#: Anything TensorFlow takes as a tensor.
TensorLike = Any


def alike(time_axis: int, **named: TensorLike) -> list[tf.Tensor]:
    """Tensors of one float dtype and shape."""
    if time_axis not in (0, 1):
        raise ValueError(f"time_axis is {time_axis}, expected 0 or 1")
    names = list(named)
    first = tf.convert_to_tensor(named[names[0]])
    wanted = "[T] or [T, ...]" if time_axis == 0 else "[B, T]"
    if not first.dtype.is_floating or not first.shape.rank or (time_axis == 1 and first.shape.rank != 2):
        raise ValueError(f"{names[0]} are {first.dtype.name} {first.shape}, expected floats {wanted}")
    tensors = [first]
    for name in names[1:]:
        given = named[name]  # an array says of which dtype it is; numbers may take that of the first
        tensor = tf.convert_to_tensor(given, dtype_hint=None if isinstance(given, np.ndarray) else first.dtype)
        if tensor.dtype != first.dtype or not _compatible(tensor.shape, first.shape):
            raise ValueError(
                f"{name} are {tensor.dtype.name} {tensor.shape}, {names[0]} are {first.dtype.name} {first.shape}; "
                "expected one dtype and shape"
            )
        tensors.append(tensor)
    return tensors


def _compatible(one: tf.TensorShape, other: tf.TensorShape) -> bool:
    return one.rank == other.rank and one.is_compatible_with(other)


def flags_like(is_last: TensorLike, rewards: tf.Tensor) -> tf.Tensor:
    """Flags as a tensor; raises `ValueError` unless they are bools of the shape of the rewards."""
    flags = tf.convert_to_tensor(is_last)
    if flags.dtype != tf.bool or not _compatible(flags.shape, rewards.shape):
        raise ValueError(f"is_last is {flags.dtype.name} {flags.shape}, expected bool {rewards.shape}")
    return flags


def continues(is_last: TensorLike | None, rewards: tf.Tensor, time_axis: int) -> tf.Tensor:
    """Returns 1 where the next step of the chunk is of the same episode, else 0; shape and dtype of the rewards.

    The last step of the chunk has 0 too: there is no next step.
    """
    ends = tf.zeros_like(rewards, tf.bool) if is_last is None else flags_like(is_last, rewards)
    goes_on = tf.cast(~ends, rewards.dtype)
    if time_axis == 0:
        return tf.concat([goes_on[:-1], tf.zeros_like(goes_on[-1:])], 0)
    return tf.concat([goes_on[:, :-1], tf.zeros_like(goes_on[:, -1:])], 1)


def final_value(bootstrap_value: TensorLike, rewards: tf.Tensor, time_axis: int) -> tf.Tensor:
    """The bootstrap value in the shape of the rewards without time."""
    value = tf.convert_to_tensor(bootstrap_value, dtype_hint=rewards.dtype)
    value = tf.cast(value, rewards.dtype) if value.dtype.is_integer else value
    wanted = rewards.shape[:time_axis] + rewards.shape[time_axis + 1 :]
    if value.dtype != rewards.dtype or (value.shape.rank and not _compatible(value.shape, wanted)):
        raise ValueError(
            f"bootstrap_value is {value.dtype.name} {value.shape}, expected {rewards.dtype.name} {wanted} or a number"
        )
    shape = tf.shape(rewards)
    return tf.broadcast_to(value, tf.concat([shape[:time_axis], shape[time_axis + 1 :]], 0))


def following_values(
    rewards: tf.Tensor,
    values: tf.Tensor,
    bootstrap_value: TensorLike | None,
    next_values: TensorLike | None,
    time_axis: int,
    is_last: TensorLike | None = None,
) -> tf.Tensor:
    """Returns the value after each step: those given, or the next step's own and at the end the bootstrap value.

    Raises:
      ValueError: unless one of the two is given, and `next_values` where there is `is_last`.
    """
    if (bootstrap_value is None) == (next_values is None):
        raise ValueError("give either bootstrap_value, the value after the last step, or next_values for each step")
    if is_last is not None and next_values is None:
        raise ValueError(
            "is_last is given with bootstrap_value, expected next_values: the value after an episode that ends inside "
            "the chunk is not that of the next step, which is of another episode"
        )
    if next_values is not None:
        return alike(time_axis, rewards=rewards, next_values=next_values)[1]
    final = tf.expand_dims(final_value(bootstrap_value, rewards, time_axis), time_axis)
    kept = values[1:] if time_axis == 0 else values[:, 1:]
    empty = tf.equal(tf.shape(values)[time_axis], 0)
    return tf.cond(empty, lambda: values, lambda: tf.concat([kept, final], time_axis))
