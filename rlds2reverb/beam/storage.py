"""Files on any of Beam's filesystems: local paths, and addresses such as `gs://bucket/data/*.hdf5`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from rlds2reverb.datasets.loading import expand_pattern
from rlds2reverb.datasets.readers.remote import is_remote
from rlds2reverb.errors import Rlds2ReverbError, SourceError, StorageFullError
from rlds2reverb.system.file_lock import FileLock
from rlds2reverb.system.full_disk import full_disk_as_error
from rlds2reverb.system.sealed_files import replace_bytes

#: Errors of the data and the arguments, which a repetition would only raise again.
DATA_ERRORS = (Rlds2ReverbError, ValueError, TypeError, FileNotFoundError)
_COPY_BYTES = 16 << 20
_open: Callable[[str], Any] = functools.partial(FileSystems.open, compression_type=CompressionTypes.UNCOMPRESSED)
_create: Callable[[str], Any] = functools.partial(FileSystems.create, compression_type=CompressionTypes.UNCOMPRESSED)


def expand_locations(locations: list[str]) -> list[str]:
    """Returns the datasets that paths, addresses, names and patterns stand for, in order.

    Raises:
      FileNotFoundError: If a pattern or an address matches nothing.
    """
    return [expanded for location in locations for expanded in _expand(location)]


def _expand(location: str) -> list[str]:
    if is_remote(location):
        if "*" not in location:
            return [location]
        found = [metadata.path for metadata in FileSystems.match([location])[0].metadata_list]
        if not found:
            raise FileNotFoundError(f"no object matches {location!r}; check the address")
        return sorted(found)
    if Path(location).exists():
        return [os.path.abspath(location)]
    return [os.path.abspath(path) for path in expand_pattern(location)] or [location]


def copy_to_disk(location: str) -> Path:
    """Copies a file or directory at an address into a new temporary folder, and returns the path of the copy.

    Raises:
      SourceError: If there is no such object.
    """
    folder = Path(tempfile.mkdtemp(prefix="rlds2reverb-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / PurePosixPath(location.rstrip("/")).name
    if FileSystems.exists(location):
        _copy(location, path)
        return path
    members = FileSystems.match([location.rstrip("/") + "/**"])[0].metadata_list
    if not members:
        raise SourceError(f"there is no object at {location}; check the address, and install Beam's extra for it")
    for member in members:
        target = path / member.path[len(location.rstrip("/")) + 1 :]
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy(member.path, target)
    return path


def _copy(location: str, path: Path) -> None:
    with full_disk_as_error(path), path.open("wb") as target, _open(location) as stream:
        shutil.copyfileobj(stream, target, _COPY_BYTES)


def upload(directory: Path, location: str) -> None:
    """Copies a directory to an address; the file `rlds2reverb.json`, without which it is incomplete, comes last."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    for path in sorted(files, key=lambda path: path.name == "rlds2reverb.json"):
        target = f"{location.rstrip('/')}/{path.relative_to(directory).as_posix()}"
        with path.open("rb") as stream, _create(target) as to:
            shutil.copyfileobj(stream, to, _COPY_BYTES)


@contextlib.contextmanager
def lock_destination(location: str) -> Iterator[None]:
    """Prevents other processes on this machine from writing to a local path; addresses cannot be locked.

    Raises:
      ResourceInUseError: If another process holds the lock.
    """
    if is_remote(location):
        yield
        return
    path = Path(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.beam.lock"), f"the conversion to {location}"):
        yield


class WorkFolder(contextlib.AbstractContextManager["WorkFolder"]):
    """A folder of small and large results, each of which is either complete or absent.

    Any number of processes may write the same result; the last one wins, and all write the same bytes. As a context
    manager, it deletes itself at the end, and after errors that a repetition would only raise again.
    """

    def __init__(self, location: str):
        self.location = location.rstrip("/")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or (isinstance(error, DATA_ERRORS) and not isinstance(error, StorageFullError)):
            self.delete()

    def __repr__(self) -> str:
        return f"WorkFolder({self.location!r})"

    def write(self, name: str, content: bytes) -> None:
        """Writes a result under a temporary name and renames it.

        Raises:
          StorageFullError: If the disk is full.
        """
        path = f"{self.location}/{name}"
        if is_remote(path):  # Object stores create an object only once all of it was written.
            with _create(path) as stream:
                stream.write(content)
            return
        folder = Path(self.location)
        with full_disk_as_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
            replace_bytes(folder / name, content, secrets.token_hex(8))

    def read(self, name: str) -> bytes:
        """Returns the content of a result."""
        with _open(f"{self.location}/{name}") as stream:
            return bytes(stream.read())

    def exists(self, name: str) -> bool:
        """Returns whether there is a result of this name."""
        return bool(FileSystems.exists(f"{self.location}/{name}"))

    def delete(self) -> None:
        """Deletes the folder and everything in it."""
        if not is_remote(self.location):
            shutil.rmtree(self.location, ignore_errors=True)
        elif FileSystems.match([f"{self.location}/**"])[0].metadata_list:
            FileSystems.delete([self.location + "/"])
