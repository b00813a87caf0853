"""Reservation of ports: each is used by at most one server among all processes of the machine.

A server has one or two: Reverb's own, which users know, and that of the batch service, which follows from it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rlds2reverb.errors import ResourceInUseError
from rlds2reverb.system.file_lock import FileLock
from rlds2reverb.types.arguments import require_count

from ..client import batch_port
from .scratch import user_directory

#: Ports that servers of this process have used. Reverb's clients share connections within a process and take up to two
#: minutes to reconnect to a port whose server is gone; to them a new server on that port would seem dead.
_USED_PORTS: set[int] = set()
_MAX_TRIES = 100
_RELEASE_SECS = 1.0
_ADVICE = "choose another port, or stop that server"
_NUM_PORTS = 65536


def pick_port() -> int:
    """Returns a free port with a free batch port that no server of this process has used, if found in 100 tries."""
    for _ in range(_MAX_TRIES):
        port = find_port()
        with contextlib.suppress(ResourceInUseError):
            require_free_port(port)
            require_free_port(batch_port(port))
            if port not in _USED_PORTS:
                break
    return port


def find_port() -> int:
    """Returns a port that the system chooses."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@contextmanager
def reserve_port(port: int, *, serve_batches: bool) -> Iterator[None]:
    """Keeps other rlds2reverb servers off a port, and off its batch port if that is used.

    Reverb itself would let two servers share a port and split the traffic.

    Raises:
      ResourceInUseError: If one of them is in use.
      ValueError: If the port is out of range.
    """
    _USED_PORTS.add(port)
    require_count("port", port, 1, _NUM_PORTS - 1)
    with ExitStack() as stack:
        for number in (port, batch_port(port)) if serve_batches else (port,):
            stack.enter_context(FileLock(user_directory() / f"port-{number}.lock", f"port {number}", _ADVICE))
            _wait_for_free_port(number)
        yield


def _wait_for_free_port(port: int) -> None:
    """Waits for a moment until a port is free: if a process is killed, its lock is released before its server ends."""
    until = time.monotonic() + _RELEASE_SECS
    while True:
        try:
            return require_free_port(port)
        except ResourceInUseError:
            if time.monotonic() > until:
                raise
        time.sleep(_RELEASE_SECS / 10)


def require_free_port(port: int) -> None:
    """Raises `ResourceInUseError` if a program listens on a port of any interface, `ValueError` if out of range."""
    require_count("port", port, 1, _NUM_PORTS - 1)
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # This machine has no IPv6.
            continue
        with probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except PermissionError as error:
                raise ResourceInUseError(
                    f"port {port} requires more privileges ({error.strerror}); choose a port above 1023"
                ) from None
            except OSError as error:
                raise ResourceInUseError(
                    f"port {port} is in use ({error.strerror}); choose another port, or stop the program that uses it"
                ) from None
