"""The ledger of a buffer: what is known of each element beside its data, and what it adds up to."""

from __future__ import annotations

from typing import Any

import numpy as np

from .staleness import UNKNOWN_ITER, StalenessQueue
from .trees import MinTree, SumTree

_FIRST_SIZE = 1024


class ElementTable:
    """Rings of arrays over the last `max_size` numbers; an element's number is how many were pushed before it.

    Element `n` lies in slot `n % max_size`: a new one takes the place of the one pushed `max_size` before it, whatever
    has left in between. Nothing here looks at all elements: what has left, is used up or too old is found by what the
    call is about, and the sums are kept.
    """

    def __init__(
        self,
        max_size: int,
        *,
        alpha: float | None,
        max_use: int | None,
        max_staleness: int | None,
        has_shares: bool = False,
    ):
        """Empty.

        Args:
          max_size: slots.
          alpha: the exponent of priorities; None for a uniform buffer, where every element has the power 1.
          max_use: uses of an element; None for any number.
          max_staleness: see `stale`.
          has_shares: whether elements count as often as they say.
        """
        self.max_size, self._alpha, self.max_use, self._max_staleness = max_size, alpha, max_use, max_staleness
        #: The number of the next element, which is how many were pushed.
        self.next_number = 0
        #: Elements that are there, and those of them that can be drawn.
        self.count = self.num_drawable = 0
        #: Uses that the elements which can be drawn have left, all together; only with `max_use`.
        self.uses_left = 0
        self.alive = np.zeros(max_size, bool)
        self.priorities = np.zeros(max_size, np.float64)
        self.collect_iters = np.zeros(max_size, np.int64)
        self.uses = np.zeros(max_size, np.int64)
        #: What an element counts for in draws beside its power, as an episode as often as it has windows; None for 1.
        self.shares = np.ones(max_size, np.int64) if has_shares else None
        #: The chance of each slot to be drawn, `share * power`, but for a factor; and the least power above 0.
        self.chances, self.powers = SumTree(_FIRST_SIZE), MinTree(_FIRST_SIZE)
        self._queue = StalenessQueue()

    @property
    def first_number(self) -> int:
        """The lowest number that may be there."""
        return max(0, self.next_number - self.max_size)

    def numbers(self, places: slice = slice(None)) -> np.ndarray:
        """The numbers of the elements at some places, int64 `[M]`; at 0 is the oldest that is there.

        Where elements have left early, it looks at those from the range to the newest.
        """
        window = range(self.first_number, self.next_number)
        if self.count == len(window):
            chosen = window[places]
            return np.arange(chosen.start, chosen.stop, chosen.step)
        chosen = range(self.count)[places]
        wanted = self.count - min(chosen[0], chosen[-1]) if chosen else 0
        newest, looked_at = np.zeros(0, np.int64), wanted
        while len(newest) < wanted:
            looked_at = min(2 * looked_at, len(window))
            newest = np.arange(window.stop - looked_at, window.stop)
            newest = newest[self.alive[newest % self.max_size]]
        places_from_end = np.arange(chosen.start, chosen.stop, chosen.step) - self.count
        return newest[places_from_end]

    def numbers_in(self, slots: np.ndarray) -> np.ndarray:
        """The numbers of the elements in some slots, int64 `[M]`."""
        newest = self.next_number - 1
        return newest - (newest - slots) % self.max_size

    def has(self, numbers: np.ndarray) -> np.ndarray:
        """Which of some numbers are there: bool `[M]`."""
        in_window = (numbers >= self.first_number) & (numbers < self.next_number)
        return in_window & self.alive[numbers % self.max_size]

    def powers_of(self, priorities: np.ndarray) -> np.ndarray:
        """`p^alpha`, but 0 for a priority of 0: float64 `[M]`."""
        if self._alpha is None:
            return np.ones(len(priorities))
        powers: np.ndarray = priorities**self._alpha
        return powers if self._alpha else np.where(priorities > 0, powers, 0.0)

    # --- what comes and goes

    def displaced_by(self, count: int) -> np.ndarray:
        """The numbers that are there and leave when so many elements are added: int64 `[M]`."""
        first = self.first_number
        going = np.arange(first, max(first, min(self.next_number, self.next_number + count - self.max_size)))
        return going if self.count == self.next_number - first else going[self.alive[going % self.max_size]]

    def add(self, priorities: np.ndarray, collect_iters: np.ndarray, shares: np.ndarray | None = None) -> np.ndarray:
        """Takes in new elements, in the place of the oldest ones where it is full; of too many the last are kept.

        Args:
          priorities: float64 `[N]`.
          collect_iters: int64 `[N]`, the learner's iterations in which they were collected; -1 where not known.
          shares: int64 `[N]`, where elements have any.

        Returns:
          Their numbers, int64 `[N]`.
        """
        count = len(priorities)
        displaced = self.displaced_by(count)
        self._discount(self._slots(displaced), len(displaced))
        numbers = np.arange(self.next_number, self.next_number + count)
        kept = slice(max(0, count - self.max_size), None)
        self.next_number += count
        shares = None if shares is None else shares[kept]
        self._enter(numbers[kept], priorities[kept], collect_iters[kept], 0, shares)
        if self._max_staleness is not None:
            self._queue.add(self.next_number - len(numbers[kept]), collect_iters[kept])
            self._queue.forget(self.first_number)
        return numbers

    def _enter(
        self,
        numbers: np.ndarray,
        priorities: np.ndarray,
        collect_iters: np.ndarray,
        uses: np.ndarray | int,
        shares: np.ndarray | None,
    ) -> None:
        slots = self._slots(numbers)
        self.alive[slots], self.uses[slots] = True, uses
        if self.shares is not None:
            self.shares[slots] = shares
        self.collect_iters[slots] = collect_iters
        self.count += len(numbers)
        wanted = min(self.next_number, self.max_size)
        if wanted > len(self.chances.leaves):
            size = min(self.max_size, 1 << (wanted - 1).bit_length())
            self.chances.grow(size)
            self.powers.grow(size)
        self._set_priorities(slots, priorities)
        self._recount(slots, 1)

    def _slots(self, numbers: np.ndarray) -> np.ndarray | slice:
        """The slots of different numbers that rise: a slice where they follow each other, which is faster."""
        if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1:
            begin = int(numbers[0]) % self.max_size
            if begin + len(numbers) <= self.max_size:
                return slice(begin, begin + len(numbers))
        return numbers % self.max_size

    def _set_priorities(self, slots: np.ndarray | slice, priorities: np.ndarray) -> None:
        self.priorities[slots] = priorities  # of a slot that comes twice the later one counts
        powers = self.powers_of(self.priorities[slots])
        self.chances.set(slots, powers if self.shares is None else powers * self.shares[slots])
        if self._alpha is not None:
            self.powers.set(slots, powers if powers.all() else np.where(powers > 0, powers, np.inf))

    def _recount(self, slots: np.ndarray | slice, sign: int) -> None:
        """Adds some slots, each given once, to what can be drawn, or takes them away."""
        chances = self.chances.leaves[slots]
        count = int(np.count_nonzero(chances))
        self.num_drawable += sign * count
        if self.max_use is not None:
            uses = self.uses[slots] if count == len(chances) else self.uses[slots][chances > 0]
            self.uses_left += sign * (self.max_use * count - int(uses.sum()))

    def _discount(self, slots: np.ndarray | slice, count: int) -> None:
        """Forgets elements that are there, but for their leaves in the trees."""
        self._recount(slots, -1)
        self.alive[slots] = False
        self.count -= count

    def remove(self, numbers: np.ndarray) -> None:
        """Forgets elements that are there, each given once."""
        slots = numbers % self.max_size
        self._discount(slots, len(numbers))
        self.chances.set(slots, 0.0)
        if self._alpha is not None:
            self.powers.set(slots, np.inf)

    def stale(self, learner_iter: int) -> np.ndarray:
        """The numbers of elements collected at least `max_staleness` iterations before; each is given out once."""
        if self._max_staleness is None or learner_iter == UNKNOWN_ITER:
            return np.zeros(0, np.int64)
        numbers = self._queue.take(learner_iter - self._max_staleness)
        return numbers[self.has(numbers)] if len(numbers) else numbers

    # --- what changes

    def set_priorities(self, numbers: np.ndarray, priorities: np.ndarray) -> None:
        """Changes the priorities of elements that are there; given twice, the later one counts.

        Args:
          numbers: int64 `[M]`.
          priorities: float64 `[M]`.
        """
        slots = numbers % self.max_size
        if self._alpha is None:
            self.priorities[slots] = priorities
        elif self.num_drawable < self.count or not priorities.all():
            slots, last = np.unique(slots[::-1], return_index=True)
            priorities = priorities[::-1][last]
            self._recount(slots, -1)
            self._set_priorities(slots, priorities)
            self._recount(slots, 1)
        else:
            self._set_priorities(slots, priorities)

    def staleness_of(self, slots: np.ndarray, learner_iter: int) -> np.ndarray:
        """Iterations since elements were collected, at least 0: int64 `[M]`; -1 where either is not known."""
        collected = self.collect_iters[slots]
        if learner_iter == UNKNOWN_ITER:
            return np.full(len(slots), -1)
        return np.where(collected == UNKNOWN_ITER, -1, np.maximum(learner_iter - collected, 0))

    def use(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Counts a use of each element of a batch, which may hold one several times.

        Args:
          slots: int64 `[B]`, of elements that can be drawn.

        Returns:
          int64 `[B]`: uses of each with this one, the second place of an element in the batch has one more; and the
          slots of those that were used as often as they may be, each once.
        """
        uses = self.uses[slots] + occurrences(slots) + 1
        self.uses[slots] = uses  # of a slot that comes twice the later one counts
        if self.max_use is None:
            return uses, np.zeros(0, np.int64)
        self.uses_left -= len(slots)
        return uses, slots[uses >= self.max_use]

    # --- its state

    def state(self) -> dict[str, np.ndarray]:
        """Copies of what is known of the slots that were ever filled, for `load`."""
        used = slice(0, min(self.next_number, self.max_size))
        arrays = (self.alive, self.priorities, self.collect_iters, self.uses)
        return {name: array[used].copy() for name, array in zip(_STATE, arrays, strict=True)}

    def load(self, next_number: int, state: dict[str, Any], shares: np.ndarray | None) -> None:
        """Takes over, while it is empty, the state of another ledger of this size, but for what has no uses left here.

        Args:
          next_number: of the other.
          state: of the other.
          shares: int64 `[max_size]`, where elements have any.

        Raises:
          ValueError: if the arrays do not fit.
        """
        size = min(next_number, self.max_size)
        alive, priorities, iters, uses = (np.asarray(state[name]) for name in _STATE)
        if any(array.shape != (size,) for array in (alive, priorities, iters, uses)):
            raise ValueError(f"there are {next_number} elements pushed, expected arrays of {size}")
        self.next_number = next_number
        if self.max_use is not None:
            alive = alive & (uses < self.max_use)
        numbers = np.sort(self.numbers_in(np.flatnonzero(alive)))
        slots = numbers % self.max_size
        if not len(numbers):
            return
        shares = None if shares is None else shares[slots]
        self._enter(numbers, priorities[slots], iters[slots], uses[slots], shares)
        if self._max_staleness is not None:
            for run in np.split(slots, np.flatnonzero(np.diff(numbers) > 1) + 1):
                self._queue.add(int(self.numbers_in(run[:1])[0]), iters[run])


_STATE = ("alive", "priorities", "collect_iters", "uses")


def occurrences(values: np.ndarray) -> np.ndarray:
    """How often each value came before in the same array: 3, 5, 3, 3 give 0, 0, 1, 2; int64 `[M]`."""
    order = values.argsort(kind="stable")
    ordered = values[order]
    found = np.zeros(len(values), np.int64)
    again = ordered[1:] == ordered[:-1]
    if again.any():
        begins = np.flatnonzero(np.append(True, ~again))
        found[order] = np.arange(len(values)) - np.repeat(begins, np.diff(np.append(begins, len(values))))
    return found
