"""Where items go: what a running server and a directory have in common, and the one of them that is a server."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import reverb

from rlds2reverb import sealed_json
from rlds2reverb.bulk_writing import BulkWriter
from rlds2reverb.checkpoints import full_disk_told
from rlds2reverb.connecting import table_infos
from rlds2reverb.pieces import Piece
from rlds2reverb.public_writing import PublicWriter
from rlds2reverb.service import ServerRestarted

_SECS_BETWEEN_SAVES = 0.5


class Sink(Protocol):
    """Takes the items of episodes, and remembers how far it came. It is a context manager."""

    def open(self, *, resume: bool) -> dict[str, Any] | None:
        """Begins; gives the state of the last `write` that is safe, if an earlier run left one and it is wanted."""

    def write(self, pieces: Sequence[Piece], state: dict[str, Any]) -> None:
        """Takes the items of some whole episodes; `state` describes the run after them."""

    def finish(self, state: dict[str, Any]) -> None:
        """Waits until everything is safe."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ServerSink:
    """The tables of a running server, and a journal of what it has confirmed."""

    def __init__(
        self,
        client: reverb.Client,
        writer: BulkWriter | PublicWriter,
        journal: Path,
        *,
        tables: Sequence[str],
        timeout_secs: float,
    ):
        """Nothing is written yet.

        Args:
          client: of the server.
          writer: to it; is closed with the sink.
          journal: file that remembers how far it came.
          tables: names.
          timeout_secs: how long to wait for the server.
        """
        self._client, self._writer, self._journal = client, writer, journal
        self._tables, self._timeout_secs = tables, timeout_secs
        self._waiting: deque[dict[str, Any]] = deque()
        self._num_safe = 0
        self._safe: dict[str, Any] | None = None
        self._last_save = time.monotonic()

    def __enter__(self) -> ServerSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and kind is not ServerRestarted:
            self._note_safe()
            with contextlib.suppress(OSError):  # the first error is the one to be seen
                self._save()
        self._writer.close(failed=kind is not None)

    def _note_safe(self) -> None:
        while self._num_safe < self._writer.num_confirmed:
            self._safe = self._waiting.popleft()
            self._num_safe += 1

    def _save(self) -> None:
        if self._safe is not None:
            with full_disk_told(self._journal):
                sealed_json.save(self._journal, self._safe)
            self._last_save = time.monotonic()

    def open(self, *, resume: bool) -> dict[str, Any] | None:
        """The journal's state, where the server still has what the journal says.

        A server that was started anew, or whose tables hold less, gets everything again: it stores once what it has.

        Raises:
          DamagedFile: if the journal is damaged.
        """
        if not resume:
            self._journal.unlink(missing_ok=True)
        try:
            state = sealed_json.load(self._journal)
        except sealed_json.DamagedFile as error:
            raise sealed_json.DamagedFile(f"{error}; delete it, or convert without resuming") from error
        if state is None or state["server"] != self._writer.state_id:
            return None
        infos = table_infos(self._client, timeout_secs=self._timeout_secs)
        for name in self._tables:
            kept = infos[name].max_times_sampled == 0
            if kept and infos[name].current_size < min(infos[name].max_size, state["items"]):
                return None
        return state

    def write(self, pieces: Sequence[Piece], state: dict[str, Any]) -> None:
        """Sends the items of some episodes, and notes in the journal what is confirmed.

        Raises:
          ServerUnavailable, ServerRestarted: see the writer's `write`.
        """
        self._writer.write(pieces)
        self._waiting.append({**state, "server": self._writer.state_id})
        self._note_safe()
        if time.monotonic() > self._last_save + _SECS_BETWEEN_SAVES:
            self._save()

    def finish(self, state: dict[str, Any]) -> None:
        """Waits until everything is confirmed; the journal has done its work.

        Raises:
          ServerUnavailable, ServerRestarted: see the writer's `flush`.
        """
        self._writer.flush()
        self._journal.unlink(missing_ok=True)
