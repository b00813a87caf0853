"""Writing of new priorities for sampled items, each to the server that holds the item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.system.closing import Closing
from rlds2reverb.types.arguments import require_number, require_timeout
from rlds2reverb.types.priorities import require_priorities, to_float64

from ..client import Connection, Server, find_addresses


class PriorityWriter(Closing):
    """A writer of new priorities for items that came from `sample_dataset`, and a `PrioritySink`.

    Its connections stay open until `close`, or until the end of a `with` block.
    """

    def __init__(
        self,
        servers: Server | Sequence[Server],
        table: str,
        *,
        eps: float = 1e-2,
        new_items_first: bool = False,
        timeout_secs: float = 30.0,
        on_server_lost: Callable[[str, str], None] | None = None,
    ):
        """Sets up the writer; connections are opened by the first call.

        Args:
          servers: the servers passed to `sample_dataset`, in the same order.
          table: the name of the table.
          eps: constant that `update` adds to every TD error so that each item can be sampled; in [1e-12, 1].
          new_items_first: whether `update` writes no priority above that of new items, usually 1; otherwise items that
            were never sampled will hardly be once others have much larger TD errors.
          timeout_secs: maximum time to wait for a server to accept priorities, and for a single server that is gone to
            return.
          on_server_lost: function called as `on_server_lost(address, reason)` when a server does not accept priorities
            in time while another one does. If None, an error is raised instead.

        Raises:
          TypeError: If `servers` is a dict; see `MixedPriorities`.
          ValueError: If a number is out of its range, or an address is invalid.
        """
        if isinstance(servers, Mapping):
            raise TypeError(
                "servers must be one or more servers, got a dict; for mixed_dataset, pass a dict of PriorityWriters to "
                "MixedPriorities"
            )
        require_timeout(timeout_secs)
        require_number("eps", eps, 1e-12, 1)
        self._connections = [Connection(address) for address in find_addresses(servers)]
        self._table, self._eps, self._timeout_secs = table, eps, timeout_secs
        self._new_items_first, self._highest, self._highest_sampled = new_items_first, 0.0, 0.0
        self._on_server_lost = on_server_lost

    def close(self) -> None:
        """Closes the connections."""
        for connection in self._connections:
            connection.close()

    def update(self, info: Any, td_errors: Any) -> None:
        """Writes `|td_errors| + eps` as priorities; see `PrioritySink.update` and `write`.

        With `new_items_first`, priorities are scaled once they exceed those of new items, such that the highest up to
        now becomes that of new items:

            priority = p * min(1, max p_new / max p),  p = |td_error| + eps

        New items then have the highest priority up to now (Schaul et al. 2016, algorithm 1, line 6), whichever process
        inserts them. Their priority is taken to be the highest of the items sampled up to now, which updates cannot
        raise. A priority that was written with a larger scale is too high until its item is sampled again.
        """
        priorities = np.abs(to_float64(td_errors)) + self._eps
        if self._new_items_first and len(priorities):
            require_priorities(priorities, lambda item: f"item {item} of the batch")
            self._highest = max(self._highest, float(priorities.max()))
            self._highest_sampled = max(self._highest_sampled, float(np.max(info.priority)))
            priorities *= min(1.0, (self._highest_sampled or self._highest) / self._highest)
        self.write(info, priorities)

    def write(self, info: Any, priorities: Any) -> None:
        """Writes the priorities of a batch. Ignores items that have left the table; for duplicates the last value wins.

        A single server that is gone may return within the timeout; one of several is skipped at once.

        Args:
          info: the `SampleInfo` of the batch: uint64 `key` and int32 `server`, `[B]`.
          priorities: numbers `[B]`, finite and in [0, 1e12]; an item with priority 0 is not sampled while
            another one has a higher priority.

        Raises:
          TypeError: If the info is not that of a batch, or a priority is not a number.
          ValueError: If the numbers of priorities and items differ, a priority is out of its range, an item belongs to
            an unknown server, or the batch is from `mixed_dataset`. Nothing is sent then.
          ServerUnavailableError: If a server does not accept the priorities in time, or its connection breaks, and
            there is no `on_server_lost` or all servers of the batch have failed.
        """
        if not hasattr(info, "key"):
            raise TypeError(f"info must be the info of a batch, got {type(info).__name__}")
        keys, servers, values = np.asarray(info.key, np.uint64), np.asarray(info.server), to_float64(priorities)
        self._require_known_servers(info, keys, values, servers)
        is_single = len(self._connections) == 1
        destinations = np.unique(servers).tolist()
        failures: list[tuple[str, ServerUnavailableError]] = []
        for server in destinations:
            rows, connection = servers == server, self._connections[server]
            try:
                connection.update_priorities(
                    self._table, keys[rows], values[rows], timeout_secs=self._timeout_secs, may_return=is_single
                )
            except ServerUnavailableError as error:
                failures.append((connection.address, error))
        for address, failure in failures:
            if self._on_server_lost is None or len(failures) == len(destinations):
                raise failure
            self._on_server_lost(address, str(failure))

    def _require_known_servers(self, info: Any, keys: np.ndarray, values: np.ndarray, servers: np.ndarray) -> None:
        """Raises `ValueError` if `write` cannot send the priorities of a batch."""
        if not isinstance(info.dataset_index, tuple):
            raise ValueError("the batch is from mixed_dataset; pass it to MixedPriorities, with a writer per dataset")
        if keys.ndim != 1 or {servers.shape, values.shape} != {keys.shape}:
            raise ValueError(
                f"priorities, keys and servers must have the same length, got shapes {values.shape}, {keys.shape} and "
                f"{servers.shape}"
            )
        require_priorities(values, lambda item: f"item {item} of the batch")
        if len(servers) and not 0 <= servers.min() <= servers.max() < len(self._connections):
            raise ValueError(
                f"the batch has items of server {servers.max()}, but this writer has {len(self._connections)}; pass "
                "the servers that were sampled, in the same order"
            )
