"""Messages of protocol buffers, written by numpy: many records of one size at once.

A record is described by its parts, in order: bytes that all records share, or an array uint8 `[n, width]` with what
differs. Everything has a fixed width, so that `n` records are one array `[n, size]` that is filled part by part:
varints are filled up with continuation bytes, which every parser of protocol buffers takes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

Part = bytes | np.ndarray


def varint(value: int) -> bytes:
    """A number in base 128, lowest digits first, without padding."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def varints(values: np.ndarray, width: int) -> np.ndarray:
    """Numbers below 2^(7·width) in base 128, filled up to a width: uint8 `[n, width]`."""
    shifts = np.arange(0, 7 * width, 7, dtype=np.uint64)
    digits = (values.astype(np.uint64)[:, None] >> shifts).astype(np.uint8) & np.uint8(127)
    digits[:, :-1] |= np.uint8(128)
    return digits


def total_width(parts: Sequence[Part]) -> int:
    """Bytes of one record."""
    return sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in parts)


def fill(parts: Sequence[Part], num_records: int) -> np.ndarray:
    """The records: uint8 `[num_records, total_width(parts)]`."""
    records = np.empty((num_records, total_width(parts)), np.uint8)
    at = 0
    for part in parts:
        content = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        records[:, at : at + content.shape[-1]] = content
        at += content.shape[-1]
    return records


@functools.lru_cache(maxsize=256)
def tag(number: int, wire_type: int) -> bytes:
    """What a field begins with."""
    return varint(number << 3 | wire_type)


def number_field(number: int, value: int) -> bytes:
    """A field that holds the same number in all records."""
    return tag(number, 0) + varint(value)


def numbers_field(number: int, values: np.ndarray, width: int) -> list[Part]:
    """A field that holds another number in each record."""
    return [tag(number, 0), varints(values, width)]


def message_field(number: int, parts: Sequence[Part]) -> list[Part]:
    """A field that holds a message (or bytes), of the same width in all records."""
    return [delimited_head(number, total_width(parts)), *parts]


def delimited(number: int, content: bytes) -> bytes:
    """A field that holds a message or bytes."""
    return delimited_head(number, len(content)) + content


@functools.lru_cache(maxsize=4096)
def delimited_head(number: int, size: int) -> bytes:
    """What comes before a message or bytes of this size."""
    return tag(number, 2) + varint(size)
