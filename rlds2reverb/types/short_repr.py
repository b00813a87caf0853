"""The representation of data classes and named tuples in one line, without the contents of arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from .specs import describe

_MAX_CHARS, _MAX_ENTRIES = 80, 8


def short_repr(instance: Any) -> str:
    """Returns the class and its fields, without those that are empty or have their default value.

    Arrays are shown as dtype and shape. Data classes and named tuples with arrays use this as their `__repr__`.
    """
    shown = ", ".join(f"{name}={shorten(value)}" for name, value in _iterate_fields(instance))
    return f"{type(instance).__name__}({shown})"


def shorten(value: Any) -> str:
    """Returns the representation of a value in at most about 80 characters, with arrays as dtype and shape."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return describe(value)
    if isinstance(value, Mapping):
        entries = [f"{name}: {shorten(entry)}" for name, entry in list(value.items())[:_MAX_ENTRIES]]
        opening, closing = "{", "}"
    elif type(value) in (tuple, list):
        entries = [shorten(entry) for entry in value[:_MAX_ENTRIES]]
        opening, closing = ("(", ")") if isinstance(value, tuple) else ("[", "]")
    else:
        content = repr(value)
        return content if len(content) <= _MAX_CHARS else f"{content[:_MAX_CHARS]}…"
    more = ["…"] * (len(value) > _MAX_ENTRIES)
    if isinstance(value, tuple) and len(value) == 1:
        entries[0] += ","
    content = opening + ", ".join(entries + more) + closing
    return content if len(content) <= _MAX_CHARS else f"{opening}{len(value):,} entries{closing}"


def _iterate_fields(instance: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and the value of each field that is neither empty nor has its default value."""
    if dataclasses.is_dataclass(instance):
        fields = [(field.name, field.default) for field in dataclasses.fields(instance) if field.repr]
    else:
        fields = [(name, instance._field_defaults.get(name, dataclasses.MISSING)) for name in instance._fields]
    for name, default in fields:
        value = getattr(instance, name)
        is_empty = value is None or (type(value) in (dict, list, tuple) and not value)
        parts = default if type(default) is tuple else (default,)
        is_plain = all(part is None or isinstance(part, (bool, int, float, str)) for part in parts)
        if not is_empty and not (is_plain and type(value) is type(default) and value == default):
            yield name, value
