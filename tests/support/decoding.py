"""A slow decoder of Reverb's messages: parses protocol buffers and decompresses with snappy, one slice at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import cramjam
import numpy as np
import tensorflow as tf


def chunk_column(chunk: Any, index: int) -> np.ndarray:
    """Returns one column of a `ChunkData`: all its rows `[R, ...]`."""
    tensor = chunk.data.tensors[index]
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    content = bytes(cramjam.snappy.decompress_raw(tensor.tensor_content))
    rows = np.frombuffer(content, tf.as_dtype(tensor.dtype).as_numpy_dtype).reshape(shape)
    if chunk.delta_encoded and rows.dtype.kind in "iu":
        return np.cumsum(rows, axis=0, dtype=rows.dtype)
    return rows


def item_columns(item: Any, chunks: Mapping[int, Any]) -> list[np.ndarray]:
    """Returns the columns of a `PrioritizedItem`, concatenated from slices of `chunks`, a mapping by key."""
    columns = []
    for column in item.flat_trajectory.columns:
        parts = []
        for chunk_slice in column.chunk_slices:
            rows = chunk_column(chunks[chunk_slice.chunk_key], chunk_slice.index)
            assert chunk_slice.offset + chunk_slice.length <= len(rows)
            parts.append(rows[chunk_slice.offset : chunk_slice.offset + chunk_slice.length])
        rows = np.concatenate(parts)
        assert not column.squeeze or len(rows) == 1
        columns.append(rows[0] if column.squeeze else rows)
    return columns


def parse_messages(kind: Any, groups: Iterable[Any]) -> list[Any]:
    """Returns the messages of one kind in groups of records, which `EncodedBatch` contains."""
    return [kind.FromString(bytes(record)) for records in groups for record in records]


def assert_same_columns(got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Asserts that both contain the same number of columns, with the same dtypes, shapes and bits."""
    described = [[(column.dtype, column.shape, column.tobytes()) for column in columns] for columns in (got, expected)]
    assert described[0] == described[1]
