"""Draws by chance, of which some elements may be drawn a few times only; and importance weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .ledger import occurrences
from .trees import SumTree


def draw(
    chances: SumTree, size: int, rng: np.random.Generator, most: Callable[[np.ndarray], np.ndarray] | None = None
) -> np.ndarray:
    """Draws leaves of a tree in proportion to their values, one after the other.

    An element that was drawn as often as it may be is out: the next is drawn from the others in the same proportions.
    A draw with replacement of which too frequent ones are thrown away has just these chances. So it draws as many as
    are missing, keeps what may be kept, sets the leaves that are out to 0, and draws again; at last they are put back.

    Args:
      chances: at least one leaf above 0.
      size: draws.
      rng: the generator.
      most: gives for places how often each may be drawn; None for any number. All together they have to be enough.

    Returns:
      Places, int64 `[size]`, in the order of the draws.
    """
    drawn = chances.find(rng.random(size))
    if most is None or most(drawn).min() >= size:
        return drawn
    out = [drawn[:0]]
    values = [np.zeros(0)]
    while True:
        before = occurrences(drawn)
        allowed = most(drawn)
        kept = before < allowed
        if kept.all():
            break
        last = drawn[before + 1 == allowed]
        last = last[chances.leaves[last] > 0]
        out.append(last)
        values.append(chances.leaves[last])
        chances.set(last, 0.0)
        drawn = drawn[kept]
        drawn = np.append(drawn, chances.find(rng.random(size - len(drawn))))
    chances.set(np.concatenate(out), np.concatenate(values))
    return drawn


def importance_weights(powers: np.ndarray, beta: float, least: float) -> np.ndarray:
    """Importance weights, float64 `[B]` in (0, 1].

        w_i = (N P_i)^-beta / max_j (N P_j)^-beta = (p_i^alpha / min_j p_j^alpha)^-beta

    Schaul et al. 2016, arXiv:1511.05952, section 3.4. N and the sum in P cancel. DI-engine takes the least power of all
    elements of the buffer, the paper's code that of the batch.

    Args:
      powers: p^alpha of the elements that were drawn, float64 `[B]`.
      beta: the exponent, in [0, 1].
      least: the least of the powers that count, above 0.
    """
    return (powers / least) ** -beta
