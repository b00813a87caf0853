"""The checkpoint root: a directory that we make, own and check, with Reverb's checkpoints inside."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import reverb

from rlds2reverb import _sealed_json as sealed_json
from rlds2reverb._encoding import tfrecords
from rlds2reverb._internals.reverb import PriorityTableCheckpoint
from rlds2reverb.errors import CheckpointError
from rlds2reverb.specs import Nest
from rlds2reverb.tables import TableConfig

from .checkpoint_contents import require_consistent

_CHECKPOINT_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d[:.\d+\-Z]*")
_OWN_ENTRIES = {
    "rlds2reverb.json",
    "rlds2reverb.tmp",
    "rlds2reverb.lock",
    "checkpoints",
    "manifests",
    "previous",
    "passed_over",
}
_FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord")


def require_plain(path: Path) -> None:
    """Raises `CheckpointError` if Reverb, which takes the path of a checkpoint for a pattern, would not find it."""
    odd = sorted(set("*?[]\\") & set(str(path.absolute())))
    if odd:
        raise CheckpointError(
            f"{path.absolute()} has {' '.join(odd)} in it, which Reverb takes for a pattern, so that it would not find "
            "a checkpoint there; give another directory"
        )


def link_or_copy(path: Path, new: Path, *, symlink: bool = False) -> None:
    """Gives a file a second name; on another file system, makes a symbolic link or a copy."""
    try:
        os.link(path, new)
    except OSError:
        if symlink:
            new.symlink_to(path)
        else:
            shutil.copyfile(path, new)


def table_records(configs: Sequence[TableConfig], signature: Nest) -> list[Any]:
    """Returns what Reverb itself writes about tables into a checkpoint: a `PriorityTableCheckpoint` for each."""
    tables = [config.build(signature) for config in configs]
    with tempfile.TemporaryDirectory(prefix="rlds2reverb-") as folder:
        server = reverb.Server(tables, port=None, checkpointer=reverb.checkpointers.DefaultCheckpointer(folder))
        try:
            path = Path(server.localhost_client().checkpoint()) / "tables.tfrecord"
            path.write_bytes(zlib.decompress(path.read_bytes()))
            return [PriorityTableCheckpoint.FromString(record) for record in tfrecords.read(path)]
        finally:
            server.stop()


class CheckpointRoot:
    """A directory that we made and own: Reverb's checkpoints, and what they are checked with.

    `rlds2reverb.json` holds the tables' configuration, `checkpoints/` is Reverb's own root, `manifests/` has size and
    sha256 of each file of each checkpoint. Reverb deletes what it finds in its root, so that a directory with foreign
    entries is refused. `previous/` holds the checkpoint before the newest, which Reverb deletes from its own root, and
    `passed_over/` damaged checkpoints that a server did not start from: nobody but the user deletes these.
    """

    def __init__(self, path: Path, *, make: bool = True):
        """Opens the root, or makes it.

        Args:
          path: the root's.
          make: whether to make what is missing; otherwise nothing is changed.

        Raises:
          CheckpointError: if the directory holds anything that is not ours, or Reverb would not find it.
        """
        if make:
            require_plain(path)
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._manifests = path / "manifests"
        self._previous = path / "previous"
        self._passed_over = path / "passed_over"
        self._config = path / "rlds2reverb.json"
        if path.exists():
            foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in _OWN_ENTRIES)
            if foreign:
                raise CheckpointError(
                    f"{path} is not a checkpoint root of ours ({', '.join(foreign[:3])}); give a new directory"
                )
        if make:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._manifests.mkdir(exist_ok=True)
        if self.checkpoints.is_dir():
            self.require_own()

    def require_own(self) -> None:
        """Raises `CheckpointError` if something foreign lies where Reverb would delete it."""
        for entry in self.checkpoints.iterdir():
            if not _CHECKPOINT_NAME.fullmatch(entry.name) or not entry.is_dir():
                raise CheckpointError(f"{entry} is not a checkpoint; move it away, or Reverb may delete things")

    def require_tables(self, configs: Sequence[TableConfig]) -> None:
        """Notes the tables' configuration, or compares it with the one that the checkpoints were made with."""
        stored = self.tables()
        if stored is None or self.latest() is None:
            whole = [replace(config, max_size=config.capacity).as_dict() for config in configs]
            sealed_json.save(self._config, {"tables": whole})
            return
        if len(stored) == len(configs):  # a table without a size takes the stored one
            configs = [
                replace(config, max_size=old.max_size) if config.max_size is None else config
                for config, old in zip(configs, stored, strict=True)
            ]
        if stored != list(configs):
            raise CheckpointError(
                f"{self.path} was made with other tables, and a restored table keeps its configuration: "
                f"{_first_difference(stored, configs)}; ask for the stored one, or give a new directory"
            )

    def tables(self) -> list[TableConfig] | None:
        """Returns the tables that the checkpoints were made with, or None if there are no checkpoints.

        Raises:
          CheckpointError: if the file that says so is damaged.
        """
        stored = _load(self._config)
        if stored is None:
            return None
        return [TableConfig.from_dict(values) for values in stored["tables"]]

    def begin_like(self, other: CheckpointRoot) -> None:
        """Takes over the newest checkpoint of another root, by links: neither of the two changes the other."""
        checkpoint = other.latest()
        if checkpoint is None:
            raise CheckpointError(f"{other.path} holds no checkpoint; write it again")
        copy = self.checkpoints / checkpoint.name
        copy.mkdir()
        for name in (*_FILES, "DONE"):
            link_or_copy((checkpoint / name).resolve(), copy / name, symlink=True)
        for path in (other._config, other._manifest_of(checkpoint)):
            if path.is_file():
                (self.path / path.relative_to(other.path)).write_bytes(path.read_bytes())

    def latest(self) -> Path | None:
        """Returns the newest complete checkpoint, which Reverb starts from; the newest of all if none is complete.

        Reverb deletes older ones when a new one is complete: what is newer and not complete was cut off.
        """
        found = list(self.checkpoints.iterdir()) if self.checkpoints.is_dir() else []
        return max([path for path in found if (path / "DONE").is_file()] or found, default=None)

    def keep_newest(self) -> None:
        """Gives the newest complete checkpoint a second name in `previous/`, and deletes the one that was there.

        Reverb deletes it from its own root as soon as it has written the next. The second name is made of hard links;
        where the file system has none, no earlier checkpoint is kept.
        """
        newest = self.latest()
        if newest is None or not (newest / "DONE").is_file():
            return
        kept = self._previous / newest.name
        if not (kept / "DONE").is_file():
            shutil.rmtree(kept, ignore_errors=True)
            try:
                kept.mkdir(parents=True)
                for name in (*_FILES, "DONE"):
                    os.link(newest / name, kept / name)
            except OSError:
                shutil.rmtree(kept, ignore_errors=True)
                return
        for other in list(self._previous.iterdir()):
            if other.name != kept.name:
                shutil.rmtree(other)

    def choose_newest_good(self, *, fall_back: bool) -> str | None:
        """Has Reverb start from the newest good checkpoint, and writes its manifest if that is missing or damaged.

        A checkpoint is good if its files agree with its manifest, or, without one, if they can be read from end to end
        and agree with each other (`require_consistent`): so it is where a process was killed right after Reverb had
        written it, or a client had asked Reverb for it. Reverb loads the newest one in its root: damaged ones are moved
        to `passed_over/`, and the one before takes its place. One that was cut off while it was written stays: Reverb
        ignores it, and deletes it later. If no checkpoint is good, nothing is changed.

        Args:
          fall_back: whether the one before may be taken in place of a damaged one.

        Returns:
          A sentence that names what was passed over; None if it is nothing.

        Raises:
          CheckpointError: if none is good, or the newest is not and `fall_back` is false; it says what is wrong.
        """
        cut_off = [f"{path} was cut off while it was written" for path in self._cut_off()]
        damaged: dict[Path, CheckpointError] = {}
        for chosen in self._candidates():
            try:
                has_manifest = self._require_good(chosen)
                break
            except CheckpointError as error:
                if not fall_back:
                    raise
                damaged[chosen] = error
        else:
            if damaged:
                raise next(iter(damaged.values()))
            return f"{'; '.join(cut_off)}; there is no other, and the tables start empty" if cut_off else None
        for path in damaged:
            if path.parent == self.checkpoints:
                self._move(path, self._passed_over)
        if chosen.parent == self._previous:
            chosen = self._move(chosen, self.checkpoints)
        if not has_manifest:
            self.write_manifest(chosen)
        passed_over = [f"{error} (it is in {self._passed_over} now)" for error in damaged.values()]
        return f"{'; '.join(passed_over + cut_off)}; started from {chosen}" if passed_over or cut_off else None

    def _candidates(self) -> list[Path]:
        """Returns checkpoints that are or were complete, the newest first, each once."""
        kept = list(self._previous.iterdir()) if self._previous.is_dir() else []
        found = {path.name: path for path in kept if (path / "DONE").is_file()}
        found.update({path.name: path for path in self.checkpoints.iterdir() if path not in self._cut_off()})
        return [found[name] for name in sorted(found, reverse=True)]

    def _cut_off(self) -> list[Path]:
        """Returns checkpoints that never were complete: a manifest is only written of those that are."""
        found = [path for path in self.checkpoints.iterdir() if not (path / "DONE").is_file()]
        return sorted(path for path in found if not self._manifest_of(path).is_file())

    def _require_good(self, checkpoint: Path) -> bool:
        """Raises `CheckpointError` if a checkpoint is damaged, and returns whether it has a manifest."""
        found = _digests(checkpoint)
        try:
            manifest = sealed_json.load(self._manifest_of(checkpoint))
        except sealed_json.CorruptFileError:
            manifest = None
        if manifest is None:
            require_consistent(checkpoint)
        else:
            _require_equal(checkpoint, found, manifest["files"])
        return manifest is not None

    def _move(self, checkpoint: Path, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        target = folder / checkpoint.name
        while target.exists():
            target = target.with_name(f"{target.name}+")
        os.rename(checkpoint, target)
        sealed_json.sync(checkpoint.parent)
        sealed_json.sync(folder)
        return target

    def delete_cut_off(self) -> None:
        """Deletes checkpoints that are not complete, when no server writes one."""
        for path in list(self.checkpoints.iterdir()):
            if not (path / "DONE").is_file():
                shutil.rmtree(path)

    def write_manifest(
        self,
        checkpoint: Path,
        *,
        data: dict[str, Any] | None = None,
        known: dict[str, list[Any]] | None = None,
    ) -> None:
        """Notes size and sha256 of each file of a complete checkpoint, and forgets those that are gone.

        Args:
          checkpoint: directory in `checkpoints`.
          data: more to note, such as what was converted.
          known: size and sha256 of files for which the caller has them.

        Raises:
          CheckpointError: if the checkpoint is not there, not ours, or not complete.
        """
        if checkpoint.parent.resolve() != self.checkpoints.resolve() or not (checkpoint / "DONE").is_file():
            raise CheckpointError(f"Reverb reports a checkpoint at {checkpoint}, but none is complete there")
        known = known or {}
        files = {name: known.get(name) or _size_and_sha256(checkpoint / name) for name in _FILES}
        sealed_json.save(self._manifest_of(checkpoint), {"files": files, "data": data or {}})
        folders = (self.checkpoints, self._previous, self._passed_over)
        for manifest in list(self._manifests.iterdir()):
            if not any((folder / manifest.stem).is_dir() for folder in folders):
                manifest.unlink()

    def described(self) -> dict[str, Any]:
        """Returns what the manifest of the newest checkpoint says about its data; empty if a server wrote it."""
        checkpoint = self.latest()
        manifest = _load(self._manifest_of(checkpoint)) if checkpoint else None
        return dict(manifest["data"]) if manifest else {}

    def _manifest_of(self, checkpoint: Path) -> Path:
        return self._manifests / f"{checkpoint.name}.json"

    def verify_latest(self, *, manifest_too: bool = True) -> None:
        """Checks whether the newest checkpoint is complete, and compares it with its manifest.

        Raises:
          CheckpointError: naming the first file that is missing, empty, or differs.
        """
        checkpoint = self.latest()
        if checkpoint is None:
            return
        found = _digests(checkpoint)
        if not manifest_too:
            return
        manifest = _load(self._manifest_of(checkpoint))
        if manifest is None:
            raise CheckpointError(
                f"{checkpoint} is complete but has no manifest {self._manifest_of(checkpoint).name}: it was lost; "
                "restore it from a copy, or start with verify=False (--no-verify)"
            )
        _require_equal(checkpoint, found, manifest["files"])


def _digests(checkpoint: Path) -> dict[str, list[Any]]:
    """Returns size and sha256 of each file of a checkpoint; raises `CheckpointError` if one is missing or empty."""
    if not (checkpoint / "DONE").is_file():
        raise CheckpointError(f"{checkpoint} has no DONE file: it was cut off while it was written; delete it")
    found = {name: _size_and_sha256(checkpoint / name) for name in _FILES}
    empty = [name for name, (size, _) in found.items() if not size]
    if empty:
        raise CheckpointError(f"{checkpoint / empty[0]} is damaged: it is empty; restore it from a copy")
    return found


def _require_equal(checkpoint: Path, found: dict[str, list[Any]], expected: dict[str, Any]) -> None:
    """Raises `CheckpointError` if a file is not as its manifest says."""
    for name in _FILES:
        if found[name] != expected.get(name):
            raise CheckpointError(
                f"{checkpoint / name} is damaged: its size and sha256 are {found[name]}, expected "
                f"{expected.get(name)}; restore it from a copy, or delete the checkpoint"
            )


def _load(path: Path) -> dict[str, Any] | None:
    try:
        return sealed_json.load(path)
    except sealed_json.CorruptFileError as error:
        raise CheckpointError(f"{error}; restore it from a copy, or give a new directory") from error


def _size_and_sha256(path: Path) -> list[Any]:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; restore it from a copy, or delete the checkpoint")
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return [path.stat().st_size, digest.hexdigest()]


def _first_difference(stored: Sequence[TableConfig], asked: Sequence[TableConfig]) -> str:
    if [table.name for table in stored] != [table.name for table in asked]:
        return f"tables {[table.name for table in stored]} are stored, {[table.name for table in asked]} asked"
    for old, new in zip(stored, asked, strict=True):
        for name in ("sampler", "remover", "max_size", "max_times_sampled", "rate_limiter"):
            if getattr(old, name) != getattr(new, name):
                return f"{name} of table {old.name!r} is stored as {getattr(old, name)}, asked as {getattr(new, name)}"
    return "they differ"
