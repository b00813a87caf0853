"""The files of a checkpoint, whose records have checksums of their own: they reveal damage if there is no manifest."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from rlds2reverb.errors import CheckpointError

from ..client.client_messages import ChunkData, PrioritizedItem, PriorityTableCheckpoint
from ..wire import tfrecords

_BLOCK_BYTES = 1 << 20


#: The files of a checkpoint, and the messages that they contain.
FILES: dict[str, Any] = {
    "tables.tfrecord": PriorityTableCheckpoint,
    "items.tfrecord": PrioritizedItem,
    "chunks.tfrecord": ChunkData,
}


def require_readable(checkpoint: Path) -> None:
    """Reads a checkpoint from end to end.

    Raises:
      CheckpointError: Naming the first file that is missing or damaged.
    """
    for name, kind in FILES.items():
        for _ in read_messages(checkpoint / name, kind):
            pass


def read_messages(path: Path, kind: Any) -> Iterator[Any]:
    """Yields the messages in a file of records, either plain or compressed with zlib as by Reverb.

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
