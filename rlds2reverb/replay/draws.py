"""Draws from a table: what was drawn with which chance, importance weights, and drawing until the right ones came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlds2reverb.errors import TooManyDraws

_MOST_DRAWS = 200_000
_MOST_AT_ONCE = 4096


@dataclass(frozen=True)
class Draws:
    """Elements in the order in which they were drawn.

    Attributes:
      numbers: int64 `[B]`.
      probabilities: float64 `[B]`, of each draw.
      table_sizes: int64 `[B]`, elements in the table at each draw.
      values: for each element its columns.
    """

    numbers: np.ndarray
    probabilities: np.ndarray
    table_sizes: np.ndarray
    values: Sequence[Sequence[np.ndarray]]

    def chosen(self, places: np.ndarray) -> Draws:
        """Some of them, in the order of the places."""
        values = [self.values[place] for place in places]
        return Draws(self.numbers[places], self.probabilities[places], self.table_sizes[places], values)

    def weights(self, beta: float) -> np.ndarray:
        """Importance weights, float64 `[B]` in (0, 1].

            w_i = (1 / (N P_i))^beta / max_j w_j

        Schaul et al. 2016, arXiv:1511.05952, section 3.4; the maximum is that of the batch. Where only some elements
        were kept of those drawn, `N P` has the same factor in all of them, which cancels.
        """
        weights = (self.table_sizes * self.probabilities) ** -beta
        return weights / weights.max()


def joined(parts: Sequence[Draws]) -> Draws:
    """Several draws one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Draws(
        np.concatenate([part.numbers for part in parts]),
        np.concatenate([part.probabilities for part in parts]),
        np.concatenate([part.table_sizes for part in parts]),
        [value for part in parts for value in part.values],
    )


def draw_until(
    draw: Callable[[int], Draws], size: int, *, wanted: np.ndarray | None, share: float, replace: bool
) -> Draws:
    """Draws until so many elements were drawn that may be kept; the others are thrown away.

    Elements that are kept come with chances in the same proportion as in the table. Without replacement, each next one
    is drawn from those that were not, in the same proportion again.

    Args:
      draw: gives so many elements, drawn independently.
      size: elements that are asked for.
      wanted: numbers that may be kept, int64 `[M]`; None for all.
      share: the chance that a draw is one of them, in (0, 1].
      replace: whether an element may come several times.

    Raises:
      TooManyDraws: if it takes, or would take, more than 200,000 draws.
    """
    if wanted is None and replace:
        return draw(size)
    if size > share * _MOST_DRAWS:
        raise _too_many(size, share)
    parts: list[Draws] = []
    taken = np.zeros(0, np.int64)
    num_drawn, rate = 0, share
    while len(taken) < size:
        left = size - len(taken)
        count = int(np.clip(left / rate, left, max(left, _MOST_AT_ONCE)))
        drawn = draw(count)
        kept = np.ones(count, bool) if wanted is None else np.isin(drawn.numbers, wanted)
        if not replace:
            kept &= ~np.isin(drawn.numbers, taken)
            places = np.flatnonzero(kept)
            kept = np.zeros(count, bool)
            kept[places[np.unique(drawn.numbers[places], return_index=True)[1]]] = True
        places = np.flatnonzero(kept)[:left]
        parts.append(drawn.chosen(places))
        taken = np.concatenate([taken, drawn.numbers[places]])
        num_drawn += count
        rate = max(len(places), 0.5) / count
        if len(taken) < size and num_drawn > _MOST_DRAWS:
            raise _too_many(size, len(taken) / num_drawn)
    return joined(parts)


def _too_many(size: int, share: float) -> TooManyDraws:
    return TooManyDraws(
        f"{size} elements were asked for of a kind that {share:.2g} of the draws give, which would take more than "
        f"{_MOST_DRAWS:,} draws; give a wider sample_range, a smaller size, or allow replacement"
    )
