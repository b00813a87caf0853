"""Calls in a thread, with a timeout. Each call has its own future, so that no caller gets a different one's result."""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar

from rlds2reverb.system.closing import Closing
from rlds2reverb.types.arguments import require_timeout

ResultT = TypeVar("ResultT")


class DeadlineThread(Closing):
    """A thread that makes all calls, so that one that hangs is an error after a timeout. Use it as a context manager.

    Several threads may call; their calls are made one after the other. The call after an interrupted one (Ctrl-C) waits
    until that is complete. A thread that hangs cannot be ended; it is left behind, and ends with the process. Later
    calls raise at once.

    Attributes:
      is_responsive: whether no call has exceeded its timeout.
    """

    def __init__(self, name: str, timeout_secs: float):
        """Starts the thread.

        Args:
          name: name of the called object, for messages.
          timeout_secs: maximum duration of a call.

        Raises:
          ValueError: If the timeout is out of range.
        """
        require_timeout(timeout_secs)
        self._name, self._timeout_secs = name, timeout_secs
        self._calls: queue.SimpleQueue[tuple[futures.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._opened: list[Any] = []
        self.is_responsive = True
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Returns the result of a function, or raises its error.

        Raises:
          TimeoutError: If it takes too long, or an earlier call did; the message contains the thread's stack trace.
          RuntimeError: If the thread was closed.
        """
        with self._lock:
            if not self.is_responsive:
                raise TimeoutError(f"{self._describe_stack()}{self._name} did not answer an earlier call")
            if self._is_closed:
                raise RuntimeError(f"{self._name} cannot be called after close()")
            future: futures.Future[ResultT] = futures.Future()
            self._calls.put((future, function))
            try:
                future.exception(self._timeout_secs)
            except futures.TimeoutError:
                self.is_responsive = False
                raise TimeoutError(
                    f"{self._describe_stack()}{self._name} did not answer within {self._timeout_secs:g} s"
                ) from None
        return future.result()

    def open(self, constructor: Callable[[], ResultT]) -> ResultT:
        """Returns the object that a function creates in the thread; `close` closes it there.

        Raises:
          Exception: See `call`.
        """
        opened = self.call(constructor)
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        """Closes the objects that were opened, and ends the thread, unless it hangs. Idempotent.

        Raises:
          TimeoutError: If closing an object takes too long.
        """
        if self._is_closed:
            return
        try:
            while self._opened and self.is_responsive:
                self.call(self._opened.pop().close)
        finally:
            self._is_closed = True
            self._calls.put(None)
            if self.is_responsive:
                self._thread.join(self._timeout_secs)

    def _describe_stack(self) -> str:
        """Returns the lines that precede a message, whose last line is a separate sentence."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else f"the thread is at\n{''.join(traceback.format_stack(frame))}"

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            try:
                future.set_result(function())
            except BaseException as error:  # The caller raises it.
                future.set_exception(error)
