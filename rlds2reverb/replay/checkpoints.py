"""Checkpoints in a directory: there whole or not at all, checked when they are read, the newest two kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from rlds2reverb import _sealed_json as sealed_json
from rlds2reverb._full_disk import full_disk_as_error
from rlds2reverb.errors import CheckpointError, CorruptFileError, ResourceInUseError
from rlds2reverb.specs import ArraySpec

from .snapshots import Snapshot, State

_PREFIX, _PARTIAL, _LOCK, _HEADER = "checkpoint-", "partial", "buffer.lock", "state.json"
_NUM_KEPT = 2


class CheckpointFolder:
    """A directory of a buffer's checkpoints, `checkpoint-00000001` and so on; one buffer has it at a time.

    A checkpoint is written under the name `partial`, each file with its checksum (XXH3-128) in `state.json`, which has
    its own; all of it is on the disk before it gets its name. So whoever is killed at any moment leaves the checkpoints
    that were there, and perhaps a partial one, which the next who opens the directory deletes.
    """

    def __init__(self, path: Path):
        """Opens or makes the directory.

        Raises:
          CheckpointError: if it holds anything that is not ours.
          ResourceInUseError: if another buffer has it open.
        """
        self.path = path
        self._damaged: set[Path] = set()
        names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
        foreign = [name for name in names if not name.startswith(_PREFIX) and name not in (_PARTIAL, _LOCK)]
        if foreign:
            raise CheckpointError(
                f"{path} is not a checkpoint root of a buffer ({', '.join(foreign[:3])}); give a new directory"
            )
        path.mkdir(parents=True, exist_ok=True)
        self._lock: BinaryIO | None = (path / _LOCK).open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ResourceInUseError(
                f"{path} is in use by another buffer; close that one, or give another directory"
            ) from None
        shutil.rmtree(path / _PARTIAL, ignore_errors=True)

    def __enter__(self) -> CheckpointFolder:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def close(self) -> None:
        """Gives the directory back; once more does nothing."""
        if self._lock is not None:
            self._lock.close()
        self._lock = None

    def _checkpoints(self) -> list[Path]:
        """The oldest first."""
        return sorted(path for path in self.path.iterdir() if path.name.startswith(_PREFIX))

    def write(self, snapshot: Snapshot) -> Path:
        """Writes a snapshot as the newest checkpoint, and gives its directory.

        Raises:
          StorageFullError: if there is no space; the checkpoints before are kept.
        """
        try:
            before, partial = self._checkpoints(), self.path / _PARTIAL
            number = int(before[-1].name.removeprefix(_PREFIX)) + 1 if before else 1
            path = self.path / f"{_PREFIX}{number:08d}"
            with full_disk_as_error(path):
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                _write(partial, snapshot)
                partial.rename(path)
                sealed_json.sync(self.path)
        finally:
            snapshot.end()
        good = [old for old in before if old not in self._damaged]
        for old in {*before} - {*good[1 - _NUM_KEPT :]}:
            shutil.rmtree(old, ignore_errors=True)
        return path

    def newest(self, require_own: Callable[[Mapping[str, Any]], None]) -> State | None:
        """The newest checkpoint that is not damaged, with a warning for each that is; None if there is none at all.

        Args:
          require_own: raises for a header that is not the buffer's; this counts for the newest one only.

        Raises:
          CheckpointError: if all are damaged.
        """
        found = self._checkpoints()
        for path in reversed(found):
            try:
                header = _read_header(path)
                require_own(header["header"])
                return State(
                    header["header"], {name: _read(path, name, known) for name, known in header["files"].items()}
                )
            except CorruptFileError as error:
                reason = f"{error}; restore it from a copy, or give a new directory"
                if path == found[0]:
                    raise CheckpointError(reason) from error
                warnings.warn(f"{reason}; the checkpoint before it is used", RuntimeWarning, stacklevel=4)
                self._damaged.add(path)
        return None


def _write(folder: Path, snapshot: Snapshot) -> None:
    with contextlib.ExitStack() as stack:

        def new(name: str) -> _ArrayFile:
            return stack.enter_context(contextlib.closing(_ArrayFile(folder / name)))

        files = {}
        for name, array in snapshot.arrays.items():
            files[name] = new(name)
            files[name].add(array)
        specs = snapshot.columns
        columns = [new(f"column_{number}") for number in range(len(specs))]
        for block in snapshot.blocks():
            for file, part in zip(columns, block, strict=True):
                file.add(part)
        known = {name: file.described(snapshot.arrays[name]) for name, file in files.items()}
        known |= {f"column_{n}": file.described(specs[n]) for n, file in enumerate(columns)}
    sealed_json.save(folder / _HEADER, {"header": snapshot.header, "files": known})


class _ArrayFile:
    """A file of an array, which comes in parts."""

    def __init__(self, path: Path):
        """Empty."""
        self._stream, self._digest = path.open("wb"), xxhash.xxh3_128()

    def add(self, part: np.ndarray) -> None:
        """Writes more rows."""
        content = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
        self._digest.update(content)
        self._stream.write(content)

    def described(self, whole: np.ndarray | ArraySpec) -> dict[str, Any]:
        """What is known of the file, which is on the disk now."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return {"dtype": whole.dtype.str, "shape": list(whole.shape), "xxh3_128": self._digest.hexdigest()}

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()


def _read_header(folder: Path) -> dict[str, Any]:
    found = sealed_json.load(folder / _HEADER)
    if found is None:
        raise CorruptFileError(f"{folder / _HEADER} is damaged")
    return found


def _read(folder: Path, name: str, known: Mapping[str, Any]) -> np.ndarray:
    """An array of a file, which is read as it is used."""
    path, shape, dtype = folder / name, tuple(known["shape"]), np.dtype(known["dtype"])
    try:
        content = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
        if xxhash.xxh3_128_hexdigest(content.data) == known["xxh3_128"]:
            return content.view(dtype).reshape(shape)
    except (OSError, ValueError):
        pass
    raise CorruptFileError(f"{path} is damaged")
