"""Splitting a batch between several sources in proportion to their weights."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def apportion(batch_size: int, shares: Iterable[float]) -> np.ndarray:
    """Splits `batch_size` by shares that sum to 1, using the largest-remainder method; the first of equal ones wins.

    For example, shares of 0.5, 0.3 and 0.2 of 5 items (2.5, 1.5 and 1 items) become 3, 1 and 1 items.
    """
    quotas = batch_size * np.array(list(shares))
    counts = np.floor(quotas).astype(int)
    counts[np.argsort(counts - quotas, kind="stable")[: batch_size - counts.sum()]] += 1
    return counts
