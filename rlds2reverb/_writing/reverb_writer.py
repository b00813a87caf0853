"""Items to a live server through Reverb's public `TrajectoryWriter`.

They are the same items as those of the bulk writer, except for their keys, which Reverb draws at random: what is
written again is stored again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import reverb
import tree

from rlds2reverb._arguments import require_timeout
from rlds2reverb._encoding.item_blocks import ItemBlock
from rlds2reverb._internals.reverb import never_delete
from rlds2reverb._server.clients import Server, connect, why_blocked
from rlds2reverb._server.connection import server_state_id
from rlds2reverb._server.native_calls import NATIVE_CALLS, call_with_deadline
from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.specs import Nest

#: An unflushed writer grows without bound, and logs a warning from about 50 items on.
_MAX_UNCONFIRMED_ITEMS = 30
_STEPS_BETWEEN_FLUSHES = 10
#: How long to wait for an answer to whether it is another server now.
_ANSWER_SECS = 2.0


class ReverbWriter:
    """Writes items row by row, and never waits for ever. Use it as a context manager."""

    def __init__(
        self,
        server: Server,
        table_names: Sequence[str],
        structure: Nest,
        *,
        squeeze: bool = False,
        timeout_secs: float = 30.0,
    ):
        """Nothing is sent yet.

        Args:
          server: see `clients.connect`.
          table_names: the tables that get each item; they share its data.
          structure: a nest like that of the items.
          squeeze: whether items are single rows without the time axis.
          timeout_secs: how long to wait for the server to take items.

        Raises:
          ServerUnavailableError: if the server does not answer in time.
          ValueError: if the time-out is out of its range.
        """
        require_timeout(timeout_secs)
        self._client = connect(server)
        #: Identifies the start of the server that gets the items.
        self.state_id = server_state_id(self._client.server_address, timeout_secs=timeout_secs)
        self._table_names = tuple(table_names)
        self._structure, self._squeeze = structure, squeeze
        #: Calls of `write` that are done.
        self.num_confirmed = 0
        self._timeout_secs = timeout_secs
        self._writer: Any = None
        self._longest = 0

    def __enter__(self) -> ReverbWriter:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *rest: Any) -> None:
        self.close(failed=exception_type is not None)

    def close(self, *, failed: bool = False) -> None:
        """Lets go of Reverb's writer."""
        if failed and self._writer is not None:
            never_delete(self._writer)

    def write(self, blocks: Iterable[ItemBlock]) -> None:
        """Writes the items of some episodes and waits until the server has them.

        Raises:
          ServerUnavailableError: if the server does not take them in time (they may still arrive later), or was
            restarted.
        """
        try:
            for block in blocks:
                for of_one in block.apart():
                    with NATIVE_CALLS.under_way():
                        self._write_one(of_one)
        except Exception as error:  # whatever Reverb's writer met, perhaps at another server
            late = isinstance(error, reverb.errors.DeadlineExceededError)
            # Asked first, since it waits: a server that is being started again may be there after it.
            reason = why_blocked(self._client, self._table_names, self._timeout_secs) if late else ""
            if self._state_id_now() not in (None, self.state_id):
                raise self._lost() from error
            if late:
                raise ServerUnavailableError(reason) from None
            raise
        self.num_confirmed += 1

    def flush(self) -> None:
        """Nothing waits: `write` does.

        Raises:
          ServerUnavailableError: if the server is not the one that was there at the beginning.
        """
        if server_state_id(self._client.server_address, timeout_secs=self._timeout_secs) != self.state_id:
            raise self._lost()

    def _state_id_now(self) -> str | None:
        """Of the server that answers now, if one does."""
        try:
            return server_state_id(self._client.server_address, timeout_secs=_ANSWER_SECS)
        except ServerUnavailableError:
            return None

    def _lost(self) -> ServerUnavailableError:
        return ServerUnavailableError(
            f"the server at {self._client.server_address} was restarted in the middle, and may have lost items; "
            "with the public writer, convert again into empty tables"
        )

    def _write_one(self, block: ItemBlock) -> None:
        """Writes the items of one episode."""
        if not len(block.starts):
            return
        if self._longest < block.lengths.max():
            self._longest = int(block.lengths.max())
            open_writer = partial(self._client.trajectory_writer, num_keep_alive_refs=self._longest)
            self._writer = call_with_deadline(
                self._timeout_secs, open_writer, f"a writer to {self._client.server_address}"
            )
        timeout_ms = int(self._timeout_secs * 1000)
        ending = np.argsort(block.starts + block.lengths, kind="stable")
        ends = (block.starts + block.lengths)[ending]
        at = 0
        for row, values in enumerate(zip(*block.columns, strict=True)):
            self._writer.append(tree.unflatten_as(self._structure, values))
            while at < len(ends) and ends[at] == row + 1:
                self._create(int(block.lengths[ending[at]]), float(block.priorities[ending[at]]))
                at += 1
            if row % _STEPS_BETWEEN_FLUSHES == 0:
                self._writer.flush(_MAX_UNCONFIRMED_ITEMS, timeout_ms=timeout_ms)
        self._writer.end_episode(timeout_ms=timeout_ms)

    def _create(self, length: int, priority: float) -> None:
        history = self._writer.history
        trajectory = tree.map_structure(lambda column: column[-1] if self._squeeze else column[-length:], history)
        for name in self._table_names:
            self._writer.create_item(name, priority, trajectory)
