"""Detection of rows whose `next_observations` is not the observation of the next row.

Such discontinuities are resets without a flag, or rows out of order. RLDS stores the observation after an action only
as that of the next step, so that a `next_observations` that differs from it would be lost. A few discontinuities are
counted; many are an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tree

from rlds2reverb.errors import Message, UnusableSourceError
from rlds2reverb.types.episodes import Episode, locate_discontinuity
from rlds2reverb.types.specs import Nest

#: Maximum share of discontinuities among a source's rows; a small source may have up to 10, but at most a tenth.
MAX_SHARE = 0.01
_FEW_ROWS, _MAX_SHARE_IF_FEW = 10, 0.1
#: Minimum number of rows assumed while the number of rows in the source is unknown.
_MIN_ROWS = 10_000


def find_discontinuities(observations: Nest, next_observations: Nest) -> tuple[int, ...]:
    """Returns the rows `t` of one episode in which `next_observations[t]` is not `observations[t + 1]`.

    The last row counts only if the final observation is included. With observations 10, 11, 50 and next observations
    11, 12, 51, the result is row 1.

    Args:
      observations: nest of arrays `[T, ...]`, or `[T + 1, ...]` with the final observation.
      next_observations: nest of arrays `[T, ...]` of the same structure.
    """
    rows: set[int] = set()
    for now, after in zip(tree.flatten(observations), tree.flatten(next_observations), strict=True):
        following = now[1 : len(after) + 1]
        rows.update(find_differing_rows(after[: len(following)], following).tolist())
    return tuple(sorted(rows))


def find_differing_rows(one: np.ndarray, other: np.ndarray, *, ignore: Sequence[int] = ()) -> np.ndarray:
    """Returns the rows in which two arrays `[T, ...]` differ, as ascending int64 `[M]`, without those in `ignore`.

    Rounding differences (relative 1e-5 or absolute 1e-6) are ignored, and so is NaN, which is reported elsewhere.
    """
    width = math.prod(one.shape[1:])
    if not width:
        return np.zeros(0, np.int64)
    rows = np.flatnonzero(one != other) // width  # A row is repeated for each of its elements that differ.
    if len(rows):
        rows = np.setdiff1d(rows, ignore)
    if len(rows) and one.dtype.kind == "f":
        one, other = one[rows].reshape(-1, width), other[rows].reshape(-1, width)
        is_close = np.isclose(one, other, rtol=1e-5, atol=1e-6) | np.isnan(one) | np.isnan(other)
        rows = rows[~is_close.all(axis=1)]
    return rows


INDEPENDENT_ROWS_ADVICE = Message(
    "if the rows are shuffled or relabelled, read each row as a transition of its own", independent_rows=True
)
#: For formats whose rows cannot be read as transitions of their own.
ROWS_IN_ORDER_ADVICE = "put the rows in the order in which they were recorded, or correct the next observations"


@dataclass
class ContinuityCheck:
    """Counts the discontinuities of a source while it is read and raises an error if there are too many.

    Attributes:
      name: name of the source.
      num_rows: number of rows in the source, or None if it is not known.
      advice: advice for the user if there are too many discontinuities.
    """

    name: str
    num_rows: int | None = None
    advice: str = INDEPENDENT_ROWS_ADVICE
    _num_read: int = 0
    _count: int = 0
    _first: str = ""

    def add(self, episode: Episode, num_rows: int = 0) -> None:
        """Counts the discontinuities of an episode.

        Args:
          episode: the episode.
          num_rows: its number of rows in the source, unless the total is known.

        Raises:
          SourceError: If more than `MAX_SHARE` of the source's rows are discontinuities.
        """
        self._num_read += num_rows
        if episode.discontinuities:
            self.add_count(len(episode.discontinuities), locate_discontinuity(episode))

    def add_count(self, count: int, first: str) -> None:
        """Counts discontinuities that were found elsewhere, the first of them at `first`; raises as `add`."""
        self._first = self._first or first
        self._count += count
        self._require_few(self.num_rows or max(self._num_read, _MIN_ROWS))

    def finish(self) -> None:
        """Checks the share again after all rows have been read.

        Raises:
          SourceError: If more than `MAX_SHARE` of them are discontinuities.
        """
        self._require_few(self._num_read)

    def _require_few(self, num_rows: int) -> None:
        if self._count > max(MAX_SHARE * num_rows, min(_FEW_ROWS, _MAX_SHARE_IF_FEW * num_rows)):
            raise UnusableSourceError(
                f"{self.name}: next_observations does not match the observation of the next row in more than "
                f"{MAX_SHARE:.0%} of the rows inside episodes, first in {self._first}; " + self.advice
            )
