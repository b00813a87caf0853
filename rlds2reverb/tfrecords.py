"""TFRecord files: many records of one size framed at once, checksums included.

A record is its length (uint64), a checksum of the length, its bytes, and a checksum of these. Checksums are CRC-32C,
rotated right by 15 bits plus 0xA282EAD8 (tensorflow/core/lib/hash/crc32c.h).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np

_MASK_DELTA = np.uint32(0xA282EAD8)
#: Where no more bytes than these differ between records, their checksums come from tables.
_MOST_DIFFERENT, _LONGEST = 400, 4096
_FEWEST_RECORDS = 64


def framed(records: np.ndarray) -> np.ndarray:
    """Records uint8 `[n, size]` as they stand in a file: uint8 `[n, size + 16]`."""
    num_records, size = records.shape
    head = size.to_bytes(8, "little")
    out = np.empty((num_records, size + 16), np.uint8)
    out[:, :8] = np.frombuffer(head, np.uint8)
    out[:, 8:12] = _masked(np.array([google_crc32c.value(head)], np.uint32))
    out[:, 12:-4] = records
    out[:, -4:] = _masked(checksums(records))
    return out


def _masked(crcs: np.ndarray) -> np.ndarray:
    rotated = (crcs >> np.uint32(15)) | (crcs << np.uint32(17))
    with np.errstate(over="ignore"):
        return (rotated + _MASK_DELTA).astype("<u4")[:, None].view(np.uint8)


def checksums(records: np.ndarray) -> np.ndarray:
    """CRC-32C of each record of uint8 `[n, size]`: uint32 `[n]`.

    Where few bytes differ between the records it uses that the checksum is linear over GF(2): the checksum of the
    first record, and for each byte that differs the change that it makes from its place.
    """
    differs = (records[1:] != records[0]).any(axis=0) if len(records) >= _FEWEST_RECORDS else np.ones(1, bool)
    places = np.flatnonzero(differs)
    size = records.shape[1]
    if len(records) < _FEWEST_RECORDS or len(places) > _MOST_DIFFERENT or not 0 < size <= _LONGEST:
        return np.array([google_crc32c.value(record.tobytes()) for record in records], np.uint32)
    changes = _changes(size)
    crcs = np.full(len(records), google_crc32c.value(records[0].tobytes()), np.uint32)
    for place in places:
        crcs ^= changes[-1 - place][records[:, place] ^ records[0, place]]
    return crcs


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
    """The records of an uncompressed file.

    Raises:
      ValueError: at the first record whose length or checksum is wrong.
    """
    with path.open("rb") as stream:
        while head := stream.read(12):
            size = int.from_bytes(head[:8], "little")
            body = stream.read(size + 4) if len(head) == 12 and _is_checksum(head[:8], head[8:]) else b""
            if len(body) != size + 4 or not _is_checksum(body[:-4], body[-4:]):
                raise ValueError(f"{path} is damaged near byte {stream.tell()}")
            yield body[:-4]


def _is_checksum(content: bytes, checksum: bytes) -> bool:
    return _masked(np.array([google_crc32c.value(content)], np.uint32)).tobytes() == checksum
