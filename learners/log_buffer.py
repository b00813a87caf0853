"""The numbers to log: means, and histograms of priorities and importance weights, since they were last logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .run_directory import count_priorities

_HISTOGRAMS = ("priority_counts", "weight_counts")


class LogBuffer:
    """The means of scalars over iterations, and histograms of items; all are emptied once they are logged.

    Attributes:
      means: mean of each scalar.
      histograms: histograms of `count_priorities`: `priority_counts` of the TD errors, and `weight_counts` of the
        importance weights; without those of which there were none.
    """

    def __init__(self) -> None:
        self.means: dict[str, float] = {}
        self.histograms: dict[str, np.ndarray] = {}
        self._counts: dict[str, int] = {}

    def add(self, means: Mapping[str, float], num_iterations: int, items: Mapping[str, np.ndarray | None]) -> None:
        """Adds the means of the scalars over `num_iterations` iterations, and numbers of their items by histogram."""
        for name, value in means.items():
            old = self._counts.get(name, 0)
            self.means[name] = (self.means.get(name, 0.0) * old + value * num_iterations) / (old + num_iterations)
            self._counts[name] = old + num_iterations
        for name, numbers in items.items():
            if numbers is not None:
                self.histograms[name] = self.histograms.get(name, 0) + count_priorities(numbers)

    def clear(self) -> None:
        """Empties the buffer."""
        self.load_state_dict({})

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        lists = {name: counts.tolist() for name, counts in self.histograms.items()}
        return {"means": self.means, "counts": self._counts, **dict.fromkeys(_HISTOGRAMS), **lists}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state_dict` returned; an empty dict empties the buffer."""
        self.means, self._counts = dict(state.get("means", {})), dict(state.get("counts", {}))
        self.histograms = {name: np.asarray(state[name], np.int64) for name in _HISTOGRAMS if state.get(name)}
