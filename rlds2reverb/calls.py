"""Calls into Reverb, and the end of the interpreter.

A thread that comes back from Reverb's C++ when the interpreter is gone is ended by force, which C++ answers with
`std::terminate`: the process aborts, with exit code 134. Only daemon threads live so long. So at the end of the
interpreter no call begins any more in them, and those that are under way have a moment to come back. One that does not
come back (from a server that is gone) does no harm.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST_WAIT_SECS = 1.0
#: Longer than the interpreter needs to end, unless it waits for a lock that the thread holds.
_HELD_SECS = 10.0


class Calls:
    """Counts the calls that are under way."""

    def __init__(self, *, held_secs: float = _HELD_SECS) -> None:
        """No call is under way yet.

        Args:
          held_secs: how long a thread is held that would begin a call after `finish`.
        """
        self._changed = threading.Condition()
        self._num_under_way = 0
        self._finished = False
        self._held_secs = held_secs

    def begin(self) -> None:
        """Counts a call, which `end` ends, in whatever thread.

        After `finish` only the main thread begins any; another one waits here for the interpreter to end.

        Raises:
          SystemExit: if that takes too long, so that the locks of the thread get free.
        """
        with self._changed:
            if not self._finished or threading.current_thread() is threading.main_thread():
                self._num_under_way += 1
                return
        threading.Event().wait(self._held_secs)
        raise SystemExit

    def end(self) -> None:
        """Says that a call came back."""
        with self._changed:
            self._num_under_way -= 1
            self._changed.notify_all()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Around a call; see `begin`."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def finish(self, timeout_secs: float = _LONGEST_WAIT_SECS) -> bool:
        """Lets no call begin any more, and waits for those under way; whether all came back in time."""
        with self._changed:
            self._finished = True
            return self._changed.wait_for(lambda: not self._num_under_way, timeout_secs)


#: Those of this process.
CALLS = Calls()
atexit.register(CALLS.finish)
