"""Tables of the package in INI files, whose names may contain capital letters and colons."""

from __future__ import annotations

import configparser
from importlib import resources


def read_sections(package: str, name: str) -> dict[str, dict[str, str]]:
    """Returns the names and texts in the sections of a file of a package, in their order."""
    parser = configparser.ConfigParser(delimiters="=", interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((resources.files(package) / name).read_text(encoding="utf-8"))
    return {section: dict(parser[section]) for section in parser.sections()}
