"""Rates over the last calls of the graph."""

from __future__ import annotations

from collections import deque

_CALLS = 50


class Monitor:
    """Keeps the times of the last calls, and gives rates over them."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._calls: deque[tuple[int, float, float]] = deque(maxlen=_CALLS)
        self._skip = True
        self._train_secs = self._wait_secs = 0.0

    def add(self, num_iterations: int, secs: float, data_wait_secs: float) -> None:
        """Adds a call; the first one, which traces the graph, is left out."""
        self._train_secs += max(secs - data_wait_secs, 0.0)
        self._wait_secs += data_wait_secs
        if self._skip:
            self._skip = False
            return
        self._calls.append((num_iterations, secs, data_wait_secs))

    def taken_secs(self) -> dict[str, float]:
        """Returns `train_secs` and `data_wait_secs` since it was asked last."""
        taken = {"train_secs": self._train_secs, "data_wait_secs": self._wait_secs}
        self._train_secs = self._wait_secs = 0.0
        return taken

    @property
    def steps_per_sec(self) -> float:
        """Iterations a second, without hooks; 0 where nothing is known."""
        secs = sum(call[1] for call in self._calls)
        return sum(call[0] for call in self._calls) / secs if secs else 0.0

    def rates(self) -> dict[str, float]:
        """Returns `steps_per_sec`, `data_wait_share` in [0, 1], and the milliseconds of an iteration apart."""
        num, secs, wait = (sum(column) for column in zip(*self._calls, strict=True)) if self._calls else (0, 0.0, 0.0)
        if not num:
            return {}
        return {
            "steps_per_sec": num / secs,
            "data_wait_share": min(wait / secs, 1.0),
            "data_wait_ms": 1000 * wait / num,
            "train_ms": 1000 * max(secs - wait, 0.0) / num,
        }
