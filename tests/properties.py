"""How many examples a property test tries: few in the fast tests, twenty-five times as many in the slow ones."""

import os

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
