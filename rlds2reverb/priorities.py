"""The priorities that items begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.episodes import Episode
from rlds2reverb.items import Items
from rlds2reverb.tables import MAX_PRIORITY

#: The priority of every item, or a function that gives `[M]` priorities (or one) for an episode and its items.
Priority = float | Callable[[Episode, Items], Any]


def require_priorities(values: np.ndarray, whose: Callable[[int], str]) -> None:
    """Raises `ValueError` unless all are finite and in [0, 1e12]: others stop a table of Reverb, or spoil its draws.

    Args:
      values: float64 `[M]`.
      whose: says for the number of one whose priority it is.
    """
    wrong = ~(np.isfinite(values) & (values >= 0) & (values <= MAX_PRIORITY))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"the priority of {whose(first)} is {values[first]}, expected a finite number in [0, {MAX_PRIORITY:g}]"
        )


def compute_priorities(priority: Priority, episode: Episode, items: Items) -> np.ndarray:
    """Priorities of an episode's items, float64 `[M]`.

    Raises:
      ValueError: if one is not finite, not in [0, 1e12], or there are not as many as items; names the episode.
    """
    values = priority(episode, items) if callable(priority) else priority
    try:
        given = np.asarray(values, np.float64)
        values = np.broadcast_to(given, (len(items),))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"the priorities of episode {episode.index} do not fit its {len(items)} items ({error})"
        ) from error
    if len(items):
        require_priorities(given.reshape(-1), lambda item: f"item {item} of episode {episode.index}")
    return values


@dataclass(frozen=True)
class ByReturn:
    """The priority of all items of an episode by its undiscounted return `R`.

        (R - lowest) / (highest - lowest), within [smallest, 1]

    Attributes:
      lowest, highest: returns that stand for 0 and 1.
      smallest: so that every item can be sampled; in (0, 1].
    """

    lowest: float
    highest: float
    smallest: float = 0.01

    def __post_init__(self) -> None:
        if not np.isfinite([self.lowest, self.highest]).all() or self.lowest > self.highest:
            raise ValueError(
                f"returns go from {self.lowest} to {self.highest}, expected finite numbers in rising order (is there "
                "one reward a step?)"
            )
        if not 0 < self.smallest <= 1:
            raise ValueError(f"smallest is {self.smallest}, expected a number above 0 and up to 1")

    @classmethod
    def of(cls, episodes: Iterable[Episode]) -> ByReturn:
        """With the lowest and the highest return of a data set, which is read for it."""
        returns = [episode.total_reward for episode in episodes if episode.num_steps]
        return cls(min(returns), max(returns))

    def __call__(self, episode: Episode, items: Items) -> float:
        """The priority; see `priorities.Priority`."""
        if self.highest == self.lowest:
            return 1.0
        share = (episode.total_reward - self.lowest) / (self.highest - self.lowest)
        return float(np.clip(share, self.smallest, 1))
