"""Safe reading of untrusted npz archives, by rows: nothing is unpickled, and sizes are bounded.

`numpy.load` reads a whole array at once. Here the rows of an array come from a stream, so that an archive may be larger
than memory.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.system.text import format_bytes

from .hdf5 import require_plausible_size

_MAGIC = b"PK\x03\x04"
_SUFFIX = ".npy"
_MAX_MEMBERS = 1 << 10
MAX_ROW_BYTES = 64 << 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)


def is_npz(path: Path) -> bool:
    """Returns whether a file begins like an npz archive."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def list_arrays(path: Path) -> frozenset[str]:
    """Returns the names of the arrays of an npz archive; none for any other file and for a damaged one."""
    try:
        if not is_npz(path):
            return frozenset()
        with zipfile.ZipFile(path) as archive:
            return frozenset(name[: -len(_SUFFIX)] for name in archive.namelist() if name.endswith(_SUFFIX))
    except _DAMAGE:
        return frozenset()


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[dict[str, NpzColumn]]:
    """Opens an npz archive and yields its arrays by name.

    Raises:
      SourceError: If it is damaged, contains Python objects, or is too large for its size; inside the block, if damage
        is found later.
    """
    with name_damage(path), contextlib.ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        members = archive.infolist()
        names = [member.filename for member in members]
        if len(names) > _MAX_MEMBERS or len(set(names)) < len(names):
            raise SourceError(f"{path.name} must have at most {_MAX_MEMBERS:,} distinct members, got {len(names):,}")
        columns: dict[str, NpzColumn] = {}
        for member in members:
            name, sizes = member.filename.removesuffix(_SUFFIX), (member.compress_size, member.file_size)
            if member.filename.endswith(_SUFFIX):
                columns[name] = NpzColumn(functools.partial(archive.open, member), f"{path.name}: '{name}'", *sizes)
                stack.callback(columns[name].close)
        yield columns


@contextlib.contextmanager
def name_damage(path: Path) -> Iterator[None]:
    """Raises `SourceError` with the name of a file if its damage is found inside the block."""
    try:
        yield
    except _DAMAGE as error:
        raise SourceError(f"{path.name} is damaged; copy or download it again ({error})") from error


@contextlib.contextmanager
def open_gzip(path: Path) -> Iterator[NpzColumn]:
    """Opens a compressed npy file; raises `SourceError` as `open_npz` does."""
    with name_damage(path):
        column = NpzColumn(lambda: gzip.GzipFile(path), path.name, path.stat().st_size)
        with contextlib.closing(column):
            yield column


class NpzColumn:
    """An array in a stream, of which slices of rows are read.

    A slice that begins where the last one ended continues the stream; one that begins earlier reads the array from its
    beginning, unless it is inside the last one.

    Attributes:
      shape: shape of the array.
      dtype: its dtype.
    """

    def __init__(
        self, open_stream: Callable[[], Any], where: str, stored_bytes: int, unpacked_bytes: int | None = None
    ):
        """Reads and checks the header of an array.

        Args:
          open_stream: function that opens the stream of an npy file.
          where: description of the array, for error messages.
          stored_bytes: compressed size.
          unpacked_bytes: size of the npy file, or None if it is unknown.

        Raises:
          SourceError: If it is not a plain array of its size.
        """
        self._open_stream, self._where = open_stream, where
        self._stream: Any = None
        self._last: tuple[int, np.ndarray] | None = None
        with open_stream() as stream:
            self.shape, self._is_fortran, self.dtype = self._read_header(stream)
            self._offset = stream.tell()
        self._row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        self._require_safe_size(stored_bytes, unpacked_bytes)

    def _read_header(self, stream: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
        try:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read(stream)
        except _DAMAGE:
            raise
        except Exception as error:  # NumPy lets through any error of Python's tokenizer and parser.
            raise SourceError(f"{self._where} is not an array of NumPy ({str(error)[:200]})") from error
        if dtype.hasobject:
            raise SourceError(f"{self._where} contains Python objects, which are not unpickled; store plain arrays")
        return shape, is_fortran and len(shape) > 1, dtype

    def _require_safe_size(self, stored_bytes: int, unpacked_bytes: int | None) -> None:
        declared = self.dtype.itemsize * math.prod(self.shape)
        if unpacked_bytes is not None and self._offset + declared != unpacked_bytes:
            raise SourceError(
                f"{self._where} declares {format_bytes(declared)}, but contains "
                f"{format_bytes(max(unpacked_bytes - self._offset, 0))}; copy or download it again"
            )
        require_plausible_size(self._where, stored_bytes, declared)
        largest = declared if self._is_fortran else self._row_bytes
        if largest > MAX_ROW_BYTES:
            kind = "is in Fortran order and has" if self._is_fortran else "has rows of"
            raise SourceError(
                f"{self._where} {kind} {format_bytes(largest)}; the limit is {format_bytes(MAX_ROW_BYTES)}"
            )

    def __len__(self) -> int:
        if not self.shape:
            raise SourceError(f"{self._where} must be a column with one row per step, got a single number")
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Returns the rows of a slice without a step, `[n, ...]`."""
        start, stop, _ = rows.indices(len(self))
        stop = max(start, stop)
        if self._last is None or not self._last[0] <= start <= stop <= self._last[0] + len(self._last[1]):
            self._last = (0, self._read_all()) if self._is_fortran else (start, self._read(start, stop))
        first, values = self._last
        return values[start - first : stop - first]

    def read(self) -> np.ndarray:
        """Returns the whole array."""
        return self[:] if self.shape else self._read_all()

    def _read(self, start: int, stop: int) -> np.ndarray:
        begin = self._offset + start * self._row_bytes
        if self._stream is None or self._stream.tell() > begin:
            self.close()
            self._stream = self._open_stream()
            self._stream.read(self._offset)
        if self._stream.tell() < begin:  # After a seek, zipfile no longer compares the checksum.
            self._stream.seek(begin)
        values = np.empty((stop - start, *self.shape[1:]), self.dtype)
        if values.nbytes and self._stream.readinto(values.reshape(-1).view(np.uint8)) < values.nbytes:
            raise SourceError(f"{self._where} ends before row {stop:,}; copy or download it again")
        return values

    def _read_all(self) -> np.ndarray:
        with self._open_stream() as stream:
            data = stream.read()[self._offset :]
        values = np.frombuffer(data, self.dtype).reshape(self.shape, order="F" if self._is_fortran else "C")
        return values.copy(order="C")

    def close(self) -> None:
        """Closes the stream; the next slice opens it again."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None
