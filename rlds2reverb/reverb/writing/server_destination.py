"""The tables of a running server as a destination, with a journal of what the server has confirmed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from rlds2reverb.errors import ServerRestartedError

from ..client import TableInfo, table_infos
from ..wire.item_blocks import ItemBlock
from .bulk_writer import BulkWriter
from .journal import Journal, SavedState
from .reverb_writer import ReverbWriter
from .transfer import TransferState

SECS_BETWEEN_SAVES = 0.5


class ServerDestination(AbstractContextManager["ServerDestination"]):
    """The tables of a running server. The journal contains only what the server has confirmed."""

    def __init__(
        self,
        address: str,
        writer: BulkWriter | ReverbWriter,
        journal: Journal,
        *,
        tables: Sequence[str],
        first: ItemBlock,
        timeout_secs: float,
    ):
        """Does not write anything yet.

        Args:
          address: address of the server.
          writer: writer to the server; closed with the destination.
          journal: journal of the transfer.
          tables: names of the tables.
          first: items of the first episode.
          timeout_secs: seconds to wait for the server.
        """
        self._address, self._writer, self._journal = address, writer, journal
        self._tables, self._first, self._timeout_secs = tables, first, timeout_secs
        self._num_removed: dict[str, int] = {}
        self._last_save = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and kind is not ServerRestartedError:
            self._save()
        self._writer.close()

    def _save(self) -> None:
        state = self._writer.confirmed_state
        if state is not None:
            self._journal.save(SavedState(state, self._writer.state_id, self._num_removed))
            self._last_save = time.monotonic()

    def open(self, *, resume: bool) -> TransferState | None:
        """Returns the state that an earlier run saved, if the server still has everything that it confirmed then.

        If the server was restarted or items are missing, everything is written again; items that it already has are
        stored once.

        Raises:
          CorruptFileError: If the journal is damaged.
          ServerUnavailableError, ServerRestartedError: As for the writer's `write`.
        """
        infos = table_infos(self._address, timeout_secs=self._timeout_secs)
        self._num_removed = {name: _num_inserted(infos[name]) - infos[name].current_size for name in self._tables}
        if not resume:
            self._journal.delete()
            return None
        saved = self._journal.load()
        if saved is None or saved.server_state_id != self._writer.state_id:
            return None
        if any(self._has_lost_items(infos[name], saved) for name in self._tables):
            return None
        return saved.state if self._has_first_items() else None

    def _has_lost_items(self, info: TableInfo, saved: SavedState) -> bool:
        """Returns whether a table has removed items since the state was saved, other than by sampling and eviction."""
        if info.max_times_sampled or info.current_size >= info.max_size:
            return False
        is_removed = self._num_removed[info.name] != saved.num_removed[info.name]
        return is_removed or info.current_size < saved.state.items  # A reset also resets the number of insertions.

    def _has_first_items(self) -> bool:
        """Returns whether the tables still have the first episode's items, which a reset or full table loses first.

        Reverb does not report its keys, but an item that is sent again does not count as an insertion.
        """
        if isinstance(self._writer, ReverbWriter):
            return True  # The keys are random, so items that are sent again would be stored twice.
        before = self._count_inserted()
        self._writer.write([self._first])
        self._writer.flush_and_forget()
        return self._count_inserted() == before

    def _count_inserted(self) -> list[int]:
        infos = table_infos(self._address, timeout_secs=self._timeout_secs)
        return [_num_inserted(infos[name]) for name in self._tables]

    def write(self, blocks: Sequence[ItemBlock], state: TransferState) -> None:
        """Sends the items of some episodes, and records in the journal what is confirmed.

        Raises:
          ServerUnavailableError, ServerRestartedError: As for the writer's `write`.
        """
        self._writer.write(blocks, state)
        if time.monotonic() > self._last_save + SECS_BETWEEN_SAVES:
            self._save()

    def finish(self, state: TransferState) -> None:
        """Waits until everything is confirmed, and deletes the journal.

        Raises:
          ServerUnavailableError, ServerRestartedError: As for the writer's `flush`.
        """
        self._writer.flush()
        self._journal.delete()


def _num_inserted(info: TableInfo) -> int:
    return int(info.rate_limiter_info.insert_stats.completed)
