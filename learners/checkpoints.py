"""The learner's checkpoints: written atomically, verified before use; the latest ones and the best one are kept."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb._arguments import require_count
from rlds2reverb._sealed_files import MANIFEST, SealedFolders, load_json, read_manifest
from rlds2reverb.errors import CheckpointError, CorruptFileError

_LOG = logging.getLogger(__name__)
_PREFIX = "state"


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


class Checkpoints:
    """The checkpoints of one run: sealed folders named by their iteration, with TensorFlow's files inside."""

    def __init__(self, root: Path, trackables: dict[str, Any], *, keep_checkpoints: int = 3):
        """Opens the root directory and removes what a killed process left unfinished.

        Args:
          root: directory of the checkpoints, created if missing.
          trackables: objects that TensorFlow saves and restores (agents, dataset iterators, variables), by name.
          keep_checkpoints: number of recent checkpoints to keep, at least 1; the best one is kept in addition.
        """
        require_count("keep_checkpoints", keep_checkpoints)
        self._num_kept = keep_checkpoints
        self._state = tf.train.Checkpoint(**trackables)
        self._folders = SealedFolders(Path(root))

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
        best = step if is_best else self._best_step(step)
        content = {**manifest, "step": step, "best": best}

        def fill(folder: Path) -> Mapping[str, Any]:
            self._write_state(folder)
            return content

        path = self._folders.write(step, fill)
        steps = self._folders.numbers()
        kept = {*[earlier for earlier in steps if earlier <= step][-self._num_kept :], best}
        self._folders.delete({*steps} - kept)
        return Checkpoint(path, step, content)

    def _write_state(self, folder: Path) -> None:
        try:
            self._state.write(str(folder / _PREFIX))
        except tf.errors.ResourceExhaustedError as error:  # TensorFlow uses it for a full disk, among other things.
            if "No space left" not in error.message:
                raise
            raise OSError(errno.ENOSPC, error.message) from error

    def open(self, path: str | Path | None = None) -> Checkpoint | None:
        """Returns the newest valid checkpoint or None, or the one at `path`. `restore` loads it.

        Raises:
          CheckpointError: If the checkpoint at `path` is missing or damaged, or all checkpoints are damaged.
        """
        if path is not None:
            return _verify(Path(path))
        steps = self._folders.numbers()
        for step in reversed(steps):
            try:
                return _verify(self._folders.path(step))
            except CheckpointError as error:
                _LOG.warning("%s; the previous checkpoint is used", error)
        if steps:
            raise CheckpointError(
                f"all {len(steps)} checkpoints in {self._folders.root} are damaged; delete them to start from scratch"
            )
        return None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restores the trackables from a checkpoint.

        Raises:
          CheckpointError: If the checkpoint does not contain all of them because it belongs to a different agent.
        """
        try:
            self._state.read(str(checkpoint.path / _PREFIX)).assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:
            raise CheckpointError(
                f"{checkpoint.path} belongs to a different agent ({str(error).splitlines()[0]}); use another run_dir"
            ) from error

    @contextmanager
    def restore_temporarily(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Restores the trackables from a checkpoint for the duration of the context, and then their current values."""
        current = self._folders.root / "current.partial"
        current.mkdir(exist_ok=True)
        self._state.write(str(current / _PREFIX))
        try:
            self.restore(checkpoint)
            yield
        finally:
            self._state.read(str(current / _PREFIX))
            shutil.rmtree(current, ignore_errors=True)

    def best(self) -> Checkpoint | None:
        """Returns the best checkpoint; None if there is none, or if it is damaged, which is logged."""
        step = self._best_step()
        try:
            return None if step is None else _verify(self._folders.path(step))
        except CheckpointError as error:
            _LOG.warning("the best checkpoint is lost: %s", error)
            return None

    def _best_step(self, up_to: int | None = None) -> int | None:
        """Returns the step of the best checkpoint, as the newest readable manifest (up to step `up_to`) names it."""
        for step in reversed(self._folders.numbers()):
            if up_to is not None and step > up_to:
                continue
            with suppress(CorruptFileError):
                best: int | None = (load_json(self._folders.path(step) / MANIFEST) or {}).get("best")
                return best
        return None


def _verify(path: Path) -> Checkpoint:
    """Returns the checkpoint at a path if its files match their checksums; raises `CheckpointError` otherwise."""
    try:
        manifest = read_manifest(path)
    except CorruptFileError as error:
        raise CheckpointError(f"{path} is not a valid checkpoint: {error}") from error
    return Checkpoint(path, manifest["step"], manifest)
