"""Blocks of items: those of one episode or of several, their columns in a flat list, ready to be encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from rlds2reverb.specs import concatenate

#: Episodes are encoded and confirmed in groups of about this many bytes: small ones first, so that the server starts
#: its work early.
_FIRST_GROUP_BYTES, _GROUP_BYTES = 1 << 20, 8 << 20


class Sized(Protocol):
    """Anything that knows its size in memory."""

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""


SizedT = TypeVar("SizedT", bound=Sized)


@dataclass(frozen=True)
class ItemBlock:
    """Consecutive items of one episode, or all items of several episodes, in flat columns.

    Attributes:
      columns: arrays `[R, ...]`, those of the whole episodes, one after the other.
      starts, lengths: int64 `[M]`, rows of the items.
      priorities: float64 `[M]`.
      digests: `keys.content_digest` of the items of each of the `E` episodes.
      episodes: int64 `[E]`, their numbers in the data set.
      num_items: int64 `[E]`, the items of each.
      first_rows: int64 `[E]`, the first row of each.
      first_item: the number of the first item in its episode: 0, but for a part of an episode.
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
    def of_one(
        cls,
        columns: Sequence[np.ndarray],
        starts: np.ndarray,
        lengths: np.ndarray,
        priorities: np.ndarray,
        *,
        digest: bytes = b"",
        episode: int = 0,
        first_item: int = 0,
    ) -> ItemBlock:
        """Returns the items of one episode; see the class."""
        one = np.array([episode]), np.array([len(starts)]), np.zeros(1, np.int64)
        return cls(columns, starts, lengths, priorities, [digest], *one, first_item)

    def part(self, begin: int, end: int) -> ItemBlock:
        """Returns a block of the items of one episode from `begin` up to `end`."""
        cut = slice(begin, end)
        arrays = (self.starts[cut], self.lengths[cut], self.priorities[cut])
        first_item, episode = self.first_item + begin, int(self.episodes[0])
        return ItemBlock.of_one(self.columns, *arrays, digest=self.digests[0], episode=episode, first_item=first_item)

    def apart(self) -> Iterator[ItemBlock]:
        """Yields a block for each episode, with its own rows alone."""
        if len(self.digests) == 1:
            yield self
            return
        ends = np.append(self.first_rows[1:], len(self.columns[0])).tolist()
        item = 0
        for at, (row, end, num_items) in enumerate(zip(self.first_rows, ends, self.num_items, strict=True)):
            cut = slice(item, item + num_items)
            item += num_items
            arrays = (self.starts[cut] - row, self.lengths[cut], self.priorities[cut])
            columns = [column[row:end] for column in self.columns]
            yield ItemBlock.of_one(columns, *arrays, digest=self.digests[at], episode=int(self.episodes[at]))

    @property
    def num_rows(self) -> int:
        """How many rows there are from the first one in an item to the last."""
        return int((self.starts + self.lengths).max() - self.starts[0])

    @property
    def num_bytes(self) -> int:
        """Bytes of the columns."""
        return sum(column.nbytes for column in self.columns)


def in_groups(parts: Iterable[SizedT], *, first_end: int = 0) -> Iterator[list[SizedT]]:
    """Yields episodes, or blocks, in groups: small ones first, larger ones later, at most about 8 MB.

    Where a group ends depends on nothing but what comes before, so that a run that is repeated has the same groups.

    Args:
      parts: in order.
      first_end: a group also ends after this many parts, counted from the beginning; 0 for no such end.
    """
    group: list[SizedT] = []
    group_bytes = bytes_before = 0
    for number, part in enumerate(parts, start=1):
        group.append(part)
        group_bytes += part.num_bytes
        if group_bytes >= min(max(bytes_before, _FIRST_GROUP_BYTES), _GROUP_BYTES) or number == first_end:
            yield group
            bytes_before += group_bytes
            group, group_bytes = [], 0
    if group:
        yield group


@dataclass(frozen=True)
class ItemRows:
    """The rows of several blocks one after the other, and the runs of them that are items.

    Attributes:
      columns: arrays `[R, ...]`.
      starts, lengths: int64 `[M]`, rows of the items.
    """

    columns: list[np.ndarray]
    starts: np.ndarray
    lengths: np.ndarray


def joined_rows(blocks: Sequence[ItemBlock]) -> ItemRows:
    """Returns the rows of all blocks one after the other, without those that no item has.

    For example, two blocks with columns of 6 and 3 rows, and items of rows 1..2 and 4..5 in the first and 0..1 in the
    second: from the first come rows 1..5, from the second rows 0..1, seven in all, with items at 0..1, 3..4 and 5..6.
    Row 2 is in no item and goes: `covered` is [1, 0, -1, 1, 0, 0, 0, -1] (up where an item begins, down behind its
    end), its running sum is 0 at row 2 alone, and the items are at 0..1, 2..3 and 4..5 of the six rows that stay.
    """
    bounds = [(int(block.starts[0]), int((block.starts + block.lengths).max())) for block in blocks]
    bases = np.cumsum([0] + [end - begin for begin, end in bounds])
    starts = np.concatenate(
        [block.starts - begin + base for block, (begin, _), base in zip(blocks, bounds, bases, strict=False)]
    )
    lengths = np.concatenate([block.lengths for block in blocks])
    columns = [
        concatenate([block.columns[at][begin:end] for block, (begin, end) in zip(blocks, bounds, strict=True)])
        for at in range(len(blocks[0].columns))
    ]
    covered = np.zeros(bases[-1] + 1, np.int64)
    np.add.at(covered, starts, 1)
    np.add.at(covered, starts + lengths, -1)
    is_used = np.cumsum(covered)[:-1] > 0
    if is_used.all():
        return ItemRows(columns, starts, lengths)
    return ItemRows([column[is_used] for column in columns], (np.cumsum(is_used) - 1)[starts], lengths)
