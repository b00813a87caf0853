"""The numbers to log: means and a histogram of priorities since they were last logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .run_directory import count_priorities


class LogBuffer:
    """The means of scalars over iterations, and a histogram of TD errors; both are emptied once they are logged.

    Attributes:
      means: mean of each scalar.
      priority_counts: histogram of `count_priorities`, or None if there were no TD errors.
    """

    def __init__(self) -> None:
        self.means: dict[str, float] = {}
        self.priority_counts: np.ndarray | None = None
        self._counts: dict[str, int] = {}

    def add(self, means: Mapping[str, float], num_iterations: int, td_errors: np.ndarray | None = None) -> None:
        """Adds the means of the scalars over `num_iterations` iterations, and the TD errors of their items."""
        for name, value in means.items():
            old = self._counts.get(name, 0)
            self.means[name] = (self.means.get(name, 0.0) * old + value * num_iterations) / (old + num_iterations)
            self._counts[name] = old + num_iterations
        if td_errors is not None:
            counts = count_priorities(td_errors)
            self.priority_counts = counts if self.priority_counts is None else self.priority_counts + counts

    def clear(self) -> None:
        """Empties the buffer."""
        self.load_state_dict({})

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        counts = None if self.priority_counts is None else self.priority_counts.tolist()
        return {"means": self.means, "counts": self._counts, "priority_counts": counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state_dict` returned; an empty dict empties the buffer."""
        self.means, self._counts = dict(state.get("means", {})), dict(state.get("counts", {}))
        counts = state.get("priority_counts")
        self.priority_counts = None if counts is None else np.asarray(counts, np.int64)
