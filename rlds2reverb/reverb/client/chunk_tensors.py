"""Decoding of the tensors in chunks: shapes, snappy compression, deltas and strings."""

from __future__ import annotations

import functools
import math
from typing import Any

import cramjam
import numpy as np
from google.protobuf.message import DecodeError

from ..wire.message_encoding import literal_header, numpy_dtype
from ..wire.protobuf import read_varint
from .client_messages import TensorShapeProto


@functools.lru_cache(maxsize=4096)
def read_spec(dtype: int, encoded_shape: bytes) -> tuple[np.dtype, tuple[int, ...]]:
    """Returns the dtype and shape of a tensor.

    Raises:
      ValueError: If they are not those of an array.
    """
    try:
        shape = tuple(int(dim.size) for dim in TensorShapeProto.FromString(encoded_shape).dim)
    except DecodeError as error:
        raise ValueError(f"a tensor has no valid shape ({error})") from None
    if not shape or min(shape) < 0:
        raise ValueError(f"a tensor has type {dtype} and shape {list(shape)}")
    return numpy_dtype(dtype), shape


def raw_content(content: bytes, size: int) -> tuple[bytes, int]:
    """Decompresses a snappy stream; returns bytes, and the position in them at which its `size` bytes begin.

    Raises:
      ValueError: If the stream is damaged, or has a different size.
    """
    header = literal_header(size)
    if len(content) == len(header) + size and content.startswith(header):  # It is not compressed.
        return content, len(header)
    try:
        claimed, _ = read_varint(content)
        if claimed == size:
            raw = bytes(cramjam.snappy.decompress_raw(content))
            if len(raw) == size:
                return raw, 0
        raise ValueError(f"it has {claimed} bytes, expected {size}")
    except (ValueError, cramjam.DecompressionError) as error:
        raise ValueError(f"the content of a tensor is damaged ({error})") from None


def decode_tensor(tensor: Any, *, delta_encoded: bool) -> np.ndarray:
    """Returns the array `[rows, ...]` of a tensor in a chunk.

    Raises:
      ValueError: If it is damaged.
    """
    dtype, shape = read_spec(tensor.dtype, tensor.tensor_shape)
    if dtype.hasobject:
        return _decode_strings(tensor, shape)
    raw, begin = raw_content(tensor.tensor_content, math.prod(shape) * dtype.itemsize)
    array = np.frombuffer(raw, dtype, offset=begin, count=math.prod(shape)).reshape(shape)
    return add_deltas(array) if delta_encoded else array


def add_deltas(array: np.ndarray) -> np.ndarray:
    """Restores an array `[rows, ...]` of a chunk in which Reverb stored the differences between adjacent rows.

    It does so for integers only, and not for rows without an axis.
    """
    return np.cumsum(array, axis=0, dtype=array.dtype) if array.dtype.kind in "iu" and array.ndim > 1 else array


def _decode_strings(tensor: Any, shape: tuple[int, ...]) -> np.ndarray:
    strings, lengths = np.empty(math.prod(shape), object), []
    content, position = tensor.tensor_content, 0
    for _ in strings:
        length, position = read_varint(content, position)
        lengths.append(length)
    for index, length in enumerate(lengths):
        strings[index] = content[position : position + length]
        position += length
    if position != len(content):
        raise ValueError(f"the strings of a tensor have {len(content)} bytes, expected {position}")
    return strings.reshape(shape)
