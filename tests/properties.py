"""How many examples a property test tries: few in the fast tests, ten times as many in the slow ones."""

import os

from hypothesis import HealthCheck, settings

_TIMES = 10 if os.environ.get("THOROUGH") == "1" else 1

settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
    max_examples=40 * _TIMES,
)
settings.load_profile("tests")


def examples(count: int) -> settings:
    """Settings for a test that tries so many examples in the fast tests."""
    return settings(max_examples=count * _TIMES)
