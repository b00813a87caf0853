"""Writes items to a running server with Reverb's public `TrajectoryWriter`.

The items equal those of the bulk writer except for their keys, which Reverb chooses at random, so an item that is
written again is stored again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tree

from rlds2reverb._encoding.item_blocks import ItemBlock
from rlds2reverb.client import Server, explain_blocked_inserts, find_address, server_state_id
from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.specs import Nest

from .native_calls import NATIVE_CALLS, call_with_deadline

#: A writer that is not flushed grows without bound, and logs a warning from about 50 items on.
_MAX_UNCONFIRMED_ITEMS = 30
_STEPS_BETWEEN_FLUSHES = 10
_STATE_ID_SECS = 2.0


class ReverbWriter:
    """Writes items row by row, with a deadline for every call. Close it after use."""

    def __init__(
        self,
        server: Server,
        table_names: Sequence[str],
        structure: Nest,
        *,
        squeeze: bool = False,
        timeout_secs: float = 30.0,
    ):
        """Checks that the server answers, and does not send anything yet.

        Args:
          server: server to write to; see `client.find_address`.
          table_names: names of the tables that get each item; they share its data.
          structure: nest with the structure of an item.
          squeeze: whether items are single rows without a time axis.
          timeout_secs: seconds to wait for the server to accept items.

        Raises:
          ServerUnavailableError: If the server does not answer in time.
        """
        self._address = find_address(server)
        #: Identifies the run of the server that gets the items.
        self.state_id = server_state_id(self._address, timeout_secs=timeout_secs)
        self._table_names = tuple(table_names)
        self._structure, self._squeeze = structure, squeeze
        #: The `state` of the last completed `write`; None if there is none.
        self.confirmed_state: Any = None
        self._timeout_secs = timeout_secs
        self._writer: Any = None
        self._max_length = 0

    def close(self, *, failed: bool = False) -> None:
        """Releases Reverb's writer, whose destructor would wait forever for a server that is gone."""
        if failed and self._writer is not None:
            from rlds2reverb._internals.reverb import never_delete

            never_delete(self._writer)

    def write(self, blocks: Iterable[ItemBlock], state: Any = None) -> None:
        """Writes the items of some episodes, waits until the server has them, and sets `confirmed_state`.

        Raises:
          ServerUnavailableError: If the server does not accept them in time (they may still arrive later), or was
            restarted.
        """
        import reverb

        try:
            for block in blocks:
                for episode_block in block.split_by_episode():
                    with NATIVE_CALLS.track():
                        self._write_episode(episode_block)
        except Exception as error:  # Reverb's writer raises various errors, perhaps because the server was replaced.
            is_late = isinstance(error, reverb.errors.DeadlineExceededError)
            # This waits, so it comes first: a server that is just being restarted may be available afterwards.
            reason = explain_blocked_inserts(self._address, self._table_names, self._timeout_secs) if is_late else ""
            if self._read_state_id() not in (None, self.state_id):
                raise self._make_restart_error() from error
            if is_late:
                raise ServerUnavailableError(reason) from None
            raise
        self.confirmed_state = state

    def flush(self) -> None:
        """Checks that the server was not restarted; `write` has waited for the items already.

        Raises:
          ServerUnavailableError: If it was restarted.
        """
        if server_state_id(self._address, timeout_secs=self._timeout_secs) != self.state_id:
            raise self._make_restart_error()

    def _read_state_id(self) -> str | None:
        try:
            return server_state_id(self._address, timeout_secs=_STATE_ID_SECS)
        except ServerUnavailableError:
            return None

    def _make_restart_error(self) -> ServerUnavailableError:
        return ServerUnavailableError(
            f"the server at {self._address} was restarted during the run and may have lost items; with "
            "writer='reverb', convert again into empty tables"
        )

    def _write_episode(self, block: ItemBlock) -> None:
        if not len(block.starts):
            return
        if self._max_length < block.lengths.max():
            self._max_length = int(block.lengths.max())
            import reverb

            client = reverb.Client(self._address)
            open_writer = partial(client.trajectory_writer, num_keep_alive_refs=self._max_length)
            what = f"a writer to {self._address}"
            self._writer = call_with_deadline(self._timeout_secs, open_writer, what)
        timeout_ms = int(self._timeout_secs * 1000)
        order = np.argsort(block.starts + block.lengths, kind="stable")
        ends = (block.starts + block.lengths)[order]
        at = 0
        for row, values in enumerate(zip(*block.columns, strict=True)):
            self._writer.append(tree.unflatten_as(self._structure, values))
            while at < len(ends) and ends[at] == row + 1:
                self._create_item(int(block.lengths[order[at]]), float(block.priorities[order[at]]))
                at += 1
            if row % _STEPS_BETWEEN_FLUSHES == 0:
                self._writer.flush(_MAX_UNCONFIRMED_ITEMS, timeout_ms=timeout_ms)
        self._writer.end_episode(timeout_ms=timeout_ms)

    def _create_item(self, length: int, priority: float) -> None:
        history = self._writer.history
        trajectory = tree.map_structure(lambda column: column[-1] if self._squeeze else column[-length:], history)
        for name in self._table_names:
            self._writer.create_item(name, priority, trajectory)
