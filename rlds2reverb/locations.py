"""The one rule that tells a server's address from a path."""

from __future__ import annotations

import re
from pathlib import Path

_ADDRESS = re.compile(r"[^/\s]+:\d{1,5}")


def server_address(location: str | Path) -> str | None:
    """Returns the address that a location stands for, or None if it is a path.

    A string `HOST:PORT` is the address of a Reverb server. Any other string, and every `Path`, is a path in the file
    system; for a file that is named like an address, pass `Path("name:8000")`.
    """
    return location if isinstance(location, str) and _ADDRESS.fullmatch(location) else None
