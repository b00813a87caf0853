"""Checks of options when the command line is read: under the name that the user typed, before TensorFlow is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from rlds2reverb.sources.transforms import REWARD_RECIPES, ScaleRewards, Transform
from rlds2reverb.tables import RateLimiter, Selector

_UNIT_SECS = {"": 1, "s": 1, "m": 60, "h": 3600}
_ADDRESS = re.compile(r"(.+):(\d{1,5})")


def _check(function: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Makes a callback of a function that raises `ValueError` for a bad value; the value stays as it was typed."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if value is not None:
            try:
                function(value)
            except ValueError as error:
                raise click.BadParameter(str(error), ctx, param) from error
        return value

    return callback


def _require_address(text: str) -> None:
    found = _ADDRESS.fullmatch(text)
    if not text.isdigit() and not (found and 0 < int(found[2]) < 65536):
        raise ValueError(f"{text!r} is not an address, expected host:port such as localhost:8000")


def _require_priority(text: str) -> None:
    try:
        fits = text == "return" or 0 <= float(text) <= 1e12
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{text!r} is not a priority, expected a number in [0, 1e12] or 'return'")


def parse_reward(text: str) -> Transform:
    """Returns the change of rewards that a recipe names, or `scale:SCALE[:SHIFT]`; raises `ValueError` for others."""
    if text in REWARD_RECIPES:
        return REWARD_RECIPES[text]
    kind, *numbers = text.split(":")
    try:
        scale, shift = (*map(float, numbers), 0.0)[:2] if len(numbers) in (1, 2) else (None, None)
    except ValueError:
        scale = None
    if kind != "scale" or scale is None:
        raise ValueError(f"{text!r} is not a recipe, expected {', '.join(REWARD_RECIPES)} or scale:SCALE[:SHIFT]")
    return ScaleRewards(scale, shift or 0.0)


class Duration(click.ParamType):
    """A time such as 600, 600s, 10m or 1.5h, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the seconds; fails if the text is not a duration above 0."""
        found = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", str(value).strip())
        secs = float(found[1]) * _UNIT_SECS[found[2]] if found else 0.0
        if secs <= 0:
            self.fail(f"{value!r} is not a duration above 0, expected such as 600, 90s, 10m or 2h", param, ctx)
        return secs


selector = _check(Selector.parse)
rate_limiter = _check(RateLimiter.parse)
address = _check(_require_address)
priority = _check(_require_priority)
reward = _check(parse_reward)

at_least_0 = click.IntRange(min=0)
at_least_1 = click.IntRange(min=1)
port = click.IntRange(1, 65535)
duration = Duration()
seconds = click.FloatRange(min=0, min_open=True)
fraction = click.FloatRange(0, 1)
