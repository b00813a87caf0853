"""Decoding of samples: the parts of a `SampleStream`, the chunks in them, and the columns of items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .chunk_tensors import decode_tensor


def join_parts(entries: Iterable[Any]) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Yields the `SampleInfo` and the chunks of each sample, which may arrive in several entries."""
    info: Any = None
    chunks: list[Any] = []
    for entry in entries:
        if info is None and entry.end_of_sequence:  # Fast path for the common case.
            yield entry.info, entry.data
            continue
        info = entry.info if info is None else info
        chunks += entry.data
        if entry.end_of_sequence:
            yield info, chunks
            info, chunks = None, []


def decode_column(column: Any, chunks: dict[int, Any]) -> np.ndarray:
    """Returns a column of an item, `[T, ...]`, or without a time axis if it is a single row.

    Args:
      column: description of the column in the item's `flat_trajectory`.
      chunks: chunks of the item's sample by key.

    Raises:
      ValueError: If a chunk is missing or damaged.
    """
    parts = []
    for piece in column.chunk_slices:
        chunk = chunks.get(piece.chunk_key)
        if chunk is None or not 0 <= piece.index < len(chunk.data.tensors):
            raise ValueError("it refers to a missing chunk")
        rows = decode_tensor(chunk.data.tensors[piece.index], delta_encoded=chunk.delta_encoded)
        begin, end = piece.offset, piece.offset + piece.length
        if not 0 <= begin < end <= len(rows):
            raise ValueError(f"it refers to rows {begin} to {end} of a chunk with {len(rows)}")
        parts.append(rows[begin:end])
    try:
        content = parts[0] if len(parts) == 1 else np.concatenate(parts)
    except ValueError as error:
        raise ValueError(f"its chunks do not fit together ({error})") from None
    if column.squeeze and len(content) != 1:
        raise ValueError(f"it should be a single row, but has {len(content)}")
    return content[0] if column.squeeze else content
