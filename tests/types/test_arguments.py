"""Tests of the checks of arguments: what each one accepts, and the message otherwise."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from rlds2reverb.errors import ArgumentError
from rlds2reverb.types.arguments import (
    require_count,
    require_defaults,
    require_keys,
    require_number,
    require_one_of,
    require_timeout,
)


@dataclass
class Options:
    size: int = 3
    path: str = ""


@pytest.mark.parametrize(
    ("check", "accepted", "rejected", "message"),
    [
        (lambda value: require_count("x", value), [1, 10**12], [0, -1, True, 1.0, "1"], "an integer >= 1, got {}"),
        (lambda value: require_count("x", value, 2, 1000), [2, 1000], [1, 1001], "an integer from 2 to 1,000, got {}"),
        (
            lambda value: require_number("x", value, 0, 1),
            [0, 1, 0.5, np.float32(1)],
            [-1e-9, 1.01, True, math.nan, "0.5", None],
            r"a number in \[0, 1\], got {}",
        ),
        (lambda value: require_number("x", value), [-1e300, math.inf], [math.nan, False], r"in \[-inf, inf\], got {}"),
        (lambda value: require_one_of("x", value, ["end", "start"]), ["end"], ["edn"], "one of 'end', 'start', got {}"),
        (lambda value: require_one_of("x", value, ["end"]), ["end"], ["emd"], "got 'emd'; did you mean 'end'?"),
        (require_timeout, [1, 0.5, 365 * 24 * 3600], [0, -1, 365 * 24 * 3600 + 1, math.nan, "1"], "at most one year"),
    ],
)  # fmt: skip
def test_values_outside_of_what_is_allowed_raise(check, accepted, rejected, message):
    for value in accepted:
        check(value)
    for value in rejected:
        with pytest.raises(ArgumentError, match=f"must be .*{message.format(repr(value))}".replace("?", r"\?")):
            check(value)


def test_unknown_keys_and_options_without_an_effect_raise():
    require_keys("options", ["size"], ["size", "path"])
    with pytest.raises(ArgumentError, match="'siez'.*did you mean 'size'"):
        require_keys("options", ["size", "siez"], ["size", "path"])
    require_defaults(Options(path="a"), ["size"], "for files")
    with pytest.raises(ArgumentError, match="size=4 has no effect for files; leave it out"):
        require_defaults(Options(4), ["size"], "for files")
