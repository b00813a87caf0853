"""JSON in the files of datasets, which may be damaged or have any content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError

_MAX_JSON_BYTES = 256 << 20


def as_dict(value: Any) -> dict[str, Any]:
    """Returns a JSON value if it is an object, and an empty dict otherwise."""
    return value if isinstance(value, dict) else {}


def read_json(path: Path) -> Any:
    """Returns the content of a JSON file, or of each line of a JSONL file; raises `SourceError` if it is damaged."""
    place = str(path)
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError(f"it has {path.stat().st_size:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            return json.loads(text)
        found = []
        for number, line in enumerate(text.splitlines(), 1):
            place = f"line {number} of {path}"
            found += [json.loads(line)] if line else []
        return found
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{place} cannot be read as JSON ({error}); copy or download it again") from error


def parse_object(text: str | None) -> dict[str, Any]:
    """Returns the JSON object that a text contains, and an empty dict for any other text."""
    try:
        return as_dict(json.loads(text or ""))
    except (ValueError, RecursionError):
        return {}
