"""Argument checks with uniform messages."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from numbers import Real
from typing import Any, ParamSpec, TypeVar

from rlds2reverb.errors import ArgumentError
from rlds2reverb.system.replacements import describe_unknown, require_arguments
from rlds2reverb.system.text import suggest

_YEAR_SECS = 365 * 24 * 3600
_Arguments = ParamSpec("_Arguments")
_Made = TypeVar("_Made")
_Result = TypeVar("_Result")


def require_count(name: str, value: Any, low: int = 1, high: int | None = None) -> None:
    """Raises `ValueError` unless the value is an int from `low` to `high`; a bool is not an int here."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        allowed = f">= {low:,}" if high is None else f"from {low:,} to {high:,}"
        raise ArgumentError(f"must be an integer {allowed}, got {value!r}", about=name)


def require_number(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> None:
    """Raises `ValueError` unless the value is a Python or numpy number from `low` to `high`; rejects NaN and bools."""
    if not isinstance(value, Real) or isinstance(value, bool) or not low <= float(value) <= high:
        raise ArgumentError(f"must be a number in [{low:g}, {high:g}], got {value!r}", about=name)


def require_one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raises `ValueError` unless the value is one of the allowed names."""
    if value not in allowed:
        similar = suggest(value, allowed) if isinstance(value, str) else ""
        raise ArgumentError(f"must be one of {', '.join(map(repr, allowed))}, got {value!r}{similar}", about=name)


def require_keys(name: str, keys: Iterable[Any], allowed: Iterable[str], *owners: str) -> None:
    """Raises `ValueError` unless all keys of a dict are allowed; see `find_replacement` for `owners`."""
    allowed = tuple(allowed)
    for key in keys:
        if key not in allowed:
            raise ArgumentError(describe_unknown(name, "key", key, allowed, *owners))


def require_defaults(config: Any, names: Sequence[str], reason: str) -> None:
    """Raises `ValueError` if one of these options of a dataclass, which have no effect, is not at its default."""
    for option in fields(config):
        value = getattr(config, option.name)
        if option.name in names and value != option.default:
            raise ArgumentError(f"has no effect {reason}; leave it out", about=option.name, value=value)


def require_timeout(timeout_secs: Any) -> None:
    """Raises `ValueError` unless the timeout is above 0 and at most one year."""
    if not isinstance(timeout_secs, Real) or not 0 < float(timeout_secs) <= _YEAR_SECS:
        raise ArgumentError(f"must be above 0 and at most one year, got {timeout_secs}", about="timeout_secs")


def take_arguments(
    make: Callable[_Arguments, _Made],
) -> Callable[[Callable[[_Made], _Result]], Callable[_Arguments, _Result]]:
    """Lets a function take the arguments of a class, which declares and checks them, instead of an object of it."""

    def decorate(use: Callable[[_Made], _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(use)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            require_arguments(make, kwargs, use.__name__)
            return use(make(*args, **kwargs))

        signature = inspect.signature(make).replace(return_annotation=inspect.signature(use).return_annotation)
        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate
