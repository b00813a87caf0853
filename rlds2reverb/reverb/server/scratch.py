"""Temporary folders of servers, removed when the server stops or, if it was killed, when a later one starts."""

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
from rlds2reverb.system.file_lock import FileLock


def user_directory() -> Path:
    """Creates and returns this user's directory for locks and temporary folders.

    Raises:
      ResourceInUseError: If another user created it, who could then change its contents.
    """
    directory = Path(tempfile.gettempdir()) / f"rlds2reverb-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    owner = directory.lstat().st_uid
    if owner != os.getuid():
        raise ResourceInUseError(
            f"{directory} must belong to user {os.getuid()}, but belongs to user {owner}; remove it, or set TMPDIR"
        )
    return directory


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Creates a temporary folder for the duration of the context, and removes the folders of killed processes.

    Each folder has a lock file next to it, which is locked before the folder is created, so a folder whose lock is
    free is abandoned.
    """
    directory = user_directory()
    for folder in directory.glob("server-*"):
        if folder.is_dir():
            with contextlib.suppress(ResourceInUseError), _folder_lock(folder):
                shutil.rmtree(folder, ignore_errors=True)
    folder = directory / f"server-{secrets.token_hex(8)}"
    with _folder_lock(folder):
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _folder_lock(folder: Path) -> FileLock:
    return FileLock(folder.with_suffix(".lock"), str(folder))
