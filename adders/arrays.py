"""Array operations that are the same for NumPy, and for TensorFlow inside `tf.data`."""

from __future__ import annotations

from typing import Any

import numpy as np

#: A NumPy array or a TensorFlow tensor.
Array = Any


def namespace(array: Array) -> Any:
    """Returns the functions for an array: `numpy`, or `tensorflow.experimental.numpy`."""
    if isinstance(array, np.ndarray):
        return np
    import tensorflow.experimental.numpy as tnp

    return tnp


def arange(stop: Array | int, like: Array) -> Array:
    """Returns the integers from 0 to below `stop`, int64, as an array of the kind of `like`."""
    if isinstance(like, np.ndarray):
        return np.arange(stop)
    import tensorflow as tf

    return tf.range(tf.cast(stop, tf.int64))


def repeat(array: Array, counts: Array | int) -> Array:
    """Returns each element as many times as its count says."""
    if isinstance(array, np.ndarray):
        return np.repeat(array, counts)
    import tensorflow as tf

    return tf.repeat(array, counts)


def cast(array: Array, dtype: Any) -> Array:
    """Returns an array with a NumPy dtype."""
    if isinstance(array, np.ndarray):
        return array.astype(dtype, copy=False)
    import tensorflow as tf

    return tf.cast(array, dtype)


def to_numpy_dtype(array: Array) -> np.dtype:
    """Returns the NumPy dtype of an array."""
    return array.dtype if isinstance(array, np.ndarray) else np.dtype(array.dtype.as_numpy_dtype)


def keep_where(mask: Array, column: Array, filler: Any = 0) -> Array:
    """Returns a column `[R, ...]` with a filler, or empty strings, in the rows where the mask `[R]` is False."""
    if to_numpy_dtype(column).kind == "O":
        filler = b""
    if isinstance(column, np.ndarray):
        kept = column.copy()
        kept[~mask] = filler
        return kept
    import tensorflow as tf

    mask = mask[(slice(None), *[None] * (len(column.shape) - 1))]
    return tf.where(mask, column, tf.constant(np.array(filler, to_numpy_dtype(column)), column.dtype))


def multiply_no_nan(array: Array, factors: Array) -> Array:
    """Returns `array * factors`, but 0 where the factor is 0, even for NaN and Inf."""
    if not isinstance(array, np.ndarray):
        import tensorflow as tf

        return tf.math.multiply_no_nan(array, factors)
    return np.where(factors != 0, array, array.dtype.type(0)) * factors


def split_axis(column: Array, like: Array) -> Array:
    """Returns a column `[N * L, ...]` as `[N, L, ...]`, the first two axes of `like`."""
    if isinstance(column, np.ndarray):
        return column.reshape(*like.shape[:2], *column.shape[1:])
    import tensorflow as tf

    return tf.reshape(column, tf.concat([tf.shape(like)[:2], tf.shape(column)[1:]], 0))


def require_at_most(array: Array, limit: int, message: str) -> None:
    """Raises `ValueError` if an element is above the limit; a graph raises `InvalidArgumentError` when it runs."""
    if not isinstance(array, np.ndarray):
        import tensorflow as tf

        tf.debugging.assert_less_equal(array, tf.constant(limit, array.dtype), message)
    elif (array > limit).any():
        raise ValueError(message)
