"""Files and directories that appear under their name only once they are complete."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlds2reverb.system.file_lock import FileLock
from rlds2reverb.system.full_disk import full_disk_as_error
from rlds2reverb.system.sealed_files import sync


@contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to `path`, which is renamed to `path` if the context ends without an error.

    After an error, nothing remains. A process that is killed leaves a hidden `.NAME.partial`, which the next call for
    the same path deletes.

    Args:
      path: the file or directory to create. Missing parent directories are created.

    Raises:
      FileExistsError: If `path` exists.
      ResourceInUseError: If another process writes to the same path.
      StorageFullError: If the disk is full.
    """
    require_vacant(path)
    partial = path.with_name(f".{path.name}.partial")
    consequence = "nothing is kept: free some space and start again"
    with full_disk_as_error(path, consequence=consequence), _created_folder(path.parent):
        with FileLock(path.with_name(f".{path.name}.lock"), str(path)):
            _delete(partial)
            try:
                yield partial
                _sync_all(partial)
                require_vacant(path)
                partial.rename(path)
            except BaseException:
                _delete(partial)
                raise
            sync(path.parent)


def require_vacant(path: Path) -> None:
    """Raises `FileExistsError` if the path exists."""
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists already; pass a new path, or delete it first")


@contextmanager
def _created_folder(folder: Path) -> Iterator[None]:
    """Creates a folder with its parents, and deletes those that are empty after an error."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for parent in missing:
            with contextlib.suppress(OSError):  # Somebody else has put a file there.
                parent.rmdir()
        raise


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync_all(path: Path) -> None:
    for entry in [*path.rglob("*"), path]:
        sync(entry)
