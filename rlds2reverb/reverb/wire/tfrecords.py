"""Reading and vectorised writing of TFRecord files, with their checksums.

A framed record consists of its length (uint64), a checksum of the length, its bytes, and a checksum of the bytes.
Checksums are CRC-32C, rotated right by 15 bits plus 0xA282EAD8 (tensorflow/core/lib/hash/crc32c.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np

from .protobuf import fill, view_bytes

_MASK_DELTA = np.uint32(0xA282EAD8)
#: The size of a record's length and its checksum, and that of the checksum of its bytes.
HEADER_BYTES, CHECKSUM_BYTES = 12, 4


def frame(records: np.ndarray) -> np.ndarray:
    """Frames records uint8 `[n, size]` for a file: uint8 `[n, size + 16]`."""
    length = records.shape[1].to_bytes(8, "little")
    head = length + _mask(np.array([google_crc32c.value(length)], np.uint32)).tobytes()
    return fill([head, records, _mask(checksums(records))], len(records))


def _mask(crcs: np.ndarray) -> np.ndarray:
    rotated = (crcs >> np.uint32(15)) | (crcs << np.uint32(17))
    with np.errstate(over="ignore"):
        return (rotated + _MASK_DELTA).astype("<u4")[:, None].view(np.uint8)


def checksums(records: np.ndarray) -> np.ndarray:
    """Computes the CRC-32C of each record of uint8 `[n, size]`: uint32 `[n]`."""
    num_records, size = records.shape
    contents = view_bytes(np.ascontiguousarray(records), 0, size).tolist() if size else [b""] * num_records
    return np.fromiter(map(google_crc32c.value, contents), np.uint32, num_records)


def read_stream(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yields the records of an open file, which may be a decompressing stream.

    Raises:
      ValueError: At the first record whose length or checksum is wrong; the message names the path.
    """
    position = 0
    while head := stream.read(HEADER_BYTES):
        size = int.from_bytes(head[:8], "little")
        body = stream.read(size + CHECKSUM_BYTES) if is_header(head) else b""
        position += len(head) + len(body)
        if len(body) != size + CHECKSUM_BYTES or not _is_checksum(body[:-4], body[-4:]):
            raise ValueError(f"{path} is damaged near byte {position}")
        yield body[:-4]


def is_header(content: bytes) -> bool:
    """Returns whether `content` is the header of a record: its length and the checksum of the length."""
    return len(content) == HEADER_BYTES and _is_checksum(content[:8], content[8:])


def _is_checksum(content: bytes, checksum: bytes) -> bool:
    crc = google_crc32c.value(content)  # The arithmetic of `_mask`, which takes much longer for a single number.
    rotated = ((crc >> 15) | (crc << 17)) & 0xFFFFFFFF
    return ((rotated + int(_MASK_DELTA)) & 0xFFFFFFFF).to_bytes(4, "little") == checksum
