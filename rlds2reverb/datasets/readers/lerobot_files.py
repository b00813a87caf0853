"""Safe reading of the parquet files of LeRobot datasets: rows, and images in them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlds2reverb.errors import SourceError
from rlds2reverb.system.text import format_bytes
from rlds2reverb.types.specs import ArraySpec

from ..steps.image_files import decode_column, decode_images as decode_files, find_dtype
from .hdf5 import require_plausible_size

#: Maximum size of a row, which has to fit in memory many times.
MAX_ROW_BYTES = 64 << 20
_BLOCK_BYTES = 4 << 20
_MAX_BLOCK_ROWS = 1 << 16
_IMAGE_BLOCK_ROWS = 32
ADVICE = "copy or download the dataset again"


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Turns the errors of reading a parquet file into `SourceError`s."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(f"{path} is missing; {ADVICE}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        reason = str(error).partition("\n")[0]
        raise SourceError(f"{path} cannot be read as parquet ({reason}); {ADVICE}") from error


def read_rows(path: Path, is_wanted: Callable[[str], bool] = lambda name: True) -> list[dict[str, Any]]:
    """Returns all rows of a small parquet file as dicts of the columns for whose name a function returns True."""
    with parquet_errors(path), pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        _require_plausible(path, file.metadata.num_rows, 8 * len(names))
        return file.read([name for name in names if is_wanted(name)]).to_pylist()


def read_column(path: Path, name: str) -> np.ndarray:
    """Returns a column of integers of a parquet file, `[R]`; empty if there is none."""
    with parquet_errors(path), pq.ParquetFile(path) as file:
        _require_plausible(path, file.metadata.num_rows, 8)
        has_column = name in file.schema_arrow.names
        return file.read([name])[name].to_numpy() if has_column else np.zeros(0, np.int64)


class RowReader:
    """Reads consecutive rows of a parquet file, of which it keeps one block in memory."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], images: Sequence[str], *, first_row: int):
        """Opens the file.

        Args:
          path: the file.
          shapes: shape of a row of each column of numbers or strings to read.
          images: columns of encoded images to read.
          first_row: first row that will be read.

        Raises:
          SourceError: If the file is missing, damaged or hostile, or has no such column.
        """
        self._path = path
        columns = [*shapes, *images]
        with parquet_errors(path):
            self._file = pq.ParquetFile(
                path, metadata=_read_plain_metadata(path), buffer_size=1 << 20, pre_buffer=False
            )
            metadata = self._file.metadata
            missing = [name for name in columns if name not in self._file.schema_arrow.names]
            if missing:
                raise SourceError(f"{path} has no column '{missing[0]}', which meta/info.json lists; {ADVICE}")
            row_bytes = sum(8 * math.prod(shape) for shape in shapes.values())
            _require_plausible(path, metadata.num_rows, row_bytes)
            block_rows = _IMAGE_BLOCK_ROWS if images else int(np.clip(_BLOCK_BYTES // row_bytes, 1, _MAX_BLOCK_ROWS))
            #: The number of the first pending row.
            groups, self.row = _find_groups(metadata, first_row)
            self._batches = self._file.iter_batches(
                batch_size=block_rows, row_groups=groups, columns=columns, use_threads=False
            )
        self._pending = pa.table({})

    def read(self, first_row: int, num_rows: int) -> pa.Table:
        """Returns some rows.

        Raises:
          SourceError: If the file is damaged, or ends before them.
        """
        parts: list[pa.Table] = []
        row, stop = first_row, first_row + num_rows
        with parquet_errors(self._path):
            while row < stop:
                if not self._fill():
                    message = f"{self._path} ends after row {row}"
                    raise SourceError(f"{message}, inside an episode of {num_rows} rows; {ADVICE}")
                skipped = min(row - self.row, len(self._pending))
                parts.append(self._pending.slice(skipped, stop - row))
                row += len(parts[-1])
                self._pending = self._pending.slice(skipped + len(parts[-1]))
                self.row += skipped + len(parts[-1])
        return pa.concat_tables(parts)

    def peek(self, name: str) -> Any:
        """Returns the value of a column in the row after the last one that was read; None at the end of the file."""
        with parquet_errors(self._path):
            return self._pending[name][0].as_py() if self._fill() else None

    def _fill(self) -> bool:
        """Reads another block if no row is left of the last one; returns False at the end of the file."""
        while not len(self._pending):
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._pending = pa.Table.from_batches([batch])
        return True

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _read_plain_metadata(path: Path) -> pq.FileMetaData:
    """Returns the metadata of a file without Arrow's schema, so that lists may differ in length.

    Arrow refuses all rows of a block if one of its lists of a fixed length is null.
    """
    with path.open("rb") as file:
        file.seek(-8, io.SEEK_END)
        file.seek(-8 - int.from_bytes(file.read(4), "little"), io.SEEK_END)
        footer = file.read()
    return pq.read_metadata(pa.BufferReader(b"PAR1" + footer.replace(b"ARROW:schema", b"arrow:schema")))


def _require_plausible(path: Path, num_rows: int, row_bytes: int) -> None:
    """Raises `SourceError` for rows that are too large, or far more of them than the file can contain."""
    if row_bytes > MAX_ROW_BYTES:
        raise SourceError(
            f"{path}: meta/info.json declares rows of {format_bytes(row_bytes)}; the limit is "
            f"{format_bytes(MAX_ROW_BYTES)}"
        )
    require_plausible_size(str(path), path.stat().st_size, num_rows * row_bytes)


def _find_groups(metadata: Any, first_row: int) -> tuple[list[int], int]:
    """Returns the row groups from the one that contains a row, and the first row of that group."""
    start = 0
    for group in range(metadata.num_row_groups):
        num_rows = metadata.row_group(group).num_rows
        if start + num_rows > first_row:
            return list(range(group, metadata.num_row_groups)), start
        start += num_rows
    return [], start


def to_array(column: pa.ChunkedArray, shape: tuple[int, ...], where: str) -> np.ndarray:
    """Returns a column of numbers as an array `[T, *shape]`, or of strings as objects `[T]`.

    A shape of `(1,)` stands for a scalar column: the result is `[T]`. Records become strings with JSON.

    Raises:
      SourceError: If values are missing, are not of this shape, or are neither numbers nor strings.
    """
    if _has_records(column.type):  # LeRobot's annotations.
        return np.array([json.dumps(row, default=str).encode() for row in column.to_pylist()], object)
    values, num_rows = column.combine_chunks(), len(column)
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    while isinstance(values.type, pa.BaseExtensionType) or pa.types.is_nested(values.type):
        if isinstance(values.type, pa.BaseExtensionType):  # Multi-dimensional arrays of the `datasets` package.
            values = values.storage
            continue
        if values.null_count:
            break
        values = values.flatten()
    if values.null_count:
        raise SourceError(f"{where} has missing values (null); fill them, or leave it out", DropFields=...)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        array = np.array([text.encode() for text in values.to_pylist()], object)
    else:
        array = values.to_numpy(zero_copy_only=False)
    if (array.dtype.kind not in "biuf" and array.dtype != object) or pa.types.is_nested(values.type):
        raise SourceError(f"{where} must contain numbers or strings, got {values.type}; leave it out", DropFields=...)
    if len(array) != num_rows * math.prod(shape):
        message = f"{where} must have {list(shape)} values per row, as in meta/info.json; {ADVICE}, or leave it out"
        raise SourceError(message, DropFields=...)
    return array.reshape(num_rows, *(() if shape == (1,) else shape))


def _has_records(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) or (pa.types.is_nested(kind) and _has_records(kind.value_type))


def decode_images(column: pa.ChunkedArray, shape: tuple[int, ...], where: str) -> np.ndarray:
    """Returns a column of encoded images as an array `[T, height, width, channels]`.

    Args:
      column: structs with `bytes`.
      shape: height, width and number of channels.
      where: name of the column, for error messages.

    Raises:
      SourceError: If an image is not in the file, damaged, or of a different size or dtype.
    """
    files = [row.get("bytes") if isinstance(row, dict) else row for row in column.to_pylist()]
    for row, file in enumerate(files):
        if not (isinstance(file, bytes) and file):
            raise SourceError(f"{where}, step {row}: the image is not in the parquet file; convert the dataset again")
    if math.prod(shape) > MAX_ROW_BYTES:
        raise SourceError(f"{where}: images must have at most {format_bytes(MAX_ROW_BYTES)}, got {list(shape)}")
    pixels = ArraySpec(shape, find_dtype(files[0] if files else b""))
    advice = f"fix the shape in meta/info.json, or {ADVICE}"
    return decode_column(files, pixels, decode_files, lambda row: f"{where}, step {row}", advice)
