"""The replay buffer: elements in this process, drawn by priority, each with what is known of it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from rlds2reverb.episode_batches import in_batches
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import CheckpointError
from rlds2reverb.specs import Nest, leaves, mapped, require_match

from . import refusals
from .batches import Batch, BatchInfo, Drawn, as_dicts
from .checkpoints import CheckpointFolder
from .configs import BufferConfig
from .drawing import choose, importance_weights
from .item_spec import MASK, PRIORITY, UNIQUE_ID, ItemSpec, Rows, fields_of, first_of
from .ledger import Ledger
from .listeners import Listener, TellingLock
from .snapshots import Snapshot, State, described, nest_of
from .store import Store
from .transitions import transitions_of

if TYPE_CHECKING:
    import tensorflow as tf

_FIRST_PRIORITY = 1.0

Self = TypeVar("Self", bound="ReplayBuffer")


class ReplayBuffer:
    """A store of elements in this process, with priorities, limits and counts of their uses. Threads may share it.

    An item is a dict of numbers, arrays, or nests of them, all of the structure of the first one. Its `priority` and
    `collect_iter` (the learner's iteration in which it was collected) are no fields of it; they may be left out. Nor is
    what sampling adds: what was sampled can be pushed again. A new element takes the place of the one pushed `max_size`
    before it. An episode or a sequence is an item whose fields have a time axis; see `BufferConfig.kind`.

        with AdvancedReplayBuffer("demo", BufferConfig(max_size=100_000, max_staleness=1_000)) as buffer:
            buffer.extend(transitions)
            batch = buffer.sample_batch(256, cur_learner_iter=3)
            if batch is None:
                print(buffer.refusal)
            else:
                td_errors = learn(batch.data, batch.info.IS)
                buffer.update(batch.info, priority=abs(td_errors))
    """

    #: The kind of configuration that it takes; None for any.
    kind: ClassVar[str | None] = None

    def __init__(
        self,
        name: str,
        config: BufferConfig | None = None,
        *,
        spec: Nest | None = None,
        folder: str | Path | None = None,
        checkpoint_root: str | Path | None = None,
        seed: int | None = None,
    ):
        """Opens a buffer, with the elements of the newest checkpoint if there is one.

        Args:
          name: of the buffer; ids of elements begin with it.
          config: its configuration; None for the one of its kind with no numbers given.
          spec: nest of arrays or of specs like an item; None for that of the first item.
          folder: a directory whose disk holds the data instead of memory, while the buffer is open.
          checkpoint_root: a directory for its checkpoints; the buffer begins with the newest one there.
          seed: of all draws; a checkpoint has the state of the generator, and goes on with it.

        Raises:
          ValueError: if the name is empty or the configuration is of another kind.
          CheckpointError: if all checkpoints are damaged, or the newest is of another buffer or configuration.
          SpecMismatch: if the checkpoint has another spec.
          InUse: if another buffer has the root.
        """
        self.config = BufferConfig(kind=self.kind or "advanced") if config is None else config
        if self.kind and self.config.kind != self.kind:
            raise ValueError(f"a {type(self).__name__} takes a config of kind {self.kind!r}, got {self.config.kind!r}")
        if not isinstance(name, str) or not name:
            raise ValueError(f"a buffer's name is {name!r}, expected a text, which its ids begin with")
        self.name = name
        #: Held by every method; hold it to keep several calls together.
        self.lock = TellingLock()
        #: Why the last sample was refused; empty when it was not.
        self.refusal = ""
        self._folder = None if folder is None else Path(folder)
        #: Of all draws; used under the lock, and kept in checkpoints.
        self.generator = np.random.default_rng(seed)
        self._listeners: tuple[Listener, ...] = ()
        #: What elements are; None before the first push.
        self.item_spec: ItemSpec | None = None
        self._store: Store | None = None
        self._is_closed = False
        #: Held while a snapshot is read: there is one at a time.
        self.saving = threading.Lock()
        self._ledger = self._empty_ledger()
        self._counts = {"sample": 0, "ignored": 0}
        self._beta, self._highest = float(self.config.beta), _FIRST_PRIORITY
        self._root = None if checkpoint_root is None else CheckpointFolder(Path(checkpoint_root))
        try:
            if self._root is not None and (state := self._root.newest(self._require_own)) is not None:
                self.take_over(self.prepared(state))
            if spec is not None:
                self._begin_with(spec)
        except BaseException:
            self.close()
            raise

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    # --- what it has

    @property
    def _holder(self) -> str:
        return f"buffer {self.name!r}"

    @property
    def spec(self) -> Nest | None:
        """`ArraySpec`s of an element; None before the first push."""
        return None if self.item_spec is None else self.item_spec.items

    @property
    def push_count(self) -> int:
        """Elements pushed since the beginning."""
        return self._ledger.next_number

    @property
    def sample_count(self) -> int:
        """Elements sampled since the beginning."""
        return self._counts["sample"]

    @property
    def ignored_count(self) -> int:
        """Priorities of updates that were ignored since the beginning, since their elements had left."""
        return self._counts["ignored"]

    @property
    def highest_priority(self) -> float:
        """The highest priority so far, or what decay has left of it: that of new elements that have none."""
        return self._highest

    @property
    def beta(self) -> float:
        """The exponent of the importance weights of the next sample, in [0, 1]."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        if not 0 <= value <= 1:
            raise ValueError(f"beta is {value}, expected a number from 0 to 1")
        with self.lock:
            self._beta = float(value)

    def count(self) -> int:
        """Elements that are there."""
        return self._ledger.count

    def add_listener(self, listener: Listener) -> None:
        """Has a listener told of what happens from now on."""
        with self.lock:
            self._listeners = (*self._listeners, listener)

    def _tell(self, event: str, *arguments: Any) -> None:
        """Notes an event, for when the lock is free."""
        for listener in self._listeners:
            self.lock.note(partial(getattr(listener, event), *arguments))

    def _empty_ledger(self) -> Ledger:
        config = self.config
        return Ledger(
            config.max_size, alpha=config.exponent, max_use=config.max_use, max_staleness=config.max_staleness
        )

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"{self._holder} is closed; make a new one")

    def _spec_like(self, example: Any) -> ItemSpec:
        has_time = self.config.kind in ("episode", "sequence")
        spec = ItemSpec.of(example, self._holder, has_time=has_time, length=self.config.length if has_time else 1)
        if self._has_mask and MASK in spec.rows:
            raise ValueError(f"an episode has a field {MASK!r}, which padding adds; give it another name")
        return spec

    def _begin_with(self, example: Any) -> None:
        """Fixes the spec, or checks that it is the one that was restored."""
        spec = self._spec_like(example)
        if self.item_spec is None:
            self.item_spec = spec
            return
        advice = "give the spec of the checkpoint, or a new checkpoint_root"
        require_match(spec.rows, self.item_spec.rows, holder=self._holder, advice=advice, root="item")
        self.item_spec = replace(self.item_spec, rows=spec.rows)  # with the caller's own kinds of named tuples
        if self._store is not None:
            self._store.spec = self.item_spec

    # --- push

    def append(self, item: Mapping[str, Any]) -> str:
        """Adds an element and gives its `replay_unique_id`; see `extend`."""
        return self.extend([item])[0]

    def extend(self, items: Iterable[Mapping[str, Any]]) -> list[str]:
        """Adds elements, all or none of them.

        Args:
          items: dicts of fields (numbers, lists of them, arrays, tensors, or nests of these), and each with or without
            `priority`, a finite number from 0 to 1e12 (without: the highest so far; 0 is never drawn), and
            `collect_iter`. docs/replay.md says what is cast to the dtypes of the first item.

        Returns:
          The `replay_unique_id` of each, `NAME_NUMBER`, the number counted from the first push; empty for an episode
          that is too short to be stored.

        Raises:
          SpecMismatch: if an item is not of the buffer's structure, naming the item and the field.
          TypeError: if an item is not a dict, or a dict in it has keys that are not text.
          ValueError: if a priority or a `collect_iter` is out of its range, a priority above 0 is so low that its power
            (`alpha`) is rounded to 0, or the buffer is closed.
          RateLimited: if too much was pushed for what was sampled (`push_sample_rate_limit`).
        """
        if isinstance(items, Mapping):
            raise TypeError("extend takes several items, got one dict; append it, or give columns to extend_columns")
        given = list(items)
        self._require_open()
        if not given:
            return []
        priorities, collect_iters = refusals.known_of_items(given)
        numbers = self._add(given[0], lambda spec: spec.rows_of(given), priorities, collect_iters)
        return [f"{self.name}_{number}" if number >= 0 else "" for number in numbers.tolist()]

    def extend_columns(
        self, columns: Mapping[str, Any], *, priorities: Any = None, collect_iters: Any = None
    ) -> np.ndarray:
        """Adds elements that are given as columns, all or none of them; much faster than `extend` for many.

        Args:
          columns: the nest of an item, with arrays `[N, ...]`.
          priorities: a number for all, or `[N]`, as in `extend`; None for the highest so far.
          collect_iters: an integer for all, or `[N]`; None or -1 where not known.

        Returns:
          Their numbers, int64 `[N]`, which `update` takes for ids; -1 for an episode that is too short to be stored.

        Raises:
          As `extend`; `SpecMismatch` also if the columns differ in N.
        """
        self._require_open()
        arrays = mapped(np.asarray, fields_of(columns))
        count = max((len(column) if column.ndim else 0 for _, column in leaves(arrays)), default=0)
        if not count:
            return np.zeros(0, np.int64)
        known = refusals.known_of_columns(priorities, collect_iters, count)
        return self._add(first_of(arrays), lambda spec: spec.rows_of_columns(arrays), *known)

    def extend_episodes(
        self, episodes: Iterable[Episode], *, priority: float | None = None, collect_iter: int | None = None
    ) -> int:
        """Adds RLDS episodes: of a `Source`, of a list, or a single one.

        A buffer of single items gets their transitions, dicts of `observation, action, reward, discount,
        next_observation` (see `transitions.transitions_of`), an episode buffer their steps, and a sequence buffer the
        sequences that begin at each step.

        Args:
          episodes: valid ones. Each is added with all its elements or not at all; others may have been before.
          priority: of all elements; None for the highest so far.
          collect_iter: of all elements; None where not known.

        Returns:
          How many elements were added.

        Raises:
          As `extend`.
        """
        before = self.push_count
        for batch in in_batches([episodes] if isinstance(episodes, Episode) else episodes):
            if self.config.kind == "sequence":
                for episode in batch.episodes:
                    self._add_sequences(episode.steps, 1, priority, collect_iter)
            elif self.config.kind == "episode":
                known = refusals.known_of_columns(priority, collect_iter, len(batch.num_steps))
                rows_of = partial(ItemSpec.rows_of_runs, columns=batch.steps, lengths=batch.num_steps)
                self._add(batch.episodes[0].steps, rows_of, *known)
            else:
                transitions = transitions_of(batch.steps)
                self.extend_columns(transitions, priorities=priority, collect_iters=collect_iter)
        return self.push_count - before

    def _add_sequences(self, steps: Mapping[str, Any], period: int, priority: Any, collect_iter: Any) -> np.ndarray:
        """Adds the sequences of an episode that begin at steps 0, period, 2 * period, ... and end within it."""
        self._require_open()
        length, arrays = self.config.length or 1, mapped(np.asarray, fields_of(steps))
        num_steps = len(leaves(arrays)[0][1])
        starts = np.arange(0, num_steps - length + 1, period)
        if not len(starts):
            return np.zeros(0, np.int64)
        if period > length:  # nothing is shared, and rows between the sequences are not kept
            cut = mapped(lambda column: column[starts[:, None] + np.arange(length)], arrays)
            return self.extend_columns(cut, priorities=priority, collect_iters=collect_iter)

        def rows_of(spec: ItemSpec) -> Rows:
            rows = spec.rows_of_runs(arrays, np.array([num_steps]))
            return rows._replace(lengths=np.full(len(starts), length))

        known = refusals.known_of_columns(priority, collect_iter, len(starts))
        return self._add(mapped(lambda column: column[:length], arrays), rows_of, *known, starts)

    def _add(
        self,
        example: Any,
        rows_of: Callable[[ItemSpec], Rows],
        priorities: np.ndarray | None,
        collect_iters: np.ndarray,
        starts: np.ndarray | None = None,
    ) -> np.ndarray:
        """Adds elements, at least one, after all checks; gives their numbers, -1 for those that are not stored.

        Args:
          example: the first of them, for a buffer that has no spec yet.
          rows_of: makes their rows, which is done before the lock is taken.
          priorities: float64 `[N]`, NaN for the highest so far; None if all are.
          collect_iters: int64 `[N]`, -1 where not known.
          starts: see `Store.write`.
        """
        spec = self.item_spec or self._spec_like(example)
        rows = rows_of(spec)
        kept = np.ones(len(rows.lengths), bool)
        if self.config.window is not None and not self.config.pads:
            kept = rows.lengths >= self.config.window
        with self.lock:
            self._require_open()
            if self.item_spec is not None and self.item_spec is not spec:  # another thread was first
                rows = rows_of(self.item_spec)
            numbers = np.full(len(kept), -1)
            if not kept.all():
                columns = [column[np.repeat(kept, rows.lengths)] for column in rows.columns]
                rows = rows._replace(columns=columns, lengths=rows.lengths[kept])
                priorities = None if priorities is None else priorities[kept]
            if kept.any():
                numbers[kept] = self._insert(rows, priorities, collect_iters[kept], starts)
            return numbers

    def _insert(
        self, rows: Rows, priorities: np.ndarray | None, collect_iters: np.ndarray, starts: np.ndarray | None
    ) -> np.ndarray:
        count, ledger = len(rows.lengths), self._ledger
        filled = refusals.filled_priorities(priorities, count, self._highest)
        refusals.require_drawable(filled, self.config.lowest_priority, lambda place: f"item {place}")
        most = self.config.push_sample_rate_limit[1]
        if most < math.inf:
            refusals.require_rate(self._holder, self.push_count, self.sample_count, count, most)
        if self._store is None:
            self._store = Store(rows.spec, self.config.max_size, self._folder)
        elif rows.spec is not self.item_spec:
            self._store.widen(rows.spec)
        self.item_spec = rows.spec
        if self._listeners:
            self._tell_displaced(rows, starts)
        self._store.write(self.push_count, rows, starts)
        numbers = ledger.add(filled, collect_iters, self._shares_of(rows.lengths))
        self._highest = max(self._highest, float(filled.max()))
        self._tell("on_push", filled)
        return numbers

    def _shares_of(self, lengths: np.ndarray) -> np.ndarray | int:
        """How many windows each element counts for."""
        if self.config.window is None or self.config.windows_over == "episodes":
            return 1
        return np.maximum(lengths - self.config.window, 0) + 1

    # --- update

    def update(self, info: Mapping[str, Any] | BatchInfo, *, priority: Any = None) -> int:
        """Changes priorities, plus `eps`, of those elements that are still there; others are ignored, and counted.

        Args:
          info: `replay_unique_id`, ids as `sample` or `sample_batch` gives them, and `priority`, for each id a number
            from 0 to 1e12; of an id that comes twice the later one counts. Without `priority` nothing is changed.
          priority: instead of that in the info, so that a batch's info can be given as it is.

        Returns:
          How many ids are still there.

        Raises:
          ValueError: if a priority is out of its range (see `extend`), there are not as many as ids, or an id is of
            another buffer; nothing is changed then.
        """
        known = info._asdict() if isinstance(info, BatchInfo) else info
        given = known.get(PRIORITY) if priority is None else priority
        if given is None:
            return 0
        if UNIQUE_ID not in known:
            raise ValueError(f"an update of {self._holder} lacks {UNIQUE_ID!r}; give the ids that sample gave")
        ids = known[UNIQUE_ID]
        numbers = refusals.numbers_given(self.name, ids)
        priorities = refusals.priorities_updated(self._holder, given, ids, self.config)
        with self.lock:
            self._require_open()
            there = self._ledger.has(numbers)
            count = int(np.count_nonzero(there))
            self._counts["ignored"] += len(numbers) - count
            if not count:
                return 0
            if count < len(numbers):
                numbers, priorities = numbers[there], priorities[there]
            self._ledger.set_priorities(numbers, priorities + self.config.eps)
            highest = max(self._highest * (self.config.priority_decay or 1.0), float(priorities.max()))
            self._highest = max(highest, self.config.lowest_priority)  # so that new elements can be drawn
            self._tell("on_update", priorities + self.config.eps)
            return count

    # --- sample

    def sample_check(self, size: int, cur_learner_iter: int | None = None) -> refusals.SampleCheck:
        """Whether a sample would be given now; elements that are too old leave.

        Args:
          size: elements in the sample.
          cur_learner_iter: the learner's iteration; None or -1 where not known.

        Raises:
          ValueError: if the buffer can never give so many, or a number is out of its range.
        """
        learner_at = refusals.learner_iter(cur_learner_iter, "cur_learner_iter")
        with self.lock:
            reason = self._check(size, learner_at)
            return refusals.SampleCheck(not reason, reason)

    def sample(
        self, size: int, cur_learner_iter: int | None = None, sample_range: slice | None = None
    ) -> list[dict[str, Any]] | None:
        """Draws elements as dicts; nothing can happen to them between check and draw.

        Args:
          size: elements to draw.
          cur_learner_iter: the learner's iteration; None or -1 where not known.
          sample_range: only elements at these places, the oldest that is there being at 0; `slice(-20, None)` are the
            newest 20. It costs as much as the range is long (as the buffer is, where elements have left early).

        Returns:
          None where refused, with the reason in `refusal`. Else for each element a dict of its fields and of what
          `BatchInfo` says of it, but for `buffer`; `replay_unique_id` as `extend` gave it, `collect_iter` where known.
          Scalars are numpy's. The arrays are the caller's own; those of one call may share memory.

        Raises:
          ValueError: if the buffer can never give so many, or a number is out of its range.
          TypeError: if sample_range is not a slice.
        """
        drawn = self._sampled(size, cur_learner_iter, sample_range)
        return None if drawn is None else as_dicts(drawn, self.name)

    def sample_batch(
        self, size: int, cur_learner_iter: int | None = None, sample_range: slice | None = None
    ) -> Batch | None:
        """Draws elements as one batch of columns, several times as fast as `sample`; arguments and errors are the same.

        Returns:
          None where refused, with the reason in `refusal`. Else columns `[B, ...]` and the info. Whole episodes are
          filled up with zeros to the longest; they and padded windows have `mask`, bool `[B, T]`, among their fields.
        """
        drawn = self._sampled(size, cur_learner_iter, sample_range)
        return None if drawn is None else drawn.batch()

    def _sampled(self, size: int, cur_learner_iter: int | None, sample_range: slice | None) -> Drawn | None:
        learner_at = refusals.learner_iter(cur_learner_iter, "cur_learner_iter")
        if sample_range is not None and not isinstance(sample_range, slice):
            kind = type(sample_range).__name__
            raise TypeError(f"sample_range is a {kind}, expected a slice such as slice(-20, None)")
        with self.lock:
            self.refusal = self._check(size, learner_at)
            if self.refusal:
                return None
            slots, self.refusal = choose(
                self._ledger, self.config, int(size), self.generator, sample_range, self._holder
            )
            return None if self.refusal else self._taken(slots, learner_at)

    def _check(self, size: int, learner_at: int) -> str:
        """Why a sample is refused, if it is."""
        self._require_open()
        refusals.require_possible(self._holder, self.config, size)
        self._remove(self._ledger.stale(learner_at), "stale")
        return refusals.refusal(self._holder, self.config, self._ledger, size, self.sample_count) if size else ""

    def _taken(self, slots: np.ndarray, learner_at: int) -> Drawn:
        """The elements in slots that were drawn, after noting that they were."""
        ledger, config = self._ledger, self.config
        numbers, priorities = ledger.numbers_in(slots), ledger.priorities[slots]
        weights = np.ones(len(slots))
        if config.exponent is not None and len(slots):
            powers = ledger.powers.leaves[slots]
            least = ledger.powers.root if config.weights == "buffer" else float(powers.min())
            weights = importance_weights(powers, self._beta, least)
        uses, used = ledger.use(slots)
        staleness, collect_iters = ledger.staleness_of(slots, learner_at), ledger.collect_iters[slots]
        drawn = self._read(
            numbers,
            BatchInfo(
                numbers, slots, weights, priorities, uses, staleness, collect_iters, np.zeros(len(slots), np.int32)
            ),
        )
        self._counts["sample"] += len(slots)
        if config.anneal_step and len(slots):
            self._beta = min(1.0, self._beta + (1 - config.beta) / config.anneal_step)
        if self._listeners and len(slots):
            self._tell("on_sample", uses.copy(), staleness.copy(), priorities.copy())
        self._remove(ledger.numbers_in(used), "used")
        return drawn

    def _read(self, numbers: np.ndarray, info: BatchInfo) -> Drawn:
        window, store = self.config.window, self._store
        if store is None:
            return Drawn(None, [], None, np.zeros(0, np.int64), info)
        lengths = store.lengths_of(numbers)
        if window is None:
            columns, there = store.read(numbers)
            mask = np.arange(int(lengths.max(initial=0))) < lengths[:, None] if self._has_mask else None
            return Drawn(store.spec, columns, mask, lengths, info)
        offsets = self.generator.integers(np.maximum(lengths - window, 0) + 1)
        columns, there = store.read(numbers, offsets, window)
        if not self.config.pads:
            return Drawn(store.spec, columns, None, None, info)
        mask = np.ones((len(numbers), window), bool) if there is None else there
        return Drawn(store.spec, columns, mask, None, info)

    @property
    def _has_mask(self) -> bool:
        """Whether batches say which steps there are."""
        return self.config.kind == "episode" and (self.config.window is None or self.config.pads)

    def dataset(
        self,
        batch_size: int,
        *,
        cur_learner_iter: Callable[[], int] | None = None,
        prefetch: int = 2,
        timeout_secs: float = 30.0,
    ) -> tf.data.Dataset:
        """Batches of `sample_batch` as an endless `tf.data` stream, for a learner that runs in TensorFlow.

        It samples as `sample_batch` does, `prefetch` batches ahead: uses, limits and beta go on with what is drawn.
        Where a sample is refused it waits until there is one.

        Args:
          batch_size: elements in a batch.
          cur_learner_iter: gives the learner's iteration, for limits of staleness.
          prefetch: batches that are made ready ahead.
          timeout_secs: how long to wait where samples are refused; then the stream raises `InvalidArgumentError` with
            the reason.

        Returns:
          Data set of `Batch`.

        Raises:
          ValueError: if nothing was pushed yet and no spec given, or the buffer can never give so many.
        """
        from .streams import batches

        refusals.require_possible(self._holder, self.config, batch_size)
        if self.item_spec is None:
            raise ValueError(f"{self._holder} has no elements yet; push first, or give its spec")

        def sample() -> Batch | None:
            return self.sample_batch(batch_size, None if cur_learner_iter is None else cur_learner_iter())

        return batches(
            sample,
            self.empty_batch(),
            batch_size,
            why_not=lambda: self.refusal,
            prefetch=prefetch,
            timeout_secs=timeout_secs,
        )

    def empty_batch(self) -> Batch:
        """A batch of no elements; of what a batch has, it has the structure, dtypes and shapes."""
        if self.item_spec is None:
            raise ValueError(f"{self._holder} has no elements yet; push first, or give its spec")
        time: tuple[int, ...] = ()
        if self.item_spec.has_time:
            time = (self.config.window or self.item_spec.length or 0,)
        shapes = [(0, *time, *(size or 0 for size in leaf.shape)) for leaf in self.item_spec.leaves]
        columns = [np.zeros(shape, leaf.dtype) for shape, leaf in zip(shapes, self.item_spec.leaves, strict=True)]
        mask = np.zeros((0, *time), bool) if self._has_mask else None
        info = [np.zeros(0, dtype) for dtype in ("i8", "i8", "f8", "f8", "i8", "i8", "i8", "i4")]
        return Drawn(self.item_spec, columns, mask, None, BatchInfo(*info)).batch()

    # --- what leaves

    def clear(self) -> None:
        """Removes all elements; the highest priority is 1 again. Counts go on, so that no id comes twice."""
        with self.lock:
            self._require_open()
            self._remove(self._ledger.numbers(), "cleared")
            self._highest = _FIRST_PRIORITY

    def _remove(self, numbers: np.ndarray, reason: str) -> None:
        if len(numbers):
            self._tell_removed(numbers, reason)
            self._ledger.remove(numbers)

    def _tell_removed(self, numbers: np.ndarray, reason: str, store: Store | None = None) -> None:
        if not self._listeners or not len(numbers):
            return
        source = store or self._store
        wanted = source is not None and any(listener.wants_data for listener in self._listeners)
        local = numbers if store is None else numbers - self.push_count
        self._tell("on_remove", numbers, reason, source.elements(local) if source is not None and wanted else None)

    def _tell_displaced(self, rows: Rows, starts: np.ndarray | None) -> None:
        """Notes what leaves for rows that are about to be written, and those of them that never get in."""
        count, max_size = len(rows.lengths), self.config.max_size
        self._tell_removed(self._ledger.displaced_by(count), "full")
        if too_many := max(0, count - max_size):
            passing = Store(rows.spec, count)
            passing.write(0, rows, starts)
            self._tell_removed(self.push_count + np.arange(too_many), "full", passing)

    def close(self) -> None:
        """Forgets the elements, but for checkpoints. Once more does nothing."""
        with self.lock:
            self._is_closed, self._store = True, None
            self._ledger = self._empty_ledger()
        if self._root is not None:
            self._root.close()

    # --- what is kept

    def checkpoint(self) -> Path:
        """Writes a checkpoint, and gives its directory: elements, priorities, uses, ids, counts, beta, generator.

        Others go on meanwhile; see `snapshots`. A buffer that is made with the same `checkpoint_root` afterwards goes
        on from the newest complete one, also after this process was killed, at any moment.

        Raises:
          ValueError: if the buffer has no `checkpoint_root`, or is closed.
          StorageFull: if there is no space; the checkpoints before are kept.
        """
        self.require_root()
        with self.saving:
            return self.write(self.snapshot())

    def require_root(self) -> CheckpointFolder:
        """The directory of its checkpoints; `ValueError` if it has none."""
        if self._root is None:
            raise ValueError(f"{self._holder} has no checkpoint_root; make it with one")
        return self._root

    def write(self, snapshot: Snapshot) -> Path:
        """Writes a snapshot of its own as `checkpoint` does."""
        return self.require_root().write(snapshot)

    def snapshot(self) -> Snapshot:
        """All that there is at this moment, to be read while others go on; one at a time."""
        with self.lock:
            self._require_open()
            header = {
                "name": self.name,
                "kind": self.config.kind,
                "max_size": self.config.max_size,
                "length": self.config.length,
                "push_count": self.push_count,
                "sample_count": self.sample_count,
                "ignored_count": self.ignored_count,
                "beta": self._beta,
                "highest_priority": self._highest,
                "generator": self.generator.bit_generator.state,
                "spec": None if self.item_spec is None else described(self.item_spec.rows),
                "widening": [] if self.item_spec is None else sorted(self.item_spec.widening),
            }
            return Snapshot(header, self._ledger.state(), self._store, self.lock)

    def state_dict(self) -> dict[str, Any]:
        """The whole buffer, elements and all, for `load_state_dict`: a dict of plain values and arrays.

        Raises:
          ValueError: if the buffer is closed.
        """
        with self.saving:
            return self.snapshot().state()._asdict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave, of a buffer of the same name and configuration, in place of what it has.

        Raises:
          CheckpointError: if the state is damaged, or of another buffer or configuration; nothing is changed then.
          ValueError: if the buffer is closed.
        """
        self.take_over(self.prepared(state))

    def save_data(self, folder: str | Path) -> Path:
        """Writes a checkpoint into a directory of its own, as `checkpoint` does into the root; gives its path."""
        with self.saving, CheckpointFolder(Path(folder)) as there:
            return there.write(self.snapshot())

    def load_data(self, folder: str | Path) -> None:
        """Takes over what `save_data` wrote there last; errors as of `load_state_dict`, or if there is nothing."""
        with CheckpointFolder(Path(folder)) as there:
            state = there.newest(self._require_own)
            if state is None:
                raise CheckpointError(f"{folder} has no checkpoint; give the directory that save_data was given")
            self.take_over(self.prepared(state))

    def _require_own(self, header: Mapping[str, Any]) -> None:
        """Raises `CheckpointError` if a state is of another buffer, or one of another configuration."""
        own = {"name": self.name, **{key: getattr(self.config, key) for key in ("kind", "max_size", "length")}}
        for what, now in own.items():
            if what not in header or header[what] != now:
                raise CheckpointError(
                    f"the state is of a buffer with {what} {header.get(what)!r}, this one has {now!r}; make it as that "
                    "one was, or give a new directory"
                )

    def prepared(self, state: State | Mapping[str, Any]) -> tuple[Any, ...]:
        """What `take_over` takes, made of a state; the buffer is not changed.

        Raises:
          CheckpointError, ValueError: see `load_state_dict`.
        """
        self._require_open()
        try:
            header, arrays = (state["header"], state["arrays"]) if isinstance(state, Mapping) else state
            self._require_own(header)
            ledger, spec, store = self._empty_ledger(), None, None
            ledger.load(int(header["push_count"]), arrays)
            alive = ledger.priorities[ledger.numbers() % ledger.max_size]
            refusals.require_drawable(alive, self.config.lowest_priority, lambda place: f"its element {place}")
            if header["spec"] is not None:
                rows = nest_of(header["spec"])
                has_time = self.config.kind in ("episode", "sequence")
                length = self.config.length if has_time else 1
                spec = ItemSpec(rows, self._holder, has_time, length, frozenset(header["widening"]))
                if self.item_spec is not None and leaves(self.item_spec.rows) == leaves(rows):
                    spec = replace(spec, rows=self.item_spec.rows)
            if spec is not None and "ring" in arrays:
                store = Store.loaded(spec, self.config.max_size, self._folder, arrays, header["push_count"])
            counts = {"sample": int(header["sample_count"]), "ignored": int(header["ignored_count"])}
            rng = np.random.default_rng()
            rng.bit_generator.state = header["generator"]
            return ledger, spec, store, counts, float(header["beta"]), float(header["highest_priority"]), rng
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"the state of {self._holder} is damaged ({error}); give what state_dict gave, or a copy of the files"
            ) from error

    def take_over(self, prepared: tuple[Any, ...]) -> None:
        """Replaces all that there is by what `prepared` gave."""
        with self.lock:
            self._ledger, self.item_spec, self._store, self._counts, self._beta, self._highest, self.generator = (
                prepared
            )
