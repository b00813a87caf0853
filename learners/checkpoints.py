"""The learner's checkpoints: there whole or not at all, checked before they are believed, the best one kept."""

from __future__ import annotations

import errno
import hashlib
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb import _sealed_json as sealed_json
from rlds2reverb._arguments import require_count
from rlds2reverb._full_disk import full_disk_as_error
from rlds2reverb.errors import CheckpointError, CorruptFileError, StorageFullError

_LOG = logging.getLogger(__name__)
_MANIFEST = "manifest.json"
_PREFIX = "state"
_PARTIAL, _REPLACED = ".partial", ".replaced"


@dataclass(frozen=True)
class Checkpoint:
    """One that is complete.

    Attributes:
      path: its directory.
      step: iterations that were done.
      manifest: what else was written with it: plain names and values.
    """

    path: Path
    step: int
    manifest: dict[str, Any] = field(repr=False)


class Checkpoints:
    """The checkpoints of a run, each a directory `<iterations>` with TensorFlow's files and a manifest.

    One is written under another name, synced and renamed, so that it is complete or not there, whenever the process is
    killed. The manifest has a checksum of each file: one that was damaged since is passed over, by name in the log.
    """

    def __init__(self, root: Path, trackables: dict[str, Any], *, keep: int = 3):
        """Nothing is written or read yet; what an earlier process left half-written is removed.

        Args:
          root: of the checkpoints; made if it is missing.
          trackables: what TensorFlow saves and restores, by name: agents, data set iterators, variables.
          keep: how many of the last ones are kept, at least 1; the best is kept besides.
        """
        require_count("keep", keep)
        self._root, self._keep = Path(root), keep
        self._state = tf.train.Checkpoint(**trackables)
        self._root.mkdir(parents=True, exist_ok=True)
        for replaced in self._root.glob(f"*{_REPLACED}"):  # killed between the two renames of `save`
            if not replaced.with_suffix("").exists():
                replaced.rename(replaced.with_suffix(""))
        self._remove_left()

    def save(self, step: int, manifest: dict[str, Any], *, is_best: bool = False) -> Checkpoint:
        """Writes a checkpoint, and removes those that are not kept, also those of later iterations.

        Args:
          step: iterations done.
          manifest: to be written with it.
          is_best: whether it is the best so far, which is kept until there is a better one.

        Raises:
          CheckpointError: if a weight is not finite; nothing is written then.
          StorageFullError: if the disk is full; the checkpoints before it are kept.
        """
        wrong = [each.name for each in _variables(self._state) if not np.isfinite(each.numpy()).all()]
        if wrong:
            raise CheckpointError(f"no checkpoint at iteration {step}: {wrong[0]} is not finite")
        name = f"{step:010d}"
        partial, path = self._root / f"{name}{_PARTIAL}", self._root / name
        best = step if is_best else self._best_step(step)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with full_disk_as_error(partial):
                self._write(partial, {**manifest, "step": step, "best": best})
        except StorageFullError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        if path.exists():  # the same iterations again: what was there goes first
            path.rename(path.with_suffix(_REPLACED))
        partial.rename(path)
        sealed_json.sync(self._root)
        self._remove_old(step, best)
        return Checkpoint(path, step, manifest)

    def _write(self, partial: Path, manifest: dict[str, Any]) -> None:
        partial.mkdir()
        try:
            self._state.write(str(partial / _PREFIX))
        except tf.errors.ResourceExhaustedError as error:  # TensorFlow's name for a full disk, among others
            if "No space left" not in error.message:
                raise
            raise OSError(errno.ENOSPC, error.message) from error
        files = {file.name: _digest(file) for file in sorted(partial.iterdir())}
        sealed_json.save(partial / _MANIFEST, {**manifest, "files": files})
        for file in partial.iterdir():
            sealed_json.sync(file)
        sealed_json.sync(partial)

    def opened(self, path: str | Path | None = None) -> Checkpoint | None:
        """Returns the newest good checkpoint, or the one at a path, for `restore`; None if there is none.

        Raises:
          CheckpointError: if the one at the path is not there or is damaged, or all are.
        """
        if path is not None:
            return _opened(Path(path))
        paths = self._paths()[::-1]
        for one in paths:
            try:
                return _opened(one)
            except CheckpointError as error:
                _LOG.warning("%s; the one before it is taken", error)
        if paths:
            raise CheckpointError(
                f"none of the {len(paths)} checkpoints in {self._root} is good; delete them to begin from scratch"
            )
        return None

    def restore(self, found: Checkpoint) -> None:
        """Gives the trackables the values that a checkpoint has.

        Raises:
          CheckpointError: if it lacks one of them, being of another agent.
        """
        try:
            self._state.read(str(found.path / _PREFIX)).assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:
            raise CheckpointError(
                f"{found.path} is of another agent ({str(error).splitlines()[0]}); give another run_dir"
            ) from error

    @contextmanager
    def restored(self, found: Checkpoint) -> Iterator[None]:
        """Gives the trackables the values of a checkpoint while the body runs, and then their own ones back."""
        now = self._root / f"now{_PARTIAL}"
        now.mkdir(exist_ok=True)
        self._state.write(str(now / _PREFIX))
        try:
            self.restore(found)
            yield
        finally:
            self._state.read(str(now / _PREFIX))
            shutil.rmtree(now, ignore_errors=True)

    def best(self) -> Checkpoint | None:
        """Returns the best checkpoint; None if there is none, or if it is damaged, which is said in the log."""
        step = self._best_step()
        try:
            return None if step is None else _opened(self._root / f"{step:010d}")
        except CheckpointError as error:
            _LOG.warning("the best one is lost: %s", error)
            return None

    def _paths(self) -> list[Path]:
        return sorted(self._root.glob("[0-9]" * 10))

    def _best_step(self, up_to: int | None = None) -> int | None:
        """Returns the step of the best one so far, or of that at a step, which every manifest names."""
        for path in reversed(self._paths()):
            if up_to is not None and int(path.name) > up_to:
                continue
            try:
                best: int | None = (sealed_json.load(path / _MANIFEST) or {}).get("best")
            except CorruptFileError:
                continue
            return best
        return None

    def _remove_old(self, step: int, best: int | None) -> None:
        """Keeps the last ones up to a step, and the best."""
        steps = [int(path.name) for path in self._paths()]
        kept = {*[each for each in steps if each <= step][-self._keep :], best}
        for each in steps:
            if each not in kept:
                shutil.rmtree(self._root / f"{each:010d}", ignore_errors=True)
        self._remove_left()

    def _remove_left(self) -> None:
        for ending in (_PARTIAL, _REPLACED):
            for left in self._root.glob(f"*{ending}"):
                shutil.rmtree(left, ignore_errors=True)


def _opened(path: Path) -> Checkpoint:
    """Returns a checkpoint whose files have their checksums; raises `CheckpointError` otherwise, naming the file."""
    try:
        manifest = sealed_json.load(path / _MANIFEST)
    except CorruptFileError as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    if manifest is None:
        raise CheckpointError(f"there is no checkpoint at {path}: {_MANIFEST} is missing")
    for name, digest in manifest["files"].items():
        file = path / name
        if not file.is_file() or _digest(file) != digest:
            what = "is not what was written" if file.is_file() else "is missing"
            raise CheckpointError(f"checkpoint {path} is damaged: {name} {what}")
    return Checkpoint(path, manifest["step"], manifest)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _variables(state: tf.train.Checkpoint) -> list[tf.Variable]:
    """Returns the floating variables that a checkpoint would have."""
    everything = tf.train.TrackableView(state).descendants()
    return [each for each in everything if isinstance(each, tf.Variable) and each.dtype.is_floating]
