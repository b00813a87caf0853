"""Isolation of a listening port: it accepts connections over the loopback interface only.

Reverb binds all interfaces and has no option to change that. Its sockets are therefore bound to the interface `lo`
after the server has started. Since Linux 5.7 this requires neither root nor a firewall. Sockets accepted from a bound
listener are bound as well, so only connections from before then have to be bound one by one.

A socket filter (SO_ATTACH_FILTER) would also allow connections to the machine's other addresses, but recent kernels
require root to attach one to a TCP socket.
"""

from __future__ import annotations

import os
import socket
import time
from typing import NamedTuple

_LOOPBACK = b"lo\0"
_MAX_NAME_BYTES = 16  # IFNAMSIZ of Linux.
#: Values of the kernel's enum of TCP states; see include/net/tcp_states.h.
_ESTABLISHED, _SYN_RECV, _CLOSE_WAIT, LISTEN = 0x01, 0x03, 0x08, 0x0A

#: gRPC accepts connections within milliseconds, unless the other side delays its part.
ACCEPT_SECS = 10.0
_POLL_SECS = 0.01


class _Socket(NamedTuple):
    """A TCP socket of this machine; its inode is 0 before it is accepted."""

    state: int
    inode: int


def isolate_port(port: int) -> None:
    """Makes a port on which this process listens reachable at this machine's loopback addresses only.

    Those are localhost, 127.0.0.1 and ::1, but not the addresses of its networks. Existing connections over other
    interfaces are cut off.

    Raises:
      OSError: If that is not possible. The port must not be used in that case.
    """
    try:
        _bind_until_complete(port)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(
            f"port {port} cannot be isolated ({reason}); use Linux 5.7 or later, or block the port with a firewall and "
            "serve without isolation"
        ) from error


def _bind_until_complete(port: int) -> None:
    """Binds the listeners, and then every connection that they accepted before that."""
    bound_listeners: set[int] = set()
    deadline = time.monotonic() + ACCEPT_SECS
    while True:
        sockets = read_sockets(port)
        listeners = {tcp_socket.inode for tcp_socket in sockets if tcp_socket.state == LISTEN}
        is_complete = listeners <= bound_listeners and not any(map(_is_pending, sockets))
        bound = _bind_own_sockets({tcp_socket.inode for tcp_socket in sockets})
        if not listeners or not listeners <= bound:
            raise OSError("this process does not listen on it")
        if is_complete:
            return
        if time.monotonic() > deadline:
            raise OSError(f"a connection was not established within {ACCEPT_SECS:g} s")
        bound_listeners = listeners
        time.sleep(_POLL_SECS)


def _is_pending(tcp_socket: _Socket) -> bool:
    """Returns whether this is a connection that will be accepted later."""
    return not tcp_socket.inode and tcp_socket.state in (_ESTABLISHED, _SYN_RECV, _CLOSE_WAIT)


def read_sockets(port: int) -> list[_Socket]:
    """Returns the TCP sockets of this network namespace that have this local port."""
    sockets = []
    for table in ("tcp", "tcp6"):
        path = f"/proc/self/net/{table}"
        if table == "tcp6" and not os.path.exists(path):  # This machine has no IPv6.
            continue
        with open(path, encoding="ascii") as lines:
            next(lines)
            for columns in map(str.split, lines):
                if int(columns[1].rpartition(":")[2], 16) == port:
                    sockets.append(_Socket(state=int(columns[3], 16), inode=int(columns[9])))
    return sockets


def _bind_own_sockets(inodes: set[int]) -> set[int]:
    """Binds those of the sockets that belong to this process to the loopback interface; returns their inodes."""
    links = {f"socket:[{inode}]" for inode in inodes}
    bound = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{entry}") not in links:
                continue
            descriptor = os.dup(int(entry))
        except OSError:  # Another thread has closed it.
            continue
        with socket.socket(fileno=descriptor) as own:
            inode = os.fstat(descriptor).st_ino
            if inode in inodes:  # Otherwise another thread has reused the descriptor for a different socket.
                _bind(own)
                bound.add(inode)
    return bound


def _bind(own: socket.socket) -> None:
    # Only root may bind a socket twice.
    if own.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _MAX_NAME_BYTES) != _LOOPBACK:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK)
