"""Checks that a server understands the bulk writer: inserts one item, reads it back, and deletes it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.libraries.versions import TESTED_VERSIONS, is_tested
from rlds2reverb.types.specs import ArraySpec, Nest
from rlds2reverb.types.tables import TableConfig

from ..client import Connection, TableInfo, server_state_id
from ..server.table_items import find_reason_not_to_sample
from ..wire.encoder import Encoder
from ..wire.item_blocks import ItemBlock
from .bulk_writer import BulkWriter

_KEY_SEED = -1
TIMEOUT_SECS = 20.0
#: State ids of servers that passed the check, so that later transfers of this process skip it.
COMPATIBLE_SERVERS: set[str] = set()


@dataclass(frozen=True)
class TrialItem:
    """An item that is inserted to check a server.

    Attributes:
      block: block that contains only this item.
      signature: signature of the tables, or None.
      specs: spec of one row of each column.
      squeeze: whether items are single rows without a time axis.
    """

    block: ItemBlock
    signature: Nest
    specs: Sequence[ArraySpec]
    squeeze: bool

    def make_encoder(self, table: str) -> Encoder:
        """Returns an encoder whose keys differ from those of regular items."""
        return Encoder(self.specs, [table], squeeze=self.squeeze, key_seed=_KEY_SEED)

    def make_keys(self, table: str) -> list[int]:
        """Returns a list with the key of the item in a table."""
        return [int(key) for batch in self.make_encoder(table).encode([self.block]) for key in batch.item_keys[0]]

    def find_difference(self, columns: Sequence[np.ndarray]) -> str | None:
        """Describes how the columns of a sample differ from the item; None if they are equal bit for bit."""
        begin, end = int(self.block.starts[0]), int(self.block.starts[0] + self.block.lengths[0])
        expected = [column[begin] if self.squeeze else column[begin:end] for column in self.block.columns]
        if len(columns) != len(expected):
            return f"wrote {len(expected)} columns, but read back {len(columns)}"
        for number, (actual, written) in enumerate(zip(columns, expected, strict=True)):
            if actual.dtype != written.dtype or actual.shape != written.shape or actual.tobytes() != written.tobytes():
                return f"column {number} was read back as {actual.dtype} {list(actual.shape)} with different content"
        return None


def find_incompatibility(address: str, tables: Sequence[str], trial: TrialItem, *, timeout_secs: float) -> str | None:
    """Writes an item, reads it back and deletes it, unless this server has passed the check before.

    The item goes to the first table that is empty, returns items at once and does not use them up, so that waiting
    readers lose nothing. If there is no such table, the check uses a temporary server with the installed Reverb.

    Returns:
      A description of the failure, or None if the item was read back bit for bit.

    Raises:
      ServerUnavailableError: If the server no longer answers.
    """
    reason: str | None = ""
    for _ in range(2):  # A failure while the server is away or restarting says nothing about compatibility.
        reason = _try_once(address, tables, trial, min(timeout_secs, TIMEOUT_SECS))
        if reason is None:
            return None
        server_state_id(address, timeout_secs=timeout_secs)
    return f"{reason}{_describe_untested_version()}"


def _describe_untested_version() -> str:
    """Returns a clause that names the installed version of dm-reverb if it is not among the tested ones."""
    with contextlib.suppress(PackageNotFoundError):
        installed = version("dm-reverb")
        if not is_tested("dm-reverb", installed):
            return f"; dm-reverb {installed} is installed, but tested is {' or '.join(TESTED_VERSIONS['dm-reverb'])}"
    return ""


def _try_once(address: str, tables: Sequence[str], trial: TrialItem, timeout_secs: float) -> str | None:
    try:
        with Connection(address) as connection:
            state_id = connection.state_id(timeout_secs=timeout_secs)
            for name in tables:  # An earlier run may have been killed before it deleted its item.
                connection.delete(name, trial.make_keys(name), timeout_secs=timeout_secs)
            if state_id in COMPATIBLE_SERVERS:
                return None
            infos = connection.table_infos(timeout_secs=timeout_secs)
            table = next((name for name in tables if _is_usable(infos[name])), None)
            if table is not None:
                try:
                    reason = _write_and_read(address, table, trial, timeout_secs)
                finally:
                    connection.delete(table, trial.make_keys(table), timeout_secs=timeout_secs)
            else:
                from ..server.replay_server import ReplayServer  # Requires dm-reverb.

                with ReplayServer([TableConfig(tables[0])], trial.signature) as server:
                    reason = _write_and_read(server.address, tables[0], trial, timeout_secs)
            if reason is None:
                COMPATIBLE_SERVERS.add(state_id)
            return reason
    except ServerUnavailableError as error:
        return str(error)


def _is_usable(info: TableInfo) -> bool:
    """Returns whether a table is empty, returns its first item at once, and keeps it for other clients."""
    return info.current_size == 0 and find_reason_not_to_sample(info, 1) is None


def _write_and_read(address: str, table: str, trial: TrialItem, timeout_secs: float) -> str | None:
    try:
        with contextlib.closing(BulkWriter(address, trial.make_encoder(table), timeout_secs=timeout_secs)) as writer:
            writer.write([trial.block])
            writer.flush()
        with Connection(address) as connection:
            _, columns = connection.sample_item(table, timeout_secs=timeout_secs)
        return trial.find_difference(columns)
    except (ServerUnavailableError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
