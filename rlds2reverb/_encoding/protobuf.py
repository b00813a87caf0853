"""Messages of protocol buffers, many records of one size at once, written by numpy.

A record is described by its parts, in order: bytes that all records share, or an array uint8 `[n, width]` with what
differs. Everything has a fixed width, so that `n` records are one array `[n, size]` that is filled part by part:
varints are filled up with continuation bytes, which every parser of protocol buffers takes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

Part = bytes | np.ndarray

#: The bit of each byte that says that another follows.
_CONTINUED = 0x8080808080808080
#: How far the upper half of each group of 56, 28 and 14 bits moves up, and which bits stay.
_HALVES = ((4, 0x000000000FFFFFFF), (2, 0x00003FFF00003FFF), (1, 0x007F007F007F007F))


def varint(value: int) -> bytes:
    """Returns a number in base 128, lowest digits first, without padding."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def varints(values: np.ndarray, width: int) -> np.ndarray:
    """Numbers below 2^(7·width) in base 128, filled up to a width of 1 to 10: uint8 `[n, width]`."""
    if width == 1:
        return values.astype(np.uint8)[:, None]
    numbers = values.astype(np.uint64)
    digits = _spread(numbers & np.uint64((1 << 56) - 1))
    digits |= np.uint64(_CONTINUED & (1 << 8 * (width - 1)) - 1)
    first = digits.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    if width <= 8:
        return first[:, :width]
    if width == 9:
        return np.concatenate([first, (numbers >> np.uint64(56)).astype(np.uint8)[:, None]], axis=1)
    ninth = (numbers >> np.uint64(56)).astype(np.uint8) | np.uint8(128)
    return np.concatenate([first, ninth[:, None], (numbers >> np.uint64(63)).astype(np.uint8)[:, None]], axis=1)


def _spread(numbers: np.ndarray) -> np.ndarray:
    """Numbers below 2^56 with each seven bits in a byte of their own, halves first, then halves of these."""
    for half, keep in _HALVES:
        low = numbers & np.uint64(keep)
        numbers = low | (numbers ^ low) << np.uint64(half)
    return numbers


def total_width(parts: Sequence[Part]) -> int:
    """Bytes of one record."""
    return sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in parts)


def fill(parts: Sequence[Part], num_records: int) -> np.ndarray:
    """The records: uint8 `[num_records, total_width(parts)]`."""
    shared = b"".join(part if isinstance(part, bytes) else bytes(part.shape[1]) for part in parts)
    records = np.empty((num_records, len(shared)), np.uint8)
    records[...] = np.frombuffer(shared, np.uint8)
    at = 0
    for part in parts:
        if isinstance(part, np.ndarray) and part.size:
            neighbours(records, at, part.shape[1])[...] = neighbours(np.ascontiguousarray(part), 0, part.shape[1])
        at += len(part) if isinstance(part, bytes) else part.shape[1]
    return records


def neighbours(records: np.ndarray, at: int, width: int) -> np.ndarray:
    """Neighbouring bytes of each record (uint8 `[n, size]`, contiguous) as one element: a view `[n]`.

    Numpy copies and compares these several times as fast as single bytes.
    """
    num_records, size = records.shape
    return np.ndarray((num_records,), f"V{width}", records, at, (size,))


@functools.lru_cache(maxsize=256)
def tag(number: int, wire_type: int) -> bytes:
    """Returns what a field begins with."""
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
