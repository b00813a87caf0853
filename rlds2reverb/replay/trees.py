"""Sum and minimum trees over numpy arrays, updated and searched for many leaves at once."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

#: Children per node. Wide nodes make few levels, and so few numpy calls; a node is two cache lines.
_WIDTH = 16
#: Up to this many elements numpy keeps the interpreter's lock. Regaining it from a busy thread takes 5 ms.
_MAX_LOCKED_SIZE = 500
#: Size of the top level, which is searched as a whole.
_MAX_TOP_SIZE = 8192


class _Tree:
    """Float64 leaves, and levels above them with one node for every 16 nodes below.

    An update reduces all children of a node again instead of adding differences. So rounding errors do not accumulate,
    and the order of updates does not matter.
    """

    ufunc: ClassVar[np.ufunc]
    empty: ClassVar[float]

    def __init__(self, size: int):
        """Creates `size` empty leaves."""
        self._levels = self._build(np.full(_round_up(size), self.empty))

    @property
    def leaves(self) -> np.ndarray:
        """The leaves, float64 `[capacity]`; read only."""
        return self._levels[0]

    def _build(self, leaves: np.ndarray) -> list[np.ndarray]:
        levels = [leaves]
        while len(levels[-1]) > _MAX_TOP_SIZE:
            nodes = self._reduce(levels[-1].reshape(-1, _WIDTH))
            levels.append(np.concatenate([nodes, np.full(_round_up(len(nodes)) - len(nodes), self.empty)]))
        self._rows = [level.reshape(-1, _WIDTH) for level in levels[:-1]]
        return levels

    def _reduce(self, children: np.ndarray) -> np.ndarray:
        """Reduces each row of children, column by column, so that equal rows always give equal results."""
        if not len(children) <= _MAX_LOCKED_SIZE < children.size:
            return self.ufunc.reduce(np.ascontiguousarray(children.T), axis=0)
        nodes = children[:, 0].copy()
        for column in children.T[1:]:
            self.ufunc(nodes, column, out=nodes)
        return nodes

    def grow(self, size: int) -> None:
        """Grows to at least `size` leaves, which costs as much as building the tree."""
        missing = _round_up(size) - len(self.leaves)
        if missing > 0:
            self._levels = self._build(np.append(self.leaves, np.full(missing, self.empty)))

    def set(self, positions: np.ndarray | slice, values: np.ndarray | float) -> None:
        """Changes leaves.

        Args:
          positions: int64 `[M]`, in which duplicates must have the same value; or a slice, which is faster.
          values: float64 `[M]` or one number, at least 0.
        """
        self._levels[0][positions] = values
        for rows, level in zip(self._rows, self._levels[1:], strict=True):
            if isinstance(positions, slice):
                positions = slice(positions.start // _WIDTH, -(-positions.stop // _WIDTH))
                level[positions] = self._reduce(rows[positions])
            else:
                positions = positions // _WIDTH
                level[positions] = self._reduce(rows.take(positions, axis=0))


class MinTree(_Tree):
    """The minimum of many numbers; an empty leaf is infinite."""

    ufunc, empty = np.minimum, np.inf

    @property
    def root(self) -> float:
        """The minimum of all leaves."""
        return float(self._levels[-1].min())

    def find_at_most(self, value: float) -> np.ndarray:
        """Returns the positions of the leaves up to a value, int64 `[M]`, without looking at most of the others."""
        positions = np.flatnonzero(self._levels[-1] <= value)
        for rows in self._rows[::-1]:
            parents, children = np.nonzero(rows[positions] <= value)
            positions = positions[parents] * _WIDTH + children
        return positions


class SumTree(_Tree):
    """Sums of non-negative numbers, with a search for prefix sums; an empty leaf is 0.

    Prioritized sampling is such a search (Schaul et al. 2016, arXiv:1511.05952, appendix B.2.1). For the leaves 1, 0, 3
    the prefix sums are 1, 1, 4: a value below 1 finds leaf 0, a value from 1 to below 4 leaf 2, and none finds leaf 1.
    """

    ufunc, empty = np.add, 0.0

    @property
    def root(self) -> float:
        """The sum of all leaves."""
        return float(self._levels[-1].sum())

    def find(self, fractions: np.ndarray) -> np.ndarray:
        """Finds the leaves at which the prefix sum first exceeds fractions of the total.

        Args:
          fractions: float64 `[M]` in [0, 1).

        Returns:
          int64 `[M]`, positions of leaves above 0; there must be at least one.
        """
        sums = np.zeros(len(self._levels[-1]) + 1)
        np.cumsum(self._levels[-1], out=sums[1:])
        remainders = np.minimum(fractions * sums[-1], np.nextafter(sums[-1], 0))
        positions = np.searchsorted(sums, remainders, side="right") - 1
        remainders -= sums[positions]
        numbers = np.arange(len(fractions))
        sums = np.zeros((len(fractions), _WIDTH + 1))
        for rows in self._rows[::-1]:
            np.cumsum(rows.take(positions, axis=0), axis=1, out=sums[:, 1:])
            # Rounding can make a node larger than the running sum of its children.
            np.minimum(remainders, np.nextafter(sums[:, -1], 0), out=remainders)
            children = (sums[:, 1:] > remainders[:, None]).argmax(axis=1)
            remainders -= sums[numbers, children]
            positions = positions * _WIDTH + children
        return positions


def _round_up(size: int) -> int:
    """Returns the next multiple of the width."""
    return -(-max(size, 1) // _WIDTH) * _WIDTH
