"""Numbers of Hypothesis examples and of test parameters in the fast and in the slow tests."""

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_EXAMPLES_FACTOR = 10 if os.environ.get("THOROUGH") == "1" else 0.25

settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
    max_examples=int(40 * _EXAMPLES_FACTOR),
)
settings.load_profile("tests")


def examples(count: int) -> settings:
    """Returns settings for 0.25 times `count` examples in the fast tests, and 10 times `count` in the slow ones."""
    return settings(max_examples=int(count * _EXAMPLES_FACTOR))


def mark_slow_except(fast: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Returns test parameters of which all but the fast ones are marked as slow."""
    return [value if value in fast else _mark_slow(value) for value in values]


def _mark_slow(value: Any) -> Any:
    # A tuple has a value for each of several arguments.
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
