"""Calls into Reverb's C++ code: with a deadline, and never interrupted by the end of the interpreter.

If a daemon thread returns from C++ after the interpreter has shut down, the thread is killed, C++ calls
`std::terminate`, and the process aborts with exit code 134. Reverb's calls without a deadline have to run in daemon
threads because nothing can stop them. So at shutdown daemon threads may not start another call, and calls in progress
get a moment to return. A call that does not return (its server is gone) is harmless.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlds2reverb.errors import ServerUnavailableError

_SHUTDOWN_SECS = 1.0
#: Longer than the interpreter takes to shut down, unless it waits for a lock of the blocked thread.
_BLOCK_SECS = 10.0


class NativeCalls:
    """Counts the calls into C++ that are in progress, in all threads.

    Args:
      block_secs: seconds for which a thread is blocked that tries to begin a call after `shut_down`.
    """

    def __init__(self, *, block_secs: float = _BLOCK_SECS) -> None:
        self._changed = threading.Condition()
        self._num_active = 0
        self._is_shut_down = False
        self._block_secs = block_secs

    def begin(self) -> None:
        """Counts a call; any thread may `end` it.

        After `shut_down` only the main thread can begin a call; other threads block here until the interpreter ends.

        Raises:
          SystemExit: If that takes too long, so that the thread releases its locks.
        """
        with self._changed:
            if not self._is_shut_down or threading.current_thread() is threading.main_thread():
                self._num_active += 1
                return
        threading.Event().wait(self._block_secs)
        raise SystemExit

    def end(self) -> None:
        """Counts the return of a call."""
        with self._changed:
            self._num_active -= 1
            self._changed.notify_all()

    @contextmanager
    def track(self) -> Iterator[None]:
        """Counts the calls made in the context as one; see `begin`."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def shut_down(self, timeout_secs: float = _SHUTDOWN_SECS) -> bool:
        """Prevents further calls and waits for those in progress; returns whether all of them returned in time."""
        with self._changed:
            self._is_shut_down = True
            return self._changed.wait_for(lambda: not self._num_active, timeout_secs)


#: The calls of this process; global because the interpreter shuts down once per process.
NATIVE_CALLS = NativeCalls()
atexit.register(NATIVE_CALLS.shut_down)


def call_with_deadline(timeout_secs: float, call: Callable[[], Any], what: str) -> Any:
    """Returns the result of a call that has no deadline of its own; runs it in a new thread.

    After the deadline the call continues in the background.

    Args:
      timeout_secs: seconds to wait.
      call: function without arguments.
      what: description of the result, for the error message.

    Raises:
      ServerUnavailableError: If the call did not return in time.
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
    except BaseException:  # The system may not allow another thread.
        NATIVE_CALLS.end()
        raise
    thread.join(timeout_secs)
    if thread.is_alive():
        raise ServerUnavailableError(f"waited {timeout_secs:g} s for {what}")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]
