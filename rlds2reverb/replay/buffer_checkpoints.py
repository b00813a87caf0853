"""The checkpoints of one replay buffer: the newest two are kept, and each is verified when it is read."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import CheckpointError, CorruptFileError
from rlds2reverb.system.closing import Closing
from rlds2reverb.system.file_lock import FileLock
from rlds2reverb.system.sealed_files import SealedFolders, read_manifest

_PREFIX, _LOCK = "checkpoint-", "buffer.lock"
_NUM_KEPT = 2


class CheckpointFolder(Closing):
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
        self._resources = contextlib.ExitStack()
        self._resources.enter_context(FileLock(path / _LOCK, str(path), "close that buffer, or use another directory"))
        self._folders = SealedFolders(path, _PREFIX)
        self._damaged: set[int] = set()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Releases the directory. Idempotent."""
        self._resources.close()

    def write(self, get_states: Callable[[], Mapping[str, Any]]) -> Path:
        """Writes the newest checkpoint, and returns its directory.

        Args:
          get_states: function that returns the states of a manager's buffers by name, or that of one buffer, named ''.

        Raises:
          StorageFullError: If the disk is full; earlier checkpoints are kept.
        """
        with self._lock:  # One thread at a time, so that a later checkpoint has a later state.
            states, earlier = get_states(), self._folders.numbers()
            path = self._folders.write(max(earlier, default=0) + 1, partial(_write_states, states))
            valid = [number for number in earlier if number not in self._damaged]
            self._folders.delete({*earlier} - {*valid[1 - _NUM_KEPT :]})
            return path

    def read_newest(self, *, of_manager: bool = False) -> dict[str, Any] | None:
        """Returns the states in the newest valid checkpoint, or None if there is no checkpoint; warns of damaged ones.

        Raises:
          CheckpointError: If all checkpoints are damaged, or the newest belongs to a manager, or to a single buffer.
        """
        numbers = self._folders.numbers()
        for number in reversed(numbers):
            folder = self._folders.path(number)
            try:
                return _read_states(folder, read_manifest(folder), of_manager=of_manager)
            except CorruptFileError as error:
                reason = f"{error}; restore it from a copy, or use a new directory"
                if number == numbers[0]:
                    raise CheckpointError(reason) from error
                warnings.warn(f"{reason}; the previous checkpoint is used", RuntimeWarning, stacklevel=4)
                self._damaged.add(number)
        return None


def read_saved(path: Path, *, of_manager: bool = False) -> dict[str, Any]:
    """Returns the states in a directory that `save_data` wrote; see `CheckpointFolder.read_newest`.

    Raises:
      CheckpointError: Also if there is no checkpoint.
    """
    states = None
    if path.is_dir():
        with CheckpointFolder(path) as checkpoints:
            states = checkpoints.read_newest(of_manager=of_manager)
    if states is None:
        raise CheckpointError(f"{path} has no checkpoint; pass the directory that was passed to save_data")
    return states


def _write_states(states: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Writes each array of the buffers' states to its own file, and returns what the manifest records."""
    buffers: dict[str, Any] = {}
    for name, state in states.items():
        buffers[name] = {"header": state["header"], "arrays": {}}
        for key, array in state["arrays"].items():
            _locate(folder, name, key).write_bytes(_as_bytes(array))
            buffers[name]["arrays"][key] = {"dtype": array.dtype.str, "shape": list(array.shape)}
    return {"buffers": buffers}


def _locate(folder: Path, name: str, key: str) -> Path:
    """Returns the path of an array of a buffer."""
    return folder / (f"{name}.{key}" if name else key)


def _read_states(folder: Path, manifest: Mapping[str, Any], *, of_manager: bool) -> dict[str, Any]:
    """Returns the states that `write` was passed; their arrays are read as they are used."""
    buffers = manifest["buffers"]
    if of_manager and "" in buffers:
        raise CheckpointError(f"{folder} holds a single buffer; load it by ReplayBuffer.load_data")
    if not of_manager and "" not in buffers:
        raise CheckpointError(f"{folder} holds the buffers of a manager; load it by BufferManager.load_data")
    states = {}
    for name, state in buffers.items():
        arrays = {key: _map_array(_locate(folder, name, key), **spec) for key, spec in state["arrays"].items()}
        states[name] = {"header": state["header"], "arrays": arrays}
    return states


def _as_bytes(array: np.ndarray) -> memoryview:
    """Returns an array's content. (`ndarray.tofile` does not report a full disk by its error number.)"""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _map_array(path: Path, *, dtype: str, shape: list[int]) -> np.ndarray:
    """Returns the array in a file; its content is read as it is used."""
    return np.memmap(path, dtype, "r", shape=tuple(shape)) if path.stat().st_size else np.zeros(shape, dtype)
