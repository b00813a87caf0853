"""Reverb's tables, built from plain values as `TableConfig.as_reverb_values` returns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import reverb


def build_table(values: Mapping[str, Any], signature: Any) -> reverb.Table:
    """Returns a table; its items must match the signature unless that is None."""
    return reverb.Table(
        values["name"],
        sampler=_build_selector(**values["sampler"]),
        remover=_build_selector(**values["remover"]),
        max_size=values["max_size"],
        max_times_sampled=values["max_times_sampled"],
        rate_limiter=reverb.rate_limiters.RateLimiter(**values["rate_limiter"]),
        signature=signature,
    )


def _build_selector(kind: str, exponent: float | None) -> Any:
    if kind == "prioritized":
        return reverb.selectors.Prioritized(exponent)
    names = {"min_heap": "MinHeap", "max_heap": "MaxHeap"}
    return getattr(reverb.selectors, names.get(kind, kind.capitalize()))()
