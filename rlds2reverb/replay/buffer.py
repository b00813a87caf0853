"""The replay buffer: elements in this process, drawn by priority, each with what is known of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from rlds2reverb.episode_batches import in_batches
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import CheckpointError
from rlds2reverb.specs import Nest, leaves, map_structure

from . import refusals
from .batches import Batch, BatchInfo, Drawn, as_dicts
from .checkpoints import CheckpointFolder
from .configs import BufferConfig
from .contents import FIRST_PRIORITY, Contents, require_same
from .item_spec import ItemSpec, Rows, arrays_of, fields_of, first_of
from .listeners import Listener, NotifyingLock
from .snapshots import Snapshot, State
from .transitions import transitions_of

if TYPE_CHECKING:
    import tensorflow as tf

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
          SpecMismatchError: if the checkpoint has another spec.
          ResourceInUseError: if another buffer has the root.
        """
        self.config = BufferConfig(kind=self.kind or "advanced") if config is None else config
        if self.kind and self.config.kind != self.kind:
            raise ValueError(f"a {type(self).__name__} takes a config of kind {self.kind!r}, got {self.config.kind!r}")
        if not isinstance(name, str) or not name:
            raise ValueError(f"a buffer's name is {name!r}, expected a text, which its ids begin with")
        self.name = name
        #: Held by every method; hold it to keep several calls together.
        self.lock = NotifyingLock()
        #: Why the last sample was refused; empty when it was not.
        self.refusal = ""
        self._listeners: tuple[Listener, ...] = ()
        self._is_closed, self._spec = False, spec
        #: Held while a snapshot is read: there is one at a time.
        self.saving = threading.Lock()
        #: What it holds now; a load puts another one in its place, under the lock.
        self.contents = Contents(
            self.config, self._holder, None if folder is None else Path(folder), np.random.default_rng(seed)
        )
        self._root = None if checkpoint_root is None else CheckpointFolder(Path(checkpoint_root))
        try:
            if self._root is not None and (state := self._root.newest(self._require_same)) is not None:
                self.contents = self.restored(state)
            elif spec is not None:
                self.contents.begin_with(spec)
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
        return None if self.contents.spec is None else self.contents.spec.items

    @property
    def push_count(self) -> int:
        """Elements pushed since the beginning."""
        return self.contents.push_count

    @property
    def sample_count(self) -> int:
        """Elements sampled since the beginning."""
        return self.contents.sample_count

    @property
    def ignored_count(self) -> int:
        """Priorities of updates that were ignored since the beginning, since their elements had left."""
        return self.contents.ignored_count

    @property
    def highest_priority(self) -> float:
        """The highest priority so far, or what decay has left of it: that of new elements that have none."""
        return self.contents.highest_priority

    @property
    def beta(self) -> float:
        """The exponent of the importance weights of the next sample, in [0, 1]."""
        return self.contents.beta

    @beta.setter
    def beta(self, value: float) -> None:
        if not 0 <= value <= 1:
            raise ValueError(f"beta is {value}, expected a number from 0 to 1")
        with self.lock:
            self.contents.beta = float(value)

    def count(self) -> int:
        """Elements that are there."""
        return self.contents.ledger.count

    def add_listener(self, listener: Listener) -> None:
        """Has a listener told of what happens from now on."""
        with self.lock:
            self._listeners = (*self._listeners, listener)

    def _tell(self, event: str, *arguments: Any) -> None:
        """Notes an event, for when the lock is free."""
        for listener in self._listeners:
            self.lock.note(partial(getattr(listener, event), *arguments))

    @property
    def _wants_data(self) -> bool:
        return any(listener.wants_data for listener in self._listeners)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"{self._holder} is closed; make a new one")

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
          SpecMismatchError: if an item is not of the buffer's structure, naming the item and the field.
          TypeError: if an item is not a dict, or a dict in it has keys that are not text.
          ValueError: if a priority or a `collect_iter` is out of its range, a priority above 0 is so low that its power
            (`alpha`) is rounded to 0, or the buffer is closed.
          RateLimitedError: if too much was pushed for what was sampled (`push_sample_rate_limit`).
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
          As `extend`; `SpecMismatchError` also if the columns differ in N.
        """
        self._require_open()
        arrays = arrays_of(fields_of(columns))
        count = max((len(column) if column.ndim else 1 for _, column in leaves(arrays)), default=1)
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
        numbers = [np.zeros(0, np.int64)]
        for batch in in_batches([episodes] if isinstance(episodes, Episode) else episodes):
            if self.config.kind == "sequence":
                for episode in batch.episodes:
                    numbers.append(self._add_sequences(episode.steps, 1, priority, collect_iter))
            elif self.config.kind == "episode":
                known = refusals.known_of_columns(priority, collect_iter, len(batch.num_steps))
                rows_of = partial(ItemSpec.rows_of_runs, columns=batch.steps, lengths=batch.num_steps)
                numbers.append(self._add(batch.episodes[0].steps, rows_of, *known))
            else:
                transitions = transitions_of(batch.steps)
                numbers.append(self.extend_columns(transitions, priorities=priority, collect_iters=collect_iter))
        return int(np.count_nonzero(np.concatenate(numbers) >= 0))

    def _add_sequences(self, steps: Mapping[str, Any], period: int, priority: Any, collect_iter: Any) -> np.ndarray:
        """Adds the sequences of an episode that begin at steps 0, period, 2 * period, ... and end within it."""
        self._require_open()
        length, arrays = self.config.length or 1, arrays_of(fields_of(steps))
        columns = [column for _, column in leaves(arrays)]
        num_steps = len(columns[0]) if columns and columns[0].ndim else 0
        starts = np.arange(0, num_steps - length + 1, period)
        if not len(starts):
            return np.zeros(0, np.int64)
        if period > length:  # nothing is shared, and rows between the sequences are not kept
            cut = map_structure(lambda column: column[starts[:, None] + np.arange(length)], arrays)
            return self.extend_columns(cut, priorities=priority, collect_iters=collect_iter)

        def rows_of(spec: ItemSpec) -> Rows:
            rows = spec.rows_of_runs(arrays, np.array([num_steps]))
            return rows._replace(lengths=np.full(len(starts), length))

        known = refusals.known_of_columns(priority, collect_iter, len(starts))
        return self._add(map_structure(lambda column: column[:length], arrays), rows_of, *known, starts)

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
        spec = self.contents.spec or self.contents.spec_like(example)
        rows = rows_of(spec)
        numbers = np.full(len(rows.lengths), -1)
        with self.lock:
            self._require_open()
            contents = self.contents
            if contents.spec is not None and contents.spec is not spec:  # another thread was first
                rows = rows_of(contents.spec)
            kept: np.ndarray | slice = slice(None)
            if self.config.least_length and (rows.lengths < self.config.least_length).any():
                kept = rows.lengths >= self.config.least_length
                columns = [column[np.repeat(kept, rows.lengths)] for column in rows.columns]
                rows = rows._replace(columns=columns, lengths=rows.lengths[kept])
                priorities = None if priorities is None else priorities[kept]
            if not len(rows.lengths):
                return numbers
            leaving = list(contents.leaving_for(rows, starts, self._wants_data)) if self._listeners else []
            numbers[kept], filled = contents.insert(rows, priorities, collect_iters[kept], starts)
            for gone, data in leaving:
                self._tell("on_remove", gone, "full", data)
            self._tell("on_push", filled)
            return numbers

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
        ids, given, owners = refusals.update_given(f"an update of {self._holder}", info, priority)
        if given is None:
            return 0
        if owners is not None and len(np.unique(owners)) > 1:
            raise ValueError(f"the update of {self._holder} has ids of several buffers; give it to their manager")
        numbers = refusals.numbers_given(self.name, ids)
        priorities = refusals.priorities_updated(self._holder, given, ids, self.config)
        with self.lock:
            self._require_open()
            found = self.contents.set_priorities(numbers, priorities)
            if len(found):
                self._tell("on_update", found)
            return len(found)

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
            newest 20. It costs as much as the range is long; where elements have left early, as far as it is from its
            begin to the newest.

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
            drawn, used, self.refusal = self.contents.draw(int(size), learner_at, sample_range)
            if drawn is not None and self._listeners and size:
                info = drawn.info
                self._tell("on_sample", info.use.copy(), info.staleness.copy(), info.priority.copy())
            self._remove(used, "used")
            return drawn

    def _check(self, size: int, learner_at: int) -> str:
        """Why a sample is refused, if it is."""
        self._require_open()
        refusals.require_possible(self._holder, self.config, size)
        ledger = self.contents.ledger
        self._remove(ledger.stale(learner_at), "stale")
        return refusals.refusal(self._holder, self.config, ledger, size, self.sample_count) if size else ""

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
        like = self.empty_batch()

        def sample() -> Batch | None:
            return self.sample_batch(batch_size, None if cur_learner_iter is None else cur_learner_iter())

        return batches(
            sample,
            like,
            batch_size,
            why_not=lambda: self.refusal,
            prefetch=prefetch,
            timeout_secs=timeout_secs,
        )

    def empty_batch(self) -> Batch:
        """A batch of no elements; of what a batch has, it has the structure, dtypes and shapes.

        Raises:
          ValueError: if nothing was pushed yet and no spec given.
        """
        return self.contents.none_drawn().batch()

    # --- what leaves

    def clear(self) -> None:
        """Removes all elements; the highest priority is 1 again. Counts go on, so that no id comes twice."""
        with self.lock:
            self._require_open()
            self._remove(self.contents.ledger.numbers(), "cleared")
            self.contents.highest_priority = FIRST_PRIORITY

    def _remove(self, numbers: np.ndarray, reason: str) -> None:
        if len(numbers):
            if self._listeners:
                self._tell("on_remove", numbers, reason, self.contents.data_of(numbers) if self._wants_data else None)
            self.contents.ledger.remove(numbers)

    def close(self) -> None:
        """Forgets the elements, but for checkpoints. Once more does nothing."""
        with self.lock:
            self._is_closed = True
            self.contents = Contents(self.config, self._holder, None, self.contents.generator)
        if self._root is not None:
            self._root.close()

    # --- what is kept

    def checkpoint(self) -> Path:
        """Writes a checkpoint, and gives its directory: elements, priorities, uses, ids, counts, beta, generator.

        Others go on meanwhile; see `snapshots`. A buffer that is made with the same `checkpoint_root` afterwards goes
        on from the newest complete one, also after this process was killed, at any moment.

        Raises:
          ValueError: if the buffer has no `checkpoint_root`, or is closed.
          StorageFullError: if there is no space; the checkpoints before are kept.
        """
        root = self.root
        with self.saving:
            return root.write(self.snapshot())

    @property
    def root(self) -> CheckpointFolder:
        """The directory of its checkpoints; `ValueError` if it has none."""
        if self._root is None:
            raise ValueError(f"{self._holder} has no checkpoint_root; make it with one")
        return self._root

    def snapshot(self) -> Snapshot:
        """All that there is at this moment, to be read while others go on; one at a time."""
        with self.lock:
            self._require_open()
            contents = self.contents
            return Snapshot(contents.header(self.name), contents.ledger.state(), contents.store, self.lock)

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
          SpecMismatchError: if the buffer was given another spec.
          ValueError: if the buffer is closed.
        """
        self.load(self.restored(state))

    def save_data(self, folder: str | Path) -> Path:
        """Writes a checkpoint into a directory of its own, as `checkpoint` does into the root; gives its path."""
        with self.saving, CheckpointFolder(Path(folder)) as there:
            return there.write(self.snapshot())

    def load_data(self, folder: str | Path) -> None:
        """Takes over what `save_data` wrote there last; errors as of `load_state_dict`, or if there is nothing."""
        missing = CheckpointError(f"{folder} has no checkpoint; give the directory that save_data was given")
        if not Path(folder).is_dir():
            raise missing
        with CheckpointFolder(Path(folder)) as there:
            state = there.newest(self._require_same)
            if state is None:
                raise missing
            self.load(self.restored(state))

    def restored(self, state: State | Mapping[str, Any]) -> Contents:
        """The contents of a state, to be put in the place of the present ones; errors as of `load_state_dict`."""
        contents = self.contents.restored(state, self.name)
        if self._spec is not None:
            contents.begin_with(self._spec)
        return contents

    def load(self, contents: Contents) -> None:
        """Puts contents that `restored` gave in the place of the present ones."""
        with self.lock:
            self._require_open()
            self.contents = contents

    def _require_same(self, header: Mapping[str, Any]) -> None:
        require_same(header, self.name, self.config)
