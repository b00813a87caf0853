"""Differences between operating systems."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def available_cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """Returns the folder for files that can be created again, `~/.cache/rlds2reverb` on most systems."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlds2reverb"


def create_anonymous_file(name: str) -> int:
    """Returns the descriptor of an empty file that has no path: of memory on Linux, else of a temporary file.

    Args:
      name: name that Linux shows for it in /proc.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def reserve_space(descriptor: int, num_bytes: int) -> None:
    """Enlarges an empty file, and reserves its space on the disk if the system can; raises `OSError` if it is full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, num_bytes)
    else:
        os.ftruncate(descriptor, num_bytes)


if sys.platform == "win32":
    import msvcrt

    def lock_file(descriptor: int, *, wait: bool = False) -> None:
        """Locks a file until it is closed, however the process ends; waits for its holder, or raises `OSError`."""
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # The lock is mandatory for bytes that it covers.
        msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def lock_file(descriptor: int, *, wait: bool = False) -> None:
        """Locks a file until it is closed, however the process ends; waits for its holder, or raises `OSError`."""
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
