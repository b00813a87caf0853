"""Draws by chance, of which some elements may be drawn a few times only; and importance weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .configs import BufferConfig
from .element_table import ElementTable, occurrences
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
    out, values = [drawn[:0]], [np.zeros(0)]
    try:
        while True:
            before, allowed = occurrences(drawn), most(drawn)
            kept = before < allowed
            if kept.all():
                return drawn
            last = drawn[before + 1 == allowed]
            last = last[chances.leaves[last] > 0]
            out.append(last)
            values.append(chances.leaves[last])
            chances.set(last, 0.0)
            drawn = drawn[kept]
            drawn = np.append(drawn, chances.find(rng.random(size - len(drawn))))
    finally:
        chances.set(np.concatenate(out), np.concatenate(values))


def choose(
    ledger: ElementTable,
    config: BufferConfig,
    size: int,
    rng: np.random.Generator,
    sample_range: slice | None,
    holder: str,
) -> tuple[np.ndarray, str]:
    """Draws elements of a buffer that has enough for a sample.

    Args:
      ledger: knows their chances and uses.
      config: says how often one may be drawn.
      size: draws.
      rng: the generator.
      sample_range: only elements at these places, the oldest being at 0; None for all.
      holder: of the elements, for the reason.

    Returns:
      Slots, int64 `[size]`, and why there are none, if the range has too few elements; else an empty text.
    """
    most = _most_uses(ledger, config)
    if sample_range is None or not size:
        return (draw(ledger.chances, size, rng, most) if size else np.zeros(0, np.int64)), ""
    slots = ledger.numbers(sample_range) % ledger.max_size
    chances = SumTree(len(slots))
    chances.set(slice(0, len(slots)), ledger.chances.leaves[slots])
    drawable = slots[ledger.chances.leaves[slots] > 0]
    left = len(drawable) * size if most is None else int(most(drawable).sum())
    if left < size:
        return slots[:0], f"{holder} has {left} elements to draw at {sample_range}: widen it"
    in_range = None if most is None else lambda places: most(slots[places])
    return slots[draw(chances, size, rng, in_range)], ""


def _most_uses(ledger: ElementTable, config: BufferConfig) -> Callable[[np.ndarray], np.ndarray] | None:
    """Gives for slots how often each may be drawn in a batch; None if that is any number."""
    max_use = config.max_use
    if max_use is None:
        return None if config.replace else lambda slots: np.ones(len(slots), np.int64)
    if config.replace:
        return lambda slots: max_use - ledger.uses[slots]
    return lambda slots: np.minimum(max_use - ledger.uses[slots], 1)


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
