"""Reverb's own messages, chunks and items, written by numpy; see `protobuf`.

Keys are in [2^56, 2^63), where varints have 9 bytes. Field numbers are those of `reverb/cc/schema.proto`,
`reverb/cc/reverb_service.proto` and `tensorflow/core/framework/tensor.proto`.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import cramjam
import numpy as np

from rlds2reverb.specs import ArraySpec

from .protobuf import (
    Part,
    delimited,
    delimited_head,
    fill,
    message_field,
    number_field,
    numbers_field,
    tag,
    total_width,
    varint,
    varints,
)

#: Numbers of TensorFlow's `DataType`.
_DATA_TYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "complex64": 8,
    "int64": 9,
    "bool": 10,
    "uint16": 17,
    "complex128": 18,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}
_KEY_WIDTH = 9
#: Of keys that others gave, which may be any of 64 bits.
_ANY_KEY_WIDTH = 10
_INT_WIDTH = 5
#: Columns of a chunk are compressed from this many bytes on, if that makes them shorter by a tenth.
_WORTH_TRYING_BYTES, _WORTH_COMPRESSING = 1024, 0.9


def require_dtype(spec: ArraySpec, where: str) -> None:
    """Raises `ValueError` unless columns of this dtype can be encoded: bool, integers, floats, complex numbers."""
    if spec.dtype.name not in _DATA_TYPES:
        raise ValueError(
            f"{where} is {spec.dtype}, expected one of {', '.join(_DATA_TYPES)}; cast it, or leave the field out"
        )


def _stored_header(size: int) -> bytes:
    """Returns what makes `size` bytes behind it a snappy stream of one literal (snappy's format_description.txt)."""
    if size == 0:
        return varint(0)
    if size <= 60:
        return varint(size) + bytes([(size - 1) << 2])
    width = ((size - 1).bit_length() + 7) // 8
    return varint(size) + bytes([(59 + width) << 2]) + (size - 1).to_bytes(width, "little")


@functools.lru_cache(maxsize=4096)
def _tensor_head(spec: ArraySpec, num_rows: int) -> bytes:
    """Returns the dtype and shape of a tensor of `num_rows` rows."""
    sizes: tuple[int | None, ...] = (num_rows, *spec.shape)
    shape = b"".join(delimited(2, number_field(1, size or 0)) for size in sizes)
    return number_field(1, _DATA_TYPES[spec.dtype.name]) + delimited(2, shape)


@functools.lru_cache(maxsize=4096)
def _stored_tensor_head(spec: ArraySpec, num_rows: int) -> bytes:
    """Returns the field of a stored tensor of `num_rows` rows, up to where its bytes begin."""
    size = num_rows * spec.num_bytes
    header = _tensor_head(spec, num_rows)
    content = _stored_header(size)
    before = header + delimited_head(4, len(content) + size) + content
    return delimited_head(1, len(before) + size) + before


def _chunk_head(keys: np.ndarray, episode_ids: np.ndarray, first_rows: np.ndarray, num_rows: int) -> list[Part]:
    """Returns the fields of chunks that come before their tensors."""
    sequence_range = [
        *numbers_field(1, episode_ids, _KEY_WIDTH),
        *numbers_field(2, first_rows, _INT_WIDTH),
        *numbers_field(3, first_rows + (num_rows - 1), _INT_WIDTH),
    ]
    return [*numbers_field(1, keys, _KEY_WIDTH), *message_field(2, sequence_range)]


def _chunk_tail(num_rows: int, specs: Sequence[ArraySpec]) -> bytes:
    """Returns the fields that come after the tensors: how many there are, and their bytes when unpacked."""
    return number_field(6, len(specs)) + number_field(7, num_rows * sum(spec.num_bytes for spec in specs))


def chunks(
    keys: np.ndarray,
    episode_ids: np.ndarray,
    first_rows: np.ndarray,
    contents: Sequence[np.ndarray],
    specs: Sequence[ArraySpec],
) -> np.ndarray:
    """Returns `ChunkData` messages of equally many rows, all columns in one chunk, stored without compression.

    Args:
      keys: uint64 `[n]` in [2^56, 2^63).
      episode_ids: uint64 `[n]` in the same range.
      first_rows: int `[n]`, places of the chunks in their episodes, below 2^31.
      contents: for each column an array `[n, rows, ...]`.
      specs: of one row of each column.

    Returns:
      uint8 `[n, size]`.
    """
    num_chunks, num_rows = contents[0].shape[:2]
    tensors: list[Part] = []
    for column, spec in zip(contents, specs, strict=True):
        tensors += [_stored_tensor_head(spec, num_rows), _as_bytes(column)]
    head = _chunk_head(keys, episode_ids, first_rows, num_rows)
    return fill([*head, *message_field(5, tensors), _chunk_tail(num_rows, specs)], num_chunks)


def _as_bytes(content: np.ndarray) -> np.ndarray:
    """uint8 `[n, bytes]` of an array `[n, ...]`."""
    content = np.ascontiguousarray(content)
    if not content.size:
        return np.zeros((len(content), 0), np.uint8)
    return content.reshape(len(content), -1).view(np.uint8)


class _Scratch(threading.local):
    """A buffer for the compressor's output; allocating one each time would take as long as compressing."""

    room = np.empty(0, np.uint8)


_SCRATCH = _Scratch()


def is_compressed(num_rows: int, spec: ArraySpec) -> bool:
    """Whether `compressed_chunks` tries to compress `num_rows` rows of a column."""
    return num_rows * spec.num_bytes >= _WORTH_TRYING_BYTES


def compressed_chunks(
    keys: np.ndarray,
    episode_ids: np.ndarray,
    first_rows: np.ndarray,
    contents: Sequence[np.ndarray | Sequence[np.ndarray]],
    specs: Sequence[ArraySpec],
) -> list[bytes]:
    """Returns the same as `chunks`, with large columns compressed by snappy where that saves a tenth.

    Args:
      keys: see `chunks`.
      episode_ids: see `chunks`.
      first_rows: see `chunks`.
      contents: for each column an array `[n, rows, ...]`, or `n` arrays `[rows, ...]` for one that `is_compressed`.
      specs: of one row of each column.
    """
    num_chunks, num_rows = len(keys), len(contents[0][0])
    tensors: list[Part | list[bytes]] = []
    num_bytes = np.zeros(num_chunks, np.int64)
    for column, spec in zip(contents, specs, strict=True):
        if not is_compressed(num_rows, spec):
            stored: list[Part] = [_stored_tensor_head(spec, num_rows), _as_bytes(np.asarray(column))]
            tensors += stored
            num_bytes += total_width(stored)
            continue
        packed = [_packed(rows) for rows in column]
        sizes, head = np.array([len(each) for each in packed]), _tensor_head(spec, num_rows)
        content_field = _sized(4, sizes)
        lengths = len(head) + total_width(content_field) + sizes
        tensor_field = _sized(1, lengths)
        tensors += [*tensor_field, head, *content_field, packed]
        num_bytes += total_width(tensor_field) + lengths
    chunk_head = _chunk_head(keys, episode_ids, first_rows, num_rows)
    return _records([*chunk_head, *_sized(5, num_bytes), *tensors, _chunk_tail(num_rows, specs)], num_chunks)


def _sized(number: int, sizes: np.ndarray) -> list[Part]:
    """Returns the tag and size that come before messages or bytes of different sizes."""
    return [tag(number, 2), varints(sizes, _INT_WIDTH)]


def _packed(rows: np.ndarray) -> bytes:
    """Returns an array as a snappy stream: compressed, or stored where compression saves less than a tenth."""
    raw = np.ascontiguousarray(rows).reshape(-1).data.cast("B")
    most = cramjam.snappy.compress_raw_max_len(raw)
    if len(_SCRATCH.room) < most:
        _SCRATCH.room = np.empty(most, np.uint8)
    size = cramjam.snappy.compress_raw_into(raw, _SCRATCH.room.data)
    if size < _WORTH_COMPRESSING * len(raw):
        return _SCRATCH.room[:size].tobytes()
    return b"".join([_stored_header(len(raw)), raw])


def _records(parts: Sequence[Part | list[bytes]], num_records: int) -> list[bytes]:
    """Returns the records made of parts as in `fill`, or of a list with bytes of its own for each record."""
    columns: list[Any] = []
    for is_own, group in itertools.groupby(parts, lambda part: isinstance(part, list)):
        neighbours: list[Any] = list(group)
        columns += neighbours if is_own else [fill(neighbours, num_records)]
    return [b"".join(record) for record in zip(*columns, strict=True)]


def priority_updates(table: str, keys: np.ndarray, priorities: np.ndarray) -> bytes:
    """Returns a `MutatePrioritiesRequest`.

    Args:
      table: its name.
      keys: uint64 `[M]`.
      priorities: float64 `[M]`.
    """
    values = np.ascontiguousarray(priorities, "<f8").view(np.uint8).reshape(-1, 8)
    update = [*numbers_field(1, keys, _ANY_KEY_WIDTH), tag(2, 1), values]
    return delimited(1, table.encode()) + fill(message_field(2, update), len(keys)).tobytes()


def items(
    table: str,
    keys: np.ndarray,
    priorities: np.ndarray,
    slices: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    *,
    num_columns: int,
    squeeze: bool,
    numbers: np.ndarray | None = None,
) -> np.ndarray:
    """Returns `PrioritizedItem` messages.

    Args:
      table: the table's name.
      keys: uint64 `[n]` in [2^56, 2^63).
      priorities: float64 `[n]`.
      slices: where the rows of an item lie: a chunk's key uint64 `[n]`, the first row in it and the number of rows,
        int `[n]`, for each chunk that it takes, the same for all columns.
      num_columns: columns in the chunks.
      squeeze: whether the one row of an item comes without the time axis.
      numbers: int `[n]`, the order of insertion as microseconds since 1970, or None to leave that to the server.

    Returns:
      uint8 `[n, size]`.
    """
    width = max(len(varint(int(max(first.max(), count.max())))) for _, first, count in slices)
    parts: list[Part] = [*numbers_field(1, keys, _KEY_WIDTH), *message_field(2, [table.encode()])]
    parts += [tag(5, 1), priorities.astype("<f8")[:, None].view(np.uint8)]
    if numbers is not None:
        seconds, micros = np.divmod(numbers, 1_000_000)
        inserted_at = [*numbers_field(1, seconds, _INT_WIDTH), *numbers_field(2, micros * 1000, _INT_WIDTH)]
        parts += message_field(7, inserted_at)
    encoded = [
        (varints(chunk, _KEY_WIDTH), varints(first, width), varints(count, width)) for chunk, first, count in slices
    ]
    columns: list[Part] = []
    for index in range(num_columns):
        column: list[Part] = []
        for chunk, first, count in encoded:
            place: list[Part] = [tag(1, 0), chunk, tag(2, 0), first, tag(3, 0), count, number_field(4, index)]
            column += message_field(1, place)
        squeezed: list[Part] = [number_field(2, 1)] if squeeze else []
        columns += message_field(1, column + squeezed)
    return fill([*parts, *message_field(8, columns)], len(keys))
