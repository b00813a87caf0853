"""Pieces: items of episodes in flat columns, on their way to a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
