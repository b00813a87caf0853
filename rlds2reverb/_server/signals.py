"""Ctrl-C and SIGTERM at the right moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Holds Ctrl-C and SIGTERM back until the end; only the main thread of a process can, and only it gets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before: dict[int, Any] = {
        number: signal.signal(number, lambda got, frame: arrived.append(got)) for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for got in arrived:
            handler = before[got]
            if callable(handler):  # raised again, a signal would count twice for who watches `set_wakeup_fd`
                handler(got, None)
            else:
                signal.raise_signal(got)
