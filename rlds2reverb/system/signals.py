"""SIGINT and SIGTERM: deferred, raised as an exception, or turned into a request to stop.

Python runs signal handlers in the main thread only; in any other thread these contexts do nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SIGNAL_NAMES = tuple(number.name for number in SIGNALS)
#: The handlers that each context has replaced, and the sockets that signals are written to.
_replaced: list[dict[int, Any]] = []
_sockets: list[socket.socket] = []
#: The signals that a thread has blocked, while it forks.
_forking = threading.local()


class Terminated(BaseException):
    """SIGTERM arrived. Like `KeyboardInterrupt`, this is no `Exception`, so that error handlers do not catch it."""


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Holds back SIGINT and SIGTERM until the context ends."""
    deferred: list[int] = []
    previous: dict[int, Any] = {}
    try:
        with _handle_signals(SIGNALS, deferred.append) as previous:
            yield
    finally:
        for number in deferred:
            handler = previous[number]
            if callable(handler):  # If the signal were raised again, readers of `set_wakeup_fd` would count it twice.
                handler(number, None)
            else:
                signal.raise_signal(number)


@contextlib.contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Raises `Terminated` in the main thread if SIGTERM arrives during the context."""

    def raise_terminated(number: int) -> None:
        raise Terminated

    with _handle_signals((signal.SIGTERM,), raise_terminated):
        yield


@contextlib.contextmanager
def exit_on_sigint() -> Iterator[None]:
    """Ends the process at once with exit code 130 if SIGINT arrives during the context, unless it is handled otherwise.

    For imports, in which native code turns `KeyboardInterrupt` into other errors.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    has_cursor = os.isatty(2)
    stderr = os.dup(2) if has_cursor else -1  # During the context, the output of native code may be hidden.

    def end(number: int) -> None:
        if has_cursor:
            os.write(stderr, b"\x1b[?25h\n")  # Shows the cursor, which a status line hides.
        os._exit(128 + number)

    try:
        with _handle_signals((signal.SIGINT,) if is_default else (), end):
            yield
    finally:
        if has_cursor:
            os.close(stderr)


@contextlib.contextmanager
def stop_on_signal(stop: Callable[[str], None]) -> Iterator[None]:
    """Calls `stop` with the name of the first SIGINT or SIGTERM during the context; a second one ends the process.

    The second signal ends the process at once with exit code 128 + its number, even while TensorFlow is running and
    Python calls no handlers.

    Args:
      stop: function of the signal's name, called in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    watcher = threading.Thread(target=_exit_on_second_signal, args=(reader,), name="rlds2reverb-signals", daemon=True)
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    _sockets.extend((reader, writer))
    watcher.start()
    try:
        with _handle_signals(SIGNALS, lambda number: stop(signal.Signals(number).name)):
            yield
    finally:
        signal.set_wakeup_fd(wakeup)
        with contextlib.suppress(OSError):  # In a forked process, it is closed.
            writer.shutdown(socket.SHUT_RDWR)  # The watcher returns, even if a process has inherited the socket.
        watcher.join()
        for end in (reader, writer):
            end.close()
        del _sockets[-2:]  # A forked process starts without any.


@contextlib.contextmanager
def _handle_signals(numbers: Sequence[int], handle: Callable[[int], None]) -> Iterator[dict[int, Any]]:
    """Replaces signal handlers during the context, and yields the previous ones."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    previous = {number: signal.signal(number, lambda signum, frame: handle(signum)) for number in numbers}
    _replaced.append(previous)
    try:
        yield previous
    finally:
        _restore(previous)
        del _replaced[-1:]  # A forked process starts without any.


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _block_signals() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _leave_contexts() -> None:
    """Makes a forked process handle signals as it would outside of all contexts, which are those of its parent."""
    for handlers in reversed(_replaced):
        _restore(handlers)
    if _sockets:
        signal.set_wakeup_fd(-1)
    for end in _sockets:
        end.close()
    _replaced.clear()
    _sockets.clear()
    _unblock_signals()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_leave_contexts)


def _exit_on_second_signal(reader: socket.socket) -> None:
    """Reads signal numbers as they arrive, even while the main thread is busy."""
    count = 0
    while received := reader.recv(1):
        count += received[0] in SIGNALS
        if count == 2:
            os._exit(128 + received[0])
