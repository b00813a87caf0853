"""Rows whose `next_observations` are not the observation of the next row: unflagged resets, or rows out of order.

Steps share their observations: the observation after an action is the one of the next step. Where an episode's rows do
not continue each other, the `next_observations` inside of it get lost. A few such rows are counted; many are an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tree

from rlds2reverb.episodes import Episode, discontinuity_place
from rlds2reverb.errors import SourceError
from rlds2reverb.specs import Nest

#: Up to this share of a source's rows may differ; where they are few, up to 10 rows and a tenth of them.
MAX_SHARE = 0.01
_FEW_ROWS, _SHARE_OF_FEW = 10, 0.1
#: Where the number of rows is not known before they are read, the share is looked at once this many are read.
_MIN_ROWS = 10_000


def discontinuities(observations: Nest, next_observations: Nest) -> tuple[int, ...]:
    """Returns the rows `t` of one episode in which `next_observations[t]` is not `observations[t + 1]`.

    The last row counts only if the final observation is there. With observations 10, 11, 50 and next observations
    11, 12, 51 it is row 1.

    Args:
      observations: nest of arrays `[T, ...]`, or `[T + 1, ...]` with the final observation.
      next_observations: nest of arrays `[T, ...]` of the same structure.
    """
    rows: set[int] = set()
    for now, after in zip(tree.flatten(observations), tree.flatten(next_observations), strict=True):
        there = now[1 : len(after) + 1]
        rows.update(differing_rows(after[: len(there)], there).tolist())
    return tuple(sorted(rows))


def differing_rows(one: np.ndarray, other: np.ndarray, *, but: Sequence[int] = ()) -> np.ndarray:
    """Returns the rows in which two arrays `[T, ...]` differ, int64 `[M]` in rising order, except those of `but`.

    Differences of rounding (1e-5 of the value, or 1e-6) do not count, nor does NaN, which is a problem of its own.
    """
    width = math.prod(one.shape[1:])
    if not width:
        return np.zeros(0, np.int64)
    rows = np.flatnonzero(one != other) // width  # with repetitions: one for each number that differs
    if len(rows):
        rows = np.setdiff1d(rows, but)
    if len(rows) and one.dtype.kind == "f":
        one, other = one[rows].reshape(-1, width), other[rows].reshape(-1, width)
        alike = np.isclose(one, other, rtol=1e-5, atol=1e-6) | np.isnan(one) | np.isnan(other)
        rows = rows[~alike.all(axis=1)]
    return rows


ONE_STEP = (
    "if the rows are shuffled or relabelled, give independent_rows=True (on the command line --independent-rows), which takes each row "
    "as a transition of its own"
)
SPLIT = "if ends of episodes have no flag, give split_at_discontinuity=True (--split-at-discontinuity)"


@dataclass
class ContinuityCheck:
    """Counts the discontinuities of a source while it is read, and refuses it when they are too many.

    Attributes:
      name: of the source.
      num_rows: of the source, if that is known.
      advice: what the user can do about too many.
    """

    name: str
    num_rows: int | None = None
    advice: str = ONE_STEP
    _seen: int = 0
    _count: int = 0
    _first: str = ""

    def add(self, episode: Episode, num_rows: int) -> None:
        """Counts an episode that has `num_rows` rows in the source.

        Raises:
          SourceError: if more than `MAX_SHARE` of the source's rows differ.
        """
        self._seen += num_rows
        if not episode.discontinuities:
            return
        self._first = self._first or discontinuity_place(episode)
        self._count += len(episode.discontinuities)
        self._require_few(self.num_rows or max(self._seen, _MIN_ROWS))

    def finish(self) -> None:
        """Checks the share again when all rows are read.

        Raises:
          SourceError: if more than `MAX_SHARE` of them differ.
        """
        self._require_few(self._seen)

    def _require_few(self, num_rows: int) -> None:
        if self._count > max(MAX_SHARE * num_rows, min(_FEW_ROWS, _SHARE_OF_FEW * num_rows)):
            raise SourceError(
                f"{self.name}: next_observations is not the observation of the next row in more than "
                f"{MAX_SHARE:.0%} of the rows inside episodes, first in {self._first}; {self.advice}"
            )
