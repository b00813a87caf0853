"""Draws from a table whose rate limiter counts samples: they end where it gives no more, and never wait there."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

from rlds2reverb._encoding import keys

from .draws import Draws

#: How long a rate limiter may give nothing before it is taken for one that has no more to give.
_PATIENCE_MS = 50


def draw_within_limits(address: str, table: str, count: int, columns: tuple[tf.TensorSpec, ...]) -> Draws:
    """So many elements of a table, drawn with replacement, or as many as its rate limiter gives without waiting.

    Reverb's sampler, which is faster, has no time-out for the rate limiter.

    Args:
      address: of the server.
      table: its name.
      count: elements that are asked for.
      columns: of the table's signature.
    """
    batches = list(_batches(address, table, count, columns))
    infos = [[np.zeros(0, np.uint64), np.zeros(0), np.zeros(0, np.int64)]]
    infos += [[part.numpy() for part in (info.key, info.probability, info.table_size)] for info, _ in batches]
    found_keys, probabilities, table_sizes = (np.concatenate(part) for part in zip(*infos, strict=True))
    numbers = keys.numbers_of(found_keys)
    return Draws(numbers, probabilities, table_sizes, [value for _, data in batches for value in _elements(data)])


@lru_cache(maxsize=32)
def _batches(address: str, table: str, count: int, columns: tuple[tf.TensorSpec, ...]) -> tf.data.Dataset:
    """Elements that are drawn anew each time: in one batch, or one by one where their lengths vary."""
    stream = reverb.TrajectoryDataset(
        address,
        table,
        dtypes=tuple(column.dtype for column in columns),
        shapes=tuple(column.shape for column in columns),
        max_in_flight_samples_per_worker=count,
        num_workers_per_iterator=1,
        rate_limiter_timeout_ms=_PATIENCE_MS,
        max_samples=count,
    )
    fixed = all(column.shape.is_fully_defined() for column in columns)
    return stream.batch(count if fixed else 1)


def _elements(data: tuple[tf.Tensor, ...]) -> list[list[Any]]:
    """The columns of each element of a batch."""
    columns = [column.numpy() for column in data]
    return [list(values) for values in zip(*columns, strict=True)]
