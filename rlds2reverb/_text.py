"""Reports as text for people: short tables that fit 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

WIDTH = 80
#: Values of at most this many words, such as commands and paths, stay on one line, to be copied.
_WORDS_OF_A_COMMAND = 4


def number_text(value: float) -> str:
    """Returns a number as people write it: 12,345 or 0.912; '-' for NaN and infinities."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.4g}"


def facts_text(title: str, facts: Sequence[tuple[str, str]]) -> str:
    """Returns a title and a line for each name and value; sentences continue on lines of their own.

    >>> print(facts_text("hopper.hdf5", [("episodes", "2"), ("return", "mean 1.5")]))
    hopper.hdf5
      episodes  2
      return    mean 1.5
    """
    margin = max((len(name) for name, _ in facts), default=0) + 4
    lines = [title]
    for name, value in facts:
        wrapped = [value]
        if len(value.split()) > _WORDS_OF_A_COMMAND:
            wrapped = textwrap.wrap(value, WIDTH - margin, break_on_hyphens=False, break_long_words=False)
        lines += [f"  {name}".ljust(margin) + wrapped[0], *(" " * margin + line for line in wrapped[1:])]
    return "\n".join(lines)


def columns_text(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns rows under their headings, in columns that are as wide as they need to be."""
    table = [headings, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )
