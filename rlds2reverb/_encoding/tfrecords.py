"""Reading and vectorised writing of TFRecord files, with their checksums.

A framed record consists of its length (uint64), a checksum of the length, its bytes, and a checksum of the bytes.
Checksums are CRC-32C, rotated right by 15 bits plus 0xA282EAD8 (tensorflow/core/lib/hash/crc32c.h).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np

from .protobuf import fill, view_bytes

_MASK_DELTA = np.uint32(0xA282EAD8)
#: Limits of the table lookup of checksums: differing bytes between records, record size, and number of records.
_MAX_DIFFERENT_BYTES, _MAX_RECORD_BYTES = 400, 4096
_MIN_RECORDS = 64
#: The size of a record's length and its checksum.
HEADER_BYTES = 12


def frame(records: np.ndarray) -> np.ndarray:
    """Frames records uint8 `[n, size]` for a file: uint8 `[n, size + 16]`."""
    length = records.shape[1].to_bytes(8, "little")
    head = length + _mask(np.array([google_crc32c.value(length)], np.uint32)).tobytes()
    return fill([head, records, _mask(checksums(records))], len(records))


def frame_ends(record: bytes) -> tuple[bytes, bytes]:
    """Returns what a file has before and after a single record: its length with a checksum, and its checksum."""
    length = len(record).to_bytes(8, "little")
    masks = _mask(np.array([google_crc32c.value(length), google_crc32c.value(record)], np.uint32))
    return length + masks[0].tobytes(), masks[1].tobytes()


def _mask(crcs: np.ndarray) -> np.ndarray:
    rotated = (crcs >> np.uint32(15)) | (crcs << np.uint32(17))
    with np.errstate(over="ignore"):
        return (rotated + _MASK_DELTA).astype("<u4")[:, None].view(np.uint8)


def checksums(records: np.ndarray) -> np.ndarray:
    """Computes the CRC-32C of each record of uint8 `[n, size]`: uint32 `[n]`.

    If few bytes differ between the records, this uses the linearity of the checksum over GF(2): the checksum of a
    record is that of the first record, XORed with the change caused by each differing byte. Byte ranges that occur
    several times in a record, such as the key of a chunk, are looked up once for all their positions.

    For example, in the records b"ab1", b"ab2" and b"cb1" the bytes at positions 0 and 2 differ. The checksum of the
    second is crc(b"ab1") ^ change(2, "1" ^ "2"), that of the third is crc(b"ab1") ^ change(0, "a" ^ "c"), where
    change(position, bits) is a table lookup by the number of bytes after the position.
    """
    num_records, size = records.shape
    if num_records < _MIN_RECORDS or not 0 < size <= _MAX_RECORD_BYTES:
        return _checksum_each(records)
    positions = np.flatnonzero((records[1:] != records[0]).any(axis=0))
    if len(positions) > _MAX_DIFFERENT_BYTES:
        return _checksum_each(records)
    changes = _make_change_table(size)
    crcs = np.full(num_records, google_crc32c.value(records[0].tobytes()), np.uint32)
    for starts, width in _find_ranges(records, positions):
        for offset in range(width):
            change = np.bitwise_xor.reduce([changes[size - 1 - start - offset] for start in starts])
            crcs ^= change[records[:, starts[0] + offset] ^ records[0, starts[0] + offset]]
    return crcs


def _checksum_each(records: np.ndarray) -> np.ndarray:
    return np.array([google_crc32c.value(record.tobytes()) for record in records], np.uint32)


def _find_ranges(records: np.ndarray, positions: np.ndarray) -> list[tuple[list[int], int]]:
    """Groups adjacent positions into ranges `(starts, width)`; ranges with equal bytes in all records are merged."""
    ranges: list[tuple[list[int], int]] = []
    for adjacent in np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1) if len(positions) else []:
        start, width = int(adjacent[0]), len(adjacent)
        content = view_bytes(records, start, width)
        for starts, other_width in ranges:
            if width == other_width and np.array_equal(view_bytes(records, starts[0], width), content):
                starts.append(start)
                break
        else:
            ranges.append(([start], width))
    return ranges


@functools.lru_cache(maxsize=64)
def _make_change_table(size: int) -> np.ndarray:
    """Returns the change of the checksum caused by a byte, by the number of bytes after it: uint32 `[size, 256]`."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & np.uint32(1), np.uint32(0x82F63B78), np.uint32(0))
    out = np.empty((size, 256), np.uint32)
    out[0] = table
    for after in range(1, size):
        out[after] = table[out[after - 1] & np.uint32(255)] ^ (out[after - 1] >> np.uint32(8))
    return out


def read(path: Path) -> Iterator[bytes]:
    """Yields the records of an uncompressed file; see `read_stream`."""
    with path.open("rb") as stream:
        yield from read_stream(stream, path)


def read_stream(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yields the records of an open file, which may be a decompressing stream.

    Raises:
      ValueError: At the first record whose length or checksum is wrong; the message names the path.
    """
    position = 0
    while head := stream.read(HEADER_BYTES):
        size = int.from_bytes(head[:8], "little")
        body = stream.read(size + 4) if is_header(head) else b""
        position += len(head) + len(body)
        if len(body) != size + 4 or not _is_checksum(body[:-4], body[-4:]):
            raise ValueError(f"{path} is damaged near byte {position}")
        yield body[:-4]


def is_header(content: bytes) -> bool:
    """Returns whether `content` is the header of a record: its length and the checksum of the length."""
    return len(content) == HEADER_BYTES and _is_checksum(content[:8], content[8:])


def _is_checksum(content: bytes, checksum: bytes) -> bool:
    crc = google_crc32c.value(content)  # The arithmetic of `_mask`, which takes much longer for a single number.
    rotated = ((crc >> 15) | (crc << 17)) & 0xFFFFFFFF
    return ((rotated + int(_MASK_DELTA)) & 0xFFFFFFFF).to_bytes(4, "little") == checksum
