"""Turns the system's errors about a full disk into `StorageFullError`."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlds2reverb.errors import StorageFullError

_RESUMABLE = "existing data are kept: free some space and repeat the run to continue"


@contextmanager
def full_disk_as_error(path: Path, *, consequence: str = _RESUMABLE) -> Iterator[None]:
    """Raises `StorageFullError` if the system or TensorFlow reports that the disk (or the user's quota) is full.

    Args:
      path: the file or directory that is written, for the message.
      consequence: the end of the message: the effect on the data, and advice.
    """
    try:
        yield
    except StorageFullError:
        raise
    except Exception as error:
        if not _is_full_disk(error):
            raise
        number = error.errno if isinstance(error, OSError) else errno.ENOSPC
        raise StorageFullError(number, f"no space left for {path}; {consequence}") from error


def _is_full_disk(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    tensorflow = sys.modules.get("tensorflow")
    # TensorFlow uses this error for other resources as well, such as memory.
    is_exhausted = tensorflow is not None and isinstance(error, tensorflow.errors.ResourceExhaustedError)
    return is_exhausted and "No space left" in str(error)
