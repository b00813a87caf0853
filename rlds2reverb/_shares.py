"""Shares of a batch as integers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def by_largest_remainders(batch_size: int, shares: Iterable[float]) -> np.ndarray:
    """Returns integers of sum `batch_size` for shares of sum 1: 0.5, 0.3, 0.2 of 5 (2.5, 1.5, 1.0) become 3, 1, 1."""
    quotas = batch_size * np.array(list(shares))
    counts = np.floor(quotas).astype(int)
    counts[np.argsort(counts - quotas, kind="stable")[: batch_size - counts.sum()]] += 1
    return counts
