"""From blocks of items to batches of Reverb's messages: which rows go into which chunk.

Reverb stores rows in chunks, and an item as slices of chunks. Small items that follow each other share a chunk
(`_shared_chunks`); a large item takes its rows from several (`_grid_of_chunks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb._arguments import require_count
from rlds2reverb.specs import ArraySpec

from . import keys, messages, protobuf
from .item_blocks import ItemBlock, joined_rows

#: An item above this many bytes has its rows in several chunks, whatever is asked for.
_MAX_CHUNK_BYTES = 16 << 20
#: Rows that are encoded together; more if they are small and fewer if they are large, within these numbers of bytes.
_BATCH_ROWS = 1 << 11
_LEAST_BATCH_BYTES, _MOST_BATCH_BYTES = 2 << 20, 8 << 20
#: The most bytes of rows in a chunk of several items, since sampling one item ships the whole chunk.
_SHARED_CHUNK_BYTES = 128 << 10
_FEWEST_ITEMS = 16
#: The most chunks that a large item has rows in, as long as the chunks are not too large.
_MOST_SLICES = 16
#: Columns whose rows have this many bytes (images) are compressed.
_COMPRESS_FROM_BYTES = 512


#: The most bytes of chunks in one message to the server.
_MAX_REQUEST_BYTES = 64 << 20

#: The most items that may share a chunk.
MAX_CHUNK_LENGTH = 1_000_000

#: Messages of one size, uint8 `[n, size]`, or of any size.
Records = np.ndarray | list[bytes]


@dataclass(frozen=True)
class EncodedBatch:
    """Encoded items and the chunks that they need.

    Attributes:
      chunks: `ChunkData` messages, in groups of one size (uint8 `[n, size]`) or one by one.
      chunk_keys: uint64 `[C]`, in their order.
      items: `PrioritizedItem` messages of each table, in the same forms.
      item_keys: uint64 `[M]` of each table.
    """

    chunks: list[Records]
    chunk_keys: np.ndarray
    items: list[Records]
    item_keys: list[np.ndarray]

    @property
    def num_items(self) -> int:
        """Items in each table."""
        return len(self.item_keys[0])

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the chunks."""
        return sum(
            records.nbytes if isinstance(records, np.ndarray) else sum(map(len, records)) for records in self.chunks
        )

    def insert_requests(self) -> list[bytes]:
        """Returns the batch as `InsertStreamRequest` messages: one, unless its chunks are too large for that."""
        items = [part for records in self.items for part in _framed(2, records)]
        if self.chunk_bytes <= _MAX_REQUEST_BYTES:
            return [b"".join([part for records in self.chunks for part in _framed(1, records)] + items)]
        chunks = [b"".join(_framed(1, records)) for records in self.chunks]  # a stream keeps them until items come
        return [*chunks[:-1], b"".join([chunks[-1], *items])]


def _framed(number: int, records: Records) -> list[Any]:
    """Returns the records as fields of a message, each with its tag and size in front."""
    if isinstance(records, np.ndarray):
        return [protobuf.fill(protobuf.message_field(number, [records]), len(records)).data]
    return [part for record in records for part in (protobuf.delimited_head(number, len(record)), record)]


