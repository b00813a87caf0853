"""An append-only CSV file of numbers by step that survives a crash of the writing process."""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rlds2reverb.errors import CorruptFileError
from rlds2reverb.system.full_disk import full_disk_as_error
from rlds2reverb.system.sealed_files import replace_text

STEP = "step"


class CsvLog:
    """A CSV file with a header and a row of numbers for each call of `append`; its first column is `step`.

    Each row is a single write, so a killed process leaves at most one incomplete last line, which is dropped when the
    file is next opened. New columns may be added at any time; their cells are empty in earlier rows.
    """

    def __init__(self, path: Path):
        """Opens the file; a new one is created by the first row.

        Args:
          path: path of the file, in an existing directory. Only one process may write it at a time.

        Raises:
          CorruptFileError: If the file is not such a log.
        """
        self._path = path
        self._columns, rows = _parse(path)
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            self._replace(rows)

    def append(self, step: int, values: Mapping[str, float | None]) -> None:
        """Appends a row.

        Args:
          step: value of the first column.
          values: numbers by column, or None for an empty cell; the cells of other columns are empty.

        Raises:
          TypeError: If a value is not a number.
          StorageFullError: If the disk is full; the file is left unchanged.
        """
        row = {STEP: str(int(step)), **{name: _format(name, value) for name, value in values.items()}}
        columns = [*self._columns, *(name for name in row if name not in self._columns)]
        cells = [row.get(name, "") for name in columns]
        if columns != self._columns:
            _, rows = _parse(self._path)
            with full_disk_as_error(self._path):
                self._replace([*rows, cells], columns)
            return
        line, consequence = _format_row(cells).encode(), "free some, and start again to continue"
        with full_disk_as_error(self._path, consequence=consequence), open(self._path, "ab", buffering=0) as stream:
            size = stream.seek(0, os.SEEK_END)
            try:
                if (stream.write(line) or 0) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                stream.truncate(size)
                raise

    def cut_after(self, step: int) -> None:
        """Removes the rows of later steps, for a run that resumes from this step."""
        _, rows = _parse(self._path)
        kept = [row for row in rows if int(row[0]) <= step]
        if len(kept) < len(rows):
            self._replace(kept)

    def compute_column(self, name: str, source: str, compute: Callable[[float], float | None]) -> bool:
        """Replaces a column by what a function returns for a second column; returns whether that changes it.

        Args:
          name: name of the column.
          source: name of the other column.
          compute: function from a number to a number, or to None for an empty cell.
        """
        _, rows = _parse(self._path)
        if name not in self._columns or source not in self._columns:
            return False
        target, origin = self._columns.index(name), self._columns.index(source)
        changed = [
            [*row[:target], _format(name, compute(float(row[origin] or "nan"))), *row[target + 1 :]] for row in rows
        ]
        if changed == rows:
            return False
        self._replace(changed)
        return True

    def _replace(self, rows: Sequence[Sequence[str]], columns: Sequence[str] | None = None) -> None:
        """Writes the file again, with other columns if they are given."""
        columns = self._columns if columns is None else list(columns)
        if not columns:
            self._path.unlink()  # The process died before the header was complete.
            return
        padded = ([*row, *[""] * (len(columns) - len(row))] for row in rows)
        replace_text(self._path, "".join(map(_format_row, [columns, *padded])))
        self._columns = columns


def read_csv_log(path: Path) -> dict[str, np.ndarray]:
    """Returns the columns of a file that `CsvLog` wrote or is writing; an empty dict if the file does not exist.

    Returns:
      float64 [N] by column, NaN for empty cells, with increasing `step`; of several rows with the same step only the
      last one is returned.

    Raises:
      CorruptFileError: If the file is not such a log.
    """
    names, rows = _parse(path)
    if not names:
        return {}
    last_rows = {int(row[0]): row for row in rows}
    table = np.array([[float(cell or "nan") for cell in last_rows[step]] for step in sorted(last_rows)], np.float64)
    return {name: table.reshape(-1, len(names))[:, column].copy() for column, name in enumerate(names)}


def _parse(path: Path) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of a file, without an incomplete last line."""
    try:
        content = path.read_bytes().rpartition(b"\n")[0].decode("utf-8")
        names, *rows = csv.reader(content.splitlines(), strict=True) if content else [[]]
    except FileNotFoundError:
        return [], []
    except (UnicodeDecodeError, csv.Error) as error:
        raise CorruptFileError(f"{path} is damaged ({error}); move it away to start a new one") from error
    if names and names[0] != STEP:
        raise CorruptFileError(f"the first column of {path} must be {STEP!r}, got {names[0]!r}")
    for number, row in enumerate(rows, 2):
        if len(row) != len(names) or not row[0].isdecimal() or not all(_is_number(cell) for cell in row[1:]):
            raise CorruptFileError(
                f"{path} is damaged: line {number} must contain {len(names)} numbers; fix or remove that line"
            )
    return names, rows


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def _format(name: str, value: float | None) -> str:
    if value is None:
        return ""
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name!r} must be a number, got {value!r}") from error
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)


def _format_row(cells: Sequence[str]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue()
