"""Validation of the arrays that are passed to the functions that compute returns."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from .arrays import Array, cast, namespace, to_numpy_dtype

#: A NumPy array, a TensorFlow tensor, or anything that NumPy can convert to an array.
ArrayLike = Any


def to_matching_arrays(time_axis: int, *, others: Iterable[ArrayLike | None] = (), **named: ArrayLike) -> list[Array]:
    """Returns values as arrays, or all as tensors if one of them, or of the other arguments of the call, is a tensor.

    Raises:
      ValueError: Unless all have the same float dtype and shape.
    """
    if time_axis not in (0, 1):
        raise ValueError(f"time_axis must be 0 or 1, got {time_axis}")
    has_tensor = any(map(_is_tensor, [*named.values(), *others]))
    (name, value), *later = named.items()
    first = _convert(value, None, has_tensor=has_tensor)
    shapes = "[T] or [T, ...]" if time_axis == 0 else "[B, T]"
    rank = _find_rank(first)
    is_floating = first.dtype.is_floating if has_tensor else first.dtype.kind == "f"
    if not is_floating or not rank or (time_axis == 1 and rank != 2):
        raise ValueError(f"{name} must be floats {shapes}, got {_describe(first)}")
    arrays = [first]
    for other, value in later:
        array = _convert(value, first, has_tensor=has_tensor)
        if to_numpy_dtype(array) != to_numpy_dtype(first) or not _is_compatible(array.shape, first.shape):
            expected = f"the dtype and shape of {name}, {_describe(first)}"
            raise ValueError(f"{other} must have {expected}, got {_describe(array)}")
        arrays.append(array)
    return arrays


def _is_tensor(value: Any) -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and bool(tensorflow.is_tensor(value))


def _convert(value: ArrayLike, like: Array | None, *, has_tensor: bool) -> Array:
    """Returns a value as an array, or as a tensor; plain numbers take the dtype of `like`, by default float32."""
    if has_tensor:
        import tensorflow as tf

        hint = None if like is None or isinstance(value, np.ndarray) else like.dtype
        return tf.convert_to_tensor(value, dtype_hint=hint)
    array = np.asarray(value)
    if isinstance(value, (np.ndarray, np.generic)) or array.dtype.kind not in "if":
        return array
    if like is not None or array.dtype.kind == "f":
        return array.astype(np.float32 if like is None else like.dtype)
    return array


def _find_rank(array: Array) -> int | None:
    return array.ndim if isinstance(array, np.ndarray) else array.shape.rank


def _describe(array: Array) -> str:
    return f"{to_numpy_dtype(array).name} {array.shape}"


def _is_compatible(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return one == other
    return bool(one.rank == other.rank and one.is_compatible_with(other))


def make_continues(is_last: ArrayLike | None, rewards: Array, time_axis: int) -> Array:
    """Returns 1 for steps whose next step in the chunk belongs to the same episode, else 0, in the rewards' dtype.

    The last step of the chunk has 0 as well, since it has no next step.

    Raises:
      ValueError: If the flags are not bools with the shape of the rewards.
    """
    xp, dtype = namespace(rewards), to_numpy_dtype(rewards)
    ends = cast(xp.zeros_like(rewards), np.bool_)
    if is_last is not None:
        ends = _convert(is_last, None, has_tensor=not isinstance(rewards, np.ndarray))
        if to_numpy_dtype(ends) != np.bool_ or not _is_compatible(ends.shape, rewards.shape):
            raise ValueError(f"is_last must be bool {rewards.shape}, got {_describe(ends)}")
    continues = cast(xp.logical_not(ends), dtype)
    before = (slice(None),) * time_axis
    last = xp.zeros_like(continues[(*before, slice(-1, None))])
    return xp.concatenate([continues[(*before, slice(None, -1))], last], axis=time_axis)


def broadcast_bootstrap_value(bootstrap_value: ArrayLike, rewards: Array, time_axis: int) -> Array:
    """Returns the bootstrap value in the shape of the rewards without the time axis."""
    value = _convert(bootstrap_value, rewards, has_tensor=not isinstance(rewards, np.ndarray))
    dtype = to_numpy_dtype(rewards)
    value = cast(value, dtype) if to_numpy_dtype(value).kind in "iu" else value
    expected = rewards.shape[:time_axis] + rewards.shape[time_axis + 1 :]
    if to_numpy_dtype(value) != dtype or (_find_rank(value) and not _is_compatible(value.shape, expected)):
        raise ValueError(f"bootstrap_value must be a number or {dtype.name} {expected}, got {_describe(value)}")
    if isinstance(rewards, np.ndarray):
        return np.broadcast_to(value, expected)
    import tensorflow as tf

    shape = tf.shape(rewards)
    return tf.broadcast_to(value, tf.concat([shape[:time_axis], shape[time_axis + 1 :]], 0))


def select_next_values(
    rewards: Array,
    values: Array,
    bootstrap_value: ArrayLike | None,
    next_values: ArrayLike | None,
    time_axis: int,
    is_last: ArrayLike | None = None,
) -> Array:
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
        return to_matching_arrays(time_axis, rewards=rewards, next_values=next_values)[1]
    xp = namespace(rewards)
    final = xp.expand_dims(broadcast_bootstrap_value(bootstrap_value, rewards, time_axis), time_axis)
    all_values = xp.concatenate([values, final], axis=time_axis)
    return all_values[1:] if time_axis == 0 else all_values[:, 1:]
