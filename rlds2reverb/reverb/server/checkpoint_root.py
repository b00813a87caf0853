"""The checkpoint root: a directory with Reverb's checkpoints that rlds2reverb creates, owns and verifies."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rlds2reverb.errors import CheckpointError, CorruptFileError
from rlds2reverb.libraries.tensorflow_internals import encode_spec
from rlds2reverb.system.file_lock import FileLock
from rlds2reverb.system.sealed_files import file_digest, is_temporary, load_json, save_json, sync, verify_files
from rlds2reverb.types.specs import Nest
from rlds2reverb.types.tables import Selector, TableConfig, find_difference, list_options

from ..client.client_messages import PriorityTableCheckpoint
from .checkpoint_contents import FILES, require_readable

_CHECKPOINT_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d[:.\d+\-Z]*")
_CONFIG, _LOCK = "rlds2reverb.json", "rlds2reverb.lock"
_FOLDERS = ("checkpoints", "manifests", "previous", "set_aside")
_OWN_ENTRIES = {_CONFIG, _LOCK, *_FOLDERS}
_DONE = "DONE"


def require_no_pattern_characters(path: Path) -> None:
    """Raises `CheckpointError` if Reverb, which treats a checkpoint's path as a glob pattern, would not find it."""
    special = sorted(set("*?[]\\") & set(str(path.absolute())))
    if special:
        raise CheckpointError(
            f"{path.absolute()} must not contain {' '.join(special)}: Reverb treats the path as a pattern and would "
            "not find a checkpoint there; use another directory"
        )


def link_or_copy(path: Path, new: Path, *, symlink: bool = False) -> None:
    """Creates a hard link to a file or, on a different file system, a symbolic link or a copy."""
    try:
        os.link(path, new)
    except OSError:
        if symlink:
            new.symlink_to(path)
        else:
            shutil.copyfile(path, new)


def table_records(tables: Sequence[TableConfig], signature: Nest) -> list[Any]:
    """Returns the `PriorityTableCheckpoint` message that Reverb writes for each table while it is empty."""
    return [
        PriorityTableCheckpoint(
            table_name=table.name,
            max_size=table.capacity,
            max_times_sampled=table.max_times_sampled,
            rate_limiter=table.rate_limiter.as_reverb_values(),
            sampler=_selector_options(table.sampler),
            remover=_selector_options(table.remover),
            signature=encode_spec(signature),
        )
        for table in tables
    ]


def _selector_options(selector: Selector) -> dict[str, Any]:
    """Returns the fields of Reverb's message `KeyDistributionOptions`."""
    if selector.kind == "prioritized":
        return {"prioritized": {"priority_exponent": selector.exponent}}
    is_heap = selector.kind in ("min_heap", "max_heap")
    options: dict[str, Any] = {"heap": {"min_heap": selector.kind == "min_heap"}} if is_heap else {selector.kind: True}
    return {**options, "is_deterministic": selector.kind != "uniform"}


