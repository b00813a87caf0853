"""Checks of option values, made before TensorFlow is loaded; an error names the option."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from rlds2reverb.datasets.mapping.mapping import DatasetMapping
from rlds2reverb.datasets.mapping.robot_layouts import OCTO
from rlds2reverb.datasets.readers.remote import is_remote
from rlds2reverb.datasets.transforms import parse_reward
from rlds2reverb.types.locations import expand_path, server_address
from rlds2reverb.types.scores import D4RL
from rlds2reverb.types.tables import RateLimiter, Selector

from .declarations import DIRECTORY, EXISTING_FILE, FILE

_SECS_PER_UNIT = {"": 1, "s": 1, "m": 60, "h": 3600}


class Checked(click.ParamType):
    """The type of an option whose value is checked, and otherwise kept as it is."""

    def __init__(self, name: str, check: Callable[[Any], Any], base: click.ParamType = click.STRING):
        """
        Args:
          name: placeholder of the value in `--help`.
          check: function that raises `ValueError` for invalid values.
          base: type that converts values before the check.
        """
        self.name, self._check, self._base = name, check, base
        self.shell_complete = base.shell_complete  # type: ignore[method-assign]

    def get_metavar(self, *_: Any, **__: Any) -> str:
        """Returns the name; click would change it to upper case."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the value; fails if the check does."""
        value = self._base.convert(value, param, ctx)
        try:
            self._check(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value


class Parsed(Checked):
    """The type of an option whose value is what the check returns."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the result of the check; fails if the check does."""
        return self._check(super().convert(value, param, ctx))


def _parse_reference_returns(text: str) -> str | tuple[float, float]:
    parts = text.split(",")
    if len(parts) == 2:
        with contextlib.suppress(ValueError):
            return float(parts[0]), float(parts[1])
    if text == D4RL:
        return text
    if not text or not (path := expand_path(text)).is_file():
        raise ValueError(f"must be {D4RL}, a JSON file, or two numbers such as -1200,-150, got {text!r}")
    return str(path)


def _require_address(addresses: str) -> None:
    for address in addresses.split(","):
        if server_address(address) is None or not 0 < int(address.rpartition(":")[2]) < 65536:
            raise ValueError(f"the address must be HOST:PORT such as localhost:8000, got {address!r}")


def _require_priority(priority: str) -> None:
    try:
        is_valid = priority == "return" or 0 <= float(priority) <= 1e12
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError(f"the priority must be a number in [0, 1e12] or 'return', got {priority!r}")


def _require_new_file(path: Path, suffixes: Sequence[str] = ()) -> None:
    if suffixes and path.suffix.lower() not in suffixes:
        raise ValueError(f"the file must end with {' or '.join(suffixes)}, got '{path}'")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"the directory '{path.parent}' does not exist; create it, or pass another path")
    if not os.access(path.absolute().parent, os.W_OK):
        raise ValueError(f"the directory '{path.parent}' is not writable; pass another path, or change its permissions")


def _expand_destination(location: str) -> str:
    if ":" in location and "/" not in location and "\\" not in location:
        _require_address(location)  # Which a mistyped one also means; ./a:b is a path.
        return location
    return location if is_remote(location) else str(expand_path(location))


def _require_film(path: Path) -> None:
    from rlds2reverb.envs.film import require_film_path

    require_film_path(path)


def _parse_share(share: str) -> float:
    """Returns a share in [0, 1), such as 0.1 or 10%."""
    number = math.nan
    with contextlib.suppress(ValueError):
        number = float(share.removesuffix("%")) / (100 if share.endswith("%") else 1)
    if not 0 <= number < 1:
        raise ValueError(f"must be a share >= 0 and < 1, such as 0.1 or 10%, got {share!r}")
    return number


def _parse_duration(duration: str) -> float:
    """Returns the seconds of a duration such as 600, 600s, 10m or 1.5h."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", duration.strip())
    secs = float(match[1]) * _SECS_PER_UNIT[match[2]] if match else 0.0
    if secs <= 0:
        raise ValueError(f"the duration must be greater than 0, such as 600, 90s, 10m or 2h, got {duration!r}")
    return secs


class _MappingFile(click.ParamType):
    """The type of a file with a mapping, or of the name of a layout."""

    name = "mapping"
    shell_complete = EXISTING_FILE.shell_complete  # type: ignore[assignment]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path or the name; fails if there is no such file."""
        return value if value == OCTO else EXISTING_FILE.convert(value, param, ctx)


selector = Parsed("SELECTOR", Selector.parse)
rate_limiter = Parsed("LIMITER", RateLimiter.parse)
priority = Checked("NUMBER|return", _require_priority)
destination = Parsed("PATH|HOST:PORT", _expand_destination)
reward = Checked("EXPRESSION", parse_reward)
film = Checked("FILE.mp4|.gif", _require_film, FILE)
reference_returns = Parsed("d4rl|FILE|RANDOM,EXPERT", _parse_reference_returns)
directory = Parsed("DIR", str, DIRECTORY)
mapping = Checked("FILE|octo", DatasetMapping.parse, _MappingFile())
new_file = Checked("FILE", _require_new_file, FILE)
page = Checked("FILE.html", functools.partial(_require_new_file, suffixes=(".html", ".htm")), FILE)
estimates = Checked(
    "FILE.json|.png|.svg", functools.partial(_require_new_file, suffixes=(".json", ".png", ".svg")), FILE
)
figure = Checked("FILE.png|.svg", functools.partial(_require_new_file, suffixes=(".png", ".svg")), FILE)
duration = Parsed("DURATION", _parse_duration)
share = Parsed("FLOAT", _parse_share)
