"""The numbers to log: means, and histograms of priorities and importance weights, since they were last logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .run_directory import count_priorities


class LogBuffer:
    """The means of scalars over iterations, and histograms of items; all are emptied once they are logged.

    Attributes:
      means: mean of each scalar.
      priority_counts: histogram of `count_priorities` of the TD errors, or None if there were none.
      weight_counts: histogram of `count_priorities` of the importance weights, or None if there were none.
    """

    def __init__(self) -> None:
        self.means: dict[str, float] = {}
        self.priority_counts: np.ndarray | None = None
        self.weight_counts: np.ndarray | None = None
        self._counts: dict[str, int] = {}

    def add(
        self,
        means: Mapping[str, float],
        num_iterations: int,
        td_errors: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        """Adds the means of the scalars over `num_iterations` iterations, and TD errors and weights of their items."""
        for name, value in means.items():
            old = self._counts.get(name, 0)
            self.means[name] = (self.means.get(name, 0.0) * old + value * num_iterations) / (old + num_iterations)
            self._counts[name] = old + num_iterations
        if td_errors is not None:
            self.priority_counts = _add_counts(self.priority_counts, td_errors)
        if weights is not None:
            self.weight_counts = _add_counts(self.weight_counts, weights)

    def clear(self) -> None:
        """Empties the buffer."""
        self.load_state_dict({})

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        histograms = {"priority_counts": self.priority_counts, "weight_counts": self.weight_counts}
        lists = {name: None if counts is None else counts.tolist() for name, counts in histograms.items()}
        return {"means": self.means, "counts": self._counts, **lists}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state_dict` returned; an empty dict empties the buffer."""
        self.means, self._counts = dict(state.get("means", {})), dict(state.get("counts", {}))
        self.priority_counts, self.weight_counts = (
            None if counts is None else np.asarray(counts, np.int64)
            for counts in (state.get("priority_counts"), state.get("weight_counts"))
        )


def _add_counts(counts: np.ndarray | None, values: np.ndarray) -> np.ndarray:
    added = count_priorities(values)
    return added if counts is None else counts + added
