"""Lock files, which let one process at a time use a port, a checkpoint root, a run directory or a conversion."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ResourceInUseError

from .platform import lock_file

#: A symbolic link that somebody else has put there is not followed.
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)


class FileLock:
    """A context manager that holds a lock file; the kernel releases the lock however the process ends."""

    def __init__(self, path: Path, what: str, advice: str = "wait until it ends, or stop it"):
        """Describes the lock; entering the context acquires it.

        Args:
          path: path of the lock file. The file is created if missing, names its owner while locked, and is removed on
            release; a file left behind by a killed process is harmless.
          what: name of the protected resource, for the error message.
          advice: advice for the case that another process holds the lock, for the error message.
        """
        self._path, self._what, self._advice = path, what, advice

    def __enter__(self) -> FileLock:
        while True:
            self._descriptor = os.open(self._path, _FLAGS, 0o600)
            try:
                lock_file(self._descriptor)
            except OSError:
                owner = os.read(self._descriptor, 1000).decode(errors="replace") or "another process"
                os.close(self._descriptor)
                raise ResourceInUseError(f"{self._what} is in use by {owner}; {self._advice}") from None
            if self._is_at_path():
                break
            os.close(self._descriptor)  # The previous holder removed this file after it was opened here.
        os.ftruncate(self._descriptor, 0)
        with contextlib.suppress(OSError):  # On a full disk the lock still works, but the file does not name its owner.
            os.write(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        return self

    def __exit__(self, *exception: Any) -> None:
        with contextlib.suppress(OSError):  # A file that cannot be removed is harmless.
            if self._is_at_path():
                self._path.unlink()
        os.close(self._descriptor)

    def _is_at_path(self) -> bool:
        """Returns whether the path still leads to the locked file; a different file there belongs to its own holder."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return False
