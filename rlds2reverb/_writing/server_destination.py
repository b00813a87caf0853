"""The tables of a running server as a destination, with a journal of what the server has confirmed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType

import reverb

from rlds2reverb._encoding.item_blocks import ItemBlock
from rlds2reverb._server.clients import table_infos
from rlds2reverb.errors import ServerRestartedError

from .bulk_writer import BulkWriter
from .destination import TransferState
from .journal import Journal
from .reverb_writer import ReverbWriter

_SECS_BETWEEN_SAVES = 0.5


class ServerDestination:
    """The tables of a running server. What is noted in the journal, the server has confirmed before."""

    def __init__(
        self,
        client: reverb.Client,
        writer: BulkWriter | ReverbWriter,
        journal: Journal,
        *,
        tables: Sequence[str],
        first: ItemBlock,
        timeout_secs: float,
    ):
        """Nothing is written yet.

        Args:
          client: of the server.
          writer: to the server; it is closed at the end.
          journal: of the transfer.
          tables: names.
          first: the items of the first episode.
          timeout_secs: how long to wait for the server.
        """
        self._client, self._writer, self._journal = client, writer, journal
        self._tables, self._first, self._timeout_secs = tables, first, timeout_secs
        self._unconfirmed: deque[TransferState] = deque()
        self._num_confirmed = 0
        self._confirmed: TransferState | None = None
        self._last_save = time.monotonic()

    def __enter__(self) -> ServerDestination:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and kind is not ServerRestartedError:
            self._note_confirmed()
            self._save()
        self._writer.close(failed=kind is not None)

    def _note_confirmed(self) -> None:
        while self._num_confirmed < self._writer.num_confirmed:
            self._confirmed = self._unconfirmed.popleft()
            self._num_confirmed += 1

    def _save(self) -> None:
        if self._confirmed is not None:
            self._journal.save(self._confirmed, self._writer.state_id)
            self._last_save = time.monotonic()

    def open(self, *, resume: bool) -> TransferState | None:
        """Returns the state that an earlier run saved, where the server still has what was confirmed to that run.

        A server that was restarted, or lacks something, gets everything again: it stores once what it has.

        Raises:
          CorruptFileError: if the journal is damaged.
          ServerUnavailableError, ServerRestartedError: see the writer's `write`.
        """
        if not resume:
            self._journal.delete()
            return None
        saved = self._journal.load()
        if saved is None or saved.server_state_id != self._writer.state_id:
            return None
        infos = table_infos(self._client, timeout_secs=self._timeout_secs)
        for name in self._tables:
            is_kept = infos[name].max_times_sampled == 0
            if is_kept and infos[name].current_size < min(infos[name].max_size, saved.state.items):
                return None
        return saved.state if self._has_first_items() else None

    def _has_first_items(self) -> bool:
        """Whether the tables have the items of the first episode, which go first when a table was reset or is full.

        Reverb does not say which keys it has. But an item that is sent again does not count as an insertion.
        """
        if isinstance(self._writer, ReverbWriter):
            return True  # its keys are random, so that nothing can be sent again
        before = self._num_inserted()
        self._writer.write([self._first])
        self._writer.confirm()
        return self._num_inserted() == before

    def _num_inserted(self) -> list[int]:
        infos = table_infos(self._client, timeout_secs=self._timeout_secs)
        return [infos[name].rate_limiter_info.insert_stats.completed for name in self._tables]

    def write(self, blocks: Sequence[ItemBlock], state: TransferState) -> None:
        """Sends the items of some episodes, and notes in the journal what is confirmed.

        Raises:
          ServerUnavailableError, ServerRestartedError: see the writer's `write`.
        """
        self._writer.write(blocks)
        self._unconfirmed.append(state)
        self._note_confirmed()
        if time.monotonic() > self._last_save + _SECS_BETWEEN_SAVES:
            self._save()

    def finish(self, state: TransferState) -> None:
        """Waits until everything is confirmed; the journal is not needed any more.

        Raises:
          ServerUnavailableError, ServerRestartedError: see the writer's `flush`.
        """
        self._writer.flush()
        self._journal.delete()
