"""Checks of option values, made before TensorFlow is loaded; an error names the option."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from rlds2reverb.locations import server_address
from rlds2reverb.sources.rlds_conventions import require_missing
from rlds2reverb.sources.rlds_features import read_features
from rlds2reverb.sources.transforms import parse_reward
from rlds2reverb.tables import RateLimiter, Selector

from .number_types import Number, at_least_0, at_least_1, fraction, integer, port, seconds, share

__all__ = ["Number", "at_least_0", "at_least_1", "fraction", "integer", "port", "seconds", "share"]

_SECS_PER_UNIT = {"": 1, "s": 1, "m": 60, "h": 3600}


def _make_callback(check: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Returns a click callback that reports a `ValueError` of `check` and otherwise keeps the value as typed."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if value is not None:
            try:
                check(value)
            except ValueError as error:
                raise click.BadParameter(str(error), ctx, param) from error
        return value

    return callback


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
        raise ValueError(f"the file must end with {suffixes[0]}, got '{path}'")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"the directory '{path.parent}' does not exist; create it, or pass another path")


def _require_film(path: Path) -> None:
    from rlds2reverb.envs.film import require_film_path

    require_film_path(path)


class Duration(click.ParamType):
    """The type of an option that takes a duration such as 600, 600s, 10m or 1.5h; the value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the duration in seconds; fails if it cannot be parsed or is 0."""
        match = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", str(value).strip())
        secs = float(match[1]) * _SECS_PER_UNIT[match[2]] if match else 0.0
        if secs <= 0:
            self.fail(f"the duration must be greater than 0, such as 600, 90s, 10m or 2h, got {value!r}", param, ctx)
        return secs


def missing(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    """Returns the numbers of a repeatable option FIELD=VALUE by field."""
    try:
        numbers = {name: float(number) for name, _, number in (value.partition("=") for value in values)}
        require_missing(numbers)
    except ValueError as error:
        raise click.BadParameter(f"the values must be FIELD=NUMBER such as discount=1 ({error})", ctx, param) from error
    return numbers


def cameras(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> list[str] | None:
    """Returns the values of a repeatable option, [] for the single value 'none', and None for no value."""
    if "none" in names and len(names) > 1:
        raise click.BadParameter(f"'none' cannot be combined with other cameras, got {', '.join(names)}", ctx, param)
    return [] if names == ("none",) else list(names) or None


selector = _make_callback(Selector.parse)
rate_limiter = _make_callback(RateLimiter.parse)
address = _make_callback(_require_address)
priority = _make_callback(_require_priority)
film = _make_callback(_require_film)
reward = _make_callback(parse_reward)
features = _make_callback(read_features)

new_file = _make_callback(_require_new_file)
page = _make_callback(functools.partial(_require_new_file, suffixes=(".html", ".htm")))
png = _make_callback(functools.partial(_require_new_file, suffixes=(".png",)))

duration = Duration()
