"""Small JSON files with their own sha256, which are there whole or not at all: journals and manifests."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from rlds2reverb.errors import CorruptFileError


def load(path: Path) -> dict[str, Any] | None:
    """Returns what was saved last, or None if there is no such file.

    Raises:
      CorruptFileError: if anything in it has changed.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["sha256"] == _digest(stored["content"]) and isinstance(stored["content"], dict):
            return dict(stored["content"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError, OSError):
        pass
    raise CorruptFileError(f"{path} is damaged")


def save(path: Path, content: dict[str, Any]) -> None:
    """Replaces what was saved; it is on the disk afterwards, also after a power failure."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump({"sha256": _digest(content), "content": content}, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Makes the content of a file last, or renames and new names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
