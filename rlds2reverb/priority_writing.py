"""Writing new priorities of sampled items back, each to the server that has the item."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlds2reverb.connecting import Server, connect_all, require_timeout, within
from rlds2reverb.priorities import require_priorities
from rlds2reverb.service import ServerUnavailable


class PriorityWriter:
    """Writes priorities of the items that `sampling.sample_dataset` gave back to a table of one server or several."""

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
            did; None for an error.

        Raises:
          ValueError: if the time-out is out of its range, or an address is none.
        """
        require_timeout(timeout_secs)
        self._clients = connect_all(servers)
        self._table, self._timeout_secs, self._on_dead = table, timeout_secs, on_dead

    def write(self, info: Any, priorities: Any) -> None:
        """Writes the priorities of a batch; keys that are not there any more are ignored, of one twice the last counts.

        Args:
          info: the `SampleInfo` of the batch: uint64 `key` and int32 `server`, `[B]`.
          priorities: numbers `[B]`, finite and in [0, 1e12]; an item of priority 0 is never sampled again.

        Raises:
          ValueError: if there are not as many priorities as items, one is out of its range, or an item is of a server
            that there is not; nothing is sent then.
          ServerUnavailable: if a server does not take them in time, or its connection breaks, and there is no `on_dead`
            or no other server.
        """
        keys, owners = np.asarray(info.key, np.uint64), np.asarray(info.server)
        values = np.asarray(priorities, np.float64)
        self._require(keys, owners, values)
        failures: dict[str, ServerUnavailable] = {}
        numbers = np.unique(owners)
        for number in numbers:
            own, client = owners == number, self._clients[number]
            updates = dict(zip(keys[own].tolist(), values[own].tolist(), strict=True))
            call = functools.partial(client.mutate_priorities, self._table, updates)
            try:
                within(self._timeout_secs, call, f"{client.server_address} to take priorities")
            except ServerUnavailable as error:
                failures[client.server_address] = error
            except RuntimeError as error:  # the connection broke
                told = f"{client.server_address} did not take priorities ({error}); start the server again"
                failures[client.server_address] = ServerUnavailable(told)
        for address, failure in failures.items():
            if self._on_dead is None or len(failures) == len(numbers):
                raise failure
            self._on_dead(address, str(failure))

    def _require(self, keys: np.ndarray, owners: np.ndarray, values: np.ndarray) -> None:
        if keys.ndim != 1 or owners.shape != keys.shape or values.shape != keys.shape:
            raise ValueError(
                f"there are priorities {values.shape} for keys {keys.shape} of servers {owners.shape}; wanted one each"
            )
        require_priorities(values, lambda item: f"item {item} of the batch")
        if len(owners) and not 0 <= owners.min() <= owners.max() < len(self._clients):
            raise ValueError(
                f"the batch has items of server {owners.max()}, there are {len(self._clients)}; give the servers that "
                "were sampled, in the same order"
            )
