"""A queue that finds stale elements without looking at all elements."""

from __future__ import annotations

import heapq

import numpy as np

#: The iteration of an element without a `collect_iter`.
UNKNOWN_ITER = -1


class StalenessQueue:
    """Element numbers, ordered by the iteration in which the elements were collected.

    A run of consecutive numbers with the same iteration is one entry. Each entry is popped once, so an element costs
    O(log N) over its whole life. Elements that were removed for another reason stay in the queue; callers filter them.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, int]] = []  # A heap of (iteration, first number, end).
        self._last = (UNKNOWN_ITER, 0, 0)  # Not in the heap yet because it may grow.
        self._max_runs = 1024

    def add(self, first_number: int, collect_iters: np.ndarray) -> None:
        """Adds elements with consecutive numbers.

        Args:
          first_number: number of the first element.
          collect_iters: int64 `[N]`; elements with -1 are never popped.
        """
        changes = collect_iters[1:] != collect_iters[:-1]
        begins = [0, *(np.flatnonzero(changes) + 1).tolist()] if changes.any() else [0]
        for begin, end in zip(begins, [*begins[1:], len(collect_iters)], strict=True):
            iteration, last = int(collect_iters[begin]), self._last
            if last[0] == iteration and last[2] == first_number + begin:
                self._last = (iteration, last[1], first_number + end)
            else:
                self._put(last)
                self._last = (iteration, first_number + begin, first_number + end)

    def _put(self, run: tuple[int, int, int]) -> None:
        if run[0] != UNKNOWN_ITER:
            heapq.heappush(self._runs, run)

    def pop(self, last_iter: int) -> np.ndarray:
        """Removes all elements collected in `last_iter` or before; returns their numbers, int64 `[M]`, ascending."""
        if self._last[0] <= last_iter:
            self._put(self._last)
            self._last = (UNKNOWN_ITER, 0, 0)
        popped = []
        while self._runs and self._runs[0][0] <= last_iter:
            _, begin, end = heapq.heappop(self._runs)
            popped.append(np.arange(begin, end))
        return np.sort(np.concatenate(popped)) if popped else np.zeros(0, np.int64)

    def discard_before(self, first_number: int) -> None:
        """Drops entries below a number, often enough to keep at most twice as many as necessary."""
        if len(self._runs) > self._max_runs:
            self._runs = [run for run in self._runs if run[2] > first_number]
            heapq.heapify(self._runs)
            self._max_runs = max(1024, 2 * len(self._runs))
