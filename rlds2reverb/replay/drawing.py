"""Drawing from a buffer: samples, which it counts and may refuse, and data sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.errors import LimitReached
from rlds2reverb.tables import TableConfig

from . import rules
from .checks import learner_iter, unique_id_of
from .draws import Draws, draw_until
from .elements import COLLECT_ITER, PRIORITY, STALENESS, UNIQUE_ID, USE, WEIGHT
from .ledger import UNKNOWN_ITER
from .refusals import SampleCheck, rate_refusal
from .saving import SavedBuffer

if TYPE_CHECKING:
    import tensorflow as tf


class DrawnBuffer(SavedBuffer):
    """A buffer that can be drawn from; see `buffer.ReplayBuffer`."""

    def sample_check(self, size: int, cur_learner_iter: int, *, table: str | None = None) -> SampleCheck:
        """Whether a sample would be given now; elements that are too old leave.

        Args:
          size: elements in the sample.
          cur_learner_iter: the learner's iteration; -1 where not known.
          table: name of the table that it would be drawn from; None for the buffer's own.

        Raises:
          ValueError: if the buffer can never give so many, a number is out of its range, or there is no such table.
          ServerUnavailable: if the server does not answer in time.
        """
        source = self._table(table)
        with self.lock:
            reason = self._check(size, learner_iter(cur_learner_iter, "cur_learner_iter"), source)
            return SampleCheck(not reason, reason)

    def sample(
        self, size: int, cur_learner_iter: int, sample_range: slice | None = None, *, table: str | None = None
    ) -> list[dict[str, Any]] | None:
        """Draws elements; nothing can happen to them between check and draw.

        Others may take samples then, and leave less than the least of `push_sample_rate_limit`: this is refused as
        well, and what was drawn till then is counted by the table and given to nobody.

        Args:
          size: elements to draw.
          cur_learner_iter: the learner's iteration; -1 where not known.
          sample_range: only elements at these places, the oldest that is there being at 0; `slice(-20, None)` are the
            newest 20. Draws of others are thrown away, so that it costs as many times more as the range has a smaller
            share of the draws; at most 200,000 of them.
          table: name of the table to draw from; None for the buffer's own.

        Returns:
          None where refused, with the reason in `refusal`. Else for each element a dict of its fields and
          `replay_unique_id`; `priority`, a float; `use`, how often `sample` gave it, this time included; `staleness`,
          iterations since it was collected, or -1; `collect_iter` where known; and `IS`, its importance weight in
          (0, 1], see `draws.Draws.weights`. Scalars are numpy's. Without elements to draw an empty list.

        Raises:
          ValueError: if the buffer can never give so many, a number is out of its range, there is no such table, or
            sample_range is given for a buffer with max_use or a least push_sample_rate_limit above 0 (a draw that is
            thrown away counts on the server).
          TooManyDraws: if elements of the range, or different ones, are too rare among those drawn.
          ServerUnavailable: if the server does not answer in time.
        """
        learner_at = learner_iter(cur_learner_iter, "cur_learner_iter")
        rules.require_range(self.config, sample_range)
        source = self._table(table)
        with self.lock:
            self.refusal = self._check(size, learner_at, source)
            if self.refusal or not size:
                return None if self.refusal else []
            chosen = rules.elements_in(sample_range, source.sampler, self._ledger)
            if chosen.numbers is not None and chosen.num_drawable < (1 if self.config.replace else size):
                self.refusal = f"{self._holder} has {chosen.num_drawable} elements to draw at {sample_range}: widen it"
                return None
            try:
                return self._drawn(int(size), learner_at, chosen, source)
            except LimitReached:
                self.refusal = self._rate_refusal(size, source)
                return None

    def _check(self, size: int, learner_at: int, source: TableConfig) -> str:
        """Why a sample is refused, if it is."""
        self._usable_store()
        rules.require_possible(self._holder, self.config, size)
        if not size:
            return ""
        if self.config.max_staleness is not None:
            self._remove(self._ledger.stale(learner_at, self.config.max_staleness), "stale")
        reason = rules.refusal(self._holder, self.config, source.sampler, self._ledger, size)
        return reason or self._rate_refusal(size, source)

    def _rate_refusal(self, size: int, source: TableConfig) -> str:
        """Why the rate limiter of a table does not give so many, if it does not."""
        least = self.config.push_sample_rate_limit[0]
        if not least or self._store is None:
            return ""
        reason = rate_refusal(*self._store.counts(source.name), size, least)
        owner = f"table {source.name!r} of " if self.config.other_tables else ""
        return reason and f"of {owner}{self._holder} {reason}"

    def _drawn(self, size: int, learner_at: int, chosen: rules.Range, source: TableConfig) -> list[dict[str, Any]]:
        """Draws, and notes that it did."""
        store, ledger = self._usable_store(), self._ledger
        if store is None:
            raise RuntimeError(f"{self._holder} has elements and no table")
        with self._changing():
            draws = draw_until(
                lambda count: store.draw(count, source.name),
                size,
                wanted=chosen.numbers,
                share=chosen.share,
                replace=self.config.replace,
            )
            if not ledger.has(draws.numbers).all():
                raise ValueError(f"table {source.name!r} has elements of another writer; push through the buffer only")
            uses, staleness = ledger.use(draws.numbers), ledger.staleness_of(draws.numbers, learner_at)
            priorities = ledger.priorities_of(draws.numbers)
            items = self._items(draws, uses, staleness, priorities)
            self._num_sampled += size
            if self.config.anneal_step:
                self._beta = min(1.0, self._beta + (1 - self.config.beta) / self.config.anneal_step)
            used = np.zeros(0, np.int64)
            if self.config.max_use is not None:  # Reverb has removed them
                used = ledger.used(draws.numbers, self.config.max_use)
                ledger.remove(used)
        for listener in self._listeners:
            listener.on_sample(uses.copy(), staleness.copy(), priorities.copy())
        self._tell_removed(used, "used")
        return items

    def _items(
        self, draws: Draws, uses: np.ndarray, staleness: np.ndarray, priorities: np.ndarray
    ) -> list[dict[str, Any]]:
        """What `sample` gives."""
        numbers, weights = draws.numbers.tolist(), draws.weights(self._beta).tolist()
        collected = self._ledger.collect_iters_of(draws.numbers).tolist()
        items = [self._fields(values) for values in draws.values]
        known = zip(numbers, weights, priorities.tolist(), uses.tolist(), staleness.tolist(), collected, strict=True)
        for item, (number, weight, priority, use, age, iteration) in zip(items, known, strict=True):
            item[UNIQUE_ID] = unique_id_of(self.name, number)
            item[WEIGHT], item[PRIORITY], item[USE], item[STALENESS] = weight, priority, use, age
            if iteration != UNKNOWN_ITER:
                item[COLLECT_ITER] = iteration
        return items

    def _fields(self, values: Sequence[np.ndarray]) -> dict[str, Any]:
        """The fields of an element from its columns."""
        if self._elements is None:
            raise RuntimeError(f"{self._holder} was never pushed to")
        return self._elements.element(values)

    def dataset(
        self,
        batch_size: int,
        *,
        table: str | None = None,
        beta: Any = None,
        max_in_flight: int = 256,
        num_workers: int = 2,
        prefetch: int = 1,
    ) -> tf.data.Dataset:
        """A table as an endless `tf.data` stream of batches; see `sampling.sample_dataset`.

        Neither `use` nor beta go on with its samples, and elements that are too old leave only with the next
        `sample_check` or `sample`. Its samples count for `push_sample_rate_limit`, those that it draws ahead as well:
        at the least it waits until more is pushed, and raises like `sample_dataset` when that takes too long.
        `sample_min_limit_ratio` is looked at only now: the size from which on a table of Reverb gives samples is fixed
        when the table is made, before the sizes of batches are known.

        Args:
          batch_size: elements in a batch.
          table: name of the table; None for the buffer's own.
          beta: exponent of the weights, or a schedule of it; None for the buffer's beta of now.
          max_in_flight: samples that each worker asks for ahead.
          num_workers: streams of samples.
          prefetch: batches that are made ready ahead.

        Returns:
          Data set of `reverb.ReplaySample`: `info.weight` has the importance weights, `keys.numbers_of(info.key)`
          are the numbers in `replay_unique_id`.

        Raises:
          ValueError: if nothing was pushed yet, there are fewer elements than `sample_min_limit_ratio * batch_size`, a
            number is out of its range, there is no such table, or the buffer has max_use (elements would leave without
            its knowing).
          ServerUnavailable: if the server does not answer in time.
        """
        from rlds2reverb.sampling.dataset import sample_dataset

        source = self._table(table)
        with self.lock:
            store, count = self._usable_store(), self._ledger.count
        if store is None:
            raise ValueError(f"{self._holder} has no table yet; push first, or give its spec")
        if self.config.max_use is not None:
            raise ValueError(f"{self._holder} has max_use, and a data set would use its elements up; call sample")
        rules.require_enough(self._holder, self.config, count, batch_size)
        return sample_dataset(
            store.address,
            source.name,
            batch_size,
            beta=self._beta if beta is None else beta,
            max_in_flight=max_in_flight,
            num_workers=num_workers,
            prefetch=prefetch,
            timeout_secs=self._timeout_secs,
        )
