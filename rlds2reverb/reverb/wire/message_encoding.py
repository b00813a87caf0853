"""Vectorised encoding of Reverb's messages for chunks, items and priority updates; see `protobuf`.

Keys are in [2^56, 2^63), where varints have 9 bytes. Field numbers are those of `reverb/cc/schema.proto`,
`reverb/cc/reverb_service.proto` and `tensorflow/core/framework/tensor.proto`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import cramjam
import numpy as np

from rlds2reverb.types.specs import ArraySpec

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

#: The numbers of TensorFlow's enum `DataType`.
DATA_TYPES = {
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
#: The numbers of TensorFlow's strings, which are objects in NumPy, and of bfloat16, which NumPy does not have.
_STRING, _BFLOAT16 = 7, 14
_NUMPY_TYPES = {_STRING: np.dtype(object), **{number: np.dtype(name) for name, number in DATA_TYPES.items()}}
_KEY_WIDTH = 9
#: The width of keys from other writers, which may be any 64-bit number.
_ANY_KEY_WIDTH = 10
_INT_WIDTH = 5
#: A column of a chunk is compressed if it has at least this many bytes and shrinks to less than this fraction of them.
_MIN_COMPRESSIBLE_BYTES, _MAX_COMPRESSION_RATIO = 1024, 0.9


def require_dtype(spec: ArraySpec, where: str) -> None:
    """Raises `ValueError` unless the dtype is bool, integer, float or complex."""
    if spec.dtype.name not in DATA_TYPES:
        raise ValueError(
            f"{where} must be one of {', '.join(DATA_TYPES)}, got {spec.dtype}; cast it, or leave the field out"
        )


def numpy_dtype(number: int) -> np.dtype:
    """Returns the dtype of arrays for a number of TensorFlow's enum `DataType`; raises `ValueError` for others."""
    if number == _BFLOAT16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    if number not in _NUMPY_TYPES:
        raise ValueError(f"type {number} of TensorFlow has no dtype in NumPy")
    return _NUMPY_TYPES[number]


@functools.lru_cache(maxsize=4096)
def literal_header(size: int) -> bytes:
    """Returns the header of a snappy stream with one literal of `size` bytes (see snappy's format_description.txt)."""
    if size == 0:
        return varint(0)
    if size <= 60:
        return varint(size) + bytes([(size - 1) << 2])
    width = ((size - 1).bit_length() + 7) // 8
    return varint(size) + bytes([(59 + width) << 2]) + (size - 1).to_bytes(width, "little")


@functools.lru_cache(maxsize=4096)
def _tensor_head(spec: ArraySpec, num_rows: int) -> bytes:
    """Encodes the dtype and shape of a tensor of `num_rows` rows."""
    shape = b"".join(delimited(2, number_field(1, size or 0)) for size in (num_rows, *spec.shape))
    return number_field(1, DATA_TYPES[spec.dtype.name]) + delimited(2, shape)


@functools.lru_cache(maxsize=4096)
def _stored_tensor_head(spec: ArraySpec, num_rows: int) -> bytes:
    """Encodes everything before the bytes of an uncompressed tensor of `num_rows` rows."""
    size = num_rows * spec.num_bytes
    header = _tensor_head(spec, num_rows)
    content = literal_header(size)
    before = header + delimited_head(4, len(content) + size) + content
    return delimited_head(1, len(before) + size) + before


def encode_chunks(
    keys: np.ndarray,
    episode_ids: np.ndarray,
    first_rows: np.ndarray,
    contents: Sequence[np.ndarray | Sequence[np.ndarray]],
    specs: Sequence[ArraySpec],
    *,
    compress: bool = False,
) -> Any:
    """Encodes `ChunkData` messages with the same number of rows, each with all columns.

    Args:
      keys: uint64 `[n]` in [2^56, 2^63).
      episode_ids: uint64 `[n]` in the same range.
      first_rows: int `[n]`, the first rows of the chunks in their episodes, below 2^31.
      contents: an array `[n, rows, ...]` per column, or `n` arrays `[rows, ...]` for a column that is compressed.
      specs: specs of one row of each column.
      compress: whether to compress the columns that are `is_compressible` with snappy if that saves a tenth.

    Returns:
      uint8 `[n, size]`; with `compress`, a list of messages of any size.
    """
    num_rows = len(contents[0][0])
    tensors: list[Any] = []
    num_bytes = np.zeros(len(keys), np.int64)
    for column, spec in zip(contents, specs, strict=True):
        if not (compress and is_compressible(num_rows, spec)):
            stored: list[Part] = [_stored_tensor_head(spec, num_rows), _as_bytes(np.asarray(column))]
            tensors += stored
            num_bytes += total_width(stored)
            continue
        compressed = [_compress(rows) for rows in column]
        sizes, shape = np.array([len(content) for content in compressed]), _tensor_head(spec, num_rows)
        content_head = _delimited_heads(4, sizes)
        lengths = len(shape) + total_width(content_head) + sizes
        tensor_head = _delimited_heads(1, lengths)
        tensors += [*tensor_head, shape, *content_head, compressed]
        num_bytes += total_width(tensor_head) + lengths
    sequence_range = [
        *numbers_field(1, episode_ids, _KEY_WIDTH),
        *numbers_field(2, first_rows, _INT_WIDTH),
        *numbers_field(3, first_rows + (num_rows - 1), _INT_WIDTH),
    ]
    head = [*numbers_field(1, keys, _KEY_WIDTH), *message_field(2, sequence_range)]
    # The number and the uncompressed size of the tensors.
    tail = number_field(6, len(specs)) + number_field(7, num_rows * sum(spec.num_bytes for spec in specs))
    if not compress:
        return fill([*head, *message_field(5, tensors), tail], len(keys))
    return _join_parts([*head, *_delimited_heads(5, num_bytes), *tensors, tail], len(keys))


