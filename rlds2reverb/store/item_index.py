"""The items of stored episodes by number, and how batches of them are drawn."""

from __future__ import annotations

import numpy as np

from .cuts import Cut
from .step_columns import StepColumns


class ItemIndex:
    """The numbers of the items of some episodes: those of the first episode come first, in the order of its steps.

    Attributes:
      num_items: the number of items.
    """

    def __init__(self, steps: StepColumns, cut: Cut, is_used: np.ndarray | None = None):
        """
        Args:
          steps: the steps.
          cut: the kind of the items.
          is_used: bool `[E]`, the episodes whose items have numbers; None for all.
        """
        counts = cut.count(steps.num_steps)
        counts = counts if is_used is None else np.where(is_used, counts, 0)
        self._item_ends = np.cumsum(counts)
        self._offsets = steps.starts - (self._item_ends - counts)
        self._last_rows = steps.ends - 1
        self.num_items = int(counts.sum())

    def find_rows(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first row of each item, and the last row of its episode.

        Args:
          items: int64 `[N]`, in [0, `num_items`).
        """
        episodes = np.searchsorted(self._item_ends, items, side="right")
        return items + self._offsets[episodes], self._last_rows[episodes]


def sample_uniformly(seed: int, first_step: int, count: int, batch_size: int, num_items: int) -> np.ndarray:
    """Returns random integers in [0, `num_items`), int64 `[count, batch_size]`; row k depends on `first_step + k` only.

    They are Philox's 64-bit numbers (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") modulo
    `num_items`. Each step has its own part of the counter, and each increment of the counter makes four numbers.
    """
    increments = -(-batch_size // 4)
    numbers = np.random.Philox(key=seed, counter=first_step * increments).random_raw(count * increments * 4)
    rows = numbers.reshape(count, increments * 4)[:, :batch_size]
    return (rows % np.uint64(num_items)).astype(np.int64)
