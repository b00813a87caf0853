"""The rule that distinguishes server addresses from paths."""

from __future__ import annotations

import re
from pathlib import Path

_ADDRESS = re.compile(r"[^/\s]+:\d{1,5}")


def server_address(location: str | Path) -> str | None:
    """Returns the location if it is a server address, or None if it is a path.

    A string `HOST:PORT` is the address of a Reverb server. Any other string, and every `Path`, is a path in the file
    system; for a file with a name like an address, pass `Path("name:8000")`.
    """
    return location if isinstance(location, str) and _ADDRESS.fullmatch(location) else None
