"""Monitors: how much goes into a replay buffer and out of it, and how used, how stale and of what priority it is."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .listeners import Listener


@dataclass(frozen=True)
class MonitorConfig:
    """The windows that a monitor looks at.

    Attributes:
      window_secs: seconds that rates are taken over.
      num_parts: parts that these seconds are counted in; the window moves on by one of them at a time.
      num_values: how many of the last numbers means, maxima, minima and the histogram are taken over.
      num_buckets: of the histogram.
    """

    window_secs: float = 60.0
    num_parts: int = 60
    num_values: int = 10_000
    num_buckets: int = 30

    def __post_init__(self) -> None:
        if not 0 < self.window_secs < math.inf:
            raise ValueError(f"window_secs is {self.window_secs}, expected seconds above 0")
        for name, lowest in (("num_parts", 2), ("num_values", 1), ("num_buckets", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
                raise ValueError(f"{name} is {value!r}, expected an integer of at least {lowest}")


class RateWindow:
    """Events a second over the last seconds, by the times that it is given."""

    def __init__(self, config: MonitorConfig, start_secs: float):
        """Empty at `start_secs`."""
        self._start_secs, self._part_secs = start_secs, config.window_secs / config.num_parts
        self._counts = np.zeros(config.num_parts, np.int64)
        self._newest = 0

    def add(self, count: int, now_secs: float) -> None:
        """Takes in so many events that happened now."""
        self._move_to(now_secs)
        self._counts[self._newest % len(self._counts)] += count

    def per_second(self, now_secs: float) -> float | None:
        """Events a second over the window, or since the start where that is shorter; None in the very first part."""
        self._move_to(now_secs)
        oldest = max(0, self._newest - len(self._counts) + 1)
        covered_secs = now_secs - self._start_secs - oldest * self._part_secs
        return None if covered_secs < self._part_secs else float(self._counts.sum() / covered_secs)

    def _move_to(self, now_secs: float) -> None:
        newest = max(self._newest, int((now_secs - self._start_secs) / self._part_secs))
        num_new = min(newest - self._newest, len(self._counts))
        if num_new:
            self._counts[np.arange(newest - num_new + 1, newest + 1) % len(self._counts)] = 0
        self._newest = newest


class ValueWindow:
    """The last numbers of a sequence."""

    def __init__(self, size: int):
        """Empty; keeps `size` numbers."""
        self._ring = np.zeros(size)
        self._num_seen = 0

    def add(self, values: np.ndarray) -> None:
        """Takes in numbers `[N]`, in their order."""
        kept = values[-len(self._ring) :]
        self._num_seen += len(values)
        self._ring[np.arange(self._num_seen - len(kept), self._num_seen) % len(self._ring)] = kept

    def values(self) -> np.ndarray:
        """The last of them in any order, float64 `[M]`, M up to the size."""
        return self._ring[: self._num_seen].copy()


#: What is said of the numbers in each window.
_STATISTICS: dict[str, tuple[str, ...]] = {
    "sampled/use": ("mean", "max"),
    "sampled/staleness": ("mean", "max"),
    "sampled/priority": ("mean", "max", "min"),
    "priority": ("mean", "max", "min"),
}


class BufferMonitor(Listener):
    """A listener that sums up what it was told: `buffer.add_listener(BufferMonitor(buffer.name))`.

    Its numbers, where there is anything to say:
      `throughput/push`, `throughput/sample`: items a second, over a window of seconds.
      `count/pushed`, `count/sampled`, `count/updated`, `count/removed_REASON`: items since the start, by
        `listeners.REASONS`.
      `sampled/use_mean`, `_max`: how often the last sampled items were sampled.
      `sampled/staleness_mean`, `_max`: of those whose `collect_iter` is known.
      `sampled/priority_mean`, `_max`, `_min`: of the last sampled items.
      `priority/mean`, `max`, `min`: of the last priorities that a push or an update gave; the histogram too.

    Threads may use it at the same time.
    """

    def __init__(
        self,
        name: str,
        config: MonitorConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Begins to count now.

        Args:
          name: the buffer's, for summaries and tables.
          config: the windows; None for the usual ones.
          clock: gives seconds that never fall.
        """
        self.name, self.config = name, config or MonitorConfig()
        self._clock, self._lock = clock, threading.Lock()
        now = clock()
        self._rates = {key: RateWindow(self.config, now) for key in ("push", "sample")}
        self._counts: Counter[str] = Counter()
        self._windows = {key: ValueWindow(self.config.num_values) for key in _STATISTICS}

    def on_push(self, priorities: np.ndarray) -> None:
        """See `Listener`."""
        with self._lock:
            self._counts["pushed"] += len(priorities)
            self._rates["push"].add(len(priorities), self._clock())
            self._windows["priority"].add(priorities)

    def on_sample(self, use: np.ndarray, staleness: np.ndarray, priorities: np.ndarray) -> None:
        """See `Listener`."""
        with self._lock:
            self._counts["sampled"] += len(use)
            self._rates["sample"].add(len(use), self._clock())
            self._windows["sampled/use"].add(use)
            self._windows["sampled/staleness"].add(staleness[staleness >= 0])
            self._windows["sampled/priority"].add(priorities)

    def on_update(self, priorities: np.ndarray) -> None:
        """See `Listener`."""
        with self._lock:
            self._counts["updated"] += len(priorities)
            self._windows["priority"].add(priorities)

    def on_remove(self, numbers: np.ndarray, reason: str, data: Any) -> None:
        """See `Listener`."""
        with self._lock:
            self._counts[f"removed_{reason}"] += len(numbers)

    def values(self) -> dict[str, float]:
        """Finite numbers by name; what there are no data for is absent."""
        with self._lock:
            now = self._clock()
            rates = {f"throughput/{key}": rate.per_second(now) for key, rate in self._rates.items()}
            counts = {f"count/{key}": float(count) for key, count in sorted(self._counts.items()) if count}
            windows = {key: window.values() for key, window in self._windows.items()}
        found = {key: rate for key, rate in rates.items() if rate is not None} | counts
        for key, numbers in windows.items():
            if len(numbers):
                joint = "/" if key == "priority" else "_"
                found |= {f"{key}{joint}{name}": float(getattr(np, name)(numbers)) for name in _STATISTICS[key]}
        return found

    def histogram(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Of the last priorities that a push or an update gave: counts int64 `[N]` and edges `[N + 1]`, or None."""
        priorities = self._priorities()
        if not len(priorities):
            return None
        counts, edges = np.histogram(priorities, self.config.num_buckets)
        return counts, edges

    def write_summaries(self, writer: Any, step: int) -> None:
        """Writes the numbers and the histogram for TensorBoard, as `NAME/throughput/push` and so on.

        Args:
          writer: what `tf.summary.create_file_writer` gives.
          step: the learner's iteration, say.
        """
        import tensorflow as tf

        priorities = self._priorities()
        with writer.as_default(step):
            for key, value in self.values().items():
                tf.summary.scalar(f"{self.name}/{key}", value)
            if len(priorities):
                tf.summary.histogram(f"{self.name}/priority/histogram", priorities, buckets=self.config.num_buckets)

    def table(self) -> str:
        """The numbers as a small table of text."""
        return table([self])

    def _priorities(self) -> np.ndarray:
        with self._lock:
            return self._windows["priority"].values()


def table(monitors: Sequence[BufferMonitor]) -> str:
    """The numbers of monitors side by side as text: a line for each number, a column for each buffer."""
    columns = [monitor.values() for monitor in monitors]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [["", *(monitor.name for monitor in monitors)]]
    rows += [[name, *(_in_words(column.get(name)) for column in columns)] for name in names]
    widths = [max(len(cell) for cell in cells) for cells in zip(*rows, strict=True)]
    lines = (
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _in_words(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.4g}"
