"""Random damage for fuzz tests: of bytes, of tokens in a text, and of values in JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

#: Texts that replace numbers in a file; '²' is a digit, but no number.
_TOKENS = ("", "-1", "nan", "inf", "1e999", "²", "0x10", '"', "null", "\x00", "1_0", "[[[[", "{}", "../../x")
#: Values that replace values of JSON.
_VALUES = (
    None,
    True,
    -1,
    0,
    1.5,
    2**70,
    1e308,
    float("nan"),
    "",
    "x",
    "../../x",
    "/dev/zero",
    [],
    {},
    [1],
    [[]],
    {"x": 1},
)


def damage_randomly(path: Path, random: np.random.Generator) -> None:
    """Damages a file in a random way.

    Args:
      path: path of the file.
      random: source of all decisions.
    """
    is_text = path.suffix in (".json", ".csv", ".txt")
    if path.suffix == ".json" and random.random() < 0.6:
        document = _damage_value(json.loads(path.read_text(encoding="utf-8")), random)
        path.write_text(json.dumps(document), encoding="utf-8")
    elif is_text and random.random() < 0.5:
        text = path.read_text(encoding="utf-8")
        numbers = list(re.finditer(r"\d+", text))
        if numbers:
            match = numbers[int(random.integers(len(numbers)))]
            text = text[: match.start()] + str(random.choice(_TOKENS)) + text[match.end() :]
        path.write_text(text, encoding="utf-8")
    else:
        path.write_bytes(damage_bytes(path.read_bytes(), random))


def damage_bytes(valid: bytes, random: np.random.Generator) -> bytes:
    """Returns bytes with one random kind of damage."""
    content = bytearray(valid)
    size = max(len(content), 1)
    begin = int(random.integers(size))
    end = min(size, begin + int(random.integers(1, 65)))
    kind = random.choice(["flip", "truncate", "duplicate", "zero", "random"])
    if kind == "flip":
        for at in random.integers(size, size=int(random.integers(1, 9))):
            content[int(at)] ^= 1 << int(random.integers(8))
    elif kind == "truncate":
        del content[begin:]
    elif kind == "duplicate":
        content[end:end] = content[begin:end]
    elif kind == "zero":
        content[begin:end] = bytes(end - begin)
    else:
        content[begin:end] = random.bytes(end - begin)
    return bytes(content)


def _damage_value(document: Any, random: np.random.Generator) -> Any:
    """Replaces, removes, renames or repeats a value of a JSON document."""
    places = list(_find_places(document))
    if not places or random.random() < 0.05:
        return _VALUES[int(random.integers(len(_VALUES)))]
    parent, key = places[int(random.integers(len(places)))]
    kind = random.choice(["replace", "replace", "remove", "rename", "repeat"])
    if kind == "remove":
        del parent[key]
    elif kind == "rename" and isinstance(parent, dict):
        parent[f"{key}x"] = parent.pop(key)
    elif kind == "repeat" and isinstance(parent, list):
        parent.insert(key, parent[key])
    else:
        parent[key] = _VALUES[int(random.integers(len(_VALUES)))]
    return document


def _find_places(value: Any) -> Any:
    """Yields each dict or list in a JSON value, with each of its keys."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _find_places(value[key])
