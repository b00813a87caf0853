"""Lock files: one process at a time at a port, a checkpoint root, or a conversion."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any


class InUse(OSError):
    """Another process has what was asked for."""


class FileLock:
    """A lock file, held as long as the context; it goes with the process, however that ends."""

    def __init__(self, path: Path, complaint: str):
        """Nothing is locked yet.

        Args:
          path: of the lock file, which is made if need be and stays.
          complaint: what to say if another process has it.
        """
        self._path, self._complaint = path, complaint

    def __enter__(self) -> FileLock:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise InUse(f"{self._complaint} (lock {self._path})") from None
        return self

    def __exit__(self, *exception: Any) -> None:
        os.close(self._descriptor)
