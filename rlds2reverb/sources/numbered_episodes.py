"""Episodes by their number, from a source that is read from its beginning."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from rlds2reverb.episodes import Episode

#: Readings of one source that are kept at the same time; one more ends the oldest.
_MAX_READINGS = 8


class NumberedEpisodes:
    """Gives the episode of a number; where they are asked for one after the other, the source is read once.

    What it gives depends on the number alone, so that `tf.data` may take it for a function without a state. The reading
    that gave episode `n` is kept for `n + 1`; where there is none, the source is read from its beginning up to there.
    Readings end with the source, with its first error, or by `close`. It may be called from several threads.
    """

    def __init__(self, read: Callable[[], Iterator[Episode]]):
        """Nothing is read yet.

        Args:
          read: begins a reading; has to give the same episodes each time.
        """
        self._read = read
        self._readings: list[tuple[int, Iterator[Episode]]] = []  # the number that each gives next; the newest is last
        self._failed_at: int | None = None
        self._lock = threading.Lock()

    def __call__(self, number: int) -> Episode | None:
        """Returns the episode of a number from 0; None after the last one, and after one that raised an error."""
        if self._failed_at is not None and number > self._failed_at:
            return None
        at, reading = self._taken(number) or (0, self._read())
        try:
            while (episode := next(reading, None)) is not None and at < number:
                at += 1
        except Exception:
            self._failed_at = at
            raise
        if episode is not None:
            with self._lock:
                self._readings = [*self._readings[1 - _MAX_READINGS :], (number + 1, reading)]
        return episode

    def close(self) -> None:
        """Ends the readings that are kept; another call begins one."""
        with self._lock:
            ended, self._readings = self._readings, []
        del ended  # outside of the lock, since a reading that ends runs code of its own

    def _taken(self, number: int) -> tuple[int, Iterator[Episode]] | None:
        """Returns the newest reading at a number, which is no longer kept then; None if there is none."""
        with self._lock:
            for place in reversed(range(len(self._readings))):
                if self._readings[place][0] == number:
                    return self._readings.pop(place)
        return None
