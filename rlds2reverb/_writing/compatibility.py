"""Whether a server understands our messages: one item is inserted, read back by Reverb's own client, and deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import reverb

from rlds2reverb._encoding.encoder import Encoder
from rlds2reverb._encoding.item_blocks import ItemBlock
from rlds2reverb._server.connection import ServerConnection, server_state_id
from rlds2reverb._server.held_items import counts_samples
from rlds2reverb._server.native_calls import NATIVE_CALLS, call_with_deadline
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.tables import TableConfig

from .bulk_writer import BulkWriter

_KEY_SEED = -1
_TIMEOUT_SECS = 20.0
_ANSWER_SECS = 2
#: State ids of servers that have understood us: a property of the server, which each run need not find out again.
_UNDERSTOOD: set[str] = set()


@dataclass(frozen=True)
class TrialItem:
    """An item that shows whether a server understands our messages.

    Attributes:
      block: of this one item.
      signature: of the tables, or None.
      specs: of one row of each column.
      squeeze: whether items are single rows without a time axis.
    """

    block: ItemBlock
    signature: Nest
    specs: Sequence[ArraySpec]
    squeeze: bool

    def encoder(self, table: str) -> Encoder:
        """Returns an encoder that gives the item a key that it has as a trial only."""
        return Encoder(self.specs, [table], squeeze=self.squeeze, key_seed=_KEY_SEED)

    def keys(self, table: str) -> list[int]:
        """Returns the key of the item in a table, as a list."""
        return [int(key) for batch in self.encoder(table).encode([self.block]) for key in batch.item_keys[0]]

    def difference(self, leaves: Sequence[np.ndarray]) -> str | None:
        """Returns how the columns of a sample differ from the item, or None if they are equal bit for bit."""
        begin, end = int(self.block.starts[0]), int(self.block.starts[0] + self.block.lengths[0])
        expected = [column[begin] if self.squeeze else column[begin:end] for column in self.block.columns]
        if len(leaves) != len(expected):
            return f"{len(leaves)} columns came back, {len(expected)} were written"
        for number, (got, want) in enumerate(zip(leaves, expected, strict=True)):
            if got.dtype != want.dtype or got.shape != want.shape or got.tobytes() != want.tobytes():
                return f"column {number} came back as {got.dtype} {list(got.shape)} with other content than was written"
        return None


def why_bulk_writing_fails(
    client: reverb.Client, tables: Sequence[str], trial: TrialItem, *, timeout_secs: float
) -> str | None:
    """Writes an item, reads it back and deletes it, unless this server has understood us before.

    This is done in the first table that is empty, gives an item at once, and does not use items up: a reader that waits
    for them loses nothing. If there is no such table, or Reverb's own clients do not reach the server, a server is
    started in this process for it, which shows whether the installed Reverb understands us.

    Returns:
      A sentence on what failed, or None if the item came back bit for bit.

    Raises:
      ServerUnavailableError: if the server does not answer any more.
    """
    reason: str | None = ""
    secs = min(timeout_secs, _TIMEOUT_SECS)
    for _ in range(2):  # what failed while the server was away, or restarted, says nothing of what it understands
        reason = _why_once(client, tables, trial, secs)
        if reason is None:
            return None
        server_state_id(client.server_address, timeout_secs=timeout_secs)
    return reason


def _why_once(client: reverb.Client, tables: Sequence[str], trial: TrialItem, timeout_secs: float) -> str | None:
    try:
        with ServerConnection(client.server_address) as connection:
            state_id = connection.state_id(timeout_secs=timeout_secs)
            for name in tables:  # what an earlier run left that was killed right here
                connection.delete(name, trial.keys(name), timeout_secs=timeout_secs)
            if state_id in _UNDERSTOOD:
                return None
            infos = connection.table_infos(timeout_secs=timeout_secs)
            usable = next((name for name in tables if _is_usable(infos[name])), None)
            if usable is not None and _answers_clients(client):
                try:
                    reason = _tried(client.server_address, usable, trial, timeout_secs)
                finally:
                    connection.delete(usable, trial.keys(usable), timeout_secs=timeout_secs)
            else:
                with ReplayServer([TableConfig(tables[0])], trial.signature) as server:
                    reason = _tried(server.address, tables[0], trial, timeout_secs)
            if reason is None:
                _UNDERSTOOD.add(state_id)
            return reason
    except ServerUnavailableError as error:
        return str(error)


def _answers_clients(client: reverb.Client) -> bool:
    """Whether Reverb's own clients reach the server; see `clients.table_infos`."""
    try:
        with NATIVE_CALLS.under_way():
            client.server_info(timeout=_ANSWER_SECS)
    except (RuntimeError, reverb.errors.ReverbError):
        return False
    return True


def _is_usable(info: Any) -> bool:
    """Whether a table is empty, gives an item as soon as it has one, and keeps it for others."""
    gives_at_once = info.rate_limiter_info.min_size_to_sample <= 1
    return bool(gives_at_once and info.current_size == 0 and not counts_samples(info))


def _tried(address: str, table: str, trial: TrialItem, timeout_secs: float) -> str | None:
    try:
        with BulkWriter(address, trial.encoder(table), timeout_secs=timeout_secs) as writer:
            writer.write([trial.block])
            writer.flush()
        samples = reverb.Client(address).sample(table, 1, emit_timesteps=False)
        sample = call_with_deadline(timeout_secs, lambda: next(iter(samples)), f"a sample of table {table!r}")
        return trial.difference(sample.data)
    except Exception as error:  # whatever Reverb raises for what it does not understand
        return f"{type(error).__name__}: {error}"