class Encoder:
    """Encodes items of episodes for tables that share their chunks."""

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
        """Nothing is encoded yet.

        Args:
          specs: of one row of each column.
          tables: names of the tables.
          squeeze: whether items are single rows without a time axis.
          chunk_length: items that share a chunk; None for as many as keep the repeated rows few and chunks small.
          key_seed: another seed gives other keys, in case two of them collide.
          number_items: whether items say in which order they came (`inserted_at`), for a checkpoint.

        Raises:
          ValueError: if chunk_length is out of its range.
        """
        if chunk_length is not None:
            require_count("chunk_length", chunk_length, 1, MAX_CHUNK_LENGTH)
        self._specs, self._squeeze = specs, squeeze
        self.tables = tuple(tables)
        self._chunk_length = chunk_length
        self._seed_parts = (repr(specs), key_seed)
        self._number_items = number_items
        column_bytes = [spec.num_bytes for spec in specs]
        self._row_bytes = max(sum(column_bytes), 1)
        self._batch_bytes = min(max(_BATCH_ROWS * self._row_bytes, _LEAST_BATCH_BYTES), _MOST_BATCH_BYTES)
        self._compress = max(column_bytes, default=0) >= _COMPRESS_FROM_BYTES
        #: Items encoded so far.
        self.num_items = 0

    def encode(self, blocks: Iterable[ItemBlock]) -> Iterator[EncodedBatch]:
        """Batches of a few megabytes with the items of some episodes, in their order."""
        held: list[ItemBlock] = []
        held_bytes = 0
        for block in self._of_a_batch(blocks):
            together = self._items_of_a_chunk(block)
            if not together.all():
                if held:
                    yield self._shared_chunks(held)
                yield self._grid_of_chunks(block)
                held, held_bytes = [], 0
                continue
            for part in self._parts(block, int(together[0])):
                held.append(part)
                held_bytes += self._row_bytes * part.num_rows
                if held_bytes >= self._batch_bytes:
                    yield self._shared_chunks(held)
                    held, held_bytes = [], 0
        if held:
            yield self._shared_chunks(held)

    def _of_a_batch(self, blocks: Iterable[ItemBlock]) -> Iterator[ItemBlock]:
        """Yields the blocks that have items; those of several episodes only if they fit into one batch as they are."""
        for block in blocks:
            is_small = self._row_bytes * len(block.columns[0]) <= self._batch_bytes
            parts = [block] if is_small and self._items_of_a_chunk(block).all() else block.apart()
            yield from (part for part in parts if len(part.starts))

    def _items_of_a_chunk(self, block: ItemBlock) -> np.ndarray:
        """Returns how many items share a chunk, so that at most a third of its rows are in the next chunk as well.

        0 if that would make a chunk too large: then items take their rows from several chunks. Int64 `[E]`, for each
        episode by its first two items; 1 for those without items.
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
            most = wanted = np.full(len(first), self._chunk_length)
            is_grid = np.zeros(len(first), bool)
        else:
            repeated = np.maximum(length - stride, 0)
            wanted = np.maximum(_FEWEST_ITEMS, -(-2 * repeated // stride))
            rows_of_chunk = _SHARED_CHUNK_BYTES // self._row_bytes
            most = np.maximum((rows_of_chunk - length) // np.minimum(stride, length) + 1, 1)
            is_grid = most * stride < repeated
        is_grid |= longest * self._row_bytes > _MAX_CHUNK_BYTES
        together = np.ones(len(has_items), np.int64)
        together[has_items] = np.where(is_grid, 0, np.minimum(wanted, most))
        return together

    def _parts(self, block: ItemBlock, together: int) -> Iterator[ItemBlock]:
        """A block cut into parts of about the size of a batch, each of whole chunks."""
        if len(block.digests) > 1:
            yield block
            return
        chunk_bytes = self._row_bytes * block.part(0, together).num_rows
        step = together * max(1, self._batch_bytes // chunk_bytes)
        for begin in range(0, len(block.starts), step):
            yield block.part(begin, begin + step)

    def _shared_chunks(self, blocks: Sequence[ItemBlock]) -> EncodedBatch:
        """Each chunk holds the rows of `together` items that follow each other; what two chunks share is in both.

        For example, one episode of rows a b c d with items ab, bc and cd, two items a chunk (`together` is 2):

            local        0 1 2     the items' places in their block
            begins       0   2     items that begin a chunk
            first_rows   0   2     the first row of each chunk
            ends         3   4     behind its last row: the chunks hold a b c and c d
            chunk        0 0 1     the chunk that each item lies in
            slices       chunk_keys[chunk], offsets starts - first_rows[chunk] = 0 1 0, lengths 2 2 2

        Chunks of one size are encoded together.
        """
        rows = joined_rows(blocks)
        sizes = np.concatenate([block.num_items for block in blocks])
        of_episode = np.repeat(np.arange(len(sizes)), sizes)
        local = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        together = np.maximum(np.concatenate([self._items_of_a_chunk(block) for block in blocks]), 1)
        first_items = [np.full(len(block.digests), block.first_item) for block in blocks]
        numbers = np.concatenate(first_items)[of_episode] + local
        begins = np.flatnonzero(local % together[of_episode] == 0)
        first_rows, ends = rows.starts[begins], np.maximum.reduceat(rows.starts + rows.lengths, begins)
        chunk_keys = keys.keys_at(self._seeds(blocks, "chunk", together.tolist())[of_episode[begins]], numbers[begins])
        episode_ids = keys.keys_at(self._seeds(blocks, "episode"), np.zeros(len(sizes)))[of_episode[begins]]
        places = [block.starts - np.repeat(block.first_rows, block.num_items) for block in blocks]
        places = np.concatenate(places)[begins]
        records: list[Records] = []
        order: list[np.ndarray] = []
        for size in np.unique(ends - first_rows):
            chosen = np.flatnonzero(ends - first_rows == size)
            which = (chunk_keys[chosen], episode_ids[chosen], places[chosen])
            records.append(self._chunks(*which, rows.columns, first_rows[chosen], int(size)))
            order.append(chosen)
        chunk = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(local))))
        slices = [(chunk_keys[chunk], rows.starts - first_rows[chunk], rows.lengths)]
        priorities = np.concatenate([block.priorities for block in blocks])
        seeds = [self._seeds(blocks, f"item {table}")[of_episode] for table in self.tables]
        items, item_keys = self._items(seeds, numbers, priorities, slices, np.arange(len(local)))
        self.num_items += len(local)
        return EncodedBatch(records, chunk_keys[np.concatenate(order)], [*items], item_keys)

    def _grid_of_chunks(self, block: ItemBlock) -> EncodedBatch:
        """The rows of an episode are cut into chunks of `step` rows, and an item takes slices of one or several.

        For example, rows 0..8 in chunks of 3 and an item of rows 2..6: `first` is chunk 0, `last` chunk 2, and its
        slices are row 2 of chunk 0, rows 0..2 of chunk 1, and row 0 of chunk 2. Only chunks that an item needs are
        encoded, and items of equally many slices together.
        """
        item_bytes = int(block.lengths.max()) * self._row_bytes
        chunk_bytes = min(_MAX_CHUNK_BYTES, max(_SHARED_CHUNK_BYTES, item_bytes // _MOST_SLICES))
        step = max(1, chunk_bytes // self._row_bytes)
        ends = block.starts + block.lengths
        first, last = block.starts // step, (ends - 1) // step
        needed = np.unique(np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)]))
        chunk_keys = keys.keys_at(
            np.repeat(self._seeds([block], "grid", [step]), needed[-1] + 1), np.arange(needed[-1] + 1)
        )
        episode_ids = keys.keys_at(self._seeds([block], "episode"), np.zeros(1))
        records: list[Records] = []
        for number in needed:
            row = np.array([number * step])
            num_rows = min(step, len(block.columns[0]) - int(row[0]))
            records.append(self._chunks(chunk_keys[number, None], episode_ids, row, block.columns, row, num_rows))
        seeds = [np.repeat(self._seeds([block], f"item {table}"), len(ends)) for table in self.tables]
        items: list[list[bytes]] = [[b""] * len(ends) for _ in self.tables]
        item_keys = [np.zeros(len(ends), np.uint64) for _ in self.tables]
        for count in np.unique(last - first):
            chosen = np.flatnonzero(last - first == count)
            slices = []
            for number in range(count + 1):
                base = (first[chosen] + number) * step
                begin, end = np.maximum(block.starts[chosen] - base, 0), np.minimum(ends[chosen] - base, step)
                slices.append((chunk_keys[first[chosen] + number], begin, end - begin))
            of_group = [of_table[chosen] for of_table in seeds]
            encoded = self._items(of_group, block.first_item + chosen, block.priorities[chosen], slices, chosen)
            for table, (group, group_keys) in enumerate(zip(*encoded, strict=True)):
                item_keys[table][chosen] = group_keys
                for at, record in zip(chosen, group, strict=True):
                    items[table][at] = record.tobytes()
        self.num_items += len(ends)
        return EncodedBatch(records, chunk_keys[needed], [*items], item_keys)

    def _chunks(
        self,
        chunk_keys: np.ndarray,
        episode_ids: np.ndarray,
        places: np.ndarray,
        columns: Sequence[np.ndarray],
        first_rows: np.ndarray,
        num_rows: int,
    ) -> Records:
        """Chunks of `num_rows` rows each, which begin at `first_rows` of the columns."""
        which = (chunk_keys, episode_ids, places)
        at = first_rows[:, None] + np.arange(num_rows)
        if not self._compress:
            return messages.chunks(*which, [column[at] for column in columns], self._specs)
        cuts = [slice(row, row + num_rows) for row in first_rows.tolist()]
        contents = [
            [column[cut] for cut in cuts] if messages.is_compressed(num_rows, spec) else column[at]
            for column, spec in zip(columns, self._specs, strict=True)
        ]
        return messages.compressed_chunks(*which, contents, self._specs)

    def _items(
        self,
        seeds: Sequence[np.ndarray],
        places: np.ndarray,
        priorities: np.ndarray,
        slices: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
        order: np.ndarray,
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Items and their keys, for each table.

        Args:
          seeds: of the keys, uint64 `[M]` for each table.
          places: int `[M]` in their episodes.
          priorities: float64 `[M]`.
          slices: see `wire.items`.
          order: int `[M]`, places among the items of this batch.
        """
        item_keys = [keys.keys_at(of_table, places) for of_table in seeds]
        records = [
            messages.items(
                table,
                of_table,
                priorities,
                slices,
                num_columns=len(self._specs),
                squeeze=self._squeeze,
                numbers=self.num_items + order if self._number_items else None,
            )
            for table, of_table in zip(self.tables, item_keys, strict=True)
        ]
        return records, item_keys

    def _seeds(self, blocks: Sequence[ItemBlock], kind: str, layouts: Sequence[int] | None = None) -> np.ndarray:
        """Returns a seed for the keys of each episode: of items, or of chunks that are laid out in one way."""
        digests = [digest for block in blocks for digest in block.digests]
        episodes = [number for block in blocks for number in block.episodes.tolist()]
        return keys.seeds(kind, digests, episodes, layouts or [0] * len(digests), self._seed_parts)
