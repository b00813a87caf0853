"""The journal of a transfer to a server: how far it is, in a file that outlives a killed process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rlds2reverb import _sealed_json as sealed_json
from rlds2reverb._server.locks import FileLock
from rlds2reverb.errors import CorruptFileError, ResourceInUseError, ResumeError

from .destination import OTHER_DATA, TransferState

_SERVER, _EXAMPLE = "server", "example"


class SavedState(NamedTuple):
    """What a journal holds: the state, and the start of the server that had confirmed it."""

    state: TransferState
    server_state_id: str


class Journal:
    """The state of one transfer to one server, in `$XDG_STATE_HOME/rlds2reverb` (`~/.local/state/rlds2reverb`).

    It only saves time. Where it cannot be written, the transfer continues without it, after one warning.
    """

    def __init__(self, description: dict[str, Any], address: str, *, example: int, warn: Callable[[str], None]):
        """Nothing is written yet.

        Args:
          description: of the transfer: other arguments, another journal.
          address: of the server.
          example: a hash of the items and priorities of the first episode.
          warn: called with a sentence, once, where the journal cannot be kept.
        """
        state_home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        text = json.dumps({**description, _SERVER: address}, sort_keys=True)
        self.path = Path(state_home) / "rlds2reverb" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        self._address, self._example, self._warn = address, example, warn
        self._is_kept = True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds a lock that only one process holds at a time.

        Raises:
          ResourceInUseError: if another process writes the same to the server.
        """
        lock = FileLock(self.path.with_suffix(".lock"), f"another process writes this to {self._address}")
        with self._kept_at_best():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.__enter__()
        if not self._is_kept:
            yield
            return
        try:
            yield
        finally:
            lock.__exit__()

    def load(self) -> SavedState | None:
        """Returns what was saved last.

        Raises:
          CorruptFileError: if the file has changed since it was saved.
          ResumeError: if the first episode gave other items then.
        """
        if not self._is_kept:
            return None
        try:
            saved = sealed_json.load(self.path)
        except CorruptFileError as error:
            raise CorruptFileError(f"{error}; delete it, or convert without resuming") from error
        if saved is None:
            return None
        if saved[_EXAMPLE] != self._example:
            raise ResumeError(OTHER_DATA.format("its first episode gives other items or priorities"))
        return SavedState(TransferState.from_dict(saved), saved[_SERVER])

    def save(self, state: TransferState, server_state_id: str) -> None:
        """Replaces the saved state."""
        if self._is_kept:
            with self._kept_at_best():
                sealed_json.save(self.path, {**state.as_dict(), _SERVER: server_state_id, _EXAMPLE: self._example})

    def delete(self) -> None:
        """Deletes the saved state, if there is one."""
        with self._kept_at_best():
            self.path.unlink(missing_ok=True)

    @contextmanager
    def _kept_at_best(self) -> Iterator[None]:
        """Continues without a journal where the disk does not take it."""
        try:
            yield
        except ResourceInUseError:
            raise
        except OSError as error:
            if self._is_kept:
                self._is_kept = False
                self._warn(
                    f"no journal can be kept at {self.path} ({error.strerror}): if this run is killed, the next one "
                    "starts from scratch; set XDG_STATE_HOME to a folder that can be written"
                )
