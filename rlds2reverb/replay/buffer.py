"""The replay buffer: elements in Reverb tables of its own, drawn by priority, each with what is known of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlds2reverb._encoding.item_blocks import ItemBlock

from .checks import collect_iters_given, priorities_given, require_drawable, unique_id_of, updates_given
from .drawing import DrawnBuffer
from .elements import PRIORITY, Elements
from .refusals import require_rate


class ReplayBuffer(DrawnBuffer):
    """Elements in a Reverb table, which begins with the first push, in a server of this process.

    `BufferConfig.other_tables` has further tables of that server hold the same elements, to be drawn in other ways.
    The buffer is the only writer of its tables and keeps a ledger of what is in them: all that changes elements goes
    through its methods, which one lock keeps apart, so that threads may share a buffer. Others may sample the tables
    too (`address`, `table_names`, `dataset`); of these samples the buffer counts how many there are, for
    `push_sample_rate_limit`, and nothing else.

    An item is a dict of arrays, or of nests of them, all with the structure, dtypes and shapes of the first one. Its
    `priority` and `collect_iter` (the learner's iteration in which it was collected) are no fields of it; they may be
    left out. Nor are `replay_unique_id`, `IS`, `use` and `staleness`, which sampling adds: what was sampled can be
    pushed again. A new element takes the place of the one pushed `max_size` before it.

        with AdvancedReplayBuffer("demo", BufferConfig(max_size=100_000, max_staleness=1_000)) as buffer:
            buffer.append({"obs": obs, "action": action, "collect_iter": 0})
            batch = buffer.sample(64, cur_learner_iter=3)
            if batch is None:
                print(buffer.refusal)

    A call that the server does not answer in time raises `ServerUnavailable`, and so does every later one: nobody
    knows what the server made of it. Ctrl-C waits until a change is made in both.
    """

    # --- push

    def append(self, item: Mapping[str, Any]) -> str:
        """Adds an element and gives its `replay_unique_id`; see `extend`."""
        return self.extend([item])[0]

    def extend(self, items: Iterable[Mapping[str, Any]]) -> list[str]:
        """Adds elements, all or none of them, which can be sampled when it returns.

        Args:
          items: dicts of fields (arrays, scalars or nests of them), and each with or without `priority`, a finite
            number from 0 to 1e12 (without: the highest so far; 0 is never drawn), and `collect_iter`.

        Returns:
          The `replay_unique_id` of each: `NAME_NUMBER`, the number counted from the first push.

        Raises:
          SpecMismatch: if an item is not of the buffer's structure, naming the item and the field.
          TypeError: if an item is no dict, or a dict in it has keys that are no text.
          ValueError: if a priority or a `collect_iter` is out of its range, a priority above 0 is so low that its power
            (`alpha`) is rounded to 0, or the buffer is closed.
          RateLimited: if too much was pushed for what was sampled, by all (`push_sample_rate_limit`).
          ServerUnavailable: if the server does not take them in time.
        """
        if isinstance(items, Mapping):
            raise TypeError("extend takes several items, got one dict; append it")
        given = list(items)
        with self.lock:
            self._usable_store()
            if not given:
                return []
            elements = self._elements or self._elements_like(given[0])
            columns = elements.columns(given)
            priorities = priorities_given(given, self._highest)
            collect_iters = collect_iters_given(given)
            blocks = elements.blocks(columns, priorities, self.push_count)
            return self._add(elements, blocks, priorities, collect_iters)

    def _add(
        self,
        elements: Elements,
        blocks: Iterable[ItemBlock],
        priorities: np.ndarray,
        collect_iters: np.ndarray,
    ) -> list[str]:
        """Writes elements that were checked, at least one, and gives their ids."""
        require_drawable(priorities, self.lowest_priority, lambda place: f"item {place}")
        most = self.config.push_sample_rate_limit[1]
        if most < math.inf:
            require_rate(self.name, self.push_count, self._num_sampled_by_all(), len(priorities), most)
        store = self._begin_with(elements)
        count = len(priorities)
        displaced = self._ledger.displaced_by(count)
        with self._changing():
            if len(displaced) != max(0, self._ledger.count + count - self.config.max_size):
                store.delete(displaced)  # Reverb removes the oldest ones only where the table is full
            store.insert(blocks)
            numbers = self._ledger.add(priorities, collect_iters)
            self._highest = max(self._highest, float(priorities.max()))
        gone = np.concatenate([displaced, numbers[: max(0, count - self.config.max_size)]])
        self._tell_removed(gone, "full")
        for listener in self._listeners:
            listener.on_push(priorities.copy())
        return [unique_id_of(self.name, number) for number in numbers.tolist()]

    # --- update

    def update(self, info: Mapping[str, Any]) -> int:
        """Changes priorities, plus `eps`, of those elements that are still there.

        Args:
          info: `replay_unique_id`, ids as `sample` gives them, and `priority`, for each id a number from 0 to 1e12; of
            an id that comes twice the later one counts. Without `priority` nothing is changed.

        Returns:
          How many ids are still there.

        Raises:
          ValueError: if a priority is out of its range (see `extend`), there are not as many as ids, or an id is of
            another buffer; nothing is changed then.
          ServerUnavailable: if the server does not answer in time.
        """
        if PRIORITY not in info:
            return 0
        numbers, priorities = updates_given(self.name, info, self.config.eps, lowest=self.lowest_priority)
        with self.lock:
            store = self._usable_store()
            there = self._ledger.has(numbers)
            if store is None or not there.any():
                return 0
            numbers, priorities = numbers[there], priorities[there]
            with self._changing():
                store.set_priorities(numbers, priorities + self.config.eps)
                self._ledger.set_priorities(numbers, priorities + self.config.eps)
                highest = max(self._highest * (self.config.priority_decay or 1.0), float(priorities.max()))
                self._highest = max(highest, self.lowest_priority)  # so that new elements can be drawn
            for listener in self._listeners:
                listener.on_update(priorities + self.config.eps)
            return len(numbers)
