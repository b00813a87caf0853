"""Writing of new priorities for sampled items, each to the server that holds the item."""

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
    """A writer of new priorities for items that came from `sample_dataset` or `mixed_dataset`.

    Its connections stay open until `close`, or until the end of a `with` block.
    """

    def __init__(
        self,
        servers: Server | Sequence[Server] | Mapping[str, Server | Sequence[Server]],
        table: str | Mapping[str, str],
        *,
        timeout_secs: float = 30.0,
        on_server_lost: Callable[[str, str], None] | None = None,
    ):
        """Sets up the writer; connections are opened by the first `write`.

        Args:
          servers: the servers passed to `sample_dataset`, in the same order; for batches of `mixed_dataset`, a dict of
            the servers of each dataset, by its name.
          table: the name of the table; or a dict of the table of each dataset.
          timeout_secs: maximum time to wait for a server to accept priorities.
          on_server_lost: function called as `on_server_lost(address, reason)` when a server does not accept priorities
            in time while another one does. If None, an error is raised instead.

        Raises:
          ValueError: If the timeout is out of its range, an address is invalid, or the names of tables and datasets
            differ.
        """
        require_timeout(timeout_secs)
        self._is_mixed = isinstance(servers, Mapping)
        by_dataset = servers if isinstance(servers, Mapping) else {"": servers}
        tables = table if isinstance(table, Mapping) else dict.fromkeys(by_dataset, table)
        if set(tables) != set(by_dataset):
            raise ValueError(
                f"table and servers must have the same datasets, got {sorted(tables)} and {sorted(by_dataset)}"
            )
        #: For each dataset, in the order of their names, a connection to each of its servers and the table there.
        self._connections = [
            [(ServerConnection(client.server_address), tables[name]) for client in connect_all(by_dataset[name])]
            for name in sorted(by_dataset)
        ]
        self._timeout_secs, self._on_server_lost = timeout_secs, on_server_lost

    def __enter__(self) -> PriorityWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        for connections in self._connections:
            for connection, _ in connections:
                connection.close()

    def write(self, info: Any, priorities: Any) -> None:
        """Writes the priorities of a batch. Ignores items that have left the table; for duplicates the last value wins.

        Args:
          info: the `SampleInfo` of the batch: uint64 `key`, int32 `server` and, if mixed, int32 `dataset_index`, `[B]`.
          priorities: numbers `[B]`, finite and in [0, 1e12]; an item with priority 0 is never sampled again.

        Raises:
          ValueError: If the numbers of priorities and items differ, a priority is out of its range, an item belongs to
            an unknown server or dataset, or only one of the batch and this writer is mixed. Nothing is sent then.
          ServerUnavailableError: If a server does not accept the priorities in time, or its connection breaks, and
            there is no `on_server_lost` or all servers of the batch have failed.
        """
        keys, values = np.asarray(info.key, np.uint64), np.asarray(priorities, np.float64)
        datasets, servers = self._require_known_servers(info, keys, values)
        destinations = sorted(set(zip(datasets.tolist(), servers.tolist(), strict=True)))
        failures: list[tuple[str, ServerUnavailableError]] = []
        for dataset, server in destinations:
            rows = (datasets == dataset) & (servers == server)
            connection, table = self._connections[dataset][server]
            try:
                connection.update_priorities(table, keys[rows], values[rows], timeout_secs=self._timeout_secs)
            except ServerUnavailableError as error:
                failures.append((connection.address, error))
        for address, failure in failures:
            if self._on_server_lost is None or len(failures) == len(destinations):
                raise failure
            self._on_server_lost(address, str(failure))

    def _require_known_servers(self, info: Any, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the dataset index and the server of each item; raises `ValueError` if `write` cannot send it."""
        servers, dataset_index = np.asarray(info.server), getattr(info, "dataset_index", ())
        is_mixed = not isinstance(dataset_index, tuple)
        if is_mixed and not self._is_mixed:
            raise ValueError("the batch is from mixed_dataset; pass the servers to PriorityWriter as a dict by dataset")
        if self._is_mixed and not is_mixed:
            raise ValueError("the batch is not from mixed_dataset; pass the servers to PriorityWriter without a dict")
        datasets = np.asarray(dataset_index) if is_mixed else np.zeros_like(servers)
        if keys.ndim != 1 or {servers.shape, values.shape, datasets.shape} != {keys.shape}:
            raise ValueError(
                f"priorities, keys and servers must have the same length, got shapes {values.shape}, {keys.shape} and "
                f"{servers.shape}"
            )
        require_priorities(values, lambda item: f"item {item} of the batch")
        if len(datasets) and not 0 <= datasets.min() <= datasets.max() < len(self._connections):
            raise ValueError(
                f"the batch has items of dataset {datasets.max()}, but this writer has {len(self._connections)}; pass "
                "the servers of every dataset that was mixed"
            )
        for dataset in np.unique(datasets):
            indices, count = servers[datasets == dataset], len(self._connections[dataset])
            if not 0 <= indices.min() <= indices.max() < count:
                raise ValueError(
                    f"the batch has items of server {indices.max()}, but this writer has {count}; pass the servers "
                    "that were sampled, in the same order"
                )
        return datasets, servers
