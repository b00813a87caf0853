"""Replay buffers in the learner's process, uniform or prioritized, for items, episodes and sequences."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from rlds2reverb._arguments import require_count, require_number
from rlds2reverb.episode_batches import batch_episodes
from rlds2reverb.episodes import Episode
from rlds2reverb.ownership import copy_arrays, is_user_code
from rlds2reverb.sample_info import SampleInfo
from rlds2reverb.specs import Nest, leaves, map_structure

from . import validation
from .batches import Batch, Sample, SampleCheck, SampleRefusal, stream_batches
from .checkpoints import CheckpointFolder, read_saved
from .configs import BufferConfig
from .contents import INITIAL_PRIORITY, Contents
from .item_spec import COLLECT_ITER, PRIORITY, ItemRows, ItemSpec, get_fields, take_first, to_arrays
from .listeners import Listener, NotifyingLock
from .sampler import Candidates, require_possible, select_candidates
from .snapshots import Snapshot
from .transitions import make_transitions

if TYPE_CHECKING:
    import tensorflow as tf

Self = TypeVar("Self", bound="ReplayBuffer")


class ReplayBuffer:
    """A buffer of items with priorities, use counts and limits. It is thread-safe; use it as a context manager.

    An item is a dict of numbers, arrays, or nested structures of them; all items have the structure of the first one.
    The keys `priority` and `collect_iter` (the learner iteration in which the item was collected) are optional and not
    fields. Neither are the keys that sampling adds, so sampled items can be pushed back unchanged. Once the buffer is
    full, a new element replaces the one pushed `max_size` before it. Episodes and sequences are items whose fields have
    a time axis; see `BufferConfig.kind`.

        with AdvancedReplayBuffer("demo", BufferConfig(max_size=100_000, max_staleness=1_000)) as buffer:
            buffer.extend(transitions)
            batch = buffer.sample_batch(256, cur_learner_iter=3)
            if batch:
                td_errors = learn(batch.data, batch.info.weight)
                buffer.update(batch.info, td_errors)
            else:
                print(batch.reason)
    """

    #: The required kind of configuration; None for any.
    kind: ClassVar[str | None] = None

    def __init__(
        self,
        name: str,
        config: BufferConfig | None = None,
        *,
        spec: Nest | None = None,
        mmap_dir: str | Path | None = None,
        checkpoint_root: str | Path | None = None,
        seed: int | None = None,
    ):
        """Opens a buffer and restores its newest checkpoint if there is one.

        Args:
          name: name of the buffer, and prefix of its ids.
          config: configuration; None for the defaults of the class.
          spec: nest of arrays or specs with the structure of an item; None to take it from the first item.
          mmap_dir: directory for memory-mapped files that hold the data while the buffer is open; None for memory.
          checkpoint_root: directory of the buffer's checkpoints; None for no checkpoints.
          seed: random seed for sampling; a restored buffer continues with the generator of its checkpoint.

        Raises:
          ValueError: If the name is empty or the configuration has another kind.
          CheckpointError: If all checkpoints are damaged, or the newest belongs to a different buffer or configuration.
          SpecMismatchError: If the spec does not match the checkpoint.
          ResourceInUseError: If another buffer uses the checkpoint root.
        """
        self.config = BufferConfig(kind=self.kind or "advanced") if config is None else config
        if self.kind and self.config.kind != self.kind:
            raise ValueError(f"{type(self).__name__} requires a config of kind {self.kind!r}, got {self.config.kind!r}")
        if not isinstance(name, str) or not name:
            raise ValueError(f"the name of a buffer must be a non-empty string, got {name!r}")
        self.name = name
        #: The lock of all methods; hold it to make several calls atomic.
        self.lock = NotifyingLock()
        #: Held while a snapshot is read; there is one at a time.
        self.snapshot_lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()
        self._is_closed, self._spec = False, spec
        #: The elements and counts, which `load` replaces under the lock.
        self.contents = Contents(
            name, self.config, None if mmap_dir is None else Path(mmap_dir), np.random.default_rng(seed)
        )
        self._holder = self.contents.holder
        self._checkpoints = None if checkpoint_root is None else CheckpointFolder(Path(checkpoint_root))
        try:
            if self._checkpoints is not None and (state := self._checkpoints.read_newest()) is not None:
                self.contents = self.restore(state)
            elif spec is not None:
                self.contents.set_spec(spec)
        except BaseException:
            self.close()
            raise

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __len__(self) -> int:
        return self.contents.elements.count

    def count(self) -> int:
        """Returns the number of elements, as DI-engine's `count`; the same as `len`."""
        return len(self)

    @property
    def spec(self) -> Nest | None:
        """The `ArraySpec`s of an element; None before the first push."""
        return None if self.contents.spec is None else self.contents.spec.items

    @property
    def push_count(self) -> int:
        """Number of elements pushed up to now, including removed ones."""
        return self.contents.push_count

    @property
    def sample_count(self) -> int:
        """Number of elements sampled up to now."""
        return self.contents.sample_count

    @property
    def ignored_count(self) -> int:
        """Number of priorities ignored by updates because their elements had been removed."""
        return self.contents.ignored_count

    @property
    def highest_priority(self) -> float:
        """The highest priority up to now, possibly decayed, which new elements without a priority get."""
        return self.contents.highest_priority

    @property
    def beta(self) -> float:
        """The exponent of the importance weights of the next sample, in [0, 1]."""
        return self.contents.beta

    @beta.setter
    def beta(self, value: float) -> None:
        require_number("beta", value, 0, 1)
        with self.lock:
            self.contents.beta = float(value)

    def add_listener(self, listener: Listener) -> None:
        """Adds a listener to all later events."""
        with self.lock:
            self._listeners = (*self._listeners, listener)

    def _notify(self, event: str, *arguments: Any) -> None:
        """Schedules an event for the release of the lock."""
        for listener in self._listeners:
            self.lock.defer(partial(getattr(listener, event), *arguments))

    @property
    def _wants_data(self) -> bool:
        return any(listener.wants_data for listener in self._listeners)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"{self._holder} is closed; create a new one")

    # --- push

    def append(self, item: Mapping[str, Any]) -> str:
        """Adds one element and returns its `replay_unique_id`; see `extend`."""
        return self.extend([item])[0]

    def extend(self, items: Iterable[Mapping[str, Any]]) -> list[str]:
        """Adds elements, all or none of them.

        Args:
          items: dicts of fields (numbers, lists of numbers, arrays, tensors, or nested structures of them). Optional
            keys are `priority`, a finite number from 0 to 1e12 (default: the highest up to now; 0 is never sampled),
            and `collect_iter`. docs/replay_buffers.md lists the casts to the dtypes of the first item.

        Returns:
          The `replay_unique_id` of each element, `NAME_NUMBER`, where the number counts from the first push; empty for
          an episode that is too short to be stored.

        Raises:
          SpecMismatchError: If an item does not match the structure, naming the item and the field.
          TypeError: If an item, or a dict in it, is not a dict with string keys.
          ValueError: If a field of the first item is not numeric, a priority or a `collect_iter` is out of its range, a
            priority is so low that its power is rounded to 0, or the buffer is closed.
          RateLimitedError: If the push would exceed `push_sample_rate_limit`.
        """
        if isinstance(items, Mapping):
            raise TypeError("extend expects several items, got one dict; use append, or extend_columns for columns")
        items = list(items if isinstance(items, (list, tuple)) else map(copy_arrays, items))  # It may reuse its arrays.
        self._require_open()
        if not items:
            return []
        options = validation.read_item_options(items)
        numbers = self._add(items[0], lambda spec: spec.convert_items(items), *options)
        return [f"{self.name}_{number}" if number >= 0 else "" for number in numbers.tolist()]

    def extend_columns(
        self, columns: Mapping[str, Any], *, priorities: Any = None, collect_iters: Any = None
    ) -> np.ndarray:
        """Adds stacked elements, all or none of them; much faster than `extend` for many elements.

        Args:
          columns: nest of an item, with arrays `[N, ...]`.
          priorities: one number, or `[N]`, as in `extend`; None for the highest up to now.
          collect_iters: one integer, or `[N]`; None or -1 if unknown.

        Returns:
          int64 `[N]`, numbers of the elements, which `update` accepts as ids; -1 for an episode that is too short.

        Raises:
          The same as `extend`; `SpecMismatchError` also if the columns have different N.
        """
        self._require_open()
        arrays = to_arrays(get_fields(columns))
        count = max((len(column) if column.ndim else 1 for _, column in leaves(arrays)), default=1)
        if not count:
            return np.zeros(0, np.int64)
        options = validation.read_column_options(priorities, collect_iters, count)
        return self._add(take_first(arrays), lambda spec: spec.convert_columns(arrays), *options)

    def extend_episodes(
        self, episodes: Iterable[Episode], *, priority: float | None = None, collect_iter: int | None = None
    ) -> int:
        """Adds RLDS episodes.

        A buffer of single items stores their transitions (see `transitions.make_transitions`), an episode buffer their
        steps, and a sequence buffer the sequences that begin at each step.

        Args:
          episodes: a `Source`, a list of valid episodes, or one episode. Each batch of short episodes, or single long
            episode, is added with all elements or not at all; earlier ones stay.
          priority: priority of all elements; None for the highest up to now.
          collect_iter: learner iteration of all elements; None if unknown.

        Returns:
          The number of elements added.

        Raises:
          The same as `extend`.
        """
        numbers = [np.zeros(0, np.int64)]
        if isinstance(episodes, Episode):
            episodes = [episodes]
        elif not isinstance(episodes, (list, tuple)) and is_user_code(episodes):  # An iterator may reuse its arrays.
            episodes = map(copy_arrays, episodes)
        for batch in batch_episodes(episodes):
            if self.config.kind == "sequence":
                for episode in batch.episodes:
                    numbers.append(self._add_sequences(episode.steps, 1, priority, collect_iter))
            elif self.config.kind == "episode":
                options = validation.read_column_options(priority, collect_iter, len(batch.num_steps))
                convert = partial(ItemSpec.convert_concatenated, columns=batch.steps, lengths=batch.num_steps)
                numbers.append(self._add(batch.episodes[0].steps, convert, *options))
            else:
                transitions = make_transitions(batch.steps)
                numbers.append(self.extend_columns(transitions, priorities=priority, collect_iters=collect_iter))
        return int(np.count_nonzero(np.concatenate(numbers) >= 0))

    def _add_sequences(self, steps: Mapping[str, Any], period: int, priority: Any, collect_iter: Any) -> np.ndarray:
        """Adds the sequences of an episode that begin at steps 0, period, 2 * period, ... and end within it."""
        self._require_open()
        length, arrays = self.config.length or 1, to_arrays(get_fields(steps))
        columns = [column for _, column in leaves(arrays)]
        num_steps = len(columns[0]) if columns and columns[0].ndim else 0
        starts = np.arange(0, num_steps - length + 1, period)
        if not len(starts):
            return np.zeros(0, np.int64)
        if period > length:  # Sequences share no steps, and those between them are not stored.
            stacked = map_structure(lambda column: column[starts[:, None] + np.arange(length)], arrays)
            return self.extend_columns(stacked, priorities=priority, collect_iters=collect_iter)

        def convert(spec: ItemSpec) -> ItemRows:
            rows = spec.convert_concatenated(arrays, np.array([num_steps]))
            return rows._replace(lengths=np.full(len(starts), length))

        options = validation.read_column_options(priority, collect_iter, len(starts))
        return self._add(map_structure(lambda column: column[:length], arrays), convert, *options, starts)

    def _add(
        self,
        example: Any,
        convert: Callable[[ItemSpec], ItemRows],
        priorities: np.ndarray | None,
        collect_iters: np.ndarray,
        starts: np.ndarray | None = None,
    ) -> np.ndarray:
        """Adds at least one element after all checks; returns their numbers, -1 for elements that are not stored.

        Args:
          example: the first element, for a buffer that has no spec yet.
          convert: function that makes the rows, called before the lock is acquired.
          priorities: float64 `[N]`, NaN for the highest up to now; None if all are.
          collect_iters: int64 `[N]`, -1 if unknown.
          starts: see `Store.write`.
        """
        spec = self.contents.spec or self.contents.make_spec(example)
        rows = convert(spec)
        numbers = np.full(len(rows.lengths), -1)
        with self.lock:
            self._require_open()
            contents = self.contents
            if contents.spec is not None and contents.spec is not spec:  # Another thread has changed the spec.
                rows = convert(contents.spec)
            kept: np.ndarray | slice = slice(None)
            if self.config.min_length and (rows.lengths < self.config.min_length).any():
                kept = rows.lengths >= self.config.min_length
                columns = [column[np.repeat(kept, rows.lengths)] for column in rows.columns]
                rows = rows._replace(columns=columns, lengths=rows.lengths[kept])
                priorities = None if priorities is None else priorities[kept]
            if not len(rows.lengths):
                return numbers
            removals = list(contents.find_removals(rows, starts, self._wants_data)) if self._listeners else []
            numbers[kept], priorities = contents.insert(rows, priorities, collect_iters[kept], starts)
            for removed, data in removals:
                self._notify("on_remove", removed, "full", data)
            self._notify("on_push", priorities)
            return numbers

    # --- update

    def update(self, info: SampleInfo | Mapping[str, Any], td_errors: Any = None, *, priority: Any = None) -> int:
        """Sets priorities, plus `priority_eps`, of the elements that are still there; ignores and counts the others.

        Implements `sampling.PrioritySink.update`; `priority` and dicts are DI-engine's.

        Args:
          info: the info of a batch, or a dict with `replay_unique_id`, ids from `sample` or `extend`, and `priority`,
            one number from 0 to 1e12 per id. For duplicate ids the last priority wins. Without priorities nothing
            happens.
          td_errors: TD errors, one per id, whose absolute values are the priorities.
          priority: priorities that replace those in the info.

        Returns:
          The number of ids whose elements are still there.

        Raises:
          TypeError: If the info is neither a dict nor the info of a batch.
          ValueError: If a priority is out of its range (see `extend`), there is not one per id, an id belongs to a
            different buffer, a manager sampled the batch, or both `td_errors` and `priority` are set; nothing is
            changed then.
        """
        update = validation.read_update(self._holder, info, td_errors, priority)
        if update is None:
            return 0
        if update.owners is not None:
            raise ValueError(f"a batch of a manager cannot update {self._holder}; pass its info to manager.update")
        numbers = self.validate_update(update.ids, update.priorities)
        return self.set_priorities(numbers, update.priorities)

    def validate_update(self, ids: Any, priorities: np.ndarray) -> np.ndarray:
        """Returns the element numbers of an update; raises `ValueError` if an id or a priority is invalid."""
        numbers = validation.read_ids(self.name, ids)
        validation.require_update_priorities(priorities, ids, self.config)
        return numbers

    def set_priorities(self, numbers: np.ndarray, priorities: np.ndarray) -> int:
        """Applies an update that `validate_update` has checked; returns how many of the elements are still there."""
        with self.lock:
            self._require_open()
            updated = self.contents.set_priorities(numbers, priorities)
            if len(updated):
                self._notify("on_update", updated)
            return len(updated)

    # --- sample

    def sample_check(
        self, size: int, cur_learner_iter: int | None = None, sample_range: slice | None = None
    ) -> SampleCheck:
        """Returns whether a sample would be allowed now, and the reason if not; removes stale elements.

        Arguments and errors are those of `sample`.
        """
        learner_iter = validation.read_learner_iter(cur_learner_iter, "cur_learner_iter")
        with self.lock:
            candidates = self._select_candidates(size, learner_iter, sample_range)
        return SampleCheck(False, candidates.reason) if isinstance(candidates, SampleRefusal) else SampleCheck(True)

    def sample(
        self, size: int, cur_learner_iter: int | None = None, sample_range: slice | None = None
    ) -> list[dict[str, Any]] | None:
        """Samples elements as a list of dicts, as DI-engine's buffers do.

        Args:
          size: number of elements to sample.
          cur_learner_iter: learner iteration; None or -1 if unknown.
          sample_range: positions of the elements that can be sampled, the oldest being at 0: `slice(-20, None)` are the
            newest 20. The cost is proportional to the length of the range, or to the distance from its beginning to the
            newest element if some were removed early.

        Returns:
          None if the sample is refused; `sample_check` and `sample_batch` say why. Otherwise one dict per element with
          its fields, `replay_unique_id` as returned by `extend`, `replay_buffer_idx` (its slot), `IS` (its importance
          weight), `priority`, `use` (how often it was sampled), `staleness`, and `collect_iter` if known. Scalars are
          numpy scalars. The arrays belong to the caller; those of one call can share memory.

        Raises:
          ValueError: If the buffer can never return this many, or a number is out of its range.
          TypeError: If sample_range is not a slice.
        """
        sample = self._sample(size, cur_learner_iter, sample_range)
        return None if isinstance(sample, SampleRefusal) else sample.to_dicts(self.name)

    def sample_batch(
        self, size: int, cur_learner_iter: int | None = None, sample_range: slice | None = None
    ) -> Batch | SampleRefusal:
        """Samples elements as one batch of columns, several times as fast as `sample`; takes the same arguments.

        Returns:
          Columns `[B, ...]` and the info. Whole episodes are padded with zeros to the longest; for them and for padded
          windows, `info.mask` is False where steps are padding. A refused sample returns a `SampleRefusal`, which is
          false in a condition.
        """
        sample = self._sample(size, cur_learner_iter, sample_range)
        return sample if isinstance(sample, SampleRefusal) else sample.to_batch()

    def _sample(self, size: int, cur_learner_iter: int | None, sample_range: slice | None) -> Sample | SampleRefusal:
        learner_iter = validation.read_learner_iter(cur_learner_iter, "cur_learner_iter")
        with self.lock:
            candidates = self._select_candidates(size, learner_iter, sample_range)
            if isinstance(candidates, SampleRefusal):
                return candidates
            sample, exhausted = self.contents.sample(candidates, int(size), learner_iter)
            if self._listeners and size:
                info = sample.info
                self._notify(
                    "on_sample", info.times_sampled.astype(np.int64), info.staleness.copy(), info.priority.copy()
                )
            self._remove(exhausted, "used")
            return sample

    def _select_candidates(
        self, size: int, learner_iter: int, sample_range: slice | None
    ) -> Candidates | SampleRefusal:
        if sample_range is not None and not isinstance(sample_range, slice):
            got = type(sample_range).__name__
            raise TypeError(f"sample_range must be a slice, such as slice(-20, None), got {got}")
        self._require_open()
        require_possible(self._holder, self.config, size)
        elements = self.contents.elements
        self._remove(elements.pop_stale(learner_iter), "stale")
        return select_candidates(elements, self.config, size, self.contents.sample_count, sample_range, self._holder)

    def dataset(
        self,
        batch_size: int,
        *,
        cur_learner_iter: Callable[[], int] | None = None,
        prefetch: int = 2,
        timeout_secs: float = 30.0,
    ) -> tf.data.Dataset:
        """Returns batches of `sample_batch` as an endless `tf.data` dataset, for learners that run in TensorFlow.

        Batches are sampled `prefetch` ahead, which counts for uses, limits and beta. A refused sample is retried.

        Args:
          batch_size: number of elements per batch.
          cur_learner_iter: function that returns the learner iteration, for `max_staleness`; None if unknown.
          prefetch: number of batches to sample ahead.
          timeout_secs: how long to retry a refused sample; then the dataset raises a `TimeoutError` with the reason of
            the last refusal. (A TensorFlow graph raises a `tf.errors.OpError`; see `sampling.translate_error`.)

        Returns:
          A dataset of `Batch`.

        Raises:
          ValueError: If nothing was pushed and no spec was passed, or the buffer can never return this many.
        """
        require_possible(self._holder, self.config, batch_size)

        def sample() -> Batch | SampleRefusal:
            return self.sample_batch(batch_size, None if cur_learner_iter is None else cur_learner_iter())

        return stream_batches(sample, self.make_empty_batch(), batch_size, prefetch, timeout_secs)

    def make_empty_batch(self) -> Batch:
        """Returns a batch of no elements, with the structure, dtypes and shapes of other batches.

        Raises:
          ValueError: If nothing was pushed and no spec was passed.
        """
        return self.contents.make_empty_sample().to_batch()

    # --- remove

    def clear(self) -> None:
        """Removes all elements and resets the highest priority to 1; counts continue, so ids stay unique."""
        with self.lock:
            self._require_open()
            self._remove(self.contents.elements.select_numbers(), "cleared")
            self.contents.highest_priority = INITIAL_PRIORITY

    def _remove(self, numbers: np.ndarray, reason: str) -> None:
        if len(numbers):
            if self._listeners:
                data = self.contents.read_elements(numbers) if self._wants_data else None
                self._notify("on_remove", numbers, reason, data)
            self.contents.elements.remove(numbers)

    def close(self) -> None:
        """Discards the elements and releases the checkpoint root, but keeps the checkpoints. Idempotent."""
        with self.lock:
            self._is_closed = True
            self.contents = Contents(self.name, self.config, None, self.contents.generator)
        if self._checkpoints is not None:
            self._checkpoints.close()

    # --- save and load

    def checkpoint(self) -> Path:
        """Writes a checkpoint of elements, priorities, uses, counts, beta and generator, and returns its directory.

        Other threads can use the buffer meanwhile; see `snapshots`. A buffer that is later created with the same
        `checkpoint_root` continues from the newest complete checkpoint, even if this process was killed.

        Raises:
          ValueError: If the buffer has no `checkpoint_root`, or is closed.
          StorageFullError: If the disk is full; earlier checkpoints are kept.
        """
        checkpoints = self.checkpoint_folder
        with self.snapshot_lock:
            return checkpoints.write(self.snapshot())

    @property
    def checkpoint_folder(self) -> CheckpointFolder:
        """The directory of the buffer's checkpoints; raises `ValueError` if it has none."""
        if self._checkpoints is None:
            raise ValueError(f"{self._holder} has no checkpoint_root; create it with one")
        return self._checkpoints

    def snapshot(self) -> Snapshot:
        """Returns the present state, which can be read while others use the buffer; hold `snapshot_lock` meanwhile."""
        with self.lock:
            self._require_open()
            contents = self.contents
            return Snapshot(contents.header(), contents.elements.state(), contents.store, self.lock)

    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state, elements included, as a dict of plain values and arrays.

        Raises:
          ValueError: If the buffer is closed.
        """
        with self.snapshot_lock:
            return self.snapshot().read()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the state by the result of `state_dict` of a buffer with the same name and configuration.

        Raises:
          CheckpointError: If the state is damaged, or belongs to a different buffer or configuration; nothing is
            changed then.
          SpecMismatchError: If the buffer was created with another spec.
          ValueError: If the buffer is closed.
        """
        self.load(self.restore(state))

    def save_data(self, folder: str | Path) -> Path:
        """Writes a checkpoint to a directory of its own, and returns the checkpoint's path; see `checkpoint`."""
        with self.snapshot_lock, CheckpointFolder(Path(folder)) as checkpoints:
            return checkpoints.write(self.snapshot())

    def load_data(self, folder: str | Path) -> None:
        """Loads the newest state that `save_data` wrote; raises as `load_state_dict`, or if there is none."""
        self.load_state_dict(read_saved(Path(folder), CheckpointFolder.read_newest))

    def restore(self, state: Mapping[str, Any]) -> Contents:
        """Returns the contents of a state for `load`; raises as `load_state_dict`."""
        contents = self.contents.restore(state)
        if self._spec is not None:
            contents.set_spec(self._spec)
        return contents

    def load(self, contents: Contents) -> None:
        """Replaces the contents by those that `restore` returned."""
        with self.lock:
            self._require_open()
            self.contents = contents


