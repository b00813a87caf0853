"""`Format`, what `load` knows about a kind of dataset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ArgumentError

from .source import Source


@dataclass(frozen=True)
class Format:
    """A kind of dataset: how it is recognised and opened, and the options that it takes.

    Attributes:
      name: name with its article, for messages.
      matches: function that returns whether a location is of this format. A location is the `Path` of an existing file
        or directory, a string that names a dataset, or any other object that was passed to `load`.
      open: function that opens such a location; its keyword arguments are the options that the user set.
      options: names of the options of `load` that apply; all others are errors.
      title: name of a family of formats in the help of the command line; '' for objects in memory.
      suffixes: suffixes of its files, in lower case, such as '.hdf5'; () for other locations.
      example: a name that stands for such a dataset, for messages.
    """

    name: str
    matches: Callable[[Any], bool]
    open: Callable[..., Source]
    options: tuple[str, ...] = ()
    title: str = ""
    suffixes: tuple[str, ...] = ()
    example: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.example})" if self.example else self.name


def require_applicable(options: Mapping[str, Any], allowed: Collection[str], name: str) -> None:
    """Raises `ValueError` if one of the options that the user set is not among the allowed ones.

    Args:
      options: values of the options by name.
      allowed: names of the options that apply.
      name: noun phrase for the thing that they apply to, such as 'a LeRobot dataset'.
    """
    for option, value in options.items():
        if option not in allowed:
            others = f" (its options: {', '.join(allowed)})" if allowed else ""
            shown = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
            raise ArgumentError(f"does not apply to {name}{others}; leave it out", about=option, value=shown)
