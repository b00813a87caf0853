"""New HDF5 files, in which an error while writing is raised instead of crashing the process.

If the disk is full, the HDF5 library fails to flush its caches, and accesses freed memory when the file is closed.
Here it writes through a stream that remembers the first error and accepts everything afterwards, so that the file can
be closed, and the error is raised.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py


@contextmanager
def create_hdf5(path: Path) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """Creates an HDF5 file; yields it, and a function that raises the first error of writing, if there was one.

    Long loops call this function, since they would otherwise notice the error only when the file is closed.

    Raises:
      FileExistsError: If the path exists.
      OSError: If the file cannot be written; with `ENOSPC` if the disk is full.
    """
    with _Stream(path, "x+") as stream:
        try:
            with h5py.File(stream, "w") as file:
                yield file, stream.raise_error
        except Exception:
            stream.raise_error()
            raise
        stream.raise_error()


class _Stream(io.FileIO):
    """A file for h5py, which accepts everything after the first error."""

    _error: OSError | None = None

    def raise_error(self) -> None:
        """Raises the first error, if there was one."""
        if self._error is not None:
            raise self._error

    def write(self, content: Any) -> int:
        """Writes all bytes, unless an earlier call has failed."""
        view = memoryview(content).cast("B")
        size = len(view)
        try:
            while view and self._error is None:
                view = view[super().write(view) :]
        except OSError as error:
            self._error = error
        return size

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer, with zeros where nothing was written."""
        view = memoryview(buffer).cast("B")
        content = self.read(len(view))
        view[:] = content + bytes(len(view) - len(content))
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Sets the size of the file, unless an earlier call has failed."""
        try:
            if self._error is None:
                super().truncate(size)
        except OSError as error:
            self._error = error
        return size or 0
