"""A time-out that counts only while this process runs."""

from __future__ import annotations

import time

_LONGEST_TICK_SECS = 1.0
#: A time-out has at least so many ticks.
_MIN_TICKS = 8
#: A gap of more ticks than this is time in which the process did not run.
_MAX_TICKS_IN_A_GAP = 3


class PausableDeadline:
    """Seconds that are left to wait. A process that was stopped (SIGSTOP) and continues has about as many as before.

    Whoever waits looks at `left` at every tick: of a longer gap only three ticks count.
    """

    def __init__(self, secs: float):
        """All of the seconds are left."""
        self._secs = secs
        self._tick_secs = min(_LONGEST_TICK_SECS, secs / _MIN_TICKS)
        self.restart()

    def restart(self) -> None:
        """Has all of the seconds left again."""
        self._left, self._seen = self._secs, time.monotonic()

    @property
    def left(self) -> float:
        """Seconds left, 0 or below when they are over."""
        now = time.monotonic()
        self._left -= min(now - self._seen, _MAX_TICKS_IN_A_GAP * self._tick_secs)
        self._seen = now
        return self._left

    @property
    def tick_secs(self) -> float:
        """How long to wait before the next look; at least a millisecond."""
        return max(0.001, min(self.left, self._tick_secs))
