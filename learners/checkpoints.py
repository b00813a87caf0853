"""The learner's checkpoints: written atomically, verified before use; the latest ones and the best one are kept."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from rlds2reverb.errors import CheckpointError, CorruptFileError
from rlds2reverb.system.full_disk import full_disk_as_error
from rlds2reverb.system.sealed_files import SealedFolders, read_manifest
from rlds2reverb.types.arguments import require_count

_LOG = logging.getLogger(__name__)
_PREFIX = "state"
_FOLDER = "checkpoints"
_REPLAY = "replay"


class Replay(Protocol):
    """Data that are saved in the learner's checkpoints, such as a `ReplayServer`, `ReplayBuffer` or `BufferManager`.

    If an object has the attribute `may_be_missing` and it is true, checkpoints without such data can be loaded as well.
    """

    def save_data(self, folder: Path) -> Any:
        """Writes all data into a new folder."""

    def load_data(self, folder: Path) -> Any:
        """Replaces all data by those that `save_data` wrote into a folder."""


def require_replay(replay: Any) -> None:
    """Raises `TypeError` unless an object is None, or can save and load its data."""
    if replay is not None and not all(callable(getattr(replay, name, None)) for name in ("save_data", "load_data")):
        raise TypeError(
            "replay must have the methods save_data(folder) and load_data(folder), like ReplayServer and "
            f"ReplayBuffer, got a {type(replay).__name__}"
        )


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
      path: its directory.
      step: number of completed iterations.
      manifest: plain values that were saved with it.
    """

    path: Path
    step: int
    manifest: dict[str, Any] = field(repr=False)

    def read(self, trackables: Mapping[str, Any]) -> None:
        """Restores objects, by the names under which they were saved.

        Raises:
          CheckpointError: If the checkpoint does not contain all of them because it belongs to a different agent.
        """
        try:
            status = tf.train.Checkpoint(**trackables).read(str(self.path / _PREFIX))
            status.expect_partial()  # Otherwise TensorFlow would warn about each value that is not used.
            status.assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:
            raise CheckpointError(
                f"{self.path} belongs to a different agent ({str(error).splitlines()[0]}); use a new directory"
            ) from error

    def load_replay(self, replay: Replay) -> None:
        """Replaces the data of `replay` by those that were saved with the checkpoint.

        Raises:
          CheckpointError: If the checkpoint has none, unless the data may be missing.
        """
        folder = self.path / _REPLAY
        if folder.is_dir():
            replay.load_data(folder)
        elif not getattr(replay, "may_be_missing", False):
            raise CheckpointError(f"{self.path} was saved without replay data; start a new run, or omit replay=")


