"""The checkpoints of one replay buffer: the newest two are kept, and each is verified when it is read."""

from __future__ import annotations

import contextlib
import warnings
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
            earlier = self._folders.numbers()
            path = self._folders.write(max(earlier, default=0) + 1, lambda folder: _write_arrays(folder, snapshot))
        finally:
            snapshot.end()
        valid = [number for number in earlier if number not in self._damaged]
        self._folders.delete({*earlier} - {*valid[1 - _NUM_KEPT :]})
        return path

    def read_newest(self) -> dict[str, Any] | None:
        """Returns the state in the newest valid checkpoint, or None if there is no checkpoint; warns of damaged ones.

        Raises:
          CheckpointError: If all checkpoints are damaged.
        """
        numbers = self._folders.numbers()
        for number in reversed(numbers):
            folder = self._folders.path(number)
            try:
                manifest = read_manifest(folder)
            except CorruptFileError as error:
                reason = f"{error}; restore it from a copy, or use a new directory"
                if number == numbers[0]:
                    raise CheckpointError(reason) from error
                warnings.warn(f"{reason}; the previous checkpoint is used", RuntimeWarning, stacklevel=4)
                self._damaged.add(number)
                continue
            arrays = {name: _map_array(folder / name, **spec) for name, spec in manifest["arrays"].items()}
            return {"header": manifest["header"], "arrays": arrays}
        return None


def _write_arrays(folder: Path, snapshot: Snapshot) -> dict[str, Any]:
    """Writes each array of a snapshot to a file of its own, and returns what the manifest records."""
    specs: dict[str, np.ndarray | ArraySpec] = dict(snapshot.arrays)
    for name, array in snapshot.arrays.items():
        (folder / name).write_bytes(_as_bytes(array))
    columns = {f"column_{number}": spec for number, spec in enumerate(snapshot.column_specs)}
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context((folder / name).open("wb")) for name in columns]
        for block in snapshot.blocks():
            for stream, part in zip(streams, block, strict=True):
                stream.write(_as_bytes(part))
    specs |= columns
    arrays = {name: {"dtype": spec.dtype.str, "shape": list(spec.shape)} for name, spec in specs.items()}
    return {"header": snapshot.header, "arrays": arrays}


def _as_bytes(array: np.ndarray) -> memoryview:
    """Returns an array's content. (`ndarray.tofile` does not report a full disk by its error number.)"""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _map_array(path: Path, *, dtype: str, shape: list[int]) -> np.ndarray:
    """Returns the array in a file; its content is read as it is used."""
    if not path.stat().st_size:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", shape=tuple(shape))
