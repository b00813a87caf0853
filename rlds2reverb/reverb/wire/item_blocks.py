"""Blocks of items of one or more episodes, with flat columns ready to be encoded."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from rlds2reverb.types.specs import concatenate

#: The approximate sizes of the first and of later groups of episodes that are encoded and confirmed together. The
#: first group is small, so that the server has work early.
FIRST_GROUP_BYTES, GROUP_BYTES = 1 << 20, 8 << 20


class Sized(Protocol):
    """An object that reports its size in memory."""

    @property
    def num_bytes(self) -> int:
        """The size in memory."""


SizedT = TypeVar("SizedT", bound=Sized)


@dataclass(frozen=True)
class ItemBlock:
    """Consecutive items of one episode, or all items of several episodes, in flat columns.

    Attributes:
      columns: arrays `[R, ...]`, concatenated over whole episodes.
      starts, lengths: int64 `[M]`, the first row and the number of rows of each item.
      priorities: float64 `[M]`.
      digests: `keys.content_digest` of the items of each of the `E` episodes.
      episodes: int64 `[E]`, indices of the episodes in the dataset.
      num_items: int64 `[E]`, the number of items of each episode.
      first_rows: int64 `[E]`, the first row of each episode.
      first_item: index of the first item in its episode; above 0 only for a part of an episode.
    """

    columns: Sequence[np.ndarray]
    starts: np.ndarray
    lengths: np.ndarray
    priorities: np.ndarray
    digests: Sequence[bytes]
    episodes: np.ndarray
    num_items: np.ndarray
    first_rows: np.ndarray
    first_item: int = 0

    @classmethod
    def from_episode(
        cls,
        columns: Sequence[np.ndarray],
        starts: np.ndarray,
        lengths: np.ndarray,
        priorities: np.ndarray,
        *,
        digest: bytes = b"",
        episode: int = 0,
    ) -> ItemBlock:
        """Builds a block of items of one episode; the arguments are those of the class."""
        num_items, first_rows = np.array([len(starts)]), np.zeros(1, np.int64)
        return cls(columns, starts, lengths, priorities, [digest], np.array([episode]), num_items, first_rows)

    def slice_items(self, begin: int, end: int) -> ItemBlock:
        """Returns a block of the items from `begin` to `end` (exclusive) of a block of one episode."""
        return replace(self._select(0, begin, end), first_item=self.first_item + begin)

    def _select(self, index: int, begin: int, end: int, first_row: int = 0, end_row: int | None = None) -> ItemBlock:
        """Returns a block of the items from `begin` to `end` of an episode, whose rows these are."""
        columns = [column[first_row:end_row] for column in self.columns]
        items = self.starts[begin:end] - first_row, self.lengths[begin:end], self.priorities[begin:end]
        return ItemBlock.from_episode(columns, *items, digest=self.digests[index], episode=int(self.episodes[index]))

    def split_by_episode(self) -> Iterator[ItemBlock]:
        """Yields one block per episode, with the rows of that episode only."""
        if len(self.digests) == 1:
            yield self
            return
        rows = itertools.pairwise([*self.first_rows.tolist(), len(self.columns[0])])
        items = itertools.pairwise([0, *np.cumsum(self.num_items).tolist()])
        for index, (own_items, own_rows) in enumerate(zip(items, rows, strict=True)):
            yield self._select(index, *own_items, *own_rows)

    @property
    def num_rows(self) -> int:
        """The number of rows from the first row of the items to the last."""
        return int((self.starts + self.lengths).max() - self.starts[0])

    @property
    def num_bytes(self) -> int:
        """The size of the columns."""
        return sum(column.nbytes for column in self.columns)


def group_by_size(parts: Iterable[SizedT], *, first_end: int = 0) -> Iterator[list[SizedT]]:
    """Yields episodes or blocks in groups that grow from about 1 MB to about 8 MB.

    The end of a group depends only on the preceding parts, so that a repeated run has the same groups.

    Args:
      parts: episodes or blocks, in order.
      first_end: number of parts after which a group ends regardless of its size; 0 for none.
    """
    group: list[SizedT] = []
    group_bytes = bytes_before = 0
    for number, part in enumerate(parts, start=1):
        group.append(part)
        group_bytes += part.num_bytes
        if group_bytes >= min(max(bytes_before, FIRST_GROUP_BYTES), GROUP_BYTES) or number == first_end:
            yield group
            bytes_before += group_bytes
            group, group_bytes = [], 0
    if group:
        yield group


def join_rows(blocks: Sequence[ItemBlock]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Concatenates the rows of all blocks and drops rows that are not part of any item.

    For example, take two blocks with columns of 6 and 3 rows, items of rows 1..2 and 4..5 in the first and 0..1 in the
    second. Rows 1..5 of the first and 0..1 of the second are concatenated to seven rows, with items at 0..1, 3..4 and
    5..6. Row 2 is not part of any item: `changes` is [1, 0, -1, 1, 0, 0, 0, -1] (+1 at the start of an item, -1 after
    its end), and its running sum is 0 only at row 2. Six rows remain, with items at 0..1, 2..3 and 4..5.

    Returns:
      The columns `[R, ...]`, and the first row and the number of rows of each item, int64 `[M]`.
    """
    bounds = [(int(block.starts[0]), int((block.starts + block.lengths).max())) for block in blocks]
    bases = np.cumsum([0] + [end - begin for begin, end in bounds])
    starts = np.concatenate(
        [block.starts - begin + base for block, (begin, _), base in zip(blocks, bounds, bases, strict=False)]
    )
    lengths = np.concatenate([block.lengths for block in blocks])
    columns = [
        concatenate([block.columns[index][begin:end] for block, (begin, end) in zip(blocks, bounds, strict=True)])
        for index in range(len(blocks[0].columns))
    ]
    changes = np.zeros(bases[-1] + 1, np.int64)
    np.add.at(changes, starts, 1)
    np.add.at(changes, starts + lengths, -1)
    is_used = np.cumsum(changes)[:-1] > 0
    if is_used.all():
        return columns, starts, lengths
    return [column[is_used] for column in columns], (np.cumsum(is_used) - 1)[starts], lengths
