"""Writes items to a running server with Reverb's public `TrajectoryWriter`, which runs in its own process.

The items equal those of the bulk writer except for their keys, which Reverb chooses at random, so an item that is
written again is stored again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlds2reverb.errors import ServerUnavailableError

from ..client import Server, explain_blocked_inserts, find_address, server_state_id
from ..server.process import ForkedProcess, start_launcher
from ..wire.item_blocks import ItemBlock

_STATE_ID_SECS = 2.0


class _WriterProcess(ForkedProcess):
    """The process with Reverb's writer; see `reverb.process.writer`."""

    def __init__(self, address: str, tables: Sequence[str], *, squeeze: bool):
        description = {"address": address, "tables": list(tables), "squeeze": squeeze}
        super().__init__(description, f"Reverb's writer to {address}")

    def write(self, block: ItemBlock, timeout_secs: float) -> None:
        """Writes the items of an episode, and waits until the server has them.

        Raises:
          TimeoutError: If the server accepts nothing for `timeout_secs`.
          OSError, RuntimeError: If Reverb's writer fails.
        """
        self._control.settimeout(timeout_secs)
        arrays = [*block.columns, block.starts, block.lengths, block.priorities]
        with self._control.makefile("rwb") as stream:
            stream.write(b"%d\n" % len(arrays))
            for array in arrays:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
            stream.flush()
            while not (message := self._read(stream)).get("done"):
                if "error" in message:
                    raise RuntimeError(message["error"])


class ReverbWriter:
    """Writes items row by row, with a deadline. Close it after use."""

    def __init__(self, server: Server, tables: Sequence[str], *, squeeze: bool = False, timeout_secs: float = 30.0):
        """Checks that the server answers, and does not send anything yet.

        Args:
          server: server to write to; see `client.find_address`.
          tables: names of the tables that get each item; they share its data.
          squeeze: whether items are single rows without a time axis.
          timeout_secs: seconds to wait for the server to accept items.

        Raises:
          ServerUnavailableError: If the server does not answer in time, or Reverb cannot run on this machine.
        """
        self._address = find_address(server)
        start_launcher()
        #: Identifies the run of the server that gets the items.
        self.state_id = server_state_id(self._address, timeout_secs=timeout_secs)
        self._tables, self._squeeze, self._timeout_secs = tuple(tables), squeeze, timeout_secs
        #: The `state` of the last completed `write`, or None.
        self.confirmed_state: Any = None
        self._process: _WriterProcess | None = None

    def close(self) -> None:
        """Ends the process at once, even if items are unconfirmed."""
        if self._process is not None:
            self._process.kill()

    def write(self, blocks: Iterable[ItemBlock], state: Any = None) -> None:
        """Writes the items of some episodes, waits until the server has them, and sets `confirmed_state`.

        Raises:
          ServerUnavailableError: If the server does not accept them in time (they may still arrive later), or was
            restarted, or if Reverb's writer fails.
        """
        if self._process is None:
            self._process = _WriterProcess(self._address, self._tables, squeeze=self._squeeze)
        try:
            for block in blocks:
                for episode_block in block.split_by_episode():
                    if len(episode_block.starts):
                        self._process.write(episode_block, self._timeout_secs)
        except (OSError, RuntimeError) as error:  # Perhaps because the server was replaced.
            reason = f"{self._address} did not get all items: {error}"
            if isinstance(error, TimeoutError):
                # This waits, so it comes first: a server that is just being restarted may be available afterwards.
                reason = explain_blocked_inserts(self._address, self._tables, self._timeout_secs)
            if self._read_state_id() not in (None, self.state_id):
                raise self._make_restart_error() from error
            raise ServerUnavailableError(reason) from error
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
            "the writer 'reverb', convert again into empty tables"
        )
