"""The largest values of each dimension, and those that a wide gap separates from all others."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Number of values kept per dimension, and of those that can be outliers.
_NUM_KEPT, _MAX_OUTLIERS = 129, 128


class LargestValues:
    """The largest values of each dimension of a stream of rows, each with an index of the place it comes from."""

    def __init__(self, num_dimensions: int):
        """Starts without values."""
        self.values = np.zeros((0, num_dimensions))
        self.places = np.zeros((0, num_dimensions), np.int64)

    def add(self, values: np.ndarray, places: np.ndarray) -> None:
        """Adds rows of values of at least 0, float `[M, D]`, with their places, int64 `[M]`."""
        if len(self.values) == _NUM_KEPT:
            is_larger = (values > self.values[-1]).any(axis=1)
            values, places = values[is_larger], places[is_larger]
        if not len(values):
            return
        values = np.concatenate([self.values, values])
        places = np.concatenate([self.places, np.broadcast_to(places[:, None], (len(places), values.shape[1]))])
        order = np.argsort(-values, axis=0, kind="stable")[:_NUM_KEPT]
        self.values = np.take_along_axis(values, order, 0)
        self.places = np.take_along_axis(places, order, 0)

    def find_outliers(self, min_gap: float, max_count: float = _MAX_OUTLIERS) -> list[tuple[int, np.ndarray, Any]]:
        """Returns the dimensions with outliers: the number of the dimension, the places, and the values.

        Outliers are the largest values if the smallest of them is `min_gap` times the next value, and there are at
        most `max_count` of them.
        """
        max_count = min(int(max_count), _MAX_OUTLIERS, len(self.values) - 1)
        found: list[tuple[int, np.ndarray, Any]] = []
        if max_count < 1:
            return found
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps = self.values[:max_count] / self.values[1 : max_count + 1]
        for dimension in np.flatnonzero((gaps >= min_gap).any(axis=0)).tolist():
            count = int(np.flatnonzero(gaps[:, dimension] >= min_gap)[-1]) + 1
            found.append((dimension, self.places[:count, dimension], self.values[:count, dimension]))
        return found
