"""Checkpoints of a buffer: Reverb's, and what the buffer knows beside it, which belongs to exactly that one."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb._server import sealed_json
from rlds2reverb._server.checkpoint_root import CheckpointRoot, full_disk_as_error, require_plain
from rlds2reverb._server.locks import FileLock
from rlds2reverb.errors import CheckpointError
from rlds2reverb.tables import TableConfig

_ENTRIES = {"table", "states", "buffer.lock"}
_FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord")
_PENDING = "pending"


class Snapshots:
    """A directory of a buffer's checkpoints: `table/` is a `CheckpointRoot`, `states/` has a file for each of them.

    The state is written before Reverb's checkpoint, as the pending one, and named after the checkpoint afterwards. The
    buffer does not change in between: whichever of the two a process is killed after, the newest complete checkpoint
    finds its own state.
    """

    def __init__(self, path: Path):
        """Opens or makes the directory.

        Raises:
          CheckpointError: if it holds anything that is not ours, or the newest checkpoint is damaged.
          InUse: if another buffer has it open.
        """
        require_plain(path)
        foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in _ENTRIES) if path.exists() else []
        if foreign:
            raise CheckpointError(
                f"{path} is not a checkpoint root of a buffer ({', '.join(foreign[:3])}); give a new directory"
            )
        self.path, self.table_root = path, path / "table"
        self._states = path / "states"
        self._states.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path / "buffer.lock", f"{path} is in use by another buffer")
        self._lock.__enter__()
        try:
            self._delete_cut_off()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives the directory back."""
        self._lock.__exit__()

    def _delete_cut_off(self) -> None:
        """Deletes checkpoints that a killed process did not complete, or had begun to delete."""
        if not self.table_root.is_dir():
            return
        latest, root = self._latest(), CheckpointRoot(self.table_root)
        for path in root.checkpoints.iterdir():
            if self._state_of(path.name).is_file() and (latest is None or latest.name < path.name):
                raise CheckpointError(f"{path} has lost its DONE file; restore it from a copy, or delete it")
        root.delete_cut_off()

    def _latest(self) -> Path | None:
        if not self.table_root.is_dir():
            return None
        found = CheckpointRoot(self.table_root, make=False).latest()
        return found if found is not None and (found / "DONE").is_file() else None

    def _state_of(self, checkpoint: str) -> Path:
        return self._states / f"{checkpoint}.json"

    def state(self) -> dict[str, Any] | None:
        """The state of the newest complete checkpoint, or None if there is no checkpoint.

        Where a process was killed right after Reverb's checkpoint, what it had left to do is done.

        Raises:
          CheckpointError: if the state is lost or damaged.
        """
        checkpoint = self._latest()
        if checkpoint is None:
            return None
        state = self._load(self._state_of(checkpoint.name))
        if state is not None:
            return _decoded(state)
        pending = self._load(self._state_of(_PENDING))
        if pending is None or pending["after"] == checkpoint.name:
            raise CheckpointError(
                f"{self._state_of(checkpoint.name)} is missing, which says what {checkpoint} holds; restore it from a "
                "copy, or give a new directory"
            )
        if not (self.table_root / "manifests" / f"{checkpoint.name}.json").is_file():
            CheckpointRoot(self.table_root).write_manifest(checkpoint)
        self._name(checkpoint)
        return _decoded(pending)

    def _load(self, path: Path) -> dict[str, Any] | None:
        try:
            return sealed_json.load(path)
        except sealed_json.DamagedFile as error:
            raise CheckpointError(f"{error}; restore it from a copy, or give a new directory") from error

    def write(self, state: Mapping[str, Any], make_checkpoint: Callable[[], Path]) -> Path:
        """Writes a checkpoint with its state, and gives the checkpoint's directory.

        Args:
          state: nest of dicts of numbers, text and arrays, of the moment of the checkpoint.
          make_checkpoint: writes Reverb's and its manifest, and gives its directory.

        Raises:
          StorageFull: if there is no space; the checkpoint before is kept.
        """
        before = self._latest()
        with full_disk_as_error(self.path):
            pending = {**_encoded(state), "after": before.name if before else None}
            sealed_json.save(self._state_of(_PENDING), pending)
            checkpoint = make_checkpoint()
            self._name(checkpoint)
        return checkpoint

    def _name(self, checkpoint: Path) -> None:
        """Makes the pending state that of a checkpoint, and forgets those of earlier ones."""
        self._state_of(_PENDING).replace(self._state_of(checkpoint.name))
        sealed_json.sync(self._states)
        for path in self._states.iterdir():
            if path.stem != checkpoint.name:
                path.unlink()

    def put(self, state: Mapping[str, Any], tables: Sequence[TableConfig], files: Mapping[str, bytes]) -> None:
        """Writes the files of a checkpoint (`files_of`) as the newest one, while no server runs there.

        Args:
          state: see `write`.
          tables: that the checkpoint has.
          files: their contents, by name.

        Raises:
          KeyError: if one of them is missing.
          CheckpointError: if an earlier checkpoint has other tables.
          StorageFull: if there is no space; the checkpoint before is kept.
        """

        def make() -> Path:
            root = CheckpointRoot(self.table_root)
            root.delete_cut_off()
            root.require_tables(tables)
            path = root.checkpoints / _name_after(root.latest())
            path.mkdir()
            for name in _FILES:
                (path / name).write_bytes(files[name])
            (path / "DONE").touch()
            root.write_manifest(path)
            return path

        self.write(state, make)


def files_of(checkpoint: Path) -> dict[str, bytes]:
    """The files of a checkpoint, by name."""
    return {name: (checkpoint / name).read_bytes() for name in _FILES}


def _name_after(latest: Path | None) -> str:
    """A name as Reverb gives them, which comes after that of another checkpoint."""
    now = datetime.now(timezone.utc)
    while (name := now.isoformat(timespec="microseconds")) <= (latest.name if latest else ""):
        now += timedelta(days=1)
    return name


def _encoded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _encoded(part) for key, part in value.items()}
    if isinstance(value, np.ndarray):
        content = base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes(), 1)).decode()
        return {"dtype": value.dtype.str, "content": content}
    return value


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {"dtype", "content"}:
        return np.frombuffer(zlib.decompress(base64.b64decode(value["content"])), value["dtype"]).copy()
    return {key: _decoded(part) for key, part in value.items()}
