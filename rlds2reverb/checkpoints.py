"""The checkpoint root: a directory that we make, own and check, with Reverb's checkpoints inside."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlds2reverb.tables import TableConfig

_CHECKPOINT_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d[:.\d+\-Z]*")
_OWN_ENTRIES = {"rlds2reverb.json", "rlds2reverb.tmp", "rlds2reverb.lock", "checkpoints", "manifests"}
_FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord")


class CheckpointError(ValueError):
    """A checkpoint root or a checkpoint that is not as we left it, or not for these tables."""


class CheckpointRoot:
    """A directory that we made and own: Reverb's checkpoints, and beside them what makes them trustworthy.

    `rlds2reverb.json` holds the tables' configuration, `checkpoints/` is Reverb's own root, `manifests/` has size and
    sha256 of each file of each checkpoint. Reverb deletes what it finds in its root, so that a directory with foreign
    entries is refused.
    """

    def __init__(self, path: Path):
        """Opens the root, or makes it.

        Raises:
          CheckpointError: if the directory holds anything that is not ours.
        """
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._manifests = path / "manifests"
        self._config = path / "rlds2reverb.json"
        if path.exists():
            foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in _OWN_ENTRIES)
            if foreign:
                raise CheckpointError(
                    f"{path} is not a checkpoint root of ours ({', '.join(foreign[:3])}); give a new directory"
                )
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self._manifests.mkdir(exist_ok=True)
        self.require_own()

    def require_own(self) -> None:
        """Raises `CheckpointError` if something foreign lies where Reverb would delete it."""
        for entry in self.checkpoints.iterdir():
            if not _CHECKPOINT_NAME.fullmatch(entry.name) or not entry.is_dir():
                raise CheckpointError(f"{entry} is not a checkpoint; move it away, or Reverb may delete things")

    def require_tables(self, configs: Sequence[TableConfig]) -> None:
        """Notes the tables' configuration, or compares it with the one that the checkpoints were made with."""
        asked = json.loads(json.dumps([config.as_dict() for config in configs]))
        if not self._config.exists():
            _write_whole(self._config, json.dumps({"tables": asked}, indent=1))
            return
        stored = _read_json(self._config, "tables", list)
        if self.latest() is None:
            _write_whole(self._config, json.dumps({"tables": asked}, indent=1))
        elif stored != asked:
            raise CheckpointError(
                f"{self.path} was made with other tables, and a restored table keeps its configuration: "
                f"{_first_difference(stored, asked)}; ask for the stored one, or give a new directory"
            )

    def latest(self) -> Path | None:
        """The newest checkpoint."""
        return max(self.checkpoints.iterdir(), default=None)

    def write_manifest(self, checkpoint: Path) -> None:
        """Notes size and sha256 of each file of a checkpoint that Reverb just wrote, and forgets older ones.

        Raises:
          CheckpointError: if the checkpoint is not there, not ours, or not complete.
        """
        if checkpoint.parent.resolve() != self.checkpoints.resolve() or not (checkpoint / "DONE").is_file():
            raise CheckpointError(f"Reverb reports a checkpoint at {checkpoint}, but none is complete there")
        files = {name: _size_and_sha256(checkpoint / name) for name in _FILES}
        _write_whole(self._manifests / f"{checkpoint.name}.json", json.dumps({"files": files}, indent=1))
        for manifest in self._manifests.iterdir():
            if not (self.checkpoints / manifest.stem).is_dir():
                manifest.unlink()

    def verify_latest(self, *, manifest_too: bool = True) -> None:
        """Looks whether the newest checkpoint is complete, and compares it with its manifest.

        Raises:
          CheckpointError: naming the first file that is missing, empty, or differs.
        """
        checkpoint = self.latest()
        if checkpoint is None:
            return
        if not (checkpoint / "DONE").is_file():
            raise CheckpointError(f"{checkpoint} has no DONE file: it was cut off while it was written; delete it")
        found = {name: _size_and_sha256(checkpoint / name) for name in _FILES}
        empty = [name for name, (size, _) in found.items() if not size]
        if empty:
            raise CheckpointError(f"{checkpoint / empty[0]} is damaged: it is empty; restore it from a copy")
        if not manifest_too:
            return
        manifest = self._manifests / f"{checkpoint.name}.json"
        if not manifest.is_file():
            raise CheckpointError(
                f"{checkpoint} is complete but has no manifest {manifest.name}: the server ended before it was "
                "written; start with verify=False (--no-verify)"
            )
        wanted = _read_json(manifest, "files", dict)
        for name in _FILES:
            if found[name] != wanted.get(name):
                raise CheckpointError(
                    f"{checkpoint / name} is damaged: its size and sha256 are {found[name]}, wanted "
                    f"{wanted.get(name)}; restore it from a copy, or delete the checkpoint"
                )


def _read_json(path: Path, key: str, kind: type) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))[key]
        entries = value if isinstance(value, list) else []
        if isinstance(value, kind) and all(isinstance(entry, dict) for entry in entries):
            return value
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        pass
    raise CheckpointError(f"{path} is damaged; restore it from a copy, or give a new directory")


def _size_and_sha256(path: Path) -> list[Any]:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; restore it from a copy, or delete the checkpoint")
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return [path.stat().st_size, digest.hexdigest()]


def _write_whole(path: Path, text: str) -> None:
    """Writes a small file so that it is there whole or not at all."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def _first_difference(stored: list[dict[str, Any]], asked: list[dict[str, Any]]) -> str:
    if [table.get("name") for table in stored] != [table["name"] for table in asked]:
        return (
            f"tables {[table.get('name') for table in stored]} are stored, {[table['name'] for table in asked]} asked"
        )
    for old, new in zip(stored, asked, strict=True):
        for key in new:
            if old.get(key) != new[key]:
                return f"{key} of table {old['name']!r} is stored as {old.get(key)}, asked as {new[key]}"
    return "they differ"
