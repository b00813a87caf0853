"""A full disk as an error of its own."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlds2reverb.errors import StorageFullError


@contextmanager
def full_disk_as_error(path: Path) -> Iterator[None]:
    """Raises `StorageFullError` in place of the system's own errors."""
    try:
        yield
    except StorageFullError:
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageFullError(
            error.errno, f"no space left for {path}; what is there is kept: free some and start again to continue"
        ) from error
