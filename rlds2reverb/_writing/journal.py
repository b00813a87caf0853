"""The journal of a transfer to a server: how far it is, in a file that outlives a killed process."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from rlds2reverb._server import sealed_json
from rlds2reverb._server.checkpoint_root import full_disk_as_error
from rlds2reverb._server.locks import FileLock
from rlds2reverb.errors import DamagedFile

from .destination import TransferState

_SERVER = "server"


class Journal:
    """The state of one transfer to one server, in `$XDG_STATE_HOME/rlds2reverb` (`~/.local/state/rlds2reverb`)."""

    def __init__(self, description: dict[str, Any], address: str):
        """Makes the folder of journals.

        Args:
          description: of the transfer: other arguments, another journal.
          address: of the server.
        """
        state_home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        folder = Path(state_home) / "rlds2reverb"
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**description, _SERVER: address}, sort_keys=True)
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        self._address = address

    def lock(self) -> FileLock:
        """A lock that only one process holds at a time."""
        return FileLock(self.path.with_suffix(".lock"), f"another process writes this to {self._address}")

    def load(self, server_state_id: str) -> TransferState | None:
        """Returns the state that was saved last, if it was saved for this start of the server.

        Raises:
          DamagedFile: if the file has changed since it was saved.
        """
        try:
            saved = sealed_json.load(self.path)
        except DamagedFile as error:
            raise DamagedFile(f"{error}; delete it, or convert without resuming") from error
        if saved is None or saved[_SERVER] != server_state_id:
            return None
        return TransferState.from_dict(saved)

    def save(self, state: TransferState, server_state_id: str) -> None:
        """Replaces the saved state.

        Raises:
          StorageFull: if there is no space.
        """
        with full_disk_as_error(self.path):
            sealed_json.save(self.path, {**state.as_dict(), _SERVER: server_state_id})

    def delete(self) -> None:
        """Deletes the saved state, if there is one."""
        self.path.unlink(missing_ok=True)
