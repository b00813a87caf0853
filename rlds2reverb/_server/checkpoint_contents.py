"""Verification of a checkpoint that has no manifest: reads it from end to end and compares its files."""

from __future__ import annotations

import io
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from rlds2reverb._encoding import tfrecords
from rlds2reverb.client.messages import ChunkData, PrioritizedItem, PriorityTableCheckpoint
from rlds2reverb.errors import CheckpointError

_BLOCK_BYTES = 1 << 20


def require_consistent(checkpoint: Path) -> None:
    """Reads every record of a checkpoint, and checks that its tables, items and chunks agree.

    The number of items of a table must be the difference between its counts of insertions and deletions. Each item
    needs all chunks that its columns refer to. Files are TFRecords, either plain or compressed with zlib as by Reverb.

    Raises:
      CheckpointError: Naming the first unreadable file, or the first incomplete table or item.
    """
    expected = {
        table.table_name: table.rate_limiter.insert_count - table.rate_limiter.delete_count
        for table in read_messages(checkpoint / "tables.tfrecord", PriorityTableCheckpoint)
    }
    chunks = {chunk.chunk_key for chunk in read_messages(checkpoint / "chunks.tfrecord", ChunkData)}
    num_items: Counter[str] = Counter()
    keys: set[tuple[str, int]] = set()
    for item in read_messages(checkpoint / "items.tfrecord", PrioritizedItem):
        num_items[item.table] += 1
        keys.add((item.table, item.key))
        if any(part.chunk_key not in chunks for column in item.flat_trajectory.columns for part in column.chunk_slices):
            raise CheckpointError(
                f"{checkpoint} is damaged: item {item.key} of table {item.table!r} refers to a missing chunk"
            )
    for name in sorted({*expected, *num_items}):
        if expected.get(name, 0) != num_items[name]:
            raise CheckpointError(
                f"{checkpoint} is damaged: table {name!r} should have {expected.get(name, 0):,} items, "
                f"but has {num_items[name]:,}"
            )
    if len(keys) != num_items.total():
        raise CheckpointError(f"{checkpoint} is damaged: it contains an item twice")


def read_messages(path: Path, kind: Any) -> Iterator[Any]:
    """Yields the messages in a file of records, compressed or not.

    Raises:
      CheckpointError: If the file is missing or damaged.
    """
    try:
        with path.open("rb") as stream:
            plain = tfrecords.is_header(stream.read(tfrecords.HEADER_BYTES))
            stream.seek(0)
            content = stream if plain else io.BufferedReader(_InflatedStream(stream), _BLOCK_BYTES)
            for record in tfrecords.read_stream(content, path):
                yield kind.FromString(record)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; restore it from a copy, or delete the checkpoint") from None
    except (zlib.error, DecodeError, ValueError) as error:
        reason = str(error).replace(f"{path} is damaged ", "")
        raise CheckpointError(
            f"{path} is damaged ({reason}); restore it from a copy, or delete the checkpoint"
        ) from error


class _InflatedStream(io.RawIOBase):
    """A stream of the decompressed content of a zlib file; raises `ValueError` if it is truncated or too long."""

    def __init__(self, stream: Any):
        self._stream, self._inflate = stream, zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = b""
        while not content and not self._inflate.eof:
            block = self._inflate.unconsumed_tail or self._stream.read(_BLOCK_BYTES)
            content = self._inflate.decompress(block, len(buffer))
            if not content and not block:
                raise ValueError("it is truncated")
        if not content and (self._inflate.unused_data or self._stream.read(1)):
            raise ValueError("it has bytes after its end")
        buffer[: len(content)] = content
        return len(content)
