"""The checkpoints of one replay buffer: the newest two are kept, and each is verified when it is read."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb._file_lock import FileLock
from rlds2reverb._sealed_files import SealedFolders, read_manifest
from rlds2reverb.errors import CheckpointError, CorruptFileError
from rlds2reverb.specs import ArraySpec

from .snapshots import Snapshot

_PREFIX, _LOCK = "checkpoint-", "buffer.lock"
_NUM_KEPT = 2


class CheckpointFolder:
    """The directory with a buffer's checkpoints; one buffer at a time has it open.

    Each checkpoint is a sealed folder with one raw file per array; its manifest holds dtypes, shapes and plain values.
    A checkpoint of a manager's buffers has the states of all of them.
    """

    def __init__(self, path: Path):
        """Opens the directory, or creates it.

        Raises:
          CheckpointError: If the directory holds anything else.
          ResourceInUseError: If another buffer has it open.
        """
        names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
        foreign = [name for name in names if not name.startswith(_PREFIX) and name != _LOCK]
        if foreign:
            raise CheckpointError(
                f"{path} is not a checkpoint root of a buffer (it holds {', '.join(foreign[:3])}); use a new directory"
            )
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._resources = contextlib.ExitStack()
        self._resources.enter_context(FileLock(path / _LOCK, str(path), "close that buffer, or use another directory"))
        self._folders = SealedFolders(path, _PREFIX)
        self._damaged: set[int] = set()

    def __enter__(self) -> CheckpointFolder:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def close(self) -> None:
        """Releases the directory. Idempotent."""
        self._resources.close()

    def write(self, snapshot: Snapshot) -> Path:
        """Writes a snapshot as the newest checkpoint, and returns its directory.

        Raises:
          StorageFullError: If the disk is full; earlier checkpoints are kept.
        """
        try:
            return self._write(lambda folder: _write_state(folder, snapshot, ""))
        finally:
            snapshot.end()

    def write_all(self, snapshots: Mapping[str, Snapshot]) -> Path:
        """Writes the snapshots of several buffers, by name, as one checkpoint; see `write`."""
        return self._write(
            lambda folder: {
                "buffers": {name: _write_state(folder, snapshot, f"{name}.") for name, snapshot in snapshots.items()}
            }
        )

    def _write(self, write_files: Callable[[Path], dict[str, Any]]) -> Path:
        earlier = self._folders.numbers()
        path = self._folders.write(max(earlier, default=0) + 1, write_files)
        valid = [number for number in earlier if number not in self._damaged]
        self._folders.delete({*earlier} - {*valid[1 - _NUM_KEPT :]})
        return path

    def read_newest(self) -> dict[str, Any] | None:
        """Returns the state in the newest valid checkpoint, or None if there is no checkpoint; warns of damaged ones.

        Raises:
          CheckpointError: If all checkpoints are damaged, or the newest belongs to a manager.
        """
        newest = self._find_newest()
        if newest is None:
            return None
        folder, manifest = newest
        if "buffers" in manifest:
            raise CheckpointError(f"{folder} holds the buffers of a manager; load it by BufferManager.load_data")
        return _read_state(folder, manifest, "")

    def read_newest_all(self) -> dict[str, dict[str, Any]] | None:
        """Returns the states in the newest valid checkpoint of a manager, by buffer; see `read_newest`."""
        newest = self._find_newest()
        if newest is None:
            return None
        folder, manifest = newest
        if "buffers" not in manifest:
            raise CheckpointError(f"{folder} holds a single buffer; load it by ReplayBuffer.load_data")
        buffers = manifest["buffers"]
        if not isinstance(buffers, dict):
            raise CheckpointError(f"{folder} is not a valid checkpoint: its manifest lists no buffers")
        return {name: _read_state(folder, state, f"{name}.") for name, state in buffers.items()}

    def _find_newest(self) -> tuple[Path, dict[str, Any]] | None:
        """Returns the newest valid checkpoint and its manifest."""
        numbers = self._folders.numbers()
        for number in reversed(numbers):
            folder = self._folders.path(number)
            try:
                return folder, read_manifest(folder)
            except CorruptFileError as error:
                reason = f"{error}; restore it from a copy, or use a new directory"
                if number == numbers[0]:
                    raise CheckpointError(reason) from error
                warnings.warn(f"{reason}; the previous checkpoint is used", RuntimeWarning, stacklevel=5)
                self._damaged.add(number)
        return None


def read_saved(path: Path, read: Callable[[CheckpointFolder], dict[str, Any] | None]) -> dict[str, Any]:
    """Returns what a method of `CheckpointFolder` reads from a directory that `save_data` wrote.

    Raises:
      CheckpointError: If there is no checkpoint, or all are damaged.
    """
    state = None
    if path.is_dir():
        with CheckpointFolder(path) as checkpoints:
            state = read(checkpoints)
    if state is None:
        raise CheckpointError(f"{path} has no checkpoint; pass the directory that was passed to save_data")
    return state


def _write_state(folder: Path, snapshot: Snapshot, prefix: str) -> dict[str, Any]:
    """Writes each array of a snapshot to a file of its own, and returns what the manifest records."""
    specs: dict[str, np.ndarray | ArraySpec] = dict(snapshot.arrays)
    for name, array in snapshot.arrays.items():
        (folder / f"{prefix}{name}").write_bytes(_as_bytes(array))
    columns = {f"column_{number}": spec for number, spec in enumerate(snapshot.column_specs)}
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context((folder / f"{prefix}{name}").open("wb")) for name in columns]
        for block in snapshot.blocks():
            for stream, part in zip(streams, block, strict=True):
                stream.write(_as_bytes(part))
    specs |= columns
    arrays = {name: {"dtype": spec.dtype.str, "shape": list(spec.shape)} for name, spec in specs.items()}
    return {"header": snapshot.header, "arrays": arrays}


def _read_state(folder: Path, manifest: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Returns the state that `_write_state` wrote; its arrays are read as they are used."""
    try:
        arrays = {name: _map_array(folder / f"{prefix}{name}", **spec) for name, spec in manifest["arrays"].items()}
        return {"header": manifest["header"], "arrays": arrays}
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder} is not a valid checkpoint: its manifest does not match its files ({error})"
        ) from error


def _as_bytes(array: np.ndarray) -> memoryview:
    """Returns an array's content. (`ndarray.tofile` does not report a full disk by its error number.)"""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _map_array(path: Path, *, dtype: str, shape: list[int]) -> np.ndarray:
    """Returns the array in a file; its content is read as it is used. Raises `ValueError` if its size differs."""
    size, expected = path.stat().st_size, math.prod(shape) * np.dtype(dtype).itemsize
    if size != expected:
        raise ValueError(f"{path.name} has {size} bytes instead of {expected}")
    return np.memmap(path, dtype, "r", shape=tuple(shape)) if size else np.zeros(shape, dtype)
