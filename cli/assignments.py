"""Repeatable options NAME=VALUE, each of which sets several arguments of the library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click


class AssignmentOption(click.Option):
    """A repeatable option NAME=VALUE.

    Attributes:
      assigned: how the option names each argument of the library that it can set; messages use these names.
    """

    def __init__(self, *arguments: Any, assigned: Mapping[str, str], **attributes: Any):
        super().__init__(*arguments, **{"multiple": True, "metavar": "NAME=VALUE", **attributes})
        self.assigned = assigned

    def describe(self, argument: str, value: Any) -> str:
        """Returns the option with an argument, and with its value unless that is `...`."""
        words = f"{self.opts[0]} {self.assigned[argument]}"
        if value is ... or value is True:
            return words
        if isinstance(value, Mapping):
            value = ",".join(f"{key}:{number}" for key, number in value.items())
        elif isinstance(value, (list, tuple)):
            value = ",".join(map(str, value)) or "none"
        return f"{words}={str(value).lower() if value is None or value is False else value}"


def split_assignments(flag: str, example: str, pairs: Iterable[str]) -> dict[str, str]:
    """Returns the values of a repeatable option NAME=VALUE by name; raises `click.UsageError` for anything else."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise click.UsageError(f"{flag} must be NAME=VALUE such as {example}, got {pair!r}")
        if name in values:
            raise click.UsageError(f"{flag} {name} must be passed only once")
        values[name] = value
    return values
