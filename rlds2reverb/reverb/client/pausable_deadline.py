"""A deadline that ignores the time during which the process was stopped."""

from __future__ import annotations

import time

_MAX_TICK_SECS = 1.0
_MIN_TICKS = 8
#: A longer gap between two reads of the clock means that the process was not running.
_MAX_TICKS_PER_GAP = 3


class PausableDeadline:
    """A timeout that survives SIGSTOP: a process that continues has about as many seconds left as before the stop.

    The waiting code must read `remaining_secs` at every tick; a longer gap counts as three ticks.
    """

    def __init__(self, timeout_secs: float, *, max_tick_secs: float = _MAX_TICK_SECS):
        self._timeout_secs = timeout_secs
        self._tick_secs = min(max_tick_secs, timeout_secs / _MIN_TICKS)
        self.restart()

    def restart(self) -> None:
        """Resets the remaining time to the whole timeout."""
        self._remaining_secs, self._last_read = self._timeout_secs, time.monotonic()

    @property
    def remaining_secs(self) -> float:
        """Seconds left; 0 or less once the deadline has passed."""
        now = time.monotonic()
        self._remaining_secs -= min(now - self._last_read, _MAX_TICKS_PER_GAP * self._tick_secs)
        self._last_read = now
        return self._remaining_secs

    @property
    def tick_secs(self) -> float:
        """Seconds to wait before the next read; at least a millisecond."""
        return max(0.001, min(self.remaining_secs, self._tick_secs))
