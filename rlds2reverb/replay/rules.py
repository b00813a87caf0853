"""When a buffer gives a sample, and of which elements: what its configuration says of its ledger."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rlds2reverb.tables import Selector, TableConfig

from .configs import BufferConfig
from .ledger import Ledger


def chances(sampler: Selector, priorities: np.ndarray) -> np.ndarray:
    """The chances of elements to be drawn, but for a factor that all share: `p^exponent`, 0 for 0; float64 `[N]`."""
    if sampler.exponent is None:
        return np.ones(len(priorities))
    return np.where(priorities > 0, np.power(priorities, sampler.exponent, where=priorities > 0), 0.0)


def lowest_priority(tables: Iterable[TableConfig]) -> float:
    """The lowest priority above 0 with which some tables can draw an element: below, `p^exponent` is rounded to 0.

    0 if none is prioritized. With exponents up to 1 only what is below 2.2e-308 is too low.
    """
    exponents = [table.sampler.exponent for table in tables if table.sampler.exponent is not None]
    return float(np.finfo(np.float64).tiny ** (1 / max(1.0, *exponents))) if exponents else 0.0


def require_possible(holder: str, config: BufferConfig, size: int) -> None:
    """Raises `ValueError` if a sample of this size is none, or would be refused for ever."""
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 0:
        raise ValueError(f"size is {size}, expected an integer of at least 0")
    _require_room(holder, config, size, max(size, _least(config, size)))


def _require_room(holder: str, config: BufferConfig, size: int, needed: int) -> None:
    if needed > config.max_size:
        raise ValueError(
            f"a sample of {size} needs {needed} elements and {holder} holds {config.max_size} at most; give a smaller "
            "size or a larger max_size"
        )


def _least(config: BufferConfig, size: int) -> int:
    """Elements that have to be there for a sample."""
    return max(1 if config.replace else size, math.ceil(config.sample_min_limit_ratio * size))


def too_few(holder: str, count: int, size: int, needed: int) -> str:
    """Why so many elements are too few for a sample; empty if they are not."""
    return f"{holder} has {count} elements, a sample of {size} needs {needed}: push more" if count < needed else ""


def require_enough(holder: str, config: BufferConfig, count: int, batch_size: int) -> None:
    """Raises `ValueError` if so many elements are too few for the batches of a data set."""
    needed = math.ceil(config.sample_min_limit_ratio * batch_size)
    _require_room(holder, config, batch_size, needed)
    if reason := too_few(holder, count, batch_size, needed):
        raise ValueError(reason)


def refusal(holder: str, config: BufferConfig, sampler: Selector, ledger: Ledger, size: int) -> str:
    """Why a sample of at least one element is refused, in a sentence; empty if it is not. Rates are not looked at."""
    if reason := too_few(holder, ledger.count, size, _least(config, size)):
        return reason
    by_priority = sampler.exponent is not None
    drawable = ledger.num_positive if by_priority else ledger.count
    if drawable < (1 if config.replace else size):
        return f"{holder} has {drawable} elements of a priority above 0, too few for a sample of {size}: update or push"
    if config.max_use is not None:
        left = ledger.uses_left(config.max_use, positive_only=by_priority)
        if left < size:
            return f"{holder} has {left} uses of its elements left, too few for a sample of {size}: push more"
    return ""


@dataclass(frozen=True)
class Range:
    """Elements that a sample is drawn from.

    Attributes:
      numbers: int64 `[M]`; None for all.
      share: the chance that a draw is one of them.
      num_drawable: how many of them can be drawn at all; not counted where all are meant.
    """

    numbers: np.ndarray | None = None
    share: float = 1.0
    num_drawable: int = 0


def require_range(config: BufferConfig, sample_range: slice | None) -> None:
    """Raises if a range is none, or does not go with the configuration."""
    if sample_range is not None and not isinstance(sample_range, slice):
        raise TypeError(f"sample_range is a {type(sample_range).__name__}, expected a slice such as slice(-20, None)")
    if sample_range is not None and config.max_use is not None:
        raise ValueError(
            "sample_range does not go with max_use: draws that are thrown away count as uses on the server; leave one "
            "of them out"
        )
    if sample_range is not None and config.push_sample_rate_limit[0]:
        raise ValueError(
            "sample_range does not go with a least push_sample_rate_limit above 0: draws that are thrown away count as "
            "samples on the server; leave one of them out"
        )


def elements_in(sample_range: slice | None, sampler: Selector, ledger: Ledger) -> Range:
    """The elements at some places, in the order of their age, of a ledger that is not empty."""
    if sample_range is None:
        return Range()
    everything = ledger.numbers()
    numbers = everything[sample_range]
    own = chances(sampler, ledger.priorities_of(numbers))
    total = chances(sampler, ledger.priorities_of(everything)).sum()
    return Range(np.sort(numbers), float(own.sum() / total), int((own > 0).sum()))
