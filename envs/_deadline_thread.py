"""Calls in a thread, with a timeout."""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class DeadlineThread:
    """A thread that makes all calls, so that one that hangs is an error after a timeout. Use it as a context manager.

    A thread that hangs cannot be ended; it is left behind, and ends with the process. Later calls raise at once, so
    that none of them returns the late result of the call that was given up.

    Attributes:
      is_responsive: whether no call has exceeded its timeout.
    """

    def __init__(self, name: str, timeout_secs: float):
        """Starts the thread.

        Args:
          name: name of the called object, for messages.
          timeout_secs: maximum duration of a call.
        """
        self._name, self._timeout_secs = name, timeout_secs
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.is_responsive = True
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> DeadlineThread:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Returns the result of a function, or raises its error.

        Raises:
          TimeoutError: If it takes too long, or an earlier call did; the message contains the thread's stack trace.
          RuntimeError: If the thread was closed.
        """
        if not self.is_responsive:
            raise TimeoutError(f"{self._name} did not answer an earlier call; the thread is at\n{self._get_stack()}")
        if self._is_closed:
            raise RuntimeError(f"{self._name} cannot be called after close()")
        self._calls.put(function)
        try:
            result, error = self._results.get(timeout=self._timeout_secs)
        except queue.Empty:
            self.is_responsive = False
            raise TimeoutError(
                f"{self._name} did not answer within {self._timeout_secs:g} s; the thread is at\n{self._get_stack()}"
            ) from None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Ends the thread unless it hangs. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._calls.put(None)
        if self.is_responsive:
            self._thread.join(self._timeout_secs)

    def _get_stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def _run(self) -> None:
        while (function := self._calls.get()) is not None:
            try:
                self._results.put((function(), None))
            except BaseException as error:  # The caller raises it.
                self._results.put((None, error))
