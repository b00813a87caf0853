"""The journal of a transfer to a server: a file that records the progress, for a run that continues a killed one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rlds2reverb.errors import CorruptFileError, ResourceInUseError
from rlds2reverb.system.file_lock import FileLock
from rlds2reverb.system.sealed_files import load_json, save_json

from .transfer import TransferState, changed_data_error

_SERVER, _NUM_REMOVED, _EXAMPLE = "server", "num_removed", "example"


class SavedState(NamedTuple):
    """The content of a journal.

    Attributes:
      state: state of the transfer.
      server_state_id: id of the server run that confirmed it.
      num_removed: number of items per table that the server had removed from it when the run began.
    """

    state: TransferState
    server_state_id: str
    num_removed: Mapping[str, int]


class Journal:
    """The saved state of one transfer to one server, in `$XDG_STATE_HOME/rlds2reverb` (`~/.local/state/rlds2reverb`).

    The journal only saves time: if it cannot be written, the transfer continues without it, after one warning.
    """

    def __init__(self, description: dict[str, Any], address: str, *, example: int, warn: Callable[[str], None]):
        """Chooses the path, and does not write anything yet.

        Args:
          description: description of the transfer; different arguments have different journals.
          address: address of the server.
          example: see `ingestion.example_hash`.
          warn: function that is called with a sentence, at most once, if the journal cannot be written.
        """
        state_home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        text = json.dumps({**description, _SERVER: address}, sort_keys=True)
        self.path = Path(state_home) / "rlds2reverb" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        self._address, self._example, self._warn = address, example, warn
        self._is_enabled = True

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Prevents other processes from making the same transfer during the context.

        Raises:
          ResourceInUseError: If another process holds the lock.
        """
        with ExitStack() as stack:
            with self._disable_on_error():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                what = f"the journal of this transfer to {self._address}"
                stack.enter_context(FileLock(self.path.with_suffix(".lock"), what))
            yield

    def load(self) -> SavedState | None:
        """Returns the last saved state, or None.

        Raises:
          CorruptFileError: If the file has changed since it was saved.
          ResumeError: If the first episode had different items then, or the code of the adder or priority has changed.
        """
        try:
            content = load_json(self.path) if self._is_enabled else None
        except CorruptFileError as error:
            raise CorruptFileError(f"{error}; delete it, or start again", resume=False) from error
        if content is None:
            return None
        if content[_EXAMPLE] != self._example:
            raise changed_data_error("its first episode has different items or priorities, or their code has changed")
        return SavedState(TransferState.from_dict(content), content[_SERVER], content[_NUM_REMOVED])

    def save(self, saved: SavedState) -> None:
        """Replaces the saved state."""
        if self._is_enabled:
            run = {_SERVER: saved.server_state_id, _NUM_REMOVED: dict(saved.num_removed), _EXAMPLE: self._example}
            with self._disable_on_error():
                save_json(self.path, {**vars(saved.state), **run})

    def delete(self) -> None:
        """Deletes the saved state, if there is one."""
        with self._disable_on_error():
            self.path.unlink(missing_ok=True)

    @contextmanager
    def _disable_on_error(self) -> Iterator[None]:
        """Disables the journal, with one warning, if the file system does not accept it."""
        try:
            yield
        except ResourceInUseError:
            raise
        except OSError as error:
            if self._is_enabled:
                self._is_enabled = False
                self._warn(
                    f"cannot write a journal to {self.path} ({error.strerror}): if this run is killed, the next one "
                    "starts from the beginning; set XDG_STATE_HOME to a writable directory"
                )
