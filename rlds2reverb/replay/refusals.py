"""How a buffer says no: to a sample, with a reason; to a push, with an error."""

from __future__ import annotations

from typing import NamedTuple

from rlds2reverb.errors import RateLimited
from rlds2reverb.tables import RateLimiter


class SampleCheck(NamedTuple):
    """Whether a sample would be given now, and why not; true where it would.

    Attributes:
      allowed: whether it would.
      reason: a sentence; empty where it is allowed.
    """

    allowed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.allowed


def limiter_of(least: float) -> RateLimiter:
    """The rate limiter that holds back from others what `rate_refusal` refuses."""
    return RateLimiter("max_samples_per_insert", samples_per_insert=1 / least) if least else RateLimiter()


def rate_refusal(num_pushed: int, num_sampled: int, size: int, least: float) -> str:
    """Why elements may not be sampled, or nothing: `pushed / (sampled + size)` has to be at least `least`."""
    if not least or limiter_of(least).gives(num_pushed, num_sampled, size):
        return ""
    return (
        f"{num_pushed} were pushed and {num_sampled} sampled; sampling {size} more would leave less than {least:g} "
        "pushed for each one sampled: push more"
    )


def require_rate(name: str, num_pushed: int, num_sampled: int, size: int, most: float) -> None:
    """Raises `RateLimited` where `(pushed + size) / sampled` would be above `most`; never before the first sample."""
    if num_sampled and num_pushed + size > most * num_sampled:
        raise RateLimited(
            f"buffer {name!r} had {num_pushed} pushed and {num_sampled} sampled; pushing {size} more would be more "
            f"than {most:g} for each one sampled: sample first"
        )
