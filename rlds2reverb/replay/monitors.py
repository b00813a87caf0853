"""Monitors of replay buffers: throughput, counts, and statistics of use, staleness and priority."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.system.text import format_columns, format_number
from rlds2reverb.types.arguments import require_count

#: Why items leave: the buffer is full, they are stale, they were sampled `max_use` times, or the buffer was cleared.
REASONS = ("full", "stale", "used", "cleared")
_RATES = {"pushed": "throughput/push", "sampled": "throughput/sample"}
_STATISTICS: dict[str, tuple[str, ...]] = {
    "sampled/use": ("mean", "max"),
    "sampled/staleness": ("mean", "max"),
    "sampled/priority": ("mean", "max", "min"),
    "priority": ("mean", "max", "min"),
}


@dataclass(frozen=True)
class MonitorConfig:
    """The windows of a monitor.

    Attributes:
      window_secs: length of the window for rates, in seconds.
      num_parts: number of parts of that window, which moves by one part at a time.
      num_values: number of recent values for means, maxima, minima and the histogram.
      num_buckets: number of buckets of the histogram.
    """

    window_secs: float = 60.0
    num_parts: int = 60
    num_values: int = 10_000
    num_buckets: int = 30

    def __post_init__(self) -> None:
        if not 0 < self.window_secs < math.inf:
            raise ValueError(f"window_secs must be a finite number above 0, got {self.window_secs}")
        for name, lowest in (("num_parts", 2), ("num_values", 1), ("num_buckets", 1)):
            require_count(name, getattr(self, name), lowest)


class RateWindow:
    """The number of events per second in a moving window; callers pass the time."""

    def __init__(self, config: MonitorConfig, start_secs: float):
        self._start_secs, self._part_secs = start_secs, config.window_secs / config.num_parts
        self._counts = np.zeros(config.num_parts, np.int64)
        self._newest = 0

    def add(self, count: int, now_secs: float) -> None:
        """Adds events that happened now."""
        self._advance(now_secs)
        self._counts[self._newest % len(self._counts)] += count

    def per_second(self, now_secs: float) -> float | None:
        """Returns events per second over the window, or since the start if that is shorter; None in the first part."""
        self._advance(now_secs)
        oldest = max(0, self._newest - len(self._counts) + 1)
        covered_secs = now_secs - self._start_secs - oldest * self._part_secs
        return None if covered_secs < self._part_secs else float(self._counts.sum() / covered_secs)

    def _advance(self, now_secs: float) -> None:
        newest = max(self._newest, int((now_secs - self._start_secs) / self._part_secs))
        num_new = min(newest - self._newest, len(self._counts))
        if num_new:
            self._counts[np.arange(newest - num_new + 1, newest + 1) % len(self._counts)] = 0
        self._newest = newest


class BufferMonitor:
    """Counts and summarizes the events of a buffer: `buffer.monitor = BufferMonitor(buffer.name)`. It is thread-safe.

    It reports these values, except those for which there are no data:

    - `throughput/push`, `throughput/sample`: items per second in the window.
    - `count/pushed`, `count/sampled`, `count/updated`, `count/removed_REASON`: items since the start; the reasons are
      `monitors.REASONS`.
    - `sampled/use_mean`, `_max`: use counts of recently sampled items.
    - `sampled/staleness_mean`, `_max`: staleness of recently sampled items with a `collect_iter`.
    - `sampled/priority_mean`, `_max`, `_min`: priorities of recently sampled items.
    - `priority/mean`, `max`, `min`, and the histogram: priorities of recent pushes and updates.
    """

    def __init__(self, name: str, config: MonitorConfig | None = None, *, clock: Callable[[], float] = time.monotonic):
        """Starts to count.

        Args:
          name: name of the buffer in summaries and tables.
          config: windows; None for the defaults.
          clock: function that returns seconds, which must not decrease.
        """
        self.name, self.config = name, config or MonitorConfig()
        self._clock, self._lock = clock, threading.Lock()
        now = clock()
        self._rates = {event: RateWindow(self.config, now) for event in _RATES}
        self._counts: Counter[str] = Counter()
        self._recent: dict[str, deque[float]] = {key: deque(maxlen=self.config.num_values) for key in _STATISTICS}

    def record(self, event: str, count: int, **values: np.ndarray) -> None:
        """Counts an event.

        Args:
          event: 'pushed', 'sampled', 'updated', or 'removed_REASON' with one of `REASONS`.
          count: number of items.
          values: arrays `[N]` of `priority`, and for samples of `use` and `staleness`; negative ones are unknown.
        """
        with self._lock:
            self._counts[event] += count
            if event in self._rates:
                self._rates[event].add(count, self._clock())
            for name, numbers in values.items():
                recent = self._recent[f"sampled/{name}" if event == "sampled" else name]
                recent.extend(numbers[numbers >= 0][-self.config.num_values :].tolist())

    def values(self) -> dict[str, float]:
        """Returns finite values by name, without those for which there are no data."""
        with self._lock:
            now = self._clock()
            rates = {name: self._rates[event].per_second(now) for event, name in _RATES.items()}
            values = {key: rate for key, rate in rates.items() if rate is not None}
            values |= {f"count/{key}": float(count) for key, count in sorted(self._counts.items()) if count}
            recent = {key: np.array(numbers) for key, numbers in self._recent.items()}
        for key, numbers in recent.items():
            if len(numbers):
                separator = "/" if key == "priority" else "_"
                values |= {f"{key}{separator}{name}": float(getattr(np, name)(numbers)) for name in _STATISTICS[key]}
        return values

    def histogram(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns a histogram of recent priorities, counts int64 `[N]` and edges `[N + 1]`, or None."""
        priorities = self._copy_priorities()
        if not len(priorities):
            return None
        return np.histogram(priorities, self.config.num_buckets)

    def write_summaries(self, writer: Any, step: int) -> None:
        """Writes the values and the histogram for TensorBoard, as `NAME/throughput/push` and so on.

        Args:
          writer: result of `tf.summary.create_file_writer`.
          step: step of the summaries, for example the learner iteration.
        """
        import tensorflow as tf

        priorities = self._copy_priorities()
        with writer.as_default(step):
            for key, value in self.values().items():
                tf.summary.scalar(f"{self.name}/{key}", value)
            if len(priorities):
                tf.summary.histogram(f"{self.name}/priority/histogram", priorities, buckets=self.config.num_buckets)

    def table(self) -> str:
        """Returns the values as a text table."""
        return table([self])

    def _copy_priorities(self) -> np.ndarray:
        with self._lock:
            return np.array(self._recent["priority"])


def table(monitors: Sequence[BufferMonitor]) -> str:
    """Returns the values of monitors as a text table with one row per value and one column per buffer."""
    values = [monitor.values() for monitor in monitors]
    names = list(dict.fromkeys(name for numbers in values for name in numbers))
    columns = []
    for monitor, numbers in zip(monitors, values, strict=True):
        cells = [monitor.name, *(format_number(numbers.get(name, math.nan)) for name in names)]
        columns.append([cell.rjust(max(map(len, cells))) for cell in cells])
    headings, *rows = zip(["", *names], *columns, strict=True)
    return format_columns(headings, rows)
