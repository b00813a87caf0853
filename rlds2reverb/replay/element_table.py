"""Per-element bookkeeping (priority, use count, collection iteration) and its totals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .configs import UNKNOWN_ITER, BufferConfig
from .push_validation import require_priorities
from .trees import MinTree, SumTree

_INITIAL_SIZE = 1024
_STATE_NAMES = ("alive", "priorities", "collect_iters", "uses", "starts", "lengths")


class ElementTable:
    """Ring arrays over the last `max_size` elements, by number: how many elements were pushed before.

    Element `n` is in slot `n % max_size`: a new element replaces the one pushed `max_size` before it, even if others
    were removed in between. The trees are derived from the arrays; they spare samples a look at all elements.

    Attributes:
      next_number: number of the next element, which is also the number of pushes.
      count: number of elements.
      alive, priorities, collect_iters, uses: arrays `[max_size]` by slot.
      starts, lengths: int64 `[max_size]`, first row and number of rows of each element.
      sum_tree: probability of each slot up to a common factor: power times number of windows.
      min_tree: power of each slot, infinite if it is 0.
      limits: int64 `[max_size]`, how often each slot can occur in a batch, 0 if never; None if there is no limit.
      limit_sum: sum of the limits.
    """

    def __init__(self, config: BufferConfig):
        self._config, self.max_size, self.max_use = config, config.max_size, config.max_use
        self.next_number = self.count = 0
        self.alive, self.priorities = np.zeros(self.max_size, bool), np.zeros(self.max_size, np.float64)
        self.collect_iters, self.uses, self.starts, self.lengths = np.zeros((4, self.max_size), np.int64)
        self.sum_tree, self.min_tree = SumTree(_INITIAL_SIZE), MinTree(_INITIAL_SIZE)
        is_limited = self.max_use is not None or not config.with_replacement
        self.limits, self.limit_sum = np.zeros(self.max_size, np.int64) if is_limited else None, 0
        #: Collection iterations, infinite if unknown; None if elements cannot become stale.
        self._iter_tree = None if config.max_staleness is None else MinTree(_INITIAL_SIZE)

    @property
    def first_number(self) -> int:
        """The lowest number whose element can still be there."""
        return max(0, self.next_number - self.max_size)

    def select_numbers(self, sample_range: slice = slice(None)) -> np.ndarray:
        """Returns the numbers of the elements in a range of positions, int64 `[M]`; the oldest element is at 0."""
        window = range(self.first_number, self.next_number)
        if self.count == len(window):
            selected = window[sample_range]
            return np.arange(selected.start, selected.stop, selected.step)
        numbers = np.arange(window.start, window.stop)
        return numbers[self.alive[numbers % self.max_size]][sample_range]

    def slots_to_numbers(self, slots: np.ndarray) -> np.ndarray:
        """Returns the numbers of the elements in the slots, int64 `[M]`."""
        newest = self.next_number - 1
        return newest - (newest - slots) % self.max_size

    def contains(self, numbers: np.ndarray) -> np.ndarray:
        """Returns which of the elements are there, bool `[M]`."""
        in_window = (numbers >= self.first_number) & (numbers < self.next_number)
        return in_window & self.alive[numbers % self.max_size]

    # --- adding and removing elements

    def find_first_row(self, count: int, default: int) -> int:
        """Returns the first row of the oldest number that `count` new elements do not displace."""
        oldest = max(0, self.next_number + count - self.max_size)
        return int(self.starts[oldest % self.max_size]) if oldest < self.next_number else default

    def add(
        self, count: int, priorities: np.ndarray, collect_iters: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> None:
        """Adds elements in place of the oldest ones.

        Args:
          count: number of elements, of which the last `max_size` are stored.
          priorities: float64 `[N]`, of those that are stored.
          collect_iters: int64 `[N]`, learner iterations in which they were collected; -1 if unknown.
          starts: int64 `[N]`, first row of each element.
          lengths: int64 `[N]`, number of rows of each element.
        """
        self.next_number += count
        end = (self.next_number - 1) % self.max_size + 1
        begin = end - len(priorities)
        # Contiguous slots are a slice, which is faster to index with.
        slots: np.ndarray | slice = slice(begin, end) if begin >= 0 else np.arange(begin, end) % self.max_size
        self.count += len(priorities) - int(np.count_nonzero(self.alive[slots]))
        self.alive[slots], self.uses[slots] = True, 0
        self.priorities[slots], self.collect_iters[slots] = priorities, collect_iters
        self.starts[slots], self.lengths[slots] = starts, lengths
        self._refresh(slots, with_iters=True)

    def _refresh(self, slots: np.ndarray | slice, *, with_iters: bool = False, with_limits: bool = True) -> None:
        """Recomputes the trees for these slots, and if asked the collection iterations and limits of distinct ones."""
        num_slots = min(self.next_number, self.max_size)
        if num_slots > len(self.sum_tree.leaves):
            for tree in (self.sum_tree, self.min_tree, self._iter_tree):
                if tree is not None:
                    tree.grow(min(self.max_size, 1 << (num_slots - 1).bit_length()))
        powers = self._compute_powers(slots)
        window = self._config.window if self._config.window_sampling == "steps" else None
        windows = 1 if window is None else np.maximum(self.lengths[slots] - window, 0) + 1
        self.sum_tree.set(slots, powers * windows)
        self.min_tree.set(slots, powers if powers.all() else np.where(powers > 0, powers, np.inf))
        if self.limits is not None and with_limits:
            limits = np.where(powers > 0, self._compute_limits(slots), 0)
            self.limit_sum += int(limits.sum() - self.limits[slots].sum())
            self.limits[slots] = limits
        if with_iters and self._iter_tree is not None:
            iters = self.collect_iters[slots]
            self._iter_tree.set(slots, np.where(self.alive[slots] & (iters != UNKNOWN_ITER), iters, np.inf))

    def _compute_powers(self, slots: np.ndarray | slice) -> np.ndarray:
        """Returns `p^alpha`, or 0 for a priority of 0 even if alpha is 0, and for elements that were removed."""
        priorities, alive = self.priorities[slots], self.alive[slots]
        if self._config.exponent is None:
            return alive.astype(np.float64)
        powers: np.ndarray = priorities**self._config.exponent
        return np.where(alive & (priorities > 0), powers, 0.0)

    def _compute_limits(self, slots: np.ndarray | slice) -> np.ndarray | int:
        """Returns how often elements can occur in a batch."""
        return 1 if self.max_use is None or not self._config.with_replacement else self.max_use - self.uses[slots]

    def remove(self, slots: np.ndarray) -> None:
        """Removes the elements in distinct slots, which must be there."""
        self.alive[slots] = False
        self.count -= len(slots)
        self._refresh(slots, with_iters=True)

    def find_stale(self, learner_iter: int) -> np.ndarray:
        """Returns the slots of elements collected at least `max_staleness` iterations ago."""
        if self._iter_tree is None or learner_iter == UNKNOWN_ITER:
            return np.zeros(0, np.int64)
        return self._iter_tree.find_at_most(learner_iter - (self._config.max_staleness or 0))

    # --- updating elements

    def set_priorities(self, numbers: np.ndarray, priorities: np.ndarray) -> None:
        """Changes the priorities of elements that are there; for duplicate numbers the last priority wins.

        Args:
          numbers: int64 `[M]`.
          priorities: float64 `[M]`.
        """
        slots = numbers % self.max_size
        self.priorities[slots] = priorities
        if self.limits is None or (priorities.all() and self.limits[slots].all()):  # The limits do not change.
            self._refresh(slots, with_limits=False)
        else:
            self._refresh(np.unique(slots))

    def compute_staleness(self, slots: np.ndarray, learner_iter: int) -> np.ndarray:
        """Returns the iterations since elements were collected, at least 0, or -1 if unknown: int64 `[M]`."""
        collect_iters = self.collect_iters[slots]
        if learner_iter == UNKNOWN_ITER:
            return np.full(len(slots), -1)
        return np.where(collect_iters == UNKNOWN_ITER, -1, np.maximum(learner_iter - collect_iters, 0))

    def count_uses(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Counts one use per position of a batch, in which an element can occur more than once.

        Args:
          slots: int64 `[B]`, slots of candidates.

        Returns:
          int64 `[B]`, use counts including this use, which rise from one occurrence to the next; and the distinct slots
          whose elements have reached `max_use`.
        """
        uses = self.uses[slots] + count_earlier(slots) + 1
        self.uses[slots] = uses  # For duplicate slots the last value wins.
        if self.max_use is None or self.limits is None:
            return uses, slots[:0]
        if self._config.with_replacement:
            self.limits[slots] = self.max_use - self.uses[slots]
            self.limit_sum -= len(slots)
        return uses, slots[uses >= self.max_use]

    # --- state

    def state(self) -> dict[str, np.ndarray]:
        """Returns copies of the arrays for `load`, up to the last slot that was ever used."""
        used = slice(0, min(self.next_number, self.max_size))
        return {name: getattr(self, name)[used].copy() for name in _STATE_NAMES}

    def load(self, next_number: int, state: Mapping[str, np.ndarray]) -> None:
        """Restores a state, except for elements without uses left or shorter than a window, into an empty table.

        Args:
          next_number: `next_number` of the table that returned the state.
          state: arrays that `state` returned.

        Raises:
          ValueError: If an array has another length, or a priority is out of its range.
        """
        size = min(next_number, self.max_size)
        for name in _STATE_NAMES:
            if np.shape(state[name]) != (size,):
                raise ValueError(f"the arrays of {next_number} pushed elements must have {size} values")
            getattr(self, name)[:size] = state[name]
        self.alive &= self.lengths >= self._config.min_length
        if self.max_use is not None:
            self.alive &= self.uses < self.max_use
        require_priorities(self.priorities[self.alive], self._config, lambda index: f"element {index}")
        self.next_number, self.count = next_number, int(np.count_nonzero(self.alive))
        self._refresh(slice(0, size), with_iters=True)


def count_earlier(values: np.ndarray) -> np.ndarray:
    """Counts earlier occurrences of each value in the array: 3, 5, 3, 3 become 0, 0, 1, 2; int64 `[M]`."""
    order = values.argsort(kind="stable")
    ordered = values[order]
    counts = np.zeros(len(values), np.int64)
    repeats = ordered[1:] == ordered[:-1]
    if repeats.any():
        begins = np.flatnonzero(np.append(True, ~repeats))
        counts[order] = np.arange(len(values)) - np.repeat(begins, np.diff(np.append(begins, len(values))))
    return counts
