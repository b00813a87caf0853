"""Pieces: items of episodes in flat columns, on their way to a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

#: Episodes are encoded and confirmed in blocks of about so many bytes: small ones first, so that the server begins.
_FIRST_BLOCK_BYTES, _BLOCK_BYTES = 1 << 20, 8 << 20


class Sized(Protocol):
    """What has a size."""

    @property
    def num_bytes(self) -> int:
        """In memory."""


SizedT = TypeVar("SizedT", bound=Sized)


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

    @property
    def num_rows(self) -> int:
        """Rows from the first that its items have to the last."""
        return int((self.starts + self.lengths).max() - self.starts[0])

    @property
    def num_bytes(self) -> int:
        """Bytes of the columns."""
        return sum(column.nbytes for column in self.columns)


def in_blocks(parts: Iterable[SizedT], *, first_end: int = 0) -> Iterator[list[SizedT]]:
    """Episodes, or pieces, in blocks whose sizes follow from what comes before; one ends after number `first_end`."""
    block: list[SizedT] = []
    block_bytes = bytes_before = 0
    for number, part in enumerate(parts, start=1):
        block.append(part)
        block_bytes += part.num_bytes
        if block_bytes >= min(max(bytes_before, _FIRST_BLOCK_BYTES), _BLOCK_BYTES) or number == first_end:
            yield block
            bytes_before += block_bytes
            block, block_bytes = [], 0
    if block:
        yield block


@dataclass(frozen=True)
class Rows:
    """Rows of several pieces, and where items lie in them; as in `Piece`."""

    columns: list[np.ndarray]
    starts: np.ndarray
    lengths: np.ndarray


def join_rows(pieces: Sequence[Piece]) -> Rows:
    """The rows of all pieces one after the other, without those that no item has."""
    bounds = [(int(piece.starts[0]), int((piece.starts + piece.lengths).max())) for piece in pieces]
    bases = np.cumsum([0] + [end - begin for begin, end in bounds])
    starts = np.concatenate(
        [piece.starts - begin + base for piece, (begin, _), base in zip(pieces, bounds, bases, strict=False)]
    )
    lengths = np.concatenate([piece.lengths for piece in pieces])
    columns = [
        _joined([piece.columns[at][begin:end] for piece, (begin, end) in zip(pieces, bounds, strict=True)])
        for at in range(len(pieces[0].columns))
    ]
    covered = np.zeros(bases[-1] + 1, np.int64)
    np.add.at(covered, starts, 1)
    np.add.at(covered, starts + lengths, -1)
    used = np.cumsum(covered)[:-1] > 0
    if used.all():
        return Rows(columns, starts, lengths)
    return Rows([column[used] for column in columns], (np.cumsum(used) - 1)[starts], lengths)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
