"""The items of stored episodes by number, and how batches of them are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2reverb.adders.adder import ItemAdder
from rlds2reverb.adders.places import Places, find_ends
from rlds2reverb.errors import ArgumentError
from rlds2reverb.types.fingerprints import mix_bits
from rlds2reverb.types.nest_paths import format_path
from rlds2reverb.types.sample_info import note_repeated_items

from .step_columns import StepColumns

_NUM_ROUNDS = 6


class ItemIndex:
    """The numbers of the items of some episodes: those of the first episode come first, in the order of its steps.

    Attributes:
      num_items: the number of items.
    """

    def __init__(self, steps: StepColumns, adder: ItemAdder, is_used: np.ndarray | None = None):
        """
        Args:
          steps: the steps.
          adder: the adder of the items.
          is_used: bool `[E]`, the episodes whose items have numbers; None for all.
        """
        ends = find_ends(steps.num_steps, steps.final_rows if adder.uses_all_actions else None)
        counts = adder.count(ends.num_steps)
        counts = counts if is_used is None else np.where(is_used, counts, 0)
        self._item_ends = np.cumsum(counts)
        self._first_items = self._item_ends - counts
        self._first_rows, self._ends = steps.starts, ends
        self.num_items = int(counts.sum())

    def find_places(self, items: np.ndarray) -> Places:
        """Returns the places of items.

        Args:
          items: int64 `[N]`, in [0, `num_items`).
        """
        episodes = np.searchsorted(self._item_ends, items, side="right")
        numbers = items - self._first_items[episodes]
        last, last_observation = self._ends.last[episodes], self._ends.last_observation[episodes]
        return Places(self._first_rows[episodes], last, last_observation, numbers)


class WeightedItems:
    """Items that are sampled with probabilities in proportion to weights, with replacement.

    A function of the columns `[T, ...]` of an episode, without its images, returns its weight, or weights `[T]` of its
    steps. The k-th item of an episode has the weight of its k-th step.
    """

    def __init__(self, index: ItemIndex, steps: StepColumns, weigh: Callable[[dict[str, Any]], Any]):
        """Computes all weights.

        Raises:
          ValueError: If a weight is negative or not finite, there are not as many as steps, or all are 0.
        """
        names = [format_path(column.path) for column in steps.layout.columns if not column.is_image]
        weights = np.zeros(len(steps))
        for number, (start, length) in enumerate(zip(steps.starts.tolist(), steps.num_steps.tolist(), strict=True)):
            found = np.asarray(weigh(steps.take(np.arange(start, start + length), names)), np.float64)
            if found.shape not in ((), (length,)) or not (np.isfinite(found) & (found >= 0)).all():
                raise ArgumentError(
                    f"must return a number >= 0, or one for each of {length} steps, got {found!r:.100} for episode "
                    f"{number}",
                    about="sampler",
                )
            weights[start : start + length] = found
        places = index.find_places(np.arange(index.num_items))
        self._sums = np.cumsum(weights[np.minimum(places.first + places.number, places.last_observation)])
        if not self._sums[-1]:
            raise ArgumentError("must return a weight above 0 for an item", about="sampler")

    def sample(self, seed: int, first_step: int, count: int, batch_size: int) -> np.ndarray:
        """Returns items, int64 `[count, batch_size]`; row k depends on `first_step + k` only."""
        shares = (draw_numbers(seed, first_step, count, batch_size) >> np.uint64(11)) * 2.0**-53
        return np.searchsorted(self._sums, shares * self._sums[-1], side="right")


def sample_uniformly(seed: int, first_step: int, count: int, batch_size: int, num_items: int) -> np.ndarray:
    """Returns random integers in [0, `num_items`), int64 `[count, batch_size]`; row k depends on `first_step + k` only.

    They are those of `draw_numbers` modulo `num_items`.
    """
    note_repeated_items(batch_size, num_items)
    return (draw_numbers(seed, first_step, count, batch_size) % np.uint64(num_items)).astype(np.int64)


def draw_numbers(seed: int, first_step: int, count: int, size: int) -> np.ndarray:
    """Returns random numbers, uint64 `[count, size]`; row k depends on `first_step + k` only.

    They are Philox's 64-bit numbers (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). Each step has
    its own part of the counter, and each increment of the counter makes four numbers.
    """
    increments = -(-size // 4)
    numbers = np.random.Philox(key=seed, counter=first_step * increments).random_raw(count * increments * 4)
    return numbers.reshape(count, increments * 4)[:, :size]


def permute(positions: np.ndarray, num_items: int, *, seed: int, epoch: int) -> np.ndarray:
    """Returns the items at some positions of an epoch's order, which contains each item once; int64 `[N]`.

    The order is a pseudo-random permutation that depends on `seed` and `epoch` only, and of which any part can be
    computed alone. It is the generalized Feistel network with cycle walking of Black & Rogaway (2002), "Ciphers with
    arbitrary finite domains", sections 4 and 5: a number is a pair of digits, to which hashes of each other are added
    in turn. Pairs that stand for no item are permuted again until they do; there are fewer than `sqrt(num_items)`.

    Args:
      positions: int64 `[N]`, in [0, `num_items`).
      num_items: the number of items.
      seed: random seed, at least 0.
      epoch: number of the epoch, at least 0.
    """
    height = math.isqrt(num_items - 1) + 1
    width = -(-num_items // height)
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_NUM_ROUNDS, np.uint64)
    items = positions.astype(np.uint64)
    outside = np.ones(len(items), bool)
    while outside.any():
        high, low = np.divmod(items[outside], np.uint64(width))
        for number, key in enumerate(keys):
            if number % 2:
                low = (low + (mix_bits(high ^ key) >> np.uint64(1))) % np.uint64(width)
            else:
                high = (high + (mix_bits(low ^ key) >> np.uint64(1))) % np.uint64(height)
        items[outside] = high * np.uint64(width) + low
        outside = items >= num_items
    return items.astype(np.int64)


def permute_epochs(positions: np.ndarray, num_items: int, *, seed: int) -> np.ndarray:
    """Returns the items at some positions of the orders of all epochs, one after the other; int64, of the same shape.

    Args:
      positions: int64, at least 0; the order of epoch k (see `permute`) begins at `k * num_items`.
      num_items: the number of items.
      seed: random seed, at least 0.
    """
    epochs, items = np.divmod(positions, num_items)
    for epoch in np.unique(epochs).tolist():
        is_in_epoch = epochs == epoch
        items[is_in_epoch] = permute(items[is_in_epoch], num_items, seed=seed, epoch=epoch)
    return items


def find_shard(step: int, batch_size: int, num_items: int, *, rank: int, world_size: int) -> np.ndarray:
    """Returns the positions in an epoch's order that one of several processes reads in a step, int64 `[N]`.

    In each step, the processes read the next `batch_size * world_size` positions, one after the other. The positions
    that are left for the last step are divided as evenly as possible, and a process gets none if there are too few.

    Args:
      step: number of the step in its epoch, from 0; it must have an item.
      batch_size: number of items of a process.
      num_items: number of items of all processes.
      rank: number of the process, in [0, `world_size`).
      world_size: number of processes.
    """
    first = step * batch_size * world_size
    count = min(batch_size * world_size, num_items - first)
    return np.arange(first + count * rank // world_size, first + count * (rank + 1) // world_size)
