"""Initial priorities of items."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .episodes import Episode
from .items import Items
from .ownership import isolate
from .tables import MAX_PRIORITY

#: The priority of every item, or a function that returns `[M]` priorities (or one) for an episode and its items.
Priority = float | Callable[[Episode, Items], Any]


def to_float64(values: Any) -> np.ndarray:
    """Converts numbers to float64; raises `TypeError` for strings, ragged lists and other objects."""
    try:
        array = np.asarray(values)
    except ValueError:  # NumPy refuses ragged lists.
        array = np.empty((), object)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"expected numbers, got {values!r}")
    return array.astype(np.float64)


def require_priorities(values: np.ndarray, describe: Callable[[int], str]) -> None:
    """Raises `ValueError` unless all priorities are finite and in [0, 1e12].

    Other priorities would block a Reverb table or distort its sampling.

    Args:
      values: float64 `[M]`.
      describe: function from a position in `values` to a description of the item with that priority.
    """
    is_invalid = ~(np.isfinite(values) & (values >= 0) & (values <= MAX_PRIORITY))
    if is_invalid.any():
        first = int(np.argmax(is_invalid))
        raise ValueError(
            f"the priority of {describe(first)} must be a finite number in [0, {MAX_PRIORITY:g}], got {values[first]}"
        )


def compute_priorities(priority: Priority, episode: Episode, items: Items) -> np.ndarray:
    """Returns the priorities of an episode's items, float64 `[M]`.

    Raises:
      ValueError: If a priority is not a finite number in [0, 1e12], or their number does not match the items; the
        message names the episode.
    """
    values = isolate(priority)(episode, items) if callable(priority) else priority
    try:
        array = to_float64(values)
        priorities = np.broadcast_to(array, (len(items),))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"the priorities of episode {episode.index} do not match its {len(items)} items ({error})"
        ) from error
    if len(items):
        require_priorities(array.reshape(-1), lambda item: f"item {item} of episode {episode.index}")
    return priorities


@dataclass(frozen=True)
class ByReturn:
    """Gives all items of an episode the same priority, linear in the episode's undiscounted return `R`.

        (R - lowest) / (highest - lowest), clipped to [min_priority, 1]

    Attributes:
      lowest, highest: the returns that map to 0 and 1.
      min_priority: the minimum priority, which keeps every item sampleable; in (0, 1].
    """

    lowest: float
    highest: float
    min_priority: float = 0.01

    def __post_init__(self) -> None:
        if not np.isfinite([self.lowest, self.highest]).all() or self.lowest > self.highest:
            raise ValueError(
                f"lowest and highest must be finite numbers in ascending order, got {self.lowest} and {self.highest}; "
                "check that rewards are scalars"
            )
        if not 0 < self.min_priority <= 1:
            raise ValueError(f"min_priority must be a number in (0, 1], got {self.min_priority}")

    @classmethod
    def from_episodes(cls, episodes: Iterable[Episode]) -> ByReturn:
        """Builds a `ByReturn` from the lowest and highest return in `episodes`, reading all of them."""
        returns = [episode.total_reward for episode in episodes if episode.num_steps]
        return cls(min(returns), max(returns))

    def __call__(self, episode: Episode, items: Items) -> float:
        """Returns the priority of all items; see `priorities.Priority`."""
        if self.highest == self.lowest:
            return 1.0
        scaled = (episode.total_reward - self.lowest) / (self.highest - self.lowest)
        return float(np.clip(scaled, self.min_priority, 1))
