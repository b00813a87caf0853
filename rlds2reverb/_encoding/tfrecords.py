"""TFRecord files: many records of one size are framed at once, with their checksums.

A record is its length (uint64), a checksum of the length, its bytes, and a checksum of these. Checksums are CRC-32C,
rotated right by 15 bits plus 0xA282EAD8 (tensorflow/core/lib/hash/crc32c.h).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np

from .protobuf import fill, neighbours

_MASK_DELTA = np.uint32(0xA282EAD8)
#: Where no more bytes than these differ between records, their checksums come from tables.
_MOST_DIFFERENT, _LONGEST = 400, 4096
_FEWEST_RECORDS = 64
#: Of a record's length and its checksum.
HEAD_BYTES = 12


def framed(records: np.ndarray) -> np.ndarray:
    """Records uint8 `[n, size]` as they stand in a file: uint8 `[n, size + 16]`."""
    length = records.shape[1].to_bytes(8, "little")
    head = length + _masked(np.array([google_crc32c.value(length)], np.uint32)).tobytes()
    return fill([head, records, _masked(checksums(records))], len(records))


def _masked(crcs: np.ndarray) -> np.ndarray:
    rotated = (crcs >> np.uint32(15)) | (crcs << np.uint32(17))
    with np.errstate(over="ignore"):
        return (rotated + _MASK_DELTA).astype("<u4")[:, None].view(np.uint8)


def checksums(records: np.ndarray) -> np.ndarray:
    """CRC-32C of each record of uint8 `[n, size]`: uint32 `[n]`.

    Where few bytes differ between the records, it uses that the checksum is linear over GF(2): it is that of the first
    record, XORed with the change that each differing byte makes at its place. Stretches of bytes that a record holds
    several times, such as the key of a chunk, are looked up once for all their places.

    For example, the records b"ab1", b"ab2" and b"cb1": the bytes at places 0 and 2 differ. The checksum of the second
    is crc(b"ab1") ^ change(place 2, "1" ^ "2"), that of the third crc(b"ab1") ^ change(place 0, "a" ^ "c"), where
    change(place, bits) is read off a table by the number of bytes after the place.
    """
    num_records, size = records.shape
    if num_records < _FEWEST_RECORDS or not 0 < size <= _LONGEST:
        return _one_by_one(records)
    places = np.flatnonzero((records[1:] != records[0]).any(axis=0))
    if len(places) > _MOST_DIFFERENT:
        return _one_by_one(records)
    changes = _changes(size)
    crcs = np.full(num_records, google_crc32c.value(records[0].tobytes()), np.uint32)
    for begins, width in _stretches(records, places):
        for offset in range(width):
            change = np.bitwise_xor.reduce([changes[size - 1 - begin - offset] for begin in begins])
            crcs ^= change[records[:, begins[0] + offset] ^ records[0, begins[0] + offset]]
    return crcs


def _one_by_one(records: np.ndarray) -> np.ndarray:
    return np.array([google_crc32c.value(record.tobytes()) for record in records], np.uint32)


def _stretches(records: np.ndarray, places: np.ndarray) -> list[tuple[list[int], int]]:
    """Places in a row, as (where it begins, width), taken together with others whose bytes are the same throughout."""
    found: list[tuple[list[int], int]] = []
    for stretch in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(places) else []:
        begin, width = int(stretch[0]), len(stretch)
        own = neighbours(records, begin, width)
        for begins, other_width in found:
            if width == other_width and np.array_equal(neighbours(records, begins[0], width), own):
                begins.append(begin)
                break
        else:
            found.append(([begin], width))
    return found


@functools.lru_cache(maxsize=64)
def _changes(size: int) -> np.ndarray:
    """How a byte changes the checksum, by the number of bytes after it: uint32 `[size, 256]`."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & np.uint32(1), np.uint32(0x82F63B78), np.uint32(0))
    out = np.empty((size, 256), np.uint32)
    out[0] = table
    for after in range(1, size):
        out[after] = table[out[after - 1] & np.uint32(255)] ^ (out[after - 1] >> np.uint32(8))
    return out


def read(path: Path) -> Iterator[bytes]:
    """Yields the records of an uncompressed file; see `records`."""
    with path.open("rb") as stream:
        yield from records(stream, path)


def records(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yields the records of an open file, whose content may be decompressed on the way.

    Raises:
      ValueError: at the first record whose length or checksum is wrong; it names the path.
    """
    num_read = 0
    while head := stream.read(HEAD_BYTES):
        size = int.from_bytes(head[:8], "little")
        body = stream.read(size + 4) if is_head(head) else b""
        num_read += len(head) + len(body)
        if len(body) != size + 4 or not _is_checksum(body[:-4], body[-4:]):
            raise ValueError(f"{path} is damaged near byte {num_read}")
        yield body[:-4]


def is_head(content: bytes) -> bool:
    """Returns whether bytes are the length of a record and its checksum, with which each record begins."""
    return len(content) == HEAD_BYTES and _is_checksum(content[:8], content[8:])


def _is_checksum(content: bytes, checksum: bytes) -> bool:
    return _masked(np.array([google_crc32c.value(content)], np.uint32)).tobytes() == checksum
