"""The rules that distinguish server addresses, directories of tables, and other paths."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ArgumentError

_ADDRESS = re.compile(r"[^/\s]+:\d{1,5}")
_SHARD = re.compile(r"shard_(0|[1-9]\d*)(\.partial)?")


def expand_path(path: str | Path, argument: str = "") -> Path:
    """Returns a path that a user has passed, with the home directory in place of `~`.

    Raises:
      ArgumentError: If it is '', which would be the working directory.
    """
    if not str(path):
        raise ArgumentError("must be a path, got ''", about=argument)
    return Path(os.path.expanduser(path))


def server_address(location: str | Path) -> str | None:
    """Returns the location if it is the address of one or more servers, or None if it is a path.

    A string `HOST:PORT` is the address of a Reverb server, and `HOST:PORT,HOST:PORT` those of several. Any other
    string, and every `Path`, is a path in the file system; for a file with a name like an address, pass
    `Path("name:8000")`.
    """
    return location if isinstance(location, str) and _ADDRESS.fullmatch(location) else None


def is_table_directory(location: str | Path) -> bool:
    """Returns whether a location is a directory of tables, which `ingest` or a server with a checkpoint root wrote.

    The tables may be divided into shards; see `find_shard_numbers`.
    """
    return _has_tables(location) or bool(find_shard_numbers(location))


def _has_tables(location: str | Path) -> bool:
    try:
        return (Path(location).expanduser() / "rlds2reverb.json").is_file()
    except (OSError, ValueError, RuntimeError):  # The text cannot be a path, for example because it is too long.
        return False


def shard_name(shard: int) -> str:
    """Returns the name of a shard's directory."""
    return f"shard_{shard}"


def shard_path(directory: str | Path, shard: int) -> Path:
    """Returns the directory of a shard in the directory of all shards."""
    return Path(directory) / shard_name(shard)


def find_shard_numbers(location: str | Path) -> list[int]:
    """Returns the numbers of the shards of tables in a directory, also of those whose conversion was interrupted."""
    try:
        entries = list(Path(location).expanduser().iterdir())
    except (OSError, ValueError, RuntimeError):
        return []
    matches = [(entry, match) for entry in entries if (match := _SHARD.fullmatch(entry.name))]
    return sorted({int(match[1]) for entry, match in matches if _has_tables(entry) or (match[2] and entry.is_dir())})


def is_server(source: Any) -> bool:
    """Returns whether a source is one or more servers: addresses, `ReplayServer`s, or servers and clients of Reverb."""
    if isinstance(source, (list, tuple)) and source:
        return all(map(is_server, source))
    names = ("address", "servers", "server_address", "localhost_client")
    return server_address(source) is not None or any(hasattr(source, name) for name in names)


@dataclass(frozen=True)
class TableLocation:
    """The location of tables with items, or of one of them.

    Attributes:
      place: the servers, see `is_server`, or the directory.
      table: the name of the table; None if there is only one, or for the one named 'replay'.
    """

    place: Any
    table: str | None = None

    @property
    def directory(self) -> Path | None:
        """The directory; None for servers."""
        return _find_directory(self.place)


def find_tables(source: Any) -> TableLocation | None:
    """Returns where the tables of a source of training data are: servers, a directory, or (one of these, table).

    None is returned for any other source.
    """
    if isinstance(source, TableLocation):
        return source
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[1], str) and not server_address(source[1]):
        return TableLocation(*source)
    return TableLocation(source) if is_server(source) or _find_directory(source) else None


def _find_directory(place: Any) -> Path | None:
    is_directory = isinstance(place, (str, Path)) and is_table_directory(place)
    return Path(place).expanduser() if is_directory else None