class Checkpoints:
    """The checkpoints of one run: sealed folders named by their iteration, with TensorFlow's files inside."""

    def __init__(
        self, root: Path, trackables: Mapping[str, Any], *, keep_checkpoints: int = 3, replay: Replay | None = None
    ):
        """Opens the root directory and removes what a killed process left unfinished.

        Args:
          root: directory of the checkpoints, created if missing.
          trackables: objects that TensorFlow saves and restores (agents, dataset iterators, variables), by name.
          keep_checkpoints: number of recent checkpoints to keep, at least 1; the best one is kept in addition.
          replay: data to save in the folder of each checkpoint, or None.
        """
        require_count("keep_checkpoints", keep_checkpoints)
        self._num_kept, self._trackables, self._replay = keep_checkpoints, dict(trackables), replay
        self._state = tf.train.Checkpoint(**trackables)
        self._folders = SealedFolders(Path(root))
        self._best: int | None = None

    def save(self, step: int, manifest: Mapping[str, Any], *, is_best: bool = False) -> Checkpoint:
        """Writes a checkpoint, and deletes those that are no longer kept, including those of later iterations.

        Args:
          step: number of completed iterations.
          manifest: plain values to save with it.
          is_best: whether it is the best up to now; the best is kept until a better one is saved.

        Raises:
          CheckpointError: If a weight is not finite; nothing is written.
          StorageFullError: If the disk is full; earlier checkpoints are kept.
        """
        for variable in tf.train.TrackableView(self._state).descendants():
            is_float = isinstance(variable, tf.Variable) and variable.dtype.is_floating
            if is_float and not np.isfinite(variable.numpy()).all():
                raise CheckpointError(
                    f"the checkpoint at iteration {step} was not written: {variable.name} is not finite"
                )
        best = step if is_best else self._best
        content = {**manifest, "step": step, "best": best}

        def fill(folder: Path) -> Mapping[str, Any]:
            self._state.write(str(folder / _PREFIX))
            if self._replay is not None:
                self._replay.save_data(folder / _REPLAY)
            return content

        path = self._folders.write(step, fill)
        self._best = best
        steps = self._folders.numbers()
        kept = {*[earlier for earlier in steps if earlier <= step][-self._num_kept :], best}
        self._folders.delete({*steps} - kept)
        return Checkpoint(path, step, content)

    def open(self, path: str | Path | None = None) -> Checkpoint | None:
        """Returns the newest valid checkpoint or None, or the one at `path`. `restore` loads it.

        Raises:
          CheckpointError: If the checkpoint at `path` is missing or damaged, or all checkpoints are damaged.
        """
        return _verify(Path(path)) if path is not None else _open_newest(self._folders.root)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restores the trackables from a checkpoint, and which one was the best then; raises as `Checkpoint.read`."""
        checkpoint.read(self._trackables)
        is_own = checkpoint.path.resolve().parent == self._folders.root.resolve()
        self._best = checkpoint.manifest.get("best") if is_own else None

    @contextmanager
    def restore_temporarily(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Restores the trackables from a checkpoint for the duration of the context, and then their current values."""
        current = self._folders.root / "current.partial"
        with full_disk_as_error(current):
            current.mkdir(exist_ok=True)
            self._state.write(str(current / _PREFIX))
        try:
            checkpoint.read(self._trackables)
            yield
        finally:
            self._state.read(str(current / _PREFIX))
            shutil.rmtree(current, ignore_errors=True)

    def best(self) -> Checkpoint | None:
        """Returns the best checkpoint, or None if it is missing or damaged; damage is logged."""
        try:
            return None if self._best is None else _verify(self._folders.path(self._best))
        except CheckpointError as error:
            _LOG.warning("the best checkpoint is lost: %s", error)
            return None

    def forget_best(self) -> None:
        """Treats the best checkpoint like any other, because later evaluations are not comparable to its own."""
        self._best = None


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Returns the checkpoint at a path, or the newest valid one of the run directory at that path.

    Raises:
      CheckpointError: If it is missing or damaged.
    """
    path = Path(path)
    if not (path / _FOLDER).is_dir():
        return _verify(path)
    checkpoint = _open_newest(path / _FOLDER)
    if checkpoint is None:
        raise CheckpointError(f"{path} has no checkpoint; pass a run_dir with one, or the path of a checkpoint")
    return checkpoint


def _open_newest(root: Path) -> Checkpoint | None:
    """Returns the newest valid checkpoint in a directory, or None; changes nothing there."""
    paths = sorted(path for path in root.iterdir() if path.name.isdigit())
    for path in reversed(paths):
        try:
            return _verify(path)
        except CheckpointError as error:
            _LOG.warning("%s; the previous checkpoint is used", error)
    if paths:
        raise CheckpointError(f"all {len(paths)} checkpoints in {root} are damaged; delete them to start from scratch")
    return None


def _verify(path: Path) -> Checkpoint:
    """Returns the checkpoint at a path if its files match their checksums; raises `CheckpointError` otherwise."""
    try:
        manifest = read_manifest(path)
    except CorruptFileError as error:
        raise CheckpointError(f"{path} is not a valid checkpoint: {error}") from error
    return Checkpoint(path, manifest["step"], manifest)
