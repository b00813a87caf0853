"""Reverb's messages read the slow way: parsed by protocol buffers, decompressed by snappy, one slice at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import cramjam
import numpy as np
import tensorflow as tf


def chunk_column(chunk: Any, index: int) -> np.ndarray:
    """One column of a `ChunkData`: all its rows `[R, ...]`."""
    tensor = chunk.data.tensors[index]
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    content = bytes(cramjam.snappy.decompress_raw(tensor.tensor_content))
    rows = np.frombuffer(content, tf.as_dtype(tensor.dtype).as_numpy_dtype).reshape(shape)
    if chunk.delta_encoded and rows.dtype.kind in "iu":
        return np.cumsum(rows, axis=0, dtype=rows.dtype)
    return rows


def item_columns(item: Any, chunks: Mapping[int, Any]) -> list[np.ndarray]:
    """The columns of a `PrioritizedItem`, put together from slices of chunks, which are given by key."""
    columns = []
    for column in item.flat_trajectory.columns:
        parts = []
        for place in column.chunk_slices:
            rows = chunk_column(chunks[place.chunk_key], place.index)
            assert place.offset + place.length <= len(rows)
            parts.append(rows[place.offset : place.offset + place.length])
        rows = np.concatenate(parts)
        assert not column.squeeze or len(rows) == 1
        columns.append(rows[0] if column.squeeze else rows)
    return columns


def parsed(kind: Any, groups: Iterable[Any]) -> list[Any]:
    """Messages of a kind, from groups of records as `batches.EncodedBatch` has them."""
    return [kind.FromString(bytes(record)) for records in groups for record in records]


def assert_same_columns(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    """As many columns, of the same dtypes, shapes and bits."""
    described = [[(column.dtype, column.shape, column.tobytes()) for column in columns] for columns in (got, wanted)]
    assert described[0] == described[1]
