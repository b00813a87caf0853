"""Vectorised encoding of many protocol buffer messages of equal size with NumPy.

A record is described by its parts, in order: bytes that all records share, or an array uint8 `[n, width]` with one
row per record. Every part has a fixed width, so that `n` records are one array `[n, size]`, filled part by part.
Varints are padded with continuation bytes, which every protocol buffer parser accepts.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

Part = bytes | np.ndarray


def varint(value: int) -> bytes:
    """Encodes a number in base 128, lowest digits first, without padding."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def read_varint(content: bytes, position: int = 0) -> tuple[int, int]:
    """Decodes a number at a position; returns it and the position after it.

    Raises:
      ValueError: If the content ends before the number.
    """
    value = shift = 0
    while position < len(content):
        byte = content[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
    raise ValueError("a number is incomplete")


def varints(values: np.ndarray, width: int) -> np.ndarray:
    """Encodes numbers below 2^(7·width) in base 128, padded to a width of 1 to 10: uint8 `[n, width]`."""
    numbers = values.astype(np.uint64)
    digits = np.empty((len(numbers), width), np.uint8)
    for place in range(width):
        digits[:, place] = numbers >> np.uint64(7 * place)
    digits[:, :-1] |= 128
    digits[:, -1] &= 127
    return digits


def total_width(parts: Sequence[Part]) -> int:
    """Returns the size of one record."""
    return sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in parts)


def fill(parts: Sequence[Part], num_records: int) -> np.ndarray:
    """Assembles records from their parts: uint8 `[num_records, total_width(parts)]`."""
    shared = b"".join(part if isinstance(part, bytes) else bytes(part.shape[1]) for part in parts)
    records = np.empty((num_records, len(shared)), np.uint8)
    records[...] = np.frombuffer(shared, np.uint8)
    at = 0
    for part in parts:
        if isinstance(part, np.ndarray) and part.size:
            view_bytes(records, at, part.shape[1])[...] = view_bytes(np.ascontiguousarray(part), 0, part.shape[1])
        at += len(part) if isinstance(part, bytes) else part.shape[1]
    return records


def view_bytes(records: np.ndarray, at: int, width: int) -> np.ndarray:
    """Returns a view `[n]` of contiguous records (uint8 `[n, size]`) with `width` adjacent bytes per element.

    NumPy copies and compares such elements several times as fast as single bytes.
    """
    num_records, size = records.shape
    return np.ndarray((num_records,), f"V{width}", records, at, (size,))


@functools.lru_cache(maxsize=256)
def tag(number: int, wire_type: int) -> bytes:
    """Encodes the tag with which a field starts."""
    return varint(number << 3 | wire_type)


def number_field(number: int, value: int) -> bytes:
    """Encodes a field with the same number in all records."""
    return tag(number, 0) + varint(value)


def numbers_field(number: int, values: np.ndarray, width: int) -> list[Part]:
    """Encodes a field with one number per record, each `width` bytes wide."""
    return [tag(number, 0), varints(values, width)]


def message_field(number: int, parts: Sequence[Part]) -> list[Part]:
    """Encodes a field with a message, or bytes, of the same width in all records."""
    return [delimited_head(number, total_width(parts)), *parts]


def delimited(number: int, content: bytes) -> bytes:
    """Encodes a field with the same message, or bytes, in all records."""
    return delimited_head(number, len(content)) + content


@functools.lru_cache(maxsize=4096)
def delimited_head(number: int, size: int) -> bytes:
    """Encodes the tag and size that precede a message, or bytes, of this size."""
    return tag(number, 2) + varint(size)
