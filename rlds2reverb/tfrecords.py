"""TFRecord files: many records of one size framed at once, checksums included.

A record is its length (uint64), a checksum of the length, its bytes, and a checksum of these. Checksums are CRC-32C,
rotated right by 15 bits plus 0xA282EAD8 (tensorflow/core/lib/hash/crc32c.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np

from rlds2reverb.protobuf import fill

_MASK_DELTA = np.uint32(0xA282EAD8)


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
    """CRC-32C of each record of uint8 `[n, size]`: uint32 `[n]`."""
    content, size = records.tobytes(), records.shape[1]
    begins = range(0, len(content), size) if size else [0] * len(records)
    return np.array([google_crc32c.value(content[begin : begin + size]) for begin in begins], np.uint32)


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
