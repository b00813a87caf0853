"""Validation of the arrays that are passed to the functions that compute returns."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tree

from rlds2reverb.types.arguments import require_count, require_number

from .arrays import Array, cast, namespace, to_numpy_dtype

#: A NumPy array, a TensorFlow tensor, or anything that NumPy can convert to an array.
ArrayLike = Any
_Function = TypeVar("_Function", bound=Callable[..., Any])


def of_trajectories(*columns: str) -> Callable[[_Function], _Function]:
    """Returns a decorator of functions of trajectories, which then need to handle the time axis 0 only.

    The function gets its arguments as arrays, or all as tensors if one of them is a tensor: the columns,
    `bootstrap_value` in the shape of the columns without time, and `is_last`. None stays None. Numbers named `gamma`,
    `lambda_` and `n` are checked, and NumPy does not warn about NaN and Inf, as TensorFlow does not.

    Args:
      *columns: names of the arguments `[T, ...]`, or `[B, T]` for `time_axis` 1, which must have the dtype and shape of
        the first one.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            for name in ("gamma", "lambda_"):
                require_number(name, given.get(name, 1), 0, 1)
            require_count("n", given.get("n", 1))
            time_axis, given["time_axis"] = given["time_axis"], 0
            transpose = _convert_arguments(given, columns, time_axis)
            with np.errstate(invalid="ignore", over="ignore"):
                result = function(*bound.args, **bound.kwargs)
            return result if time_axis == 0 else tree.map_structure(transpose, result)

        return call  # type: ignore[return-value]

    return decorate


def _convert_arguments(given: dict[str, Any], columns: Sequence[str], time_axis: int) -> Callable[[Array], Array]:
    """Replaces the arguments by arrays with the time axis first; returns the function that swaps the two axes.

    Raises:
      ValueError: If `time_axis` is neither 0 nor 1, or an argument has the wrong dtype or shape.
    """
    if time_axis not in (0, 1):
        raise ValueError(f"time_axis must be 0 or 1, got {time_axis}")
    arrays = {name: given[name] for name in columns if given[name] is not None}
    others = [given.get(name) for name in ("bootstrap_value", "is_last")]
    has_tensor = any(map(_is_tensor, [*arrays.values(), *others]))
    first: Any = None
    for name, value in arrays.items():
        array = _convert(value, first, has_tensor=has_tensor)
        if first is None:
            first, rank = array, _find_rank(array)
            shapes = "[T] or [T, ...]" if time_axis == 0 else "[B, T]"
            if to_numpy_dtype(array).kind != "f" or not rank or (time_axis == 1 and rank != 2):
                raise ValueError(f"{name} must be floats {shapes}, got {_describe(array)}")
        elif to_numpy_dtype(array) != to_numpy_dtype(first) or not _is_compatible(array.shape, first.shape):
            expected = f"the dtype and shape of {columns[0]}, {_describe(first)}"
            raise ValueError(f"{name} must have {expected}, got {_describe(array)}")
        arrays[name] = array
    if given.get("is_last") is not None:
        arrays["is_last"] = ends = _convert(given["is_last"], None, has_tensor=has_tensor)
        if to_numpy_dtype(ends) != np.bool_ or not _is_compatible(ends.shape, first.shape):
            raise ValueError(f"is_last must be bool {first.shape}, got {_describe(ends)}")
    transpose: Callable[[Array], Array] = namespace(first).transpose
    given.update(arrays if time_axis == 0 else {name: transpose(array) for name, array in arrays.items()})
    if given.get("bootstrap_value") is not None:
        given["bootstrap_value"] = _broadcast(given["bootstrap_value"], given[columns[0]])
    return transpose


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


def _broadcast(bootstrap_value: ArrayLike, rewards: Array) -> Array:
    """Returns the bootstrap value in the shape of the rewards `[T, ...]` without the time axis."""
    value = _convert(bootstrap_value, rewards, has_tensor=not isinstance(rewards, np.ndarray))
    dtype, expected = to_numpy_dtype(rewards), rewards.shape[1:]
    value = cast(value, dtype) if to_numpy_dtype(value).kind in "iu" else value
    if to_numpy_dtype(value) != dtype or (_find_rank(value) and not _is_compatible(value.shape, expected)):
        raise ValueError(f"bootstrap_value must be a number or {dtype.name} {expected}, got {_describe(value)}")
    if isinstance(rewards, np.ndarray):
        return np.broadcast_to(value, expected)
    import tensorflow as tf

    return tf.broadcast_to(value, tf.shape(rewards)[1:])


def make_continues(is_last: Array | None, rewards: Array) -> Array:
    """Returns 1 for steps whose next step in the chunk belongs to the same episode, else 0, in the rewards' dtype."""
    xp, dtype = namespace(rewards), to_numpy_dtype(rewards)
    continues = xp.ones_like(rewards) if is_last is None else cast(xp.logical_not(is_last), dtype)
    return xp.concatenate([continues[:-1], xp.zeros_like(continues[-1:])])


def select_next_values(values: Array, bootstrap_value: Any, next_values: Any, is_last: Any = None) -> Array:
    """Returns the value after each step: `next_values`, or the next step's value and, at the end, the bootstrap value.

    Raises:
      ValueError: Unless exactly one of the two values is passed, which must be `next_values` with `is_last`.
    """
    if (bootstrap_value is None) == (next_values is None):
        raise ValueError(
            "pass exactly one of bootstrap_value, the value after the last step, and next_values, one for each step"
        )
    if next_values is not None:
        return next_values
    if is_last is not None:
        raise ValueError(
            "is_last requires next_values instead of bootstrap_value: if an episode ends inside the chunk, the next "
            "step belongs to a different episode, so its value cannot be used"
        )
    return namespace(values).concatenate([values[1:], bootstrap_value[None]])
