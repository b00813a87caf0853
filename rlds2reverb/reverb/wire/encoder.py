"""Encoding of item blocks as batches of Reverb messages, including the assignment of rows to chunks.

Reverb stores rows in chunks, and an item as slices of chunks. Small consecutive items share a chunk
(`_encode_shared_chunks`); a large item is spread over several chunks (`_encode_chunk_grid`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.types.specs import ArraySpec

from . import keys, message_encoding, protobuf
from .item_blocks import ItemBlock, join_rows

#: The maximum size of a chunk: items with more bytes are always spread over several chunks.
MAX_CHUNK_BYTES = 16 << 20
#: The number of rows that are encoded together, if their total size is between these limits.
_BATCH_ROWS = 1 << 11
MIN_BATCH_BYTES, MAX_BATCH_BYTES = 2 << 20, 8 << 20
#: The maximum size of a chunk that several items share, since sampling one item transfers the whole chunk.
MAX_SHARED_CHUNK_BYTES = 128 << 10
_MIN_SHARED_ITEMS = 16
#: The maximum number of chunks of a large item, unless that would make the chunks too large.
_MAX_SLICES = 16
#: The minimum size of a row, such as an image, for its column to be compressed.
MIN_COMPRESSED_ROW_BYTES = 512
#: The maximum size of the chunks in one message to the server.
MAX_REQUEST_BYTES = 64 << 20
#: The maximum number of items that share a chunk.
MAX_CHUNK_LENGTH = 1_000_000

_ThreeArrays = tuple[np.ndarray, np.ndarray, np.ndarray]
#: Messages of equal size, uint8 `[n, size]`, or of any size.
Records = np.ndarray | list[bytes]


@dataclass(frozen=True)
class EncodedBatch:
    """Encoded items and the chunks that they reference.

    Attributes:
      chunks: `ChunkData` messages, in groups of equal size (uint8 `[n, size]`) or as lists of messages.
      chunk_keys: uint64 `[C]`, the keys of the chunks in the same order.
      items: `PrioritizedItem` messages in the same forms, one entry per table.
      item_keys: uint64 `[M]`, one array per table.
    """

    chunks: list[Records]
    chunk_keys: np.ndarray
    items: list[Records]
    item_keys: list[np.ndarray]

    @property
    def num_items(self) -> int:
        """The number of items per table."""
        return len(self.item_keys[0])

    @property
    def chunk_bytes(self) -> int:
        """The size of the chunks."""
        return sum(group.nbytes if isinstance(group, np.ndarray) else sum(map(len, group)) for group in self.chunks)

    def insert_requests(self) -> list[bytes]:
        """Returns the batch as one `InsertStreamRequest` message, or several if its chunks are too large for one."""
        items = [part for records in self.items for part in _to_fields(2, records)]
        if self.chunk_bytes <= MAX_REQUEST_BYTES:
            return [b"".join([part for records in self.chunks for part in _to_fields(1, records)] + items)]
        # The server keeps the chunks of a stream until their items arrive.
        chunks = [b"".join(_to_fields(1, records)) for records in self.chunks]
        return [*chunks[:-1], b"".join([chunks[-1], *items])]


def _to_fields(number: int, records: Records) -> list[Any]:
    """Prepends a tag and size to each record, which makes them fields of a message."""
    if isinstance(records, np.ndarray):
        return [protobuf.fill(protobuf.message_field(number, [records]), len(records)).data]
    return [part for record in records for part in (protobuf.delimited_head(number, len(record)), record)]


class Encoder:
    """An encoder of items for one or more tables that share the same chunks."""

    def __init__(
        self,
        specs: Sequence[ArraySpec],
        tables: Sequence[str],
        *,
        squeeze: bool = False,
        chunk_length: int | None = None,
        key_seed: int = 0,
        number_items: bool = False,
    ):
        """Initialises an encoder.

        Args:
          specs: specs of one row of each column.
          tables: names of the tables.
          squeeze: whether items are single rows without a time axis.
          chunk_length: number of items that share a chunk, at most `MAX_CHUNK_LENGTH`; None chooses it so that chunks
            are small and few rows are stored twice.
          key_seed: seed of the keys.
          number_items: whether to store the order of items in `inserted_at`, for a checkpoint.
        """
        self.tables, self._specs, self._squeeze = tuple(tables), specs, squeeze
        self._chunk_length, self._number_items = chunk_length, number_items
        self._seed_parts = (repr(specs), key_seed)
        column_bytes = [spec.num_bytes for spec in specs]
        self._row_bytes = max(sum(column_bytes), 1)
        self._batch_bytes = min(max(_BATCH_ROWS * self._row_bytes, MIN_BATCH_BYTES), MAX_BATCH_BYTES)
        self._compress = max(column_bytes, default=0) >= MIN_COMPRESSED_ROW_BYTES
        #: The number of items encoded up to now.
        self.num_items = 0

    def encode(self, blocks: Iterable[ItemBlock]) -> Iterator[EncodedBatch]:
        """Yields the items of blocks in order, in batches of a few megabytes."""
        pending: list[ItemBlock] = []
        pending_bytes = 0
        for block in self._split_large_blocks(blocks):
            items_per_chunk = self._items_per_chunk(block)
            if not items_per_chunk.all():
                if pending:
                    yield self._encode_shared_chunks(pending)
                yield self._encode_chunk_grid(block)
                pending, pending_bytes = [], 0
                continue
            for part in self._cut_to_batch_size(block, int(items_per_chunk[0])):
                pending.append(part)
                pending_bytes += self._row_bytes * part.num_rows
                if pending_bytes >= self._batch_bytes:
                    yield self._encode_shared_chunks(pending)
                    pending, pending_bytes = [], 0
        if pending:
            yield self._encode_shared_chunks(pending)

    def _split_large_blocks(self, blocks: Iterable[ItemBlock]) -> Iterator[ItemBlock]:
        """Yields the blocks with items, split by episode unless they fit into one batch of shared chunks."""
        for block in blocks:
            is_small = self._row_bytes * len(block.columns[0]) <= self._batch_bytes
            parts = [block] if is_small and self._items_per_chunk(block).all() else block.split_by_episode()
            yield from (part for part in parts if len(part.starts))

    def _items_per_chunk(self, block: ItemBlock) -> np.ndarray:
        """Returns how many items of each episode share a chunk, int64 `[E]`.

        The number is chosen so that at most a third of a chunk's rows are repeated in the next chunk. It is 0 if that
        would make chunks too large, so that each item must be spread over several chunks, and 1 for episodes without
        items. The stride of an episode is estimated from its first two items.
        """
        has_items = block.num_items > 0
        first = (np.cumsum(block.num_items) - block.num_items)[has_items]
        if not len(first):
            return np.ones(len(has_items), np.int64)
        second = np.minimum(first + 1, len(block.starts) - 1)
        length, longest = block.lengths[first], np.maximum.reduceat(block.lengths, first)
        stride = np.maximum(block.starts[second] - block.starts[first], 1)
        stride = np.where(block.num_items[has_items] > 1, stride, length)
        if self._chunk_length is not None:
            max_items = num_items = np.full(len(first), self._chunk_length)
            is_grid = np.zeros(len(first), bool)
        else:
            repeated = np.maximum(length - stride, 0)
            num_items = np.maximum(_MIN_SHARED_ITEMS, -(-2 * repeated // stride))
            rows_per_chunk = MAX_SHARED_CHUNK_BYTES // self._row_bytes
            max_items = np.maximum((rows_per_chunk - length) // np.minimum(stride, length) + 1, 1)
            is_grid = max_items * stride < repeated
        is_grid |= longest * self._row_bytes > MAX_CHUNK_BYTES
        items_per_chunk = np.ones(len(has_items), np.int64)
        items_per_chunk[has_items] = np.where(is_grid, 0, np.minimum(num_items, max_items))
        return items_per_chunk

    def _cut_to_batch_size(self, block: ItemBlock, items_per_chunk: int) -> Iterator[ItemBlock]:
        """Cuts a block of one episode into parts of whole chunks, each about as large as a batch."""
        if len(block.digests) > 1:
            yield block
            return
        chunk_bytes = self._row_bytes * block.slice_items(0, items_per_chunk).num_rows
        step = items_per_chunk * max(1, self._batch_bytes // chunk_bytes)
        for begin in range(0, len(block.starts), step):
            yield block.slice_items(begin, begin + step)

    def _encode_shared_chunks(self, blocks: Sequence[ItemBlock]) -> EncodedBatch:
        """Encodes chunks with the rows of `items_per_chunk` consecutive items each; shared rows are stored in both.

        For example, an episode of rows a b c d with items ab, bc and cd, and two items per chunk:

            local        0 1 2     positions of the items in their block
            begins       0   2     first item of each chunk
            first_rows   0   2     first row of each chunk
            ends         3   4     end of each chunk's rows: the chunks contain a b c and c d
            chunk        0 0 1     chunk of each item
            slices       chunk_keys[chunk], offsets starts - first_rows[chunk] = 0 1 0, lengths 2 2 2

        Chunks of equal size are encoded together.
        """
        columns, starts, lengths = join_rows(blocks)
        sizes = np.concatenate([block.num_items for block in blocks])
        episode = np.repeat(np.arange(len(sizes)), sizes)
        local = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        items_per_chunk = np.maximum(np.concatenate([self._items_per_chunk(block) for block in blocks]), 1)
        first_items = [np.full(len(block.digests), block.first_item) for block in blocks]
        positions = np.concatenate(first_items)[episode] + local
        begins = np.flatnonzero(local % items_per_chunk[episode] == 0)
        first_rows, ends = starts[begins], np.maximum.reduceat(starts + lengths, begins)
        chunk_seeds = self._make_seeds(blocks, "chunk", items_per_chunk.tolist())[episode[begins]]
        chunk_keys = keys.make_keys(chunk_seeds, positions[begins])
        episode_ids = keys.make_keys(self._make_seeds(blocks, "episode"), np.zeros(len(sizes)))[episode[begins]]
        item_rows = [block.starts - np.repeat(block.first_rows, block.num_items) for block in blocks]
        chunk_rows = np.concatenate(item_rows)[begins]
        records: list[Records] = []
        order: list[np.ndarray] = []
        for size in np.unique(ends - first_rows):
            group = np.flatnonzero(ends - first_rows == size)
            heads = (chunk_keys[group], episode_ids[group], chunk_rows[group])
            records.append(self._encode_chunks(heads, columns, first_rows[group], int(size)))
            order.append(group)
        chunk = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(local))))
        slices = [(chunk_keys[chunk], starts - first_rows[chunk], lengths)]
        priorities = np.concatenate([block.priorities for block in blocks])
        items, item_keys = self._encode_items(blocks, episode, positions, priorities, slices, np.arange(len(local)))
        self.num_items += len(local)
        return EncodedBatch(records, chunk_keys[np.concatenate(order)], [*items], item_keys)

    def _encode_chunk_grid(self, block: ItemBlock) -> EncodedBatch:
        """Encodes the rows of an episode in chunks of `step` rows, and items as slices of one or more chunks.

        For example, with rows 0..8 in chunks of 3 and an item of rows 2..6, `first` is chunk 0 and `last` is chunk 2.
        The item's slices are row 2 of chunk 0, rows 0..2 of chunk 1, and row 0 of chunk 2. Only chunks that items need
        are encoded, and items with the same number of slices are encoded together.
        """
        item_bytes = int(block.lengths.max()) * self._row_bytes
        chunk_bytes = min(MAX_CHUNK_BYTES, max(MAX_SHARED_CHUNK_BYTES, item_bytes // _MAX_SLICES))
        step = max(1, chunk_bytes // self._row_bytes)
        ends = block.starts + block.lengths
        first, last = block.starts // step, (ends - 1) // step
        needed = np.unique(np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)]))
        chunk_seeds = np.repeat(self._make_seeds([block], "grid", [step]), needed[-1] + 1)
        chunk_keys = keys.make_keys(chunk_seeds, np.arange(len(chunk_seeds)))
        episode_ids = keys.make_keys(self._make_seeds([block], "episode"), np.zeros(1))
        records: list[Records] = []
        for chunk in needed:
            row = np.array([chunk * step])
            num_rows = min(step, len(block.columns[0]) - int(row[0]))
            heads = (chunk_keys[chunk, None], episode_ids, row)
            records.append(self._encode_chunks(heads, block.columns, row, num_rows))
        items: list[list[bytes]] = [[b""] * len(ends) for _ in self.tables]
        item_keys = [np.zeros(len(ends), np.uint64) for _ in self.tables]
        for count in np.unique(last - first):
            group = np.flatnonzero(last - first == count)
            slices = []
            for offset in range(count + 1):
                base = (first[group] + offset) * step
                begin, end = np.maximum(block.starts[group] - base, 0), np.minimum(ends[group] - base, step)
                slices.append((chunk_keys[first[group] + offset], begin, end - begin))
            episode, positions = np.zeros(len(group), np.int64), block.first_item + group
            encoded = self._encode_items([block], episode, positions, block.priorities[group], slices, group)
            for table, (group_records, group_keys) in enumerate(zip(*encoded, strict=True)):
                item_keys[table][group] = group_keys
                for item, record in zip(group, group_records, strict=True):
                    items[table][item] = record.tobytes()
        self.num_items += len(ends)
        return EncodedBatch(records, chunk_keys[needed], [*items], item_keys)

    def _encode_chunks(
        self, heads: _ThreeArrays, columns: Sequence[np.ndarray], first_rows: np.ndarray, num_rows: int
    ) -> Records:
        """Encodes chunks of `num_rows` rows each, which start at `first_rows` of the columns.

        Their heads are the keys, the episodes' ids and the first rows in the episodes; see
        `message_encoding.encode_chunks`.
        """
        indices = first_rows[:, None] + np.arange(num_rows)
        contents: list[Any] = []
        for column, spec in zip(columns, self._specs, strict=True):
            # What is compressed row range by row range needs no copy.
            is_view = self._compress and message_encoding.is_compressible(num_rows, spec)
            contents.append([column[i : i + num_rows] for i in first_rows.tolist()] if is_view else column[indices])
        records: Records = message_encoding.encode_chunks(*heads, contents, self._specs, compress=self._compress)
        return records

    def _encode_items(
        self,
        blocks: Sequence[ItemBlock],
        episode: np.ndarray,
        positions: np.ndarray,
        priorities: np.ndarray,
        slices: Sequence[_ThreeArrays],
        order: np.ndarray,
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Encodes items and returns them with their keys, one array per table.

        Args:
          blocks: blocks of the items.
          episode: int `[M]`, index of each item's episode in the blocks.
          positions: int `[M]`, positions of the items in their episodes.
          priorities: float64 `[M]`.
          slices: see `message_encoding.encode_items`.
          order: int `[M]`, positions of the items in this batch.
        """
        encode = functools.partial(message_encoding.encode_items, num_columns=len(self._specs), squeeze=self._squeeze)
        numbers = self.num_items + order if self._number_items else None
        records, all_keys = [], []
        for table in self.tables:
            item_keys = keys.make_keys(self._make_seeds(blocks, f"item {table}")[episode], positions)
            records.append(encode(table, item_keys, priorities, slices, numbers=numbers))
            all_keys.append(item_keys)
        return records, all_keys

    def _make_seeds(self, blocks: Sequence[ItemBlock], kind: str, layouts: Sequence[int] | None = None) -> np.ndarray:
        """Returns one seed per episode, for keys of items or of chunks with the given layouts (rows or items)."""
        digests = [digest for block in blocks for digest in block.digests]
        episodes = [index for block in blocks for index in block.episodes.tolist()]
        return keys.make_seeds(kind, digests, episodes, layouts or [0] * len(digests), self._seed_parts)
