"""Training speed and data wait time, measured over the last calls of the graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

_MAX_CALLS = 50


class Monitor:
    """The durations of the last calls, and the rates computed from them."""

    def __init__(self) -> None:
        self._calls: deque[tuple[int, float, float]] = deque(maxlen=_MAX_CALLS)
        self._is_first_call = True
        self._train_secs = self._wait_secs = 0.0

    def add(self, num_iterations: int, secs: float, data_wait_secs: float) -> None:
        """Records a call; the rates exclude the first one because it traces the graph."""
        self._train_secs += max(secs - data_wait_secs, 0.0)
        self._wait_secs += data_wait_secs
        if not self._is_first_call:
            self._calls.append((num_iterations, secs, data_wait_secs))
        self._is_first_call = False

    def take_secs(self) -> dict[str, float]:
        """Returns `train_secs` and `data_wait_secs` since the last call of this method."""
        secs = {"train_secs": self._train_secs, "data_wait_secs": self._wait_secs}
        self._train_secs = self._wait_secs = 0.0
        return secs

    def rates(self) -> dict[str, float]:
        """Returns `updates_per_sec`, `data_wait_share` in [0, 1], and `data_wait_ms` and `train_ms` per iteration.

        Hooks are not included. The dict is empty until a second call was recorded.
        """
        if not self._calls:
            return {}
        num, secs, wait = (sum(column) for column in zip(*self._calls, strict=True))
        return {
            "updates_per_sec": num / secs,
            "data_wait_share": min(wait / secs, 1.0),
            "data_wait_ms": 1000 * wait / num,
            "train_ms": 1000 * max(secs - wait, 0.0) / num,
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return {"calls": list(self._calls), "train_secs": self._train_secs, "data_wait_secs": self._wait_secs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state_dict` returned; an empty dict clears it. The next call counts as the first."""
        self._calls.clear()
        self._calls.extend(tuple(call) for call in state.get("calls", []))
        self._is_first_call = True
        self._train_secs, self._wait_secs = state.get("train_secs", 0.0), state.get("data_wait_secs", 0.0)
