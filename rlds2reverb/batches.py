"""From the items of episodes to batches of encoded chunks and items: how rows are shared out over chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlds2reverb import keys, wire
from rlds2reverb.pieces import Piece, join_rows
from rlds2reverb.specs import ArraySpec

#: An item above this many bytes has its rows in several chunks, whatever is asked for.
_MAX_CHUNK_BYTES = 16 << 20
#: So many rows are encoded together, or more of small ones and less of large ones: bytes at least and at most.
_BATCH_ROWS = 1 << 11
_LEAST_BATCH_BYTES, _MOST_BATCH_BYTES = 2 << 20, 8 << 20
#: A chunk of several items has at most so many bytes of rows, since sampling one item ships the whole chunk.
_SHARED_CHUNK_BYTES = 128 << 10
_FEWEST_ITEMS = 16
#: A large item has about so many chunks at most, as long as they are not too large.
_MOST_SLICES = 16
#: Columns with rows of so many bytes (images) are compressed.
_COMPRESS_FROM_BYTES = 512


#: Messages of one size, uint8 `[n, size]`, or of any size.
Records = np.ndarray | list[bytes]


@dataclass(frozen=True)
class Batch:
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
        numbers_as_keys: bool = False,
    ):
        """Nothing is encoded yet.

        Args:
          specs: of one row of each column.
          tables: names of the tables.
          squeeze: whether items are single rows without a time axis.
          chunk_length: items that share a chunk; None for as many as keep the repeated rows few and chunks small.
          key_seed: gives other keys, should two ever coincide.
          number_items: whether items say in which order they came (`inserted_at`), for a checkpoint.
          numbers_as_keys: whether the key of an item is that of its number (`keys.of_numbers`), which counts from the
            piece's `first_item` on; for callers that number all items of a table from 0.

        Raises:
          ValueError: if chunk_length is out of its range.
        """
        if chunk_length is not None and not 1 <= chunk_length <= 1_000_000:
            raise ValueError(f"chunk_length is {chunk_length}, wanted 1 to 1,000,000 items")
        self._specs, self._squeeze = specs, squeeze
        self.tables = tuple(tables)
        self._chunk_length = chunk_length
        self._seed_parts = (repr(specs), key_seed)
        self._number_items = number_items
        self._numbers_as_keys = numbers_as_keys
        column_bytes = [spec.num_bytes for spec in specs]
        self._row_bytes = max(sum(column_bytes), 1)
        self._batch_bytes = min(max(_BATCH_ROWS * self._row_bytes, _LEAST_BATCH_BYTES), _MOST_BATCH_BYTES)
        self._compress = max(column_bytes, default=0) >= _COMPRESS_FROM_BYTES
        #: Items encoded so far.
        self.num_items = 0

    def encode(self, pieces: Iterable[Piece]) -> Iterator[Batch]:
        """Batches of a few megabytes with the items of some episodes, in their order."""
        held: list[Piece] = []
        held_bytes = 0
        for piece in pieces:
            if not len(piece.starts):
                continue
            together = self._items_of_a_chunk(piece)
            if together is None:
                if held:
                    yield self._shared_chunks(held)
                yield self._grid_of_chunks(piece)
                held, held_bytes = [], 0
                continue
            for part in self._parts(piece, together):
                held.append(part)
                held_bytes += self._row_bytes * part.num_rows
                if held_bytes >= self._batch_bytes:
                    yield self._shared_chunks(held)
                    held, held_bytes = [], 0
        if held:
            yield self._shared_chunks(held)

    def _items_of_a_chunk(self, piece: Piece) -> int | None:
        """How many items share a chunk, so that at most half of the rows are repeated ones.

        None if so many would make a chunk too large: then items take their rows from several chunks.
        """
        length, longest = int(piece.lengths[0]), int(piece.lengths.max())
        stride = max(int(piece.starts[1] - piece.starts[0]), 1) if len(piece.starts) > 1 else length
        if longest * self._row_bytes > _MAX_CHUNK_BYTES:
            return None
        if self._chunk_length is not None:
            return self._chunk_length
        repeated = max(0, length - stride)
        wanted = max(_FEWEST_ITEMS, -(-2 * repeated // stride))
        most = max(1, (_SHARED_CHUNK_BYTES // self._row_bytes - length) // min(stride, length) + 1)
        return None if most * stride < repeated else min(wanted, most)

    def _parts(self, piece: Piece, together: int) -> Iterator[Piece]:
        """A piece cut into parts of about the size of a batch, each of whole chunks."""
        chunk_bytes = self._row_bytes * piece.part(0, together).num_rows
        step = together * max(1, self._batch_bytes // chunk_bytes)
        for begin in range(0, len(piece.starts), step):
            yield piece.part(begin, begin + step)

    def _shared_chunks(self, pieces: Sequence[Piece]) -> Batch:
        """Some items after the other in each chunk, the rows that they share with those of the next one repeated."""
        rows = join_rows(pieces)
        sizes = np.array([len(piece.starts) for piece in pieces])
        of_piece = np.repeat(np.arange(len(pieces)), sizes)
        local = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        together = np.array([self._items_of_a_chunk(piece) or 1 for piece in pieces])
        numbers = np.array([piece.first_item for piece in pieces])[of_piece] + local
        begins = np.flatnonzero(local % together[of_piece] == 0)
        first_rows, ends = rows.starts[begins], np.maximum.reduceat(rows.starts + rows.lengths, begins)
        chunk_keys = keys.keys_at(self._seeds(pieces, "chunk", together)[of_piece[begins]], numbers[begins])
        episode_ids = keys.keys_at(self._seeds(pieces, "episode"), np.zeros(len(pieces)))[of_piece[begins]]
        places = np.concatenate([piece.starts for piece in pieces])[begins]
        records: list[Records] = []
        order: list[np.ndarray] = []
        for size in np.unique(ends - first_rows):
            chosen = np.flatnonzero(ends - first_rows == size)
            which = (chunk_keys[chosen], episode_ids[chosen], places[chosen])
            records.append(self._chunks(*which, rows.columns, first_rows[chosen], int(size)))
            order.append(chosen)
        chunk = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(local))))
        slices = [(chunk_keys[chunk], rows.starts - first_rows[chunk], rows.lengths)]
        priorities = np.concatenate([piece.priorities for piece in pieces])
        seeds = [self._seeds(pieces, f"item {table}")[of_piece] for table in self.tables]
        items, item_keys = self._items(seeds, numbers, priorities, slices, np.arange(len(local)))
        self.num_items += len(local)
        return Batch(records, chunk_keys[np.concatenate(order)], [*items], item_keys)

    def _grid_of_chunks(self, piece: Piece) -> Batch:
        """The rows of an episode cut into chunks one after the other, of which an item may need several."""
        item_bytes = int(piece.lengths.max()) * self._row_bytes
        chunk_bytes = min(_MAX_CHUNK_BYTES, max(_SHARED_CHUNK_BYTES, item_bytes // _MOST_SLICES))
        step = max(1, chunk_bytes // self._row_bytes)
        ends = piece.starts + piece.lengths
        first, last = piece.starts // step, (ends - 1) // step
        needed = np.unique(np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)]))
        chunk_keys = keys.keys_at(
            np.repeat(self._seeds([piece], "grid", [step]), needed[-1] + 1), np.arange(needed[-1] + 1)
        )
        episode_ids = keys.keys_at(self._seeds([piece], "episode"), np.zeros(1))
        records: list[Records] = []
        for number in needed:
            row = np.array([number * step])
            num_rows = min(step, len(piece.columns[0]) - int(row[0]))
            records.append(self._chunks(chunk_keys[number, None], episode_ids, row, piece.columns, row, num_rows))
        seeds = [np.repeat(self._seeds([piece], f"item {table}"), len(ends)) for table in self.tables]
        items: list[list[bytes]] = [[b""] * len(ends) for _ in self.tables]
        item_keys = [np.zeros(len(ends), np.uint64) for _ in self.tables]
        for count in np.unique(last - first):
            chosen = np.flatnonzero(last - first == count)
            slices = []
            for number in range(count + 1):
                base = (first[chosen] + number) * step
                begin, end = np.maximum(piece.starts[chosen] - base, 0), np.minimum(ends[chosen] - base, step)
                slices.append((chunk_keys[first[chosen] + number], begin, end - begin))
            of_group = [of_table[chosen] for of_table in seeds]
            encoded = self._items(of_group, piece.first_item + chosen, piece.priorities[chosen], slices, chosen)
            for table, (group, group_keys) in enumerate(zip(*encoded, strict=True)):
                item_keys[table][chosen] = group_keys
                for at, record in zip(chosen, group, strict=True):
                    items[table][at] = record.tobytes()
        self.num_items += len(ends)
        return Batch(records, chunk_keys[needed], [*items], item_keys)

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
            return wire.chunks(*which, [column[at] for column in columns], self._specs)
        cuts = [slice(row, row + num_rows) for row in first_rows.tolist()]
        contents = [
            [column[cut] for cut in cuts] if wire.is_compressed(num_rows, spec) else column[at]
            for column, spec in zip(columns, self._specs, strict=True)
        ]
        return wire.compressed_chunks(*which, contents, self._specs)

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
        if self._numbers_as_keys:
            item_keys = [keys.of_numbers(places)] * len(seeds)
        else:
            item_keys = [keys.keys_at(of_table, places) for of_table in seeds]
        records = [
            wire.items(
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

    def _seeds(self, pieces: Sequence[Piece], kind: str, plan: Iterable[int] | None = None) -> np.ndarray:
        plans = [0] * len(pieces) if plan is None else list(plan)
        return np.array(
            [
                keys.seed(kind, piece.digest, piece.episode, int(number), *self._seed_parts)
                for piece, number in zip(pieces, plans, strict=True)
            ],
            np.uint64,
        )
