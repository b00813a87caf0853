"""Writing new priorities of sampled items back, each to the server that has the item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb._arguments import require_timeout
from rlds2reverb._server.clients import Server, connect_all
from rlds2reverb._server.connection import ServerConnection
from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.priorities import require_priorities


class PriorityWriter:
    """Writes priorities of the items that `sample_dataset` or `mixed_dataset` gave back to the tables they are in.

    Its connections stay open until `close`, or the end of a `with` block.
    """

    def __init__(
        self,
        servers: Server | Sequence[Server] | Mapping[str, Server | Sequence[Server]],
        table: str | Mapping[str, str],
        *,
        timeout_secs: float = 30.0,
        on_server_lost: Callable[[str, str], None] | None = None,
    ):
        """Nothing is sent yet.

        Args:
          servers: as they were given to `sample_dataset`, in the same order; for batches of `mixed_dataset` a dict of
            those of each part, under the names of the parts.
          table: its name; or a dict of those of the parts.
          timeout_secs: how long to wait for a server to take priorities.
          on_server_lost: called with the address of a server that did not take them in time and the reason, while another
            did; None to raise an error instead.

        Raises:
          ValueError: if the time-out is out of its range, an address is invalid, or the tables are not of the parts.
        """
        require_timeout(timeout_secs)
        self._mixed = isinstance(servers, Mapping)
        parts = servers if isinstance(servers, Mapping) else {"": servers}
        tables = table if isinstance(table, Mapping) else dict.fromkeys(parts, table)
        if set(tables) != set(parts):
            raise ValueError(f"there are tables of {sorted(tables)} and servers of {sorted(parts)}; expected the same")
        #: A connection to each server of each part, and the table there; the parts in the order of their names.
        self._parts = [
            [(ServerConnection(client.server_address), tables[name]) for client in connect_all(parts[name])]
            for name in sorted(parts)
        ]
        self._timeout_secs, self._on_server_lost = timeout_secs, on_server_lost

    def __enter__(self) -> PriorityWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections."""
        for part in self._parts:
            for connection, _ in part:
                connection.close()

    def write(self, info: Any, priorities: Any) -> None:
        """Writes the priorities of a batch. Ignores items that have left; where an item comes twice, the last counts.

        Args:
          info: the `SampleInfo` of the batch: uint64 `key`, int32 `server` and, if it was mixed, `part`, `[B]`.
          priorities: numbers `[B]`, finite and in [0, 1e12]; an item of priority 0 is never sampled again.

        Raises:
          ValueError: if there are not as many priorities as items, one is out of its range, an item is of an unknown
            server or part, or the batch was mixed and the servers are not a dict, or the other way round; nothing is
            sent then.
          ServerUnavailableError: if a server does not take them in time, or its connection breaks, and there is no `on_server_lost`
            or no other server.
        """
        keys, values = np.asarray(info.key, np.uint64), np.asarray(priorities, np.float64)
        parts, servers = self._owners(info, keys, values)
        owners = sorted(set(zip(parts.tolist(), servers.tolist(), strict=True)))
        failures: dict[tuple[int, int], ServerUnavailableError] = {}
        for part, server in owners:
            own, (connection, table) = (parts == part) & (servers == server), self._parts[part][server]
            try:
                connection.update_priorities(table, keys[own], values[own], timeout_secs=self._timeout_secs)
            except ServerUnavailableError as error:
                failures[part, server] = error
        for (part, server), failure in failures.items():
            if self._on_server_lost is None or len(failures) == len(owners):
                raise failure
            self._on_server_lost(self._parts[part][server][0].address, str(failure))

    def _owners(self, info: Any, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the part and the server of each item, if the batch is what `write` expects."""
        servers, given = np.asarray(info.server), getattr(info, "part", ())
        is_mixed = not isinstance(given, tuple)
        if is_mixed != self._mixed:
            batch, wanted = ("was mixed", "a dict of the parts' servers") if is_mixed else ("has no parts", "no dict")
            raise ValueError(f"the batch {batch}, expected {wanted} in PriorityWriter(servers)")
        parts = np.asarray(given) if is_mixed else np.zeros_like(servers)
        if keys.ndim != 1 or {servers.shape, values.shape, parts.shape} != {keys.shape}:
            raise ValueError(
                f"there are priorities {values.shape} for keys {keys.shape} of servers {servers.shape}; expected one "
                "each"
            )
        require_priorities(values, lambda item: f"item {item} of the batch")
        if len(parts) and not 0 <= parts.min() <= parts.max() < len(self._parts):
            raise ValueError(
                f"the batch has items of part {parts.max()}, there are {len(self._parts)}; give the servers of each "
                "part that was mixed"
            )
        for part in np.unique(parts):
            own, count = servers[parts == part], len(self._parts[part])
            if not 0 <= own.min() <= own.max() < count:
                raise ValueError(
                    f"the batch has items of server {own.max()}, there are {count}; give the servers that were "
                    "sampled, in the same order"
                )
        return parts, servers