def _as_bytes(content: np.ndarray) -> np.ndarray:
    """Views an array `[n, ...]` as uint8 `[n, bytes]`."""
    content = np.ascontiguousarray(content)
    if not content.size:
        return np.zeros((len(content), 0), np.uint8)
    return content.reshape(len(content), -1).view(np.uint8)


def is_compressible(num_rows: int, spec: ArraySpec) -> bool:
    """Returns whether `encode_chunks` tries to compress `num_rows` rows of a column."""
    return num_rows * spec.num_bytes >= _MIN_COMPRESSIBLE_BYTES


def _delimited_heads(number: int, sizes: np.ndarray) -> list[Part]:
    """Encodes the tag and size that precede messages, or bytes, of different sizes."""
    return [tag(number, 2), varints(sizes, _INT_WIDTH)]


def _compress(rows: np.ndarray) -> bytes:
    """Returns an array as a snappy stream, as a literal if compression saves less than a tenth."""
    raw = np.ascontiguousarray(rows).reshape(-1).data.cast("B")
    compressed = bytes(cramjam.snappy.compress_raw(raw))
    if len(compressed) < _MAX_COMPRESSION_RATIO * len(raw):
        return compressed
    return b"".join([literal_header(len(raw)), raw])


def _join_parts(parts: Sequence[Part | list[bytes]], num_records: int) -> list[bytes]:
    """Assembles records from parts like `fill`, but a part may also be a list of one bytes object per record."""
    columns: list[Any] = []
    for is_list, group in itertools.groupby(parts, lambda part: isinstance(part, list)):
        adjacent: list[Any] = list(group)
        columns += adjacent if is_list else [fill(adjacent, num_records)]
    return [b"".join(record) for record in zip(*columns, strict=True)]


def encode_priority_updates(table: str, keys: np.ndarray, priorities: np.ndarray) -> bytes:
    """Encodes a `MutatePrioritiesRequest`.

    Args:
      table: name of the table.
      keys: uint64 `[M]`.
      priorities: float64 `[M]`.
    """
    values = np.ascontiguousarray(priorities, "<f8").view(np.uint8).reshape(-1, 8)
    update = [*numbers_field(1, keys, _ANY_KEY_WIDTH), tag(2, 1), values]
    return delimited(1, table.encode()) + fill(message_field(2, update), len(keys)).tobytes()


def encode_items(
    table: str,
    keys: np.ndarray,
    priorities: np.ndarray,
    slices: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    *,
    num_columns: int,
    squeeze: bool,
    numbers: np.ndarray | None = None,
) -> np.ndarray:
    """Encodes `PrioritizedItem` messages.

    Args:
      table: name of the table.
      keys: uint64 `[n]` in [2^56, 2^63).
      priorities: float64 `[n]`.
      slices: the slices of chunks that make up each item, the same for all columns: for the first chunk of each item,
        the second and so on, the key uint64 `[n]`, the first row in the chunk and the number of rows, int `[n]`.
      num_columns: number of columns in the chunks.
      squeeze: whether items are single rows without a time axis.
      numbers: int `[n]`, the order of insertion as microseconds since 1970, or None to let the server set it.

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
            column += message_field(1, [tag(1, 0), chunk, tag(2, 0), first, tag(3, 0), count, number_field(4, index)])
        columns += message_field(1, [*column, number_field(2, 1)] if squeeze else column)
    return fill([*parts, *message_field(8, columns)], len(keys))
