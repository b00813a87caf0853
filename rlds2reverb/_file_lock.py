"""Lock files: one process at a time at a port, a checkpoint root, a run directory or a conversion."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ResourceInUseError


class FileLock:
    """A lock file, held for as long as the context; the kernel releases it when the process ends in any way."""

    def __init__(self, path: Path, what: str, advice: str = "wait until it ends, or stop it"):
        """Does not lock anything yet.

        Args:
          path: the lock file. It is created if missing, names its owner while locked, and is removed on release; a
            file left behind by a killed process is harmless.
          what: what the lock protects, for the error message.
          advice: what to do if another process holds the lock.
        """
        self._path, self._what, self._advice = path, what, advice

    def __enter__(self) -> FileLock:
        while True:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                owner = os.read(self._descriptor, 1000).decode(errors="replace") or "another process"
                os.close(self._descriptor)
                raise ResourceInUseError(f"{self._what} is in use by {owner}; {self._advice}") from None
            if self._is_at_path():
                break
            os.close(self._descriptor)  # The last holder has just removed this file.
        os.ftruncate(self._descriptor, 0)
        with contextlib.suppress(OSError):  # On a full disk the lock works all the same, without a name in it.
            os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        return self

    def __exit__(self, *exception: Any) -> None:
        with contextlib.suppress(OSError):  # A file that cannot be removed is harmless.
            if self._is_at_path():
                self._path.unlink()
        os.close(self._descriptor)

    def _is_at_path(self) -> bool:
        """Returns whether the locked file is the one that others find at its path; only its holder may remove it."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return False
