"""Importance weights of prioritized samples, and the schedule of their exponent.

Schaul et al. 2016, "Prioritized experience replay" (arXiv:1511.05952), section 3.4 and algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np

from rlds2reverb.types.arguments import require_count, require_number

#: The exponent of importance weights: a number in [0, 1], or a function of the batch number (an integer from 0).
Beta: TypeAlias = float | Callable[[Any], Any]


@dataclass(frozen=True)
class LinearSchedule:
    """A number that changes linearly from `start` to `end` over `num_batches` batches, and then stays constant.

        start + (end - start) * min(batch / num_batches, 1)

    The default exponents are those of Schaul et al. 2016, section 4 (proportional variant: 0.4 to 1).

    Attributes:
      start, end: the first and the last number, in [0, 1].
      num_batches: number of batches from the first one to the first that has `end`; at least 1.
    """

    start: float = 0.4
    end: float = 1.0
    num_batches: int = 100_000

    def __post_init__(self) -> None:
        require_number("start of a schedule", self.start, 0, 1)
        require_number("end of a schedule", self.end, 0, 1)
        require_count("num_batches of a schedule", self.num_batches)

    def __call__(self, batch: Any) -> Any:
        """Returns the number for a batch, float64 `[]`, from its batch number: an integer, or an int64 tensor `[]`."""
        if isinstance(batch, Integral):
            progress = min(int(batch) / self.num_batches, 1.0)
        else:
            import tensorflow as tf

            progress = tf.minimum(tf.cast(batch, tf.float64) / self.num_batches, 1)
        return self.start + (self.end - self.start) * progress


def require_beta(beta: Beta) -> None:
    """Raises `ValueError` unless beta is a number in [0, 1], or a function that returns one for the first batch."""
    if not callable(beta):
        if isinstance(beta, bool) or not isinstance(beta, Real) or not 0 <= beta <= 1:
            raise ValueError(f"beta must be a number in [0, 1] or a schedule such as LinearSchedule(), got {beta!r}")
        return
    first = np.asarray(beta(np.int64(0)))
    if first.ndim or not 0 <= float(first) <= 1:
        raise ValueError(f"beta must return a scalar in [0, 1], got {first} for the first batch")


def evaluate_beta(beta: Beta, batch: int | np.int64) -> np.ndarray:
    """Returns the exponent for a batch number from 0, float64 `[]`."""
    return np.asarray(beta(batch) if callable(beta) else beta, np.float64)


def importance_weights(
    probabilities: np.ndarray, sizes: np.ndarray, beta: np.ndarray, *, lowest_probabilities: np.ndarray | None = None
) -> np.ndarray:
    """Returns weights that compensate for sampling some items more often than others.

        w_i = (1 / (N_i * P_i))^beta / max_j w_j

    Schaul et al. 2016, section 3.4. With beta 1, and without the division by the maximum, the weighted mean of any
    function over a batch is an unbiased estimate of its mean over the table.

    Args:
      probabilities: float64 `[B]`, P_i in (0, 1], the probability with which each item was sampled.
      sizes: int64 or float64 `[B]`, N_i, the number of items in the table when the item was sampled.
      beta: float64 `[]`, in [0, 1].
      lowest_probabilities: float64 `[B]`, the lowest probability of any item in the table; the maximum is then that of
        the table instead of that of the batch.

    Returns:
      float32 `[B]`, in (0, 1].
    """
    # The largest weight belongs to the smallest N * P; the ratio of the two keeps the numbers near 1.
    expected = sizes * probabilities
    smallest = expected if lowest_probabilities is None else np.minimum(expected, sizes * lowest_probabilities)
    return ((smallest.min() / expected) ** beta).astype(np.float32)


def lowest_probabilities(
    probabilities: np.ndarray, priorities: np.ndarray, min_priority: np.ndarray, exponents: np.ndarray
) -> np.ndarray:
    """Returns the probability of the item with the lowest priority in a table, derived from any other of its items.

        P_min = P_i * (p_min / p_i)^alpha

    which follows from P_i = p_i^alpha / sum_k p_k^alpha (Schaul et al. 2016, eq. 1).

    Args:
      probabilities: float64 `[B]`, P_i.
      priorities: float64 `[B]`, p_i; if all in a table are 0, all items are equally likely.
      min_priority: float64 `[]`, p_min, the lowest priority above 0 in the table.
      exponents: float64 `[B]`, alpha of the sampler of each item's table.

    Returns:
      float64 `[B]`, at most P_i.
    """
    ratios = np.ones_like(priorities)
    np.divide(np.minimum(min_priority, priorities), priorities, out=ratios, where=priorities > 0)
    return probabilities * ratios**exponents


def total_priority(probability: float, priority: float, exponent: float) -> float:
    """Returns the sum of p_k^alpha over a table, derived from any of its items: p_i^alpha / P_i (Schaul et al., eq. 1).

    Args:
      probability: P_i, above 0.
      priority: p_i.
      exponent: alpha of the table's sampler; with 0, which is uniform sampling, the sum is the size.

    Returns:
      The sum; 0 if the priority is 0, because all items are then equally likely.
    """
    return priority**exponent / probability if priority > 0 else 0.0


def combine_servers(
    probabilities: np.ndarray, sizes: np.ndarray, servers: np.ndarray, *, num_servers: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns probabilities and sizes as if the tables of several servers were one.

        P_i = P_i of its own table * n_k / B        N_i = N_i of its own table + sum of the others' N

    where n_k of the B items in the batch came from the item's server k; if all K servers contribute equally, P_i is
    divided by K. Servers without an item in the batch are left out: it represents the tables of the others only.

    Args:
      probabilities: float64 `[B]`, the probability of each item in its own table.
      sizes: int64 `[B]`, the size of each item's own table.
      servers: int32 `[B]`, the server of each item, from 0 to `num_servers - 1`.
      num_servers: K.

    Returns:
      Probabilities, float64 `[B]`, and sizes, float64 `[B]`.
    """
    sizes = sizes.astype(np.float64)
    if num_servers == 1:
        return probabilities, sizes
    fractions = np.bincount(servers, minlength=num_servers) / len(servers)
    largest = np.zeros(num_servers)
    np.maximum.at(largest, servers, sizes)
    others = largest.sum() - largest[servers]
    return probabilities * fractions[servers], sizes + others


def require_min_priority(min_priority: Any, *, highest: float) -> None:
    """Raises `ValueError` if `min_priority` is a plain number that is not above 0 and at most `highest`."""
    is_number = isinstance(min_priority, Real) and not isinstance(min_priority, bool)
    if isinstance(min_priority, (bool, str)) or (is_number and not 0 < float(min_priority) <= highest):
        raise ValueError(
            f"min_priority must be above 0 and at most {highest:g}, got {min_priority!r}; use the lowest priority "
            "above 0 in the table"
        )
