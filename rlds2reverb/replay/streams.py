"""Batches as a `tf.data` stream: the only file here that needs TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .batches import Batch

#: Between two tries of a sample that is refused.
_PAUSE_SECS = 0.002


def batches(
    sample: Callable[[], Batch | None],
    like: Batch,
    batch_size: int,
    *,
    why_not: Callable[[], str],
    prefetch: int,
    timeout_secs: float,
) -> tf.data.Dataset:
    """An endless data set of what a function samples, one call a batch.

    Args:
      sample: gives a batch, or None where there is none now.
      like: a batch of no elements.
      batch_size: elements in a batch.
      why_not: says why there was none.
      prefetch: batches that are made ready ahead.
      timeout_secs: how long to wait for one; then an error with the reason is raised.
    """
    leaves = tf.nest.flatten(like)
    dtypes = [tf.as_dtype(leaf.dtype) for leaf in leaves]
    shapes = [(batch_size, *(size or None for size in leaf.shape[1:])) for leaf in leaves]

    def draw() -> list[np.ndarray]:
        end = time.monotonic() + timeout_secs
        while (batch := sample()) is None:
            if time.monotonic() > end:
                raise ValueError(f"waited {timeout_secs:g} s for a batch: {why_not()}")
            time.sleep(_PAUSE_SECS)
        return tf.nest.flatten(batch)

    def drawn(_: tf.Tensor) -> Any:
        found = tf.numpy_function(draw, [], dtypes)
        shaped = [tf.ensure_shape(leaf, shape) for leaf, shape in zip(found, shapes, strict=True)]
        return tf.nest.pack_sequence_as(like, shaped)

    return tf.data.Dataset.range(np.iinfo(np.int64).max).map(drawn).prefetch(prefetch)
