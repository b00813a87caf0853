"""Calls into Reverb's C++ code: each with a deadline, and none cut off by the end of the interpreter.

A thread that returns from C++ after the interpreter has ended is stopped by force, which C++ answers with
`std::terminate`: the process aborts with exit code 134. Only daemon threads live that long, and Reverb's calls that
have no deadline run in such threads, since nothing can stop them. So when the interpreter ends, daemon threads begin
no further call, and those under way get a moment to return. One that does not return (its server is gone) does no
harm.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlds2reverb.errors import ServerUnavailableError

_LONGEST_WAIT_SECS = 1.0
#: Longer than the interpreter needs to end, unless it waits for a lock that the thread holds.
_HELD_SECS = 10.0


class NativeCalls:
    """Counts the calls into C++ that are under way, in all threads."""

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


#: The calls of this process: the interpreter ends once a process, so that the count is global.
NATIVE_CALLS = NativeCalls()
atexit.register(NATIVE_CALLS.finish)


def call_with_deadline(timeout_secs: float, call: Callable[[], Any], what: str) -> Any:
    """Returns the result of a call that has no deadline of its own, made in a thread of its own.

    Where our gRPC connection has the method, use that: it needs no thread. When the deadline has passed, the call goes
    on in the background.

    Raises:
      ServerUnavailableError: if the call did not return in time.
    """
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = call()
        except BaseException as error:
            outcome["error"] = error
        finally:
            NATIVE_CALLS.end()

    thread = threading.Thread(target=run, daemon=True)
    NATIVE_CALLS.begin()
    try:
        thread.start()
    except BaseException:  # there are too many threads
        NATIVE_CALLS.end()
        raise
    thread.join(timeout_secs)
    if thread.is_alive():
        raise ServerUnavailableError(f"waited {timeout_secs:g} s for {what}")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]
