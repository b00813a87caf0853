"""Ports: one server each, of all processes of this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import portpicker

from rlds2reverb.errors import ResourceInUseError

from .locks import FileLock
from .scratch import own_directory

#: Ports that servers of this process have had. Reverb's clients share connections within a process, and take up to two
#: minutes to come back to a port where a server was lost: to them a new server at that port would seem dead.
_USED_PORTS: set[int] = set()
_MAX_TRIES = 100


def unused_port() -> int:
    """Returns a free port that no server of this process has had."""
    port = portpicker.pick_unused_port()
    for _ in range(_MAX_TRIES):
        if port not in _USED_PORTS:
            break
        port = portpicker.pick_unused_port()
    return port


@contextmanager
def held_port(port: int) -> Iterator[None]:
    """Keeps other servers of this package from a port. Reverb itself would let two start there and split the traffic.

    Raises:
      ResourceInUseError: if anything listens there.
      ValueError: if it is not a port.
    """
    _USED_PORTS.add(port)
    with FileLock(own_directory() / f"port-{port}.lock", f"port {port} is taken by another rlds2reverb server"):
        require_free_port(port)
        yield


def require_free_port(port: int) -> None:
    """Raises `ResourceInUseError` if anything listens on the port, on any interface; `ValueError` if it is not a port."""
    if not 0 < port < 65536:
        raise ValueError(f"port is {port}, expected 1 to 65535")
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # no IPv6 on this machine
            continue
        with probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except PermissionError as error:
                raise ResourceInUseError(
                    f"port {port} may not be used ({error.strerror}); choose one above 1023"
                ) from None
            except OSError as error:
                raise ResourceInUseError(
                    f"port {port} is taken ({error.strerror}); choose another, or stop what uses it"
                ) from None
