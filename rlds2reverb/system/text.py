"""Formatting of numbers and short tables for reports that fit in 80 columns."""

from __future__ import annotations

import difflib
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence

WIDTH = 80
#: Values of at most this many words, such as commands and paths, are not wrapped, so that they can be copied.
_MAX_UNWRAPPED_WORDS = 4


def format_number(value: float) -> str:
    """Formats a number as 12,345 or 0.912; NaN and infinities become '-'."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.4g}"


def format_bytes(num_bytes: float) -> str:
    """Formats a size in the largest suitable unit: '512 bytes', '1.5 MB'."""
    if num_bytes < 1000:
        return f"{num_bytes:,.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        num_bytes /= 1000
        if num_bytes < 1000:
            return f"{num_bytes:,.1f} {unit}"
    return f"{num_bytes / 1000:,.1f} TB"


def format_facts(title: str, facts: Sequence[tuple[str, str]]) -> str:
    """Formats a title and one line per (name, value) pair; long values are wrapped and indented.

    >>> print(format_facts("hopper.hdf5", [("episodes", "2"), ("return", "mean 1.5")]))
    hopper.hdf5
      episodes  2
      return    mean 1.5
    """
    margin = max((len(name) for name, _ in facts), default=0) + 4
    lines = [title]
    for name, value in facts:
        wrapped = [value]
        if len(value.split()) > _MAX_UNWRAPPED_WORDS:
            wrapped = textwrap.wrap(value, WIDTH - margin, break_on_hyphens=False, break_long_words=False)
        lines += [f"  {name}".ljust(margin) + wrapped[0], *(" " * margin + line for line in wrapped[1:])]
    return "\n".join(lines)


def format_columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats rows under their headings, in left-aligned columns as narrow as possible."""
    table = [headings, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )


def escape_controls(text: str, *, kept: str = "") -> str:
    """Returns text with control characters other than the kept ones made visible."""
    return "".join(char if char.isprintable() or char in kept else repr(char)[1:-1] for char in text)


def suggest(name: str, valid_names: Iterable[str], *, key: Callable[[str], str] = str.lower) -> str:
    """Returns the end of a message about an unknown name: `; did you mean 'NAME'?`, or '' if no name is similar.

    Args:
      name: the unknown name.
      valid_names: the names that it may stand for.
      key: function that returns the part of a name to compare; by default, upper and lower case are the same.
    """
    by_key = {key(valid): valid for valid in valid_names}
    similar = difflib.get_close_matches(key(name), list(by_key), 1)
    return f"; did you mean {by_key[similar[0]]!r}?" if similar else ""


def advise(name: str, valid_names: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: that of `suggest`, or a list of all names."""
    names = sorted(valid_names)
    return suggest(name, names) or f"; use one of {', '.join(names)}"


def list_some(names: Sequence[str], limit: int = 5) -> str:
    """Returns the first names, separated by commas, and how many more there are: `a, b, ... and 3 more`."""
    more = f", ... and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def last_line(message: str) -> str:
    """Returns the last line of an error's message, which in some follows a traceback, or ''."""
    return "".join(message.strip().splitlines()[-1:]).strip()
