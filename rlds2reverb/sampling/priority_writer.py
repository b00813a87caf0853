"""Writing new priorities of sampled items back, each to the server that has the item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlds2reverb._arguments import require_timeout
from rlds2reverb._server.clients import Server, connect_all
from rlds2reverb._server.connection import ServerConnection
from rlds2reverb.errors import ServerUnavailable
from rlds2reverb.priorities import require_priorities


class PriorityWriter:
    """Writes priorities of the items that `sample_dataset` gave back to a table of one server or several.

    Its connections stay open until `close`, or the end of a `with` block.
    """

    def __init__(
        self,
        servers: Server | Sequence[Server],
        table: str,
        *,
        timeout_secs: float = 30.0,
        on_dead: Callable[[str, str], None] | None = None,
    ):
        """Nothing is sent yet.

        Args:
          servers: as they were given to `sample_dataset`, in the same order.
          table: its name.
          timeout_secs: how long to wait for a server to take priorities.
          on_dead: called with the address of a server that did not take them in time and the reason, while another
            did; None to raise an error instead.

        Raises:
          ValueError: if the time-out is out of its range, or an address is invalid.
        """
        require_timeout(timeout_secs)
        self._connections = [ServerConnection(client.server_address) for client in connect_all(servers)]
        self._table, self._timeout_secs, self._on_dead = table, timeout_secs, on_dead

    def __enter__(self) -> PriorityWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections."""
        for connection in self._connections:
            connection.close()

    def write(self, info: Any, priorities: Any) -> None:
        """Writes the priorities of a batch. Ignores items that have left; where an item comes twice, the last counts.

        Args:
          info: the `SampleInfo` of the batch: uint64 `key` and int32 `server`, `[B]`.
          priorities: numbers `[B]`, finite and in [0, 1e12]; an item of priority 0 is never sampled again.

        Raises:
          ValueError: if there are not as many priorities as items, one is out of its range, or an item is of an
            unknown server; nothing is sent then.
          ServerUnavailable: if a server does not take them in time, or its connection breaks, and there is no `on_dead`
            or no other server.
        """
        keys, owners = np.asarray(info.key, np.uint64), np.asarray(info.server)
        values = np.asarray(priorities, np.float64)
        self._require(keys, owners, values)
        failures: dict[str, ServerUnavailable] = {}
        numbers = np.unique(owners)
        for number in numbers:
            own, connection = owners == number, self._connections[number]
            try:
                connection.update_priorities(self._table, keys[own], values[own], timeout_secs=self._timeout_secs)
            except ServerUnavailable as error:
                failures[connection.address] = error
        for address, failure in failures.items():
            if self._on_dead is None or len(failures) == len(numbers):
                raise failure
            self._on_dead(address, str(failure))

    def _require(self, keys: np.ndarray, owners: np.ndarray, values: np.ndarray) -> None:
        if keys.ndim != 1 or owners.shape != keys.shape or values.shape != keys.shape:
            raise ValueError(
                f"there are priorities {values.shape} for keys {keys.shape} of servers {owners.shape}; expected one "
                "each"
            )
        require_priorities(values, lambda item: f"item {item} of the batch")
        if len(owners) and not 0 <= owners.min() <= owners.max() < len(self._connections):
            raise ValueError(
                f"the batch has items of server {owners.max()}, there are {len(self._connections)}; give the servers "
                "that were sampled, in the same order"
            )
