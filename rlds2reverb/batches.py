"""From the items of episodes to batches of encoded chunks and items: how rows are shared out over chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlds2reverb import keys, wire
from rlds2reverb.specs import ArraySpec

#: An item above this many bytes has its rows in several chunks.
_MAX_CHUNK_BYTES = 16 << 20
#: Bytes of rows that are encoded together.
_BATCH_BYTES = 1 << 20
#: A chunk of several items has at most so many bytes of rows, since sampling one item ships the whole chunk.
_SHARED_CHUNK_BYTES = 128 << 10
_FEWEST_ITEMS = 8
#: Columns with rows of so many bytes (images) are compressed.
_COMPRESS_FROM_BYTES = 512


@dataclass(frozen=True)
class Piece:
    """Consecutive items of one episode, in flat columns.

    Attributes:
      columns: arrays `[R, ...]`, those of the whole episode.
      starts, lengths: int64 `[M]`, rows of the items.
      priorities: float64 `[M]`.
      digest: `keys.content_digest` of the episode's items.
      episode: its number in the data set.
      first_item: the number of the first item in the episode.
    """

    columns: Sequence[np.ndarray]
    starts: np.ndarray
    lengths: np.ndarray
    priorities: np.ndarray
    digest: bytes
    episode: int
    first_item: int

    def part(self, begin: int, end: int) -> Piece:
        """Its items from begin to end."""
        cut = slice(begin, end)
        at = self.first_item + begin
        arrays = (self.starts[cut], self.lengths[cut], self.priorities[cut])
        return Piece(self.columns, *arrays, self.digest, self.episode, at)


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
          key_seed: gives other keys, should two ever coincide.
          number_items: whether items say in which order they came (`inserted_at`), for a checkpoint.

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
        column_bytes = [spec.num_bytes for spec in specs]
        self._row_bytes = max(sum(column_bytes), 1)
        self._compress = max(column_bytes, default=0) >= _COMPRESS_FROM_BYTES
        #: Items encoded so far.
        self.num_items = 0

    def encode(self, pieces: Sequence[Piece]) -> Iterator[Batch]:
        """Batches of about a megabyte with the items of some episodes, in their order."""
        held: list[Piece] = []
        held_bytes = 0
        for piece in pieces:
            if not len(piece.starts):
                continue
            if self._row_bytes * int(piece.lengths.max()) > _MAX_CHUNK_BYTES:
                if held:
                    yield self._batch(held)
                yield self._large_items(piece)
                held, held_bytes = [], 0
                continue
            for part in self._parts(piece):
                held.append(part)
                held_bytes += self._row_bytes * _num_rows(part)
                if held_bytes >= _BATCH_BYTES:
                    yield self._batch(held)
                    held, held_bytes = [], 0
        if held:
            yield self._batch(held)

    def _items_of_a_chunk(self, piece: Piece) -> int:
        """How many items share a chunk: so that at most half of the rows are repeated ones, within the size limit."""
        if self._chunk_length is not None:
            return self._chunk_length
        length = int(piece.lengths[0])
        stride = max(int(piece.starts[1] - piece.starts[0]), 1) if len(piece.starts) > 1 else 1
        wanted = max(_FEWEST_ITEMS, -(-2 * (length - 1) // stride))
        most = (_SHARED_CHUNK_BYTES // self._row_bytes - length) // min(stride, length) + 1
        return max(1, min(wanted, most))

    def _parts(self, piece: Piece) -> Iterator[Piece]:
        """A piece cut into parts of about the size of a batch, each of whole chunks."""
        together = self._items_of_a_chunk(piece)
        chunk_bytes = self._row_bytes * _num_rows(piece.part(0, together))
        step = together * max(1, _BATCH_BYTES // chunk_bytes)
        for begin in range(0, len(piece.starts), step):
            yield piece.part(begin, begin + step)

    def _batch(self, pieces: Sequence[Piece]) -> Batch:
        rows = _join_rows(pieces)
        sizes = np.array([len(piece.starts) for piece in pieces])
        of_piece = np.repeat(np.arange(len(pieces)), sizes)
        local = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        together = np.array([self._items_of_a_chunk(piece) for piece in pieces])
        number = (np.array([piece.first_item for piece in pieces])[of_piece] + local) // together[of_piece]
        begins = np.flatnonzero(local % together[of_piece] == 0)
        first_rows, ends = rows.starts[begins], np.maximum.reduceat(rows.starts + rows.lengths, begins)
        chunk_keys = keys.keys_at(self._seeds(pieces, "chunk", together)[of_piece[begins]], number[begins])
        episode_ids = keys.keys_at(self._seeds(pieces, "episode"), np.zeros(len(pieces)))[of_piece[begins]]
        places = np.concatenate([piece.starts for piece in pieces])[begins]
        records: list[Records] = []
        order: list[np.ndarray] = []
        for size in np.unique(ends - first_rows):
            chosen = np.flatnonzero(ends - first_rows == size)
            at = first_rows[chosen, None] + np.arange(size)
            records.append(
                self._chunks(chunk_keys[chosen], episode_ids[chosen], places[chosen], [c[at] for c in rows.columns])
            )
            order.append(chosen)
        chunk = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(local))))
        slices = [(chunk_keys[chunk], rows.starts - first_rows[chunk], rows.lengths)]
        priorities = np.concatenate([piece.priorities for piece in pieces])
        items, item_keys = self._items(pieces, of_piece, local, priorities, slices)
        return Batch(records, chunk_keys[np.concatenate(order)], [*items], item_keys)

    def _large_items(self, piece: Piece) -> Batch:
        """Items too large for a chunk: the episode's rows are cut into chunks one after the other."""
        step = max(1, _MAX_CHUNK_BYTES // self._row_bytes)
        first_rows = np.arange(0, len(piece.columns[0]), step)
        chunk_keys = keys.keys_at(np.repeat(self._seeds([piece], "large", [step]), len(first_rows)), first_rows)
        episode_ids = keys.keys_at(self._seeds([piece], "episode"), np.zeros(1))
        records: list[Records] = []
        for key, row in zip(chunk_keys, first_rows, strict=True):
            contents = [column[None, row : row + step] for column in piece.columns]
            records.append(self._chunks(key[None], episode_ids, row[None], contents))
        items: list[list[bytes]] = [[] for _ in self.tables]
        item_keys: list[list[np.ndarray]] = [[] for _ in self.tables]
        for at in range(len(piece.starts)):
            one = piece.part(at, at + 1)
            first, end = int(one.starts[0]), int(one.starts[0] + one.lengths[0])
            slices = []
            for number in range(first // step, (end - 1) // step + 1):
                begin, stop = max(first, number * step), min(end, (number + 1) * step)
                slices.append((chunk_keys[number, None], np.array([begin - number * step]), np.array([stop - begin])))
            encoded = self._items([one], np.zeros(1, int), np.zeros(1, int), one.priorities, slices)
            for table, (record, key) in enumerate(zip(*encoded, strict=True)):
                items[table].append(record.tobytes())
                item_keys[table].append(key)
        return Batch(records, chunk_keys, list(items), [np.concatenate(of) for of in item_keys])

    def _chunks(
        self, chunk_keys: np.ndarray, episode_ids: np.ndarray, first_rows: np.ndarray, contents: list[np.ndarray]
    ) -> Records:
        if not self._compress:
            return wire.chunks(chunk_keys, episode_ids, first_rows, contents, self._specs)
        return [
            wire.compressed_chunk(
                int(chunk_keys[at]), int(episode_ids[at]), int(first_rows[at]), [c[at] for c in contents], self._specs
            )
            for at in range(len(chunk_keys))
        ]

    def _items(
        self,
        pieces: Sequence[Piece],
        of_piece: np.ndarray,
        local: np.ndarray,
        priorities: np.ndarray,
        slices: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        numbers = np.arange(self.num_items, self.num_items + len(local)) if self._number_items else None
        self.num_items += len(local)
        place = np.array([piece.first_item for piece in pieces])[of_piece] + local
        records, item_keys = [], []
        for table in self.tables:
            of_table = keys.keys_at(self._seeds(pieces, "item " + table)[of_piece], place)
            item_keys.append(of_table)
            records.append(
                wire.items(
                    table,
                    of_table,
                    priorities,
                    slices,
                    num_columns=len(self._specs),
                    squeeze=self._squeeze,
                    numbers=numbers,
                )
            )
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


@dataclass(frozen=True)
class _Rows:
    columns: list[np.ndarray]
    starts: np.ndarray
    lengths: np.ndarray


def _num_rows(piece: Piece) -> int:
    return int((piece.starts + piece.lengths).max() - piece.starts[0])


def _join_rows(pieces: Sequence[Piece]) -> _Rows:
    """The rows of all pieces one after the other, without those that no item has."""
    bounds = [(int(piece.starts[0]), int((piece.starts + piece.lengths).max())) for piece in pieces]
    bases = np.cumsum([0] + [end - begin for begin, end in bounds])
    starts = np.concatenate(
        [piece.starts - begin + base for piece, (begin, _), base in zip(pieces, bounds, bases, strict=False)]
    )
    lengths = np.concatenate([piece.lengths for piece in pieces])
    columns = [
        np.concatenate([piece.columns[at][begin:end] for piece, (begin, end) in zip(pieces, bounds, strict=True)])
        for at in range(len(pieces[0].columns))
    ]
    covered = np.zeros(bases[-1] + 1, np.int64)
    np.add.at(covered, starts, 1)
    np.add.at(covered, starts + lengths, -1)
    used = np.cumsum(covered)[:-1] > 0
    if used.all():
        return _Rows(columns, starts, lengths)
    return _Rows([column[used] for column in columns], (np.cumsum(used) - 1)[starts], lengths)
