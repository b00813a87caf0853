"""Servers in their own processes, forked from a launcher that imports Reverb once for all servers of this process.

A server ends when its `ServerProcess` is stopped or this process ends, however that happens: its control socket is then
closed. The launcher ends with this process and those forked from it, which use the same launcher. Processes forked from
this one close their copies of the control sockets, so that they do not keep its servers alive.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ServerUnavailableError

from .interpreter import find_server_python

_FOLDER = Path(__file__).parent.parent / "process"
#: A server that takes longer to stop is killed.
_STOP_SECS = 10.0
_EXIT_SECS = 2.0
_ERRORS: dict[str, type[Exception]] = {"ValueError": ValueError, "OSError": OSError}


class _Launcher:
    """The process from which servers are forked, by `fork_server` with its `control` socket."""

    def __init__(self) -> None:
        """Starts the process, without waiting until it has imported Reverb."""
        python, paths = find_server_python()
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [python, "-I", str(_FOLDER), str(other.fileno()), *paths],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )

    def end(self) -> None:
        """Ends the launcher and its servers, unless processes that were forked from this one may still use it."""
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_SECS)


def fork_server(launcher: socket.socket) -> socket.socket:
    """Forks a server and returns its control socket; raises `OSError` if the launcher has ended.

    Args:
      launcher: socket of the launcher.
    """
    control, other = socket.socketpair()
    with other:
        try:
            socket.send_fds(launcher, [b"f"], [other.fileno()])
        except BaseException:
            control.close()
            raise
    return control


_lock = threading.Lock()
_launcher: _Launcher | None = None
_processes: weakref.WeakSet[ForkedProcess] = weakref.WeakSet()


def start_launcher() -> None:
    """Starts to import Reverb for this process's servers, in the background; the first server otherwise waits for it.

    Raises:
      ServerUnavailableError: If servers cannot run on this machine.
    """
    global _launcher
    with _lock:
        if _launcher is None:
            _launcher = _Launcher()


def _fork_server() -> socket.socket:
    global _launcher
    start_launcher()
    assert _launcher is not None
    try:
        return fork_server(_launcher.control)
    except OSError:  # It was killed.
        with _lock:
            _launcher.end()
            _launcher = _Launcher()
        return fork_server(_launcher.control)


@atexit.register
def _end_launcher() -> None:
    if _launcher is not None:
        _launcher.end()


def _forget_processes() -> None:
    """Closes a forked process's copies of what belongs to the process that it was forked from."""
    global _lock
    _lock = threading.Lock()  # Another thread may have held it.
    for process in list(_processes):
        process._control.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_processes)


class ForkedProcess:
    """A process forked from the launcher: a server, or a writer.

    Attributes:
      pid: its process ID.
    """

    def __init__(self, description: Mapping[str, Any], name: str):
        """Starts the process and waits until it is ready.

        Args:
          description: description of its task; see `reverb.process.server.serve`.
          name: name for error messages.

        Raises:
          OSError, ValueError, RuntimeError: The error of the process, if it could not start.
          ServerUnavailableError: If it ended while it was starting, or cannot run on this machine.
        """
        self._name, self._when, self.pid = name, "while it was starting", 0
        self._control = _fork_server()
        weakref.finalize(self, self._control.close)  # Ends the process.
        _processes.add(self)
        try:
            self._control.sendall(json.dumps(description).encode() + b"\n")
            with self._control.makefile("rb") as lines:
                self.pid = self._read(lines)["pid"]
                error = self._read(lines)
            self._when = "unexpectedly"
        except BaseException as raised:
            self.kill()
            if isinstance(raised, (BrokenPipeError, ConnectionResetError)):
                raise self._unexpected_end() from None
            raise
        if error:
            self._wait_for_end(_STOP_SECS)  # Until then, the ports are in use.
            self._control.close()
            raise _ERRORS.get(error["kind"], RuntimeError)(error["message"])

    def _read(self, lines: Any) -> dict[str, Any]:
        if line := lines.readline():
            return dict(json.loads(line))
        raise self._unexpected_end()

    def _unexpected_end(self) -> ServerUnavailableError:
        return ServerUnavailableError(
            f"the process of {self._name} ended {self._when}; if there is no message of Reverb above, the "
            "system may have killed it because it ran out of memory"
        )

    def kill(self) -> None:
        """Kills the process unless it has ended, and releases the control socket."""
        with contextlib.suppress(OSError):
            if not self._wait_for_end(0) and self.pid:
                os.kill(self.pid, signal.SIGKILL)
                self._wait_for_end(_STOP_SECS)
        self._control.close()

    def _wait_for_end(self, timeout_secs: float) -> bool:
        """Waits until the process has closed its end of the control socket; returns whether it has."""
        self._control.settimeout(timeout_secs)
        try:
            with contextlib.suppress(ConnectionResetError):  # It ended without having read everything.
                while self._control.recv(4096):
                    pass
            return True
        except (TimeoutError, BlockingIOError):
            return False


class ServerProcess(ForkedProcess):
    """A Reverb server in its own process."""

    def require_running(self) -> None:
        """Raises `ServerUnavailableError` if the process has ended although it was not stopped."""
        if select.select([self._control], [], [], 0)[0]:
            raise self._unexpected_end()

    def stop(self) -> None:
        """Stops the server, which closes its port, and waits for the end of its process."""
        with contextlib.suppress(OSError):  # It has ended, or belongs to the process that this one was forked from.
            self._control.sendall(b"s")
            self._wait_for_end(_STOP_SECS)
        self.kill()
