"""What the fast tests try, and what only the slow ones: a few examples and a few parameters of many."""

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_TIMES = 10 if os.environ.get("THOROUGH") == "1" else 0.4

settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
    max_examples=int(40 * _TIMES),
)
settings.load_profile("tests")


def examples(count: int) -> settings:
    """Settings for a test that tries 0.4 of `count` examples in the fast tests, and ten times `count` in the slow ones."""
    return settings(max_examples=int(count * _TIMES))


def slow_but(fast: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters of a test, of which all but some are slow."""
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]
