"""Trees over numpy arrays: sums that are searched by prefix, and minima, of many leaves at once."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

#: Children of a node. Wide nodes make few levels, and so few calls of numpy; a node is read as two cache lines.
_WIDTH = 16
#: Up to so many elements numpy keeps the interpreter's lock; a busy thread that gets it gives it back after 5 ms.
_MOST_UNSHARED = 500
#: Nodes of the uppermost level, which is searched as a whole.
_MOST_ON_TOP = 8192


class _Tree:
    """Float64 leaves, and over each level one with a number for every 16 nodes below it.

    A change goes up by reducing the children again, never by adding differences: nothing drifts, and the order of
    changes leaves no trace.
    """

    ufunc: ClassVar[np.ufunc]
    empty: ClassVar[float]

    def __init__(self, size: int):
        """Leaves for `size` places, all empty."""
        self._levels = self._built(np.full(_padded(size), self.empty))

    @property
    def leaves(self) -> np.ndarray:
        """float64 `[capacity]`; to read only."""
        return self._levels[0]

    def _built(self, leaves: np.ndarray) -> list[np.ndarray]:
        levels = [leaves]
        while len(levels[-1]) > _MOST_ON_TOP:
            nodes = self._reduced(levels[-1].reshape(-1, _WIDTH))
            levels.append(np.concatenate([nodes, np.full(_padded(len(nodes)) - len(nodes), self.empty)]))
        self._rows = [level.reshape(-1, _WIDTH) for level in levels[:-1]]
        return levels

    def _reduced(self, children: np.ndarray) -> np.ndarray:
        """What rows of children add up to; one column after the other, which is the same for any rows."""
        if not len(children) <= _MOST_UNSHARED < children.size:
            return self.ufunc.reduce(np.ascontiguousarray(children.T), axis=0)
        found = children[:, 0].copy()
        for column in children.T[1:]:
            self.ufunc(found, column, out=found)
        return found

    def grow(self, size: int) -> None:
        """Makes room for `size` places; costs as much as there are."""
        missing = _padded(size) - len(self.leaves)
        if missing > 0:
            self._levels = self._built(np.append(self.leaves, np.full(missing, self.empty)))

    def set(self, places: np.ndarray | slice, values: np.ndarray | float) -> None:
        """Changes leaves.

        Args:
          places: int64 `[M]`, where a place may come twice only with the same value; or a slice, which is faster.
          values: float64 `[M]` or one number, at least 0.
        """
        self._levels[0][places] = values
        for rows, level in zip(self._rows, self._levels[1:], strict=True):
            if isinstance(places, slice):
                places = slice(places.start // _WIDTH, -(-places.stop // _WIDTH))
                level[places] = self._reduced(rows[places])
            else:
                places = places // _WIDTH
                level[places] = self._reduced(rows.take(places, axis=0))


class MinTree(_Tree):
    """The least of many numbers; an empty leaf is infinite."""

    ufunc, empty = np.minimum, np.inf

    @property
    def root(self) -> float:
        """The least leaf."""
        return float(self._levels[-1].min())


class SumTree(_Tree):
    """Sums of numbers of at least 0, and where a running sum passes given ones; an empty leaf is 0.

    Prioritized draws are such a search (Schaul et al. 2016, arXiv:1511.05952, appendix B.2.1). For leaves 1, 0, 3 the
    running sums are 1, 1, 4: below 1 is leaf 0, from 1 to below 4 leaf 2, and nothing finds leaf 1.
    """

    ufunc, empty = np.add, 0.0

    @property
    def root(self) -> float:
        """The sum of all leaves."""
        return float(self._levels[-1].sum())

    def find(self, shares: np.ndarray) -> np.ndarray:
        """Finds the leaves at which the running sum first passes shares of the whole.

        Args:
          shares: float64 `[M]` in [0, 1).

        Returns:
          Places, int64 `[M]`, of leaves above 0. At least one leaf has to be.
        """
        sums = np.zeros(len(self._levels[-1]) + 1)
        np.cumsum(self._levels[-1], out=sums[1:])
        wanted = np.minimum(shares * sums[-1], np.nextafter(sums[-1], 0))
        places = np.searchsorted(sums, wanted, side="right") - 1
        wanted -= sums[places]
        numbers = np.arange(len(shares))
        sums = np.zeros((len(shares), _WIDTH + 1))
        for rows in self._rows[::-1]:
            np.cumsum(rows.take(places, axis=0), axis=1, out=sums[:, 1:])
            np.minimum(wanted, np.nextafter(sums[:, -1], 0), out=wanted)  # a node may be above its running sum
            children = (sums[:, 1:] > wanted[:, None]).argmax(axis=1)
            wanted -= sums[numbers, children]
            places = places * _WIDTH + children
        return places


def _padded(size: int) -> int:
    """The next multiple of the width."""
    return -(-max(size, 1) // _WIDTH) * _WIDTH
