"""Lock files: one process at a time at a port, a checkpoint root, or a conversion."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ResourceInUseError


class FileLock:
    """A lock file, held as long as the context; it goes with the process, however that ends."""

    def __init__(self, path: Path, complaint: str):
        """Nothing is locked yet.

        Args:
          path: the lock file, which is made if it is missing, and removed at the end; one that was left does no harm.
          complaint: what to say if another process has it.
        """
        self._path, self._complaint = path, complaint

    def __enter__(self) -> FileLock:
        while True:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(self._descriptor)
                raise ResourceInUseError(f"{self._complaint} (lock {self._path})") from None
            if self._is_at_path():
                return self
            os.close(self._descriptor)  # its last holder has just removed it

    def __exit__(self, *exception: Any) -> None:
        with contextlib.suppress(OSError):  # what is left does no harm
            if self._is_at_path():
                self._path.unlink()
        os.close(self._descriptor)

    def _is_at_path(self) -> bool:
        """Returns whether the locked file is the one that others find at its path; only its holder may remove it."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return False
