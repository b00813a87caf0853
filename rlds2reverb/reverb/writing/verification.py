"""Comparison of the items in a written directory with those of their dataset."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.datasets import Source
from rlds2reverb.errors import CheckpointError
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.specs import leaves, path_name

from ..client.client_messages import ChunkData, PrioritizedItem
from ..client.samples import decode_column
from ..server.checkpoint_contents import read_messages
from ..server.checkpoint_root import CheckpointRoot
from ..wire import tfrecords
from .item_conversion import ItemConversion
from .report import IngestReport

_NUM_CACHED_CHUNKS = 256
_ADVICE = "convert the dataset again, into a new directory"


def require_same_items(directory: Path, source: Source, conversion: ItemConversion, tables: Sequence[str]) -> int:
    """Reads the items of a written directory back, and compares them bit for bit with those of the dataset.

    Each episode is converted again, alone, and the items are decoded as those that a server sends.

    Args:
      directory: a complete directory that `ingest` wrote.
      source: the dataset.
      conversion: the conversion of the dataset.
      tables: names of the tables.

    Returns:
      The number of items in each table.

    Raises:
      CheckpointError: If an item is missing, or differs in its columns or its priority.
    """
    checkpoint = CheckpointRoot(directory, create=False).latest()
    if checkpoint is None:
        raise CheckpointError(f"{directory} contains no items; {_ADVICE}")
    leaf_names = [path_name(path, "item") for path, _ in leaves(conversion.row_spec)]
    names = ["the packed item"] if conversion.packed else leaf_names
    num_items = 0
    for table in tables:
        stored, num_items = _read_items(checkpoint, table), 0
        for place, columns, priority in _convert_items(source, conversion):
            item = next(stored, None)
            if item is None:
                raise CheckpointError(f"{directory}: table {table!r} ends before {place}; {_ADVICE}")
            columns_match = [_are_identical(*pair) for pair in zip(item[0], columns, strict=True)]
            if item[1] != priority or not all(columns_match):
                field = "its priority" if all(columns_match) else names[columns_match.index(False)]
                raise CheckpointError(
                    f"{directory}: {place} differs from the dataset in {field} (table {table!r}); {_ADVICE}"
                )
            num_items += 1
        if next(stored, None) is not None:
            raise CheckpointError(f"{directory}: table {table!r} has more than {num_items:,} items; {_ADVICE}")
    return num_items


def _are_identical(found: np.ndarray, expected: np.ndarray) -> bool:
    return (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def _convert_items(source: Source, conversion: ItemConversion) -> Iterator[tuple[str, list[np.ndarray], float]]:
    """Yields the place, the columns and the priority of each item of the dataset."""
    report = IngestReport("", ())
    for episode in source:
        kept = conversion.drop_skipped(EpisodeBatch([episode]), report)
        if kept is None:
            continue
        (block,) = conversion.convert(kept)
        for index, (start, length) in enumerate(zip(block.starts.tolist(), block.lengths.tolist(), strict=True)):
            rows = start if conversion.squeeze else slice(start, start + length)
            columns = [np.asarray(column[rows]) for column in block.columns]
            yield f"item {index} of episode {episode.index}", columns, float(block.priorities[index])


def _read_items(checkpoint: Path, table: str) -> Iterator[tuple[list[np.ndarray], float]]:
    """Yields the columns and the priority of each stored item of a table, in order of insertion."""
    with (checkpoint / "chunks.tfrecord").open("rb") as stream:
        offsets = {}
        for record in tfrecords.read_stream(stream, checkpoint / "chunks.tfrecord"):
            offset = stream.tell() - len(record) - tfrecords.CHECKSUM_BYTES
            offsets[ChunkData.FromString(record).chunk_key] = offset, len(record)

        @functools.lru_cache(_NUM_CACHED_CHUNKS)
        def read_chunk(key: int) -> Any:
            offset, size = offsets[key]
            stream.seek(offset)
            return ChunkData.FromString(stream.read(size))

        for item in read_messages(checkpoint / "items.tfrecord", PrioritizedItem):
            if item.table == table:
                slices = (piece for column in item.flat_trajectory.columns for piece in column.chunk_slices)
                chunks = {piece.chunk_key: read_chunk(piece.chunk_key) for piece in slices}
                yield [decode_column(column, chunks) for column in item.flat_trajectory.columns], item.priority
