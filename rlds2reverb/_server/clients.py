"""Talking to a Reverb server, and never waiting for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import reverb
from reverb.reverb_types import TableInfo

from rlds2reverb._arguments import require_timeout
from rlds2reverb._encoding.packing import find_packing
from rlds2reverb.errors import ServerUnavailableError, SpecMismatchError
from rlds2reverb.specs import Nest, require_match

from .connection import ServerConnection

#: The longest wait for the reason why something did not arrive.
_LONGEST_INFO_SECS = 5.0

Server: TypeAlias = Any


def connect(server: Server) -> reverb.Client:
    """Returns a client of a server.

    Args:
      server: address 'host:port', a port of this machine, a `ReplayServer`, or Reverb's own `Client` or `Server`.

    Raises:
      ValueError: if an address is not of the form host:port.
      TypeError: if it is something else.
    """
    server = getattr(server, "client", server)  # a ReplayServer, whose module imports this one
    if isinstance(server, reverb.Client):
        return server
    if isinstance(server, reverb.Server):
        return server.localhost_client()
    if not isinstance(server, (str, int)):
        raise TypeError(
            f"server is a {type(server).__name__}, expected 'host:port', a port, a ReplayServer or a Client"
        )
    address = f"localhost:{server}" if isinstance(server, int) or server.isdigit() else server
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"server is {server!r}, expected host:port such as localhost:8000")
    return reverb.Client(address)


def connect_all(servers: Server | Sequence[Server]) -> list[reverb.Client]:
    """Clients of a server, or of several, in their order; see `connect`."""
    several = isinstance(servers, Sequence) and not isinstance(servers, str)
    return [connect(server) for server in (servers if several else [servers])]


def table_infos(client: reverb.Client, *, timeout_secs: float = 10.0) -> dict[str, TableInfo]:
    """Returns what the server reports about its tables, by name.

    It is asked over a new connection: Reverb's clients share theirs within a process, and wait for up to two minutes
    before they come back to a server that was started again.

    Raises:
      ServerUnavailableError: if there is no answer within the time-out.
    """
    require_timeout(timeout_secs)
    with ServerConnection(client.server_address) as connection:
        return connection.table_infos(timeout_secs=timeout_secs)


def require_table(info: dict[str, Any], name: str, item_signature: Nest) -> None:
    """Checks that a table exists and takes items of a signature, before the first one is sent.

    Raises:
      ValueError: if there is no such table.
      SpecMismatchError: if its signature differs, naming the field.
    """
    if name not in info:
        raise ValueError(f"the server has no table {name!r}; it has {', '.join(sorted(info)) or 'none'}")
    signature = info[name].signature
    if signature is None:
        return
    holder, advice = (
        f"table {name!r}",
        "cast or reshape the data, or build the table from this data set's item_signature()",
    )
    got_packing, table_packing = find_packing(item_signature), find_packing(signature)
    if (got_packing is None) != (table_packing is None):
        has, lacks = ("the items are", "the table's are") if got_packing else ("the table's items are", "these are")
        raise SpecMismatchError(f"{has} packed, {lacks} not ({holder}); give the other layout")
    if got_packing is not None and table_packing is not None:
        require_match(got_packing.item_spec, table_packing.item_spec, holder=holder, advice=advice, root="item")
        if got_packing.squeeze != table_packing.squeeze:
            raise SpecMismatchError(f"items of single rows and of windows differ ({holder}); use the same adder")
    require_match(item_signature, signature, holder=holder, advice=advice, root="item")


def why_blocked(client: reverb.Client, table_names: Sequence[str], waited_secs: float) -> str:
    """Returns why a server did not take items, as a sentence: it does not answer, or its rate limiters wait."""
    waited = f"waited {waited_secs:g} s for {client.server_address} to take items"
    try:
        infos = table_infos(client, timeout_secs=_info_secs(waited_secs))
    except ServerUnavailableError:
        return f"{waited}, and it does not answer any more; start it again and resume"
    states = []
    for name in table_names:
        limiter = infos[name].rate_limiter_info
        inserted, sampled = limiter.insert_stats.completed, limiter.sample_stats.completed
        states.append(f"table {name!r} has {inserted} inserted, {sampled} sampled")
    blocked = "; ".join(states)
    return (
        f"{waited}; it is slow, or its rate limiter blocks: {blocked}. Sample from it, or serve a table with min_size"
    )


def why_nothing_sampled(client: reverb.Client, table: str, waited_secs: float) -> str:
    """Returns why a table gave no samples, as a sentence: its server does not answer, or its rate limiter waits."""
    waited = f"waited {waited_secs:g} s for a sample of table {table!r} at {client.server_address}"
    try:
        info = table_infos(client, timeout_secs=_info_secs(waited_secs))[table]
    except (ServerUnavailableError, KeyError):
        return f"{waited}, and it is gone; start the server again"
    limiter = info.rate_limiter_info
    few = info.current_size < limiter.min_size_to_sample
    return (
        f"{waited}: it has {info.current_size} items, {limiter.insert_stats.completed} were inserted and "
        f"{limiter.sample_stats.completed} sampled; its rate limiter waits for "
        + (f"{limiter.min_size_to_sample} items" if few else "more insertions")
    )


def _info_secs(waited_secs: float) -> float:
    return min(_LONGEST_INFO_SECS, max(1.0, waited_secs))