class NaiveReplayBuffer(ReplayBuffer):
    """A buffer with uniform sampling; weights are 1. Priorities are stored and can be updated, but have no effect."""

    kind: ClassVar[str | None] = "naive"


class AdvancedReplayBuffer(ReplayBuffer):
    """A buffer with prioritized sampling (prioritized experience replay; Schaul et al. 2016, arXiv:1511.05952)."""

    kind: ClassVar[str | None] = "advanced"


class EpisodeReplayBuffer(ReplayBuffer):
    """A buffer of episodes: dicts of columns `[T, ...]`, where `T` >= 1 can differ between episodes.

    Samples are whole episodes, or with `BufferConfig.window` windows of that many consecutive steps, by default each
    window of all episodes with the same probability (`window_sampling`). With `short_episodes='drop'`, shorter episodes
    are not stored and have no id. With 'pad' they are padded with zeros, and sampled items have a field `mask`,
    bool `[window]`, False for padding; they must be cut before they can be pushed again.
    """

    kind: ClassVar[str | None] = "episode"


class SequenceReplayBuffer(ReplayBuffer):
    """A buffer of sequences of `BufferConfig.length` consecutive steps: dicts of columns `[length, ...]`.

    A spec must include that time axis.
    """

    kind: ClassVar[str | None] = "sequence"

    def append_episode(self, episode: Mapping[str, Any], *, period: int = 1) -> list[str]:
        """Adds the sequences of an episode that begin at steps 0, period, 2·period, ... and end within it.

        Steps that sequences share are stored once. An episode shorter than `length` has no sequences. (R2D2 stores
        overlapping sequences: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement
        learning", section 2.3.)

        Args:
          episode: dict of columns `[T, ...]`, with the optional keys `priority` and `collect_iter` for all sequences.
          period: number of steps between the beginnings of sequences.

        Returns:
          Their `replay_unique_id`s, in order.

        Raises:
          ValueError: If the period is below 1.
          SpecMismatchError: If columns have different lengths; see also `extend`.
        """
        require_count("period", period)
        numbers = self._add_sequences(episode, period, episode.get(PRIORITY), episode.get(COLLECT_ITER))
        return [f"{self.name}_{number}" for number in numbers.tolist()]


def make_buffer(
    name: str,
    config: BufferConfig,
    *,
    spec: Nest | None = None,
    mmap_dir: str | Path | None = None,
    checkpoint_root: str | Path | None = None,
    seed: int | None = None,
) -> ReplayBuffer:
    """Creates a buffer of the class for `config.kind`; arguments are those of `ReplayBuffer`."""
    classes = (NaiveReplayBuffer, AdvancedReplayBuffer, EpisodeReplayBuffer, SequenceReplayBuffer)
    buffer_class = {own.kind: own for own in classes}[config.kind]
    return buffer_class(name, config, spec=spec, mmap_dir=mmap_dir, checkpoint_root=checkpoint_root, seed=seed)