class CheckpointRoot:
    """A directory with Reverb's checkpoints and the manifests that they are verified with.

    `rlds2reverb.json` holds the table configurations, `checkpoints/` is Reverb's own root, and `manifests/` has the
    checksum of each file of each checkpoint. Reverb deletes everything else from its root, so a directory with foreign
    entries is rejected. `previous/` holds the checkpoint before the newest, which Reverb deletes from its own root; it
    is always older than those in `checkpoints/`, whatever its name is, since the clock may have been set back.
    `set_aside/` holds damaged checkpoints that a server did not start from; only the user deletes them.
    """

    def __init__(self, path: Path, *, create: bool = True):
        """Opens the root; with `create`, also creates missing directories.

        Raises:
          CheckpointError: If the directory holds foreign entries, or Reverb would not find it.
        """
        if create:
            require_no_pattern_characters(path)
        self.path, self._config = path, path / _CONFIG
        self.checkpoints, self._manifests, self._previous, self._set_aside = (path / name for name in _FOLDERS)
        names = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
        foreign = [name for name in names if name not in _OWN_ENTRIES and not is_temporary(name)]
        if foreign:
            raise CheckpointError(
                f"{path} is not a checkpoint root (it holds {', '.join(foreign[:3])}); use a new directory"
            )
        if create:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._manifests.mkdir(exist_ok=True)
        self.require_no_foreign_entries()

    def lock(self) -> FileLock:
        """Returns the lock that a server holds while it uses the root."""
        return FileLock(self.path / _LOCK, str(self.path))

    def require_no_foreign_entries(self) -> None:
        """Raises `CheckpointError` for a foreign entry in Reverb's root, where Reverb would delete it."""
        for entry in _list(self.checkpoints):
            if not _CHECKPOINT_NAME.fullmatch(entry.name) or not entry.is_dir():
                raise CheckpointError(f"{entry} is not a checkpoint; move it away, or Reverb may delete it")

    def store_or_require_tables(self, tables: Sequence[TableConfig]) -> None:
        """Stores the table configurations or, if there is a checkpoint, requires that they match the stored ones.

        Raises:
          CheckpointError: If a configuration differs.
        """
        stored = self.tables()
        if stored is None or self.latest() is None:
            save_json(self._config, {"tables": [replace(table, max_size=table.capacity).as_dict() for table in tables]})
            return
        if len(stored) == len(tables):  # A table without a size takes the stored one.
            tables = [
                replace(table, max_size=old.max_size) if table.max_size is None else table
                for table, old in zip(tables, stored, strict=True)
            ]
        if stored != list(tables):
            argument, difference = find_difference(list_options(stored), list_options(tables))
            raise CheckpointError(
                f"{self.path} was written with different tables, and a restored table keeps its configuration: "
                f"{difference}; use a new directory, or the stored configuration",
                **{argument: ...},
            )

    def tables(self) -> list[TableConfig] | None:
        """Returns the tables that the checkpoints were written with, or None if there are no checkpoints.

        Raises:
          CheckpointError: If the file with the configurations is damaged.
        """
        stored = load_root_file(self._config)
        return None if stored is None else [TableConfig.from_dict(values) for values in stored["tables"]]

    def start_from(self, other: CheckpointRoot, *, symlink: bool = True) -> Path:
        """Links the newest checkpoint of a second root into this one, as its newest, and returns its path.

        Later changes of one root do not affect the other.

        Args:
          other: the other root.
          symlink: whether files on a different file system may be linked symbolically instead of copied.

        Raises:
          CheckpointError: If the other root has no checkpoint.
        """
        checkpoint = other.latest()
        if checkpoint is None:
            raise CheckpointError(f"{other.path} has no checkpoint; write it again")
        self.retire_future_names()
        newest = self.latest()
        is_newer = newest is None or checkpoint.name > newest.name
        copy = self.checkpoints / (checkpoint.name if is_newer else datetime.now(timezone.utc).isoformat())
        copy.mkdir()
        for name in (*FILES, _DONE):
            link_or_copy((checkpoint / name).resolve(), copy / name, symlink=symlink)
        sources, targets = (other._config, other._manifest_path(checkpoint)), (self._config, self._manifest_path(copy))
        for source, target in zip(sources, targets, strict=True):
            if source.is_file():
                shutil.copyfile(source, target)
        return copy

    def latest(self) -> Path | None:
        """Returns the newest complete checkpoint, which Reverb starts from, or the newest one if none is complete.

        Reverb deletes older checkpoints once a new one is complete, so a newer incomplete one was interrupted.
        """
        paths = _list(self.checkpoints)
        return max([path for path in paths if _is_complete(path)] or paths, default=None)

    def retire_future_names(self, *, keep: bool = True) -> None:
        """Removes checkpoints whose names are in the future, because the clock was set back, from Reverb's root.

        Reverb names a checkpoint by the current time, and then deletes all but the one with the latest name, which
        would be an earlier one. Must be called before a checkpoint is written.

        Args:
          keep: whether to move them to `previous/`, replacing the one that is there, instead of deleting them.
        """
        now = datetime.now(timezone.utc).isoformat()
        for path in (path for path in _list(self.checkpoints) if path.name >= now):
            if keep and _is_complete(path):
                shutil.rmtree(self._previous, ignore_errors=True)
                self._move(path, self._previous)
            else:
                shutil.rmtree(path)

    def keep_newest(self) -> None:
        """Hard-links the newest complete checkpoint into `previous/`, replacing the one that was there.

        Reverb deletes it from its own root as soon as the next one is written. On a file system without hard links, no
        earlier checkpoint is kept.
        """
        newest = self.latest()
        if newest is None or not _is_complete(newest):
            return
        kept = self._previous / newest.name
        if not _is_complete(kept):
            shutil.rmtree(kept, ignore_errors=True)
            try:
                kept.mkdir(parents=True)
                for name in (*FILES, _DONE):
                    os.link(newest / name, kept / name)
            except OSError:
                shutil.rmtree(kept, ignore_errors=True)
                return
        for other in _list(self._previous):
            if other.name != kept.name:
                shutil.rmtree(other)

    def choose_newest_valid(self) -> str | None:
        """Makes Reverb start from the newest valid checkpoint, and writes its manifest if missing or damaged.

        A checkpoint is valid if its files match its manifest or, without one, if they can be read from end to end: a
        process may have been killed right after Reverb had written the checkpoint, or a client may have requested it
        from Reverb. Reverb loads the newest checkpoint in its root, so
        damaged ones are moved to `set_aside/` and the previous one takes their place. An interrupted one stays: Reverb
        ignores it and deletes it later. If no checkpoint is valid, nothing is changed.

        Returns:
          A sentence that names the checkpoints that were skipped, or None.

        Raises:
          CheckpointError: If no checkpoint is valid.
        """
        interrupted = [f"{path} was interrupted while it was written" for path in self._find_interrupted()]
        damaged: dict[Path, CheckpointError] = {}
        for chosen in self._find_candidates():
            try:
                has_manifest = self._verify(chosen)
                break
            except CheckpointError as error:
                damaged[chosen] = error
        else:
            if damaged:
                raise next(iter(damaged.values()))
            return f"{'; '.join(interrupted)}; there is no other, so the tables start empty" if interrupted else None
        for path in damaged:
            if path.parent == self.checkpoints:
                self._move(path, self._set_aside)
        if chosen.parent == self._previous:
            chosen = self._move(chosen, self.checkpoints)
        if not has_manifest:
            self.write_manifest(chosen)
        skipped = [f"{error} (moved to {self._set_aside})" for error in damaged.values()] + interrupted
        return f"{'; '.join(skipped)}; started from {chosen}" if skipped else None

    def _find_candidates(self) -> list[Path]:
        """Returns the checkpoints of both folders that are or once were complete, without duplicates, newest first."""
        interrupted = self._find_interrupted()
        own = [path for path in _list(self.checkpoints)[::-1] if path not in interrupted]
        names = {path.name for path in own}
        return own + [path for path in _list(self._previous)[::-1] if _is_complete(path) and path.name not in names]

    def _find_interrupted(self) -> list[Path]:
        """Returns the checkpoints that were never complete, and thus have no manifest."""
        paths = _list(self.checkpoints)
        return [path for path in paths if not _is_complete(path) and not self._manifest_path(path).is_file()]

    def _verify(self, checkpoint: Path) -> bool:
        """Raises `CheckpointError` if a checkpoint is damaged, and returns whether it has a manifest."""
        _require_complete(checkpoint)
        try:
            manifest = load_json(self._manifest_path(checkpoint))
        except CorruptFileError:
            manifest = None
        if manifest is None:
            require_readable(checkpoint)
            return False
        try:
            verify_files(checkpoint, manifest["files"])
        except CorruptFileError as error:
            raise CheckpointError(f"{error}; restore it from a copy, or delete the checkpoint") from error
        return True

    def _move(self, checkpoint: Path, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        target = folder / checkpoint.name
        while target.exists():
            target = target.with_name(f"{target.name}+")
        os.rename(checkpoint, target)
        sync(checkpoint.parent)
        sync(folder)
        return target

    def verify(self, name: str) -> None:
        """Raises `CheckpointError` if the checkpoint with that name is missing or damaged."""
        paths = [path for folder in (self.checkpoints, self._previous) if (path := folder / name).is_dir()]
        if not paths:
            raise CheckpointError(f"{self.checkpoints / name} is missing")
        self._verify(paths[0])

    def return_to(self, name: str | None) -> list[Path]:
        """Moves the checkpoints that are newer than one of that name, or all for None, to `set_aside/`.

        Returns:
          Their new paths.
        """
        newest_first = _list(self.checkpoints)[::-1] + _list(self._previous)[::-1]
        newer = list(itertools.takewhile(lambda path: path.name != name, newest_first))
        return [self._move(path, self._set_aside) for path in reversed(newer)]

    def delete_interrupted(self) -> None:
        """Deletes incomplete checkpoints. Must not be called while a server writes one."""
        for path in _list(self.checkpoints):
            if not _is_complete(path):
                shutil.rmtree(path)

    def delete_all(self) -> None:
        """Deletes all checkpoints. Must not be called while a server writes one."""
        for path in _list(self.checkpoints) + _list(self._previous):
            shutil.rmtree(path)

    def write_manifest(
        self, checkpoint: Path, *, data: Mapping[str, Any] | None = None, digests: Mapping[str, str] | None = None
    ) -> None:
        """Records the checksum of each file of a complete checkpoint, and deletes manifests without a checkpoint.

        Args:
          checkpoint: directory in `checkpoints`.
          data: further values to record, such as a description of the converted data.
          digests: checksums that are already known, by file name.

        Raises:
          CheckpointError: If the checkpoint is not in this root, or not complete.
        """
        if checkpoint.parent.resolve() != self.checkpoints.resolve() or not _is_complete(checkpoint):
            raise CheckpointError(f"Reverb reported a checkpoint at {checkpoint}, but there is no complete one")
        digests = digests or {}
        files = {name: digests.get(name) or file_digest(checkpoint / name) for name in FILES}
        save_json(self._manifest_path(checkpoint), {"files": files, "data": data or {}})
        folders = (self.checkpoints, self._previous, self._set_aside)
        for manifest in _list(self._manifests):
            if not any((folder / manifest.stem).is_dir() for folder in folders):
                manifest.unlink()

    def data(self) -> dict[str, Any]:
        """Returns the `data` in the manifest of the newest checkpoint; empty if a server wrote the checkpoint."""
        checkpoint = self.latest()
        manifest = load_root_file(self._manifest_path(checkpoint)) if checkpoint else None
        return dict(manifest["data"]) if manifest else {}

    def _manifest_path(self, checkpoint: Path) -> Path:
        return self._manifests / f"{checkpoint.name}.json"

    def verify_latest(self, *, against_manifest: bool = True) -> None:
        """Checks that the newest checkpoint is complete and, by default, that it matches its manifest.

        Raises:
          CheckpointError: Naming the first file that is missing or damaged.
        """
        checkpoint = self.latest()
        if checkpoint is None:
            return
        _require_complete(checkpoint)
        if against_manifest and not self._verify(checkpoint):
            raise CheckpointError(
                f"{checkpoint} is complete, but its manifest {self._manifest_path(checkpoint).name} is missing or "
                "damaged; restore it from a copy, or start without verification",
                verify=False,
            )


def _list(folder: Path) -> list[Path]:
    """Returns the entries of a folder by name; none if it is missing."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _is_complete(checkpoint: Path) -> bool:
    """Returns whether Reverb finished writing a checkpoint."""
    return (checkpoint / _DONE).is_file()


def _require_complete(checkpoint: Path) -> None:
    """Raises `CheckpointError` if a checkpoint was interrupted, or a file is missing or empty."""
    if not _is_complete(checkpoint):
        raise CheckpointError(f"{checkpoint} has no {_DONE} file: it was interrupted while it was written; delete it")
    for path in (checkpoint / name for name in FILES):
        if not path.is_file() or not path.stat().st_size:
            damage = "damaged: it is empty" if path.is_file() else "missing"
            raise CheckpointError(f"{path} is {damage}; restore it from a copy, or delete the checkpoint")


def load_root_file(path: Path) -> dict[str, Any] | None:
    """Returns the content of a sealed file of a server's directory, or None.

    Raises:
      CheckpointError: If it is damaged.
    """
    try:
        return load_json(path)
    except CorruptFileError as error:
        raise CheckpointError(f"{error}; restore it from a copy, or use a new directory") from error
