"""Temporary folders of servers, which are removed with their server, or by a later one if that was killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlds2reverb.errors import ResourceInUseError

from .locks import FileLock


def own_directory() -> Path:
    """Returns this user's directory for locks and temporary folders, after making it.

    Raises:
      ResourceInUseError: if another user made it, who could then change what is in it.
    """
    directory = Path(tempfile.gettempdir()) / f"rlds2reverb-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    owner = directory.lstat().st_uid
    if owner != os.getuid():
        raise ResourceInUseError(
            f"{directory} belongs to user {owner}, expected user {os.getuid()}; remove it, or set TMPDIR"
        )
    return directory


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Makes a temporary folder for as long as the context lasts, and removes those that killed processes have left.

    Each has a lock file next to it, which is locked before the folder is made: a folder whose lock is free is left.
    """
    directory = own_directory()
    _remove_left_over(directory)
    folder = directory / f"server-{secrets.token_hex(8)}"
    with _lock_of(folder):
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_left_over(directory: Path) -> None:
    for folder in directory.glob("server-*"):
        if folder.is_dir():
            with contextlib.suppress(ResourceInUseError), _lock_of(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _lock_of(folder: Path) -> FileLock:
    return FileLock(folder.with_suffix(".lock"), f"{folder} is in use")
