"""SIGTERM and SIGINT while a learner runs: the first one asks it to stop, the second one ends the process."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

NUMBERS = (signal.SIGTERM, signal.SIGINT)
#: What `Learner.stop_reason` is after one.
NAMES = tuple(number.name for number in NUMBERS)


@contextmanager
def stopped_by_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Calls `stop` with the name of the first signal that comes while the body runs; a second one ends the process.

    A second one ends it at once, with the exit code 128 + its number, also while TensorFlow runs, in which Python calls
    no handlers. Handlers are put back afterwards. Does nothing outside of the main thread.

    Args:
      stop: called in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in NUMBERS}
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    watcher = threading.Thread(target=_end_at_second, args=(ours,), name="rlds2reverb-signals", daemon=True)

    def on_signal(number: int, _: Any) -> None:
        stop(signal.Signals(number).name)

    wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    watcher.start()
    for number in NUMBERS:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(wakeup)
        theirs.close()  # ends the watcher
        watcher.join()
        ours.close()


def _end_at_second(numbers: socket.socket) -> None:
    """Reads the numbers of signals as they come, also while the main thread is busy."""
    count = 0
    while received := numbers.recv(1):
        count += received[0] in NUMBERS
        if count == 2:
            os._exit(128 + received[0])
