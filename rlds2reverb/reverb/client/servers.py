"""The forms in which users name servers, and their addresses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rlds2reverb.types.locations import server_address

#: A server: see `find_address`.
Server: TypeAlias = Any

_BATCH_PORT_OFFSET = 1000
_NUM_PORTS = 65536


def find_address(server: Server) -> str:
    """Returns the address of a server, 'HOST:PORT'.

    Args:
      server: an address 'HOST:PORT', a port on this machine, a `ReplayServer`, a `Connection`, or Reverb's own `Client`
        or `Server`.

    Raises:
      ValueError: If `server` is a string that is not an address, or an invalid port.
      TypeError: If `server` has another type.
    """
    for name in ("address", "server_address"):  # Of a ReplayServer or Connection, and of a reverb.Client.
        server = getattr(server, name, server)
    if hasattr(server, "localhost_client"):  # A reverb.Server.
        server = server.port
    if not isinstance(server, (str, int, Path)):
        kind = type(server).__name__
        raise TypeError(f"server must be 'HOST:PORT', a port, a ReplayServer or a reverb.Client, got a {kind}")
    address = server_address(f"localhost:{server}" if isinstance(server, int) else server)
    if address is not None and "," in address:
        raise ValueError(f"a single server is expected here, got {address!r}; pass one HOST:PORT")
    if address is None or not 0 < int(address.rpartition(":")[2]) < _NUM_PORTS:
        raise ValueError(f"server must be HOST:PORT such as localhost:8000, got {str(server)!r}")
    return address


def find_addresses(servers: Server | Sequence[Server]) -> list[str]:
    """Returns the address of each of one or more servers; see `split_servers` and `find_address`.

    Raises:
      ValueError: If two of them are the same, whose items would count twice; or as `find_address`.
    """
    addresses = [find_address(server) for server in split_servers(servers)]
    require_distinct(addresses, "servers")
    return addresses


def require_distinct(places: Sequence[str], noun: str) -> None:
    """Raises `ValueError` if two of the places, which messages call by the noun, are the same."""
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ValueError(f"the {noun} must differ, but {place} is named twice; leave out one of them")


def split_servers(servers: Server | Sequence[Server]) -> list[Server]:
    """Returns one or more servers as a list.

    Args:
      servers: a server as for `find_address`, a sequence of servers, a `ShardedReplayServer`, or the addresses of
        several servers in one string, 'HOST:PORT,HOST:PORT'.
    """
    if isinstance(servers, str):
        return list(servers.split(",")) if server_address(servers) else [servers]
    servers = getattr(servers, "servers", servers)
    return list(servers) if isinstance(servers, Sequence) else [servers]


def batch_address(address: str) -> str:
    """Returns the address of the service of batches that belongs to the Reverb server at an address."""
    host, _, port = address.rpartition(":")
    return f"{host}:{batch_port(int(port))}"


def batch_port(port: int) -> int:
    """Returns the port of the service of batches that belongs to the Reverb server on a port of the same machine."""
    return port + _BATCH_PORT_OFFSET if port + _BATCH_PORT_OFFSET < _NUM_PORTS else port - _BATCH_PORT_OFFSET
