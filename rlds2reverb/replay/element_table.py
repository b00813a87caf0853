"""Per-element bookkeeping (priority, use count, collection iteration) and its totals."""

from __future__ import annotations

from typing import Any

import numpy as np

from .configs import BufferConfig
from .staleness import UNKNOWN_ITER, StalenessQueue
from .trees import MinTree, SumTree

_INITIAL_SIZE = 1024
_STATE_NAMES = ("alive", "priorities", "collect_iters", "uses")


class ElementTable:
    """Ring arrays over the last `max_size` elements, by number: how many elements were pushed before.

    Element `n` is in slot `n % max_size`: a new element replaces the one pushed `max_size` before it, even if others
    were removed in between. No operation looks at all elements: removals are found incrementally and totals are kept up
    to date.

    Attributes:
      next_number: number of the next element, which is also the number of pushes.
      count: number of elements.
      num_candidates: number of elements with a positive probability.
      uses_left: total number of times that the candidates can still be sampled; kept only if `max_use` is set.
      alive, priorities, collect_iters, uses: arrays `[max_size]` by slot.
      window_counts: int64 `[max_size]`, factors of the probabilities; None for 1.
      sum_tree: probability of each slot up to a common factor: power times window count.
      min_tree: power of each slot, infinite if it is 0.
    """

    def __init__(self, config: BufferConfig):
        max_size = config.max_size
        self.max_size, self._alpha = max_size, config.exponent
        self.max_use, self._max_staleness = config.max_use, config.max_staleness
        self.next_number = self.count = self.num_candidates = self.uses_left = 0
        self.alive = np.zeros(max_size, bool)
        self.priorities = np.zeros(max_size, np.float64)
        self.collect_iters = np.zeros(max_size, np.int64)
        self.uses = np.zeros(max_size, np.int64)
        self.window_counts = np.ones(max_size, np.int64) if config.counts_windows else None
        self.sum_tree, self.min_tree = SumTree(_INITIAL_SIZE), MinTree(_INITIAL_SIZE)
        self._queue = StalenessQueue()

    @property
    def first_number(self) -> int:
        """The lowest number whose element can still be there."""
        return max(0, self.next_number - self.max_size)

    def select_numbers(self, sample_range: slice = slice(None)) -> np.ndarray:
        """Returns the numbers of the elements in a range of positions, int64 `[M]`; the oldest element is at 0.

        If elements were removed early, the cost depends on the distance from the range to the newest element.
        """
        window = range(self.first_number, self.next_number)
        if self.count == len(window):
            selected = window[sample_range]
            return np.arange(selected.start, selected.stop, selected.step)
        selected = range(self.count)[sample_range]
        num_needed = self.count - min(selected[0], selected[-1]) if selected else 0
        newest, num_checked = np.zeros(0, np.int64), num_needed
        while len(newest) < num_needed:
            num_checked = min(2 * num_checked, len(window))
            newest = np.arange(window.stop - num_checked, window.stop)
            newest = newest[self.alive[newest % self.max_size]]
        return newest[np.arange(selected.start, selected.stop, selected.step) - self.count]

    def slots_to_numbers(self, slots: np.ndarray) -> np.ndarray:
        """Returns the numbers of the elements in the slots, int64 `[M]`."""
        newest = self.next_number - 1
        return newest - (newest - slots) % self.max_size

    def contains(self, numbers: np.ndarray) -> np.ndarray:
        """Returns which of the elements are there, bool `[M]`."""
        in_window = (numbers >= self.first_number) & (numbers < self.next_number)
        return in_window & self.alive[numbers % self.max_size]

    # --- adding and removing elements

    def find_displaced(self, count: int) -> np.ndarray:
        """Returns the numbers of the elements that adding `count` elements would displace, int64 `[M]`."""
        first = self.first_number
        displaced = np.arange(first, max(first, min(self.next_number, self.next_number + count - self.max_size)))
        all_alive = self.count == self.next_number - first
        return displaced if all_alive else displaced[self.alive[displaced % self.max_size]]

    def add(
        self, priorities: np.ndarray, collect_iters: np.ndarray, window_counts: np.ndarray | None = None
    ) -> np.ndarray:
        """Adds elements in place of the oldest ones; of more than `max_size` it keeps the last ones.

        Args:
          priorities: float64 `[N]`.
          collect_iters: int64 `[N]`, learner iterations in which they were collected; -1 if unknown.
          window_counts: int64 `[N]`, only with `BufferConfig.counts_windows`.

        Returns:
          int64 `[N]`, numbers of the elements.
        """
        count = len(priorities)
        displaced = self.find_displaced(count)
        self._forget(self._to_slots(displaced), len(displaced))
        numbers = np.arange(self.next_number, self.next_number + count)
        kept = slice(max(0, count - self.max_size), None)
        self.next_number += count
        window_counts = None if window_counts is None else window_counts[kept]
        self._insert(numbers[kept], priorities[kept], collect_iters[kept], 0, window_counts)
        if self._max_staleness is not None:
            self._queue.add(self.next_number - len(numbers[kept]), collect_iters[kept])
            self._queue.discard_before(self.first_number)
        return numbers

    def _insert(
        self,
        numbers: np.ndarray,
        priorities: np.ndarray,
        collect_iters: np.ndarray,
        uses: np.ndarray | int,
        window_counts: np.ndarray | None,
    ) -> None:
        slots = self._to_slots(numbers)
        self.alive[slots], self.uses[slots] = True, uses
        if self.window_counts is not None:
            self.window_counts[slots] = window_counts
        self.collect_iters[slots] = collect_iters
        self.count += len(numbers)
        num_slots = min(self.next_number, self.max_size)
        if num_slots > len(self.sum_tree.leaves):
            size = min(self.max_size, 1 << (num_slots - 1).bit_length())
            self.sum_tree.grow(size)
            self.min_tree.grow(size)
        self._write_priorities(slots, priorities)
        self._count_candidates(slots, 1)

    def _to_slots(self, numbers: np.ndarray) -> np.ndarray | slice:
        """Returns the slots of ascending numbers; a slice, which is faster to index with, if they are contiguous."""
        if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1:
            begin = int(numbers[0]) % self.max_size
            if begin + len(numbers) <= self.max_size:
                return slice(begin, begin + len(numbers))
        return numbers % self.max_size

    def _write_priorities(self, slots: np.ndarray | slice, priorities: np.ndarray) -> None:
        self.priorities[slots] = priorities  # For duplicate slots the last value wins.
        powers = self._compute_powers(self.priorities[slots])
        self.sum_tree.set(slots, powers if self.window_counts is None else powers * self.window_counts[slots])
        if self._alpha is not None:
            self.min_tree.set(slots, powers if powers.all() else np.where(powers > 0, powers, np.inf))

    def _compute_powers(self, priorities: np.ndarray) -> np.ndarray:
        """Returns `p^alpha`, or 0 for a priority of 0 even if alpha is 0: float64 `[M]`."""
        if self._alpha is None:
            return np.ones(len(priorities))
        powers: np.ndarray = priorities**self._alpha
        return powers if self._alpha else np.where(priorities > 0, powers, 0.0)

    def _count_candidates(self, slots: np.ndarray | slice, sign: int) -> None:
        """Adds distinct slots to the totals of the candidates, or subtracts them."""
        probabilities = self.sum_tree.leaves[slots]
        count = int(np.count_nonzero(probabilities))
        self.num_candidates += sign * count
        if self.max_use is not None:
            uses = self.uses[slots] if count == len(probabilities) else self.uses[slots][probabilities > 0]
            self.uses_left += sign * (self.max_use * count - int(uses.sum()))

    def _forget(self, slots: np.ndarray | slice, count: int) -> None:
        """Removes elements from everything except the trees."""
        self._count_candidates(slots, -1)
        self.alive[slots] = False
        self.count -= count

    def remove(self, numbers: np.ndarray) -> None:
        """Removes elements, which must be there and distinct."""
        slots = numbers % self.max_size
        self._forget(slots, len(numbers))
        self.sum_tree.set(slots, 0.0)
        if self._alpha is not None:
            self.min_tree.set(slots, np.inf)

    def pop_stale(self, learner_iter: int) -> np.ndarray:
        """Returns the numbers of elements collected at least `max_staleness` iterations ago, each of them only once."""
        if self._max_staleness is None or learner_iter == UNKNOWN_ITER:
            return np.zeros(0, np.int64)
        numbers = self._queue.pop(learner_iter - self._max_staleness)
        return numbers[self.contains(numbers)] if len(numbers) else numbers

    # --- updating elements

    def set_priorities(self, numbers: np.ndarray, priorities: np.ndarray) -> None:
        """Changes the priorities of elements that are there; for duplicate numbers the last priority wins.

        Args:
          numbers: int64 `[M]`.
          priorities: float64 `[M]`.
        """
        slots = numbers % self.max_size
        if self._alpha is None:
            self.priorities[slots] = priorities
        elif self.num_candidates == self.count and priorities.all():
            self._write_priorities(slots, priorities)  # The number of candidates does not change.
        else:
            slots, last = np.unique(slots[::-1], return_index=True)
            self._count_candidates(slots, -1)
            self._write_priorities(slots, priorities[::-1][last])
            self._count_candidates(slots, 1)

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
        if self.max_use is None:
            return uses, np.zeros(0, np.int64)
        self.uses_left -= len(slots)
        return uses, slots[uses >= self.max_use]

    # --- state

    def state(self) -> dict[str, np.ndarray]:
        """Returns copies of the arrays for `load`, up to the last slot that was ever used."""
        used = slice(0, min(self.next_number, self.max_size))
        return {name: getattr(self, name)[used].copy() for name in _STATE_NAMES}

    def load(self, next_number: int, state: dict[str, Any], window_counts: np.ndarray | None) -> None:
        """Restores a state into an empty table of the same size, except for elements without uses left.

        Args:
          next_number: `next_number` of the table that returned the state.
          state: arrays that `state` returned.
          window_counts: int64 `[max_size]`, only with `BufferConfig.counts_windows`.

        Raises:
          ValueError: If an array has another length.
        """
        size = min(next_number, self.max_size)
        alive, priorities, iters, uses = (np.asarray(state[name]) for name in _STATE_NAMES)
        if any(array.shape != (size,) for array in (alive, priorities, iters, uses)):
            raise ValueError(f"the arrays of {next_number} pushed elements must have {size} values")
        self.next_number = next_number
        if self.max_use is not None:
            alive = alive & (uses < self.max_use)
        numbers = np.sort(self.slots_to_numbers(np.flatnonzero(alive)))
        slots = numbers % self.max_size
        if not len(numbers):
            return
        window_counts = None if window_counts is None else window_counts[slots]
        self._insert(numbers, priorities[slots], iters[slots], uses[slots], window_counts)
        if self._max_staleness is not None:
            for run in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1):
                self._queue.add(int(run[0]), iters[run % self.max_size])


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
