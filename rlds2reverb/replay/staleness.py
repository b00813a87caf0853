"""What is too old for the learner, without looking at what is not."""

from __future__ import annotations

import heapq

import numpy as np

#: The iteration of an element that does not say when it was collected.
UNKNOWN_ITER = -1


class StalenessQueue:
    """Numbers of elements by the iteration in which they were collected.

    Runs of consecutive numbers with one iteration are one entry. Each entry comes out once, so that an element costs
    O(log N) in all. Elements that left for another reason are still in it: who takes numbers out has to look.
    """

    def __init__(self) -> None:
        """Empty."""
        self._runs: list[tuple[int, int, int]] = []  # a heap of (iteration, first number, end)
        self._last = (UNKNOWN_ITER, 0, 0)  # not in the heap yet, since it may go on
        self._most = 1024

    def add(self, first_number: int, collect_iters: np.ndarray) -> None:
        """Takes in elements with consecutive numbers.

        Args:
          first_number: of the first.
          collect_iters: int64 `[N]`; elements of -1 never come out.
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

    def take(self, newest: int) -> np.ndarray:
        """Takes out the elements that were collected in this iteration or before: numbers, int64 `[M]`, rising."""
        if self._last[0] <= newest:
            self._put(self._last)
            self._last = (UNKNOWN_ITER, 0, 0)
        taken = []
        while self._runs and self._runs[0][0] <= newest:
            _, begin, end = heapq.heappop(self._runs)
            taken.append(np.arange(begin, end))
        return np.sort(np.concatenate(taken)) if taken else np.zeros(0, np.int64)

    def forget(self, first_number: int) -> None:
        """Drops entries of elements before a number, often enough to keep at most twice those needed."""
        if len(self._runs) > self._most:
            self._runs = [run for run in self._runs if run[2] > first_number]
            heapq.heapify(self._runs)
            self._most = max(1024, 2 * len(self._runs))
