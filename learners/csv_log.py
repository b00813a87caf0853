"""A CSV file of numbers by step, which survives the death of the process that writes it."""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rlds2reverb.errors import CorruptFileError, StorageFullError

STEP = "step"


class CsvLog:
    """A CSV file with a header and a row of numbers for each call of `append`; its first column is `step`.

    Each row is one write, so that a process that is killed leaves at most the last line unfinished; that line is
    dropped when the file is opened again. New columns may come at any time: rows before them have nothing there.
    """

    def __init__(self, path: Path):
        """Opens the file, or begins a new one with the first row.

        Args:
          path: of the file, whose directory exists. Only one process at a time may write it.

        Raises:
          CorruptFileError: if it is not such a file.
        """
        self._path = path
        self._columns, rows = _parsed(path)
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            self._replace(rows)

    def append(self, step: int, values: Mapping[str, float | None]) -> None:
        """Adds a row.

        Args:
          step: the value of the first column.
          values: numbers by column; None for nothing. Columns that are not named have nothing in this row.

        Raises:
          TypeError: if a value is not a number.
          StorageFullError: if the disk is full; the file is as it was.
        """
        row = {STEP: str(int(step)), **{name: _text(name, value) for name, value in values.items()}}
        new = [name for name in row if name not in self._columns]
        if new:
            _, rows = _parsed(self._path)
            self._columns = [*self._columns, *new]
            self._replace(rows)
        line = _line([row.get(name, "") for name in self._columns])
        with open(self._path, "ab", buffering=0) as stream:
            size = stream.seek(0, os.SEEK_END)
            if _written(stream, line.encode()) < len(line.encode()):
                stream.truncate(size)
                message = f"no space left for {self._path}; free some, and start again to continue"
                raise StorageFullError(errno.ENOSPC, message)

    def cut_after(self, step: int) -> None:
        """Removes the rows of later steps, for a run that goes on from this one."""
        _, rows = _parsed(self._path)
        kept = [row for row in rows if int(row[0]) <= step]
        if len(kept) < len(rows):
            self._replace(kept)

    def _replace(self, rows: Sequence[Sequence[str]]) -> None:
        """Writes the whole file again; it is there as it was, or as it will be, never in between."""
        if not self._columns:
            self._path.unlink()  # not even the header had been written
            return
        temporary = self._path.with_suffix(".tmp")
        padded = ([*row, *[""] * (len(self._columns) - len(row))] for row in rows)
        with temporary.open("w", encoding="utf-8") as stream:
            stream.writelines(map(_line, [self._columns, *padded]))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(self._path)


def read_csv_log(path: Path) -> dict[str, np.ndarray]:
    """Returns the columns of a file that `CsvLog` wrote, also while it does; nothing if there is no such file.

    Returns:
      float64 [N] by column, NaN where a row has nothing; rising in `step`: of rows with the same step the last.

    Raises:
      CorruptFileError: if it is not such a file.
    """
    names, rows = _parsed(path)
    if not names:
        return {}
    last_of = {int(row[0]): row for row in rows}
    table = np.array([[float(cell or "nan") for cell in last_of[step]] for step in sorted(last_of)], np.float64)
    return {name: table.reshape(-1, len(names))[:, column].copy() for column, name in enumerate(names)}


def _parsed(path: Path) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of a file, without an unfinished last line."""
    try:
        text = path.read_bytes().rpartition(b"\n")[0].decode("utf-8")
        names, *rows = csv.reader(text.splitlines(), strict=True) if text else [[]]
    except FileNotFoundError:
        return [], []
    except (UnicodeDecodeError, csv.Error) as error:
        raise CorruptFileError(f"{path} is damaged ({error}); move it away to begin a new one") from error
    if names and names[0] != STEP:
        raise CorruptFileError(f"{path} begins with {names[0]!r}, expected a file whose first column is {STEP!r}")
    for number, row in enumerate(rows, 2):
        if len(row) != len(names) or not row[0].isdigit() or not all(_is_number(cell) for cell in row[1:]):
            raise CorruptFileError(
                f"{path} is damaged at line {number}, expected {len(names)} numbers; mend or remove that line"
            )
    return names, rows


def _written(stream: io.FileIO, content: bytes) -> int:
    """Returns how many bytes the disk had space for."""
    try:
        return stream.write(content) or 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return 0


def _is_number(cell: str) -> bool:
    try:
        return not cell or float(cell) is not None
    except ValueError:
        return False


def _text(name: str, value: float | None) -> str:
    if value is None:
        return ""
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name!r} is {value!r}, expected a number") from error
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)


def _line(cells: Sequence[str]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue()
