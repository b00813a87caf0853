"""SIGTERM as an exception, so that a run that can be continued cleans up and says so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(BaseException):
    """SIGTERM arrived. Like `KeyboardInterrupt`, it is not an `Exception`, so that nothing takes it for an error."""


@contextmanager
def sigterm_as_exception() -> Iterator[None]:
    """Raises `Terminated` in the main thread when SIGTERM arrives while the body runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
