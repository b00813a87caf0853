"""Turns the system's errors about a full disk into `StorageFullError`."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlds2reverb.errors import StorageFullError

_RESUMABLE = "existing data are kept: free some space and repeat the run to continue"


@contextmanager
def full_disk_as_error(path: Path, *, consequence: str = _RESUMABLE) -> Iterator[None]:
    """Raises `StorageFullError` if the disk (or the user's quota) is full.

    Args:
      path: the file or directory that is written, for the message.
      consequence: the end of the message: the effect on the data, and advice.
    """
    try:
        yield
    except StorageFullError:
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageFullError(error.errno, f"no space left for {path}; {consequence}") from error
