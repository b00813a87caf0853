"""Converts docstrings, which are plain text with code in backticks, to the reStructuredText that Sphinx reads."""

from __future__ import annotations

import re
import textwrap
from typing import Any


def to_restructured_text(lines: list[str]) -> list[str]:
    """Converts the lines of a docstring.

    Blocks that are indented after an empty line, such as equations and examples, become literal blocks; elsewhere,
    characters that reStructuredText would interpret are escaped.
    """
    converted: list[str] = []
    text: list[str] = []
    block: int | None = None  # Indentation of the paragraph before the literal block that is being read.
    previous = ""
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        after_empty_line = number > 0 and not lines[number - 1].strip()
        if block is None and after_empty_line and line.strip() and previous and indent > _indent_of_text(previous):
            block = _indent_of_text(previous)
            converted += [*_escape(text), " " * block + "::", ""]
            text = []
        (text if block is None else converted).append(line)
        previous = line if line.strip() else previous
    return [*converted, *_escape(text)]


def _indent_of_text(line: str) -> int:
    """Returns the indentation of a line's text, that of the text after the bullet if it is in a list."""
    match = re.match(r"\s*(?:[-*] )?", line)
    return len(match[0]) if match else 0


def _escape(lines: list[str]) -> list[str]:
    parts = re.split(r"(`[^`]*`)", "\n".join(lines))
    for number, part in enumerate(parts):
        if number % 2:
            code = re.sub(r"\n\s*", " ", part)
            parts[number] = f"`{code}`" + (r"\ " if re.match(r"\w", parts[number + 1]) else "")
        else:
            parts[number] = _escape_text(part)
    return "".join(parts).split("\n") if lines else []


def _escape_text(text: str) -> str:
    text = re.sub(r"(?<=\w)_(?!\w)", r"\_", text)
    return re.sub(r"(?<!^)(?<!\s)\*|\*(?=\S)|\|", lambda match: "\\" + match[0], text)


def convert_docstring(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Converts a docstring in place; a handler of Sphinx's event autodoc-process-docstring."""
    lines[:] = to_restructured_text(textwrap.dedent("\n".join(lines)).split("\n"))


def convert_command_help(app: Any, context: Any, lines: list[str]) -> None:
    """Makes literal blocks of a command's lines that must not be wrapped; a handler of an event of sphinx-click."""
    converted: list[str] = []
    for line in lines:
        if not line.startswith("|"):
            converted.append(line)
        elif line.startswith("|  "):
            converted.append(f"  {line[1:]}")
        else:
            converted += [f"{line[2:]}:", ""] if line.endswith(":") else [line]
    lines[:] = converted
