"""Clients of Reverb servers, and checks of the tables that the servers report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import reverb
from reverb.reverb_types import TableInfo

from rlds2reverb._arguments import require_timeout
from rlds2reverb._encoding.packing import find_packing
from rlds2reverb.errors import ServerUnavailableError, SpecMismatchError
from rlds2reverb.locations import server_address
from rlds2reverb.specs import Nest, require_match

from .connection import ServerConnection

#: Reverb represents an unlimited `max_diff` or `min_diff` of a rate limiter by the largest or lowest float.
NO_LIMIT = 1e300

_MAX_INFO_SECS = 5.0

Server: TypeAlias = Any


def connect(server: Server) -> reverb.Client:
    """Returns a client of a server.

    Args:
      server: an address 'HOST:PORT', a port on this machine, a `ReplayServer`, or Reverb's own `Client` or `Server`.

    Raises:
      ValueError: If `server` is a string that is not an address, or an invalid port.
      TypeError: If `server` has another type.
    """
    server = getattr(server, "client", server)  # A ReplayServer, whose module imports this one.
    if isinstance(server, reverb.Client):
        return server
    if isinstance(server, reverb.Server):
        return server.localhost_client()
    if not isinstance(server, (str, int, Path)):
        kind = type(server).__name__
        raise TypeError(f"server must be 'HOST:PORT', a port, a ReplayServer or a reverb.Client, got a {kind}")
    address = server_address(f"localhost:{server}" if isinstance(server, int) else server)
    if address is not None and "," in address:
        raise ValueError(f"a single server is expected here, got {address!r}; pass one HOST:PORT")
    if address is None or not 0 < int(address.rpartition(":")[2]) < 65536:
        raise ValueError(f"server must be HOST:PORT such as localhost:8000, got {str(server)!r}")
    return reverb.Client(address)


def connect_all(servers: Server | Sequence[Server]) -> list[reverb.Client]:
    """Returns a client for each of one or more servers; see `split_servers` and `connect`."""
    return [connect(server) for server in split_servers(servers)]


def split_servers(servers: Server | Sequence[Server]) -> list[Server]:
    """Returns one or more servers as a list.

    Args:
      servers: a server as for `connect`, a sequence of servers, a `ShardedReplayServer`, or the addresses of several
        servers in one string, 'HOST:PORT,HOST:PORT'.
    """
    if isinstance(servers, str):
        return list(servers.split(",")) if server_address(servers) else [servers]
    servers = getattr(servers, "servers", servers)
    return list(servers) if isinstance(servers, Sequence) else [servers]


def format_selector(options: Any) -> str:
    """Returns a server's description of a sampler or remover in the form of `Selector`, such as 'prioritized:0.6'."""
    kind = options.WhichOneof("distribution")
    if kind == "prioritized":
        return f"prioritized:{options.prioritized.priority_exponent:g}"
    if kind == "heap":
        return "min_heap" if options.heap.min_heap else "max_heap"
    return str(kind)


def table_infos(client: reverb.Client, *, timeout_secs: float = 10.0) -> dict[str, TableInfo]:
    """Returns the server's `TableInfo` by table name.

    The request uses a new connection: Reverb's clients share theirs within a process, and take up to two minutes to
    reconnect to a server that was restarted.

    Raises:
      ServerUnavailableError: If there is no answer within the timeout.
    """
    require_timeout(timeout_secs)
    with ServerConnection(client.server_address) as connection:
        return connection.table_infos(timeout_secs=timeout_secs)


def require_table(infos: Mapping[str, TableInfo], name: str, item_signature: Nest) -> None:
    """Checks that a table exists and accepts items of a signature.

    Raises:
      ValueError: If there is no such table.
      SpecMismatchError: If its signature differs, naming the field.
    """
    if name not in infos:
        raise ValueError(f"the server has no table {name!r}; it has {', '.join(sorted(infos)) or 'none'}")
    signature = infos[name].signature
    if signature is None:
        return
    holder = f"table {name!r}"
    advice = "cast or reshape the data, or build the table from this dataset's item_signature()"
    packing, table_packing = find_packing(item_signature), find_packing(signature)
    if (packing is None) != (table_packing is None):
        layout, table_layout = ("packed", "columns") if packing else ("columns", "packed")
        raise SpecMismatchError(
            f"the items have layout {layout!r}, but {holder} expects {table_layout!r}; use layout={table_layout!r}"
        )
    if packing is not None and table_packing is not None:
        require_match(packing.item_spec, table_packing.item_spec, holder=holder, advice=advice, root="item")
        if packing.squeeze != table_packing.squeeze:
            rows, table_rows = ("single rows", "windows") if packing.squeeze else ("windows", "single rows")
            raise SpecMismatchError(f"the items are {rows}, but {holder} expects {table_rows}; use the same adder")
    require_match(item_signature, signature, holder=holder, advice=advice, root="item")


def explain_blocked_inserts(client: reverb.Client, table_names: Sequence[str], waited_secs: float) -> str:
    """Explains why a server did not accept items: it no longer answers, is slow, or its rate limiter blocks."""
    waited = f"waited {waited_secs:g} s for {client.server_address} to accept items"
    try:
        infos = table_infos(client, timeout_secs=_info_timeout(waited_secs))
    except ServerUnavailableError:
        return f"{waited}, and it no longer answers; start it again and resume"
    states = []
    for name in table_names:
        limiter = infos[name].rate_limiter_info
        inserted, sampled = limiter.insert_stats.completed, limiter.sample_stats.completed
        states.append(f"table {name!r} has {inserted} inserted, {sampled} sampled")
    return (
        f"{waited}; it is slow, or its rate limiter blocks: {'; '.join(states)}. Sample from the table, or serve it "
        "with the rate limiter min_size:1"
    )


def explain_missing_samples(client: reverb.Client, table: str, waited_secs: float) -> str:
    """Explains why a table returned no samples: the server or the table is gone, or its rate limiter waits."""
    waited = f"waited {waited_secs:g} s for a sample of table {table!r} at {client.server_address}"
    try:
        info = table_infos(client, timeout_secs=_info_timeout(waited_secs))[table]
    except (ServerUnavailableError, KeyError):
        return f"{waited}, and it is gone; start the server again"
    limiter = info.rate_limiter_info
    is_too_small = info.current_size < limiter.min_size_to_sample
    return (
        f"{waited}: it has {info.current_size} items, {limiter.insert_stats.completed} were inserted and "
        f"{limiter.sample_stats.completed} sampled; its rate limiter waits for "
        + (f"{limiter.min_size_to_sample} items" if is_too_small else "more insertions")
    )


def _info_timeout(waited_secs: float) -> float:
    return min(_MAX_INFO_SECS, max(1.0, waited_secs))
