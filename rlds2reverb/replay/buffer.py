"""Replay buffers in the learner's process, uniform or prioritized, for items, episodes and sequences."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rlds2reverb.adders.n_step import Transitions
from rlds2reverb.system.closing import Closing
from rlds2reverb.system.replacements import Replacing
from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count, require_number
from rlds2reverb.types.episode_batches import batch_episodes
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.ownership import copy_arrays, is_user_code
from rlds2reverb.types.priorities import require_priorities
from rlds2reverb.types.sample_info import PRIORITY, SampleInfo
from rlds2reverb.types.specs import Nest, leaves, map_structure

from . import push_validation
from .buffer_checkpoints import CheckpointFolder, read_saved
from .configs import BufferConfig
from .contents import INITIAL_PRIORITY, Contents
from .item_spec import COLLECT_ITER, ItemRows, get_fields, take_first, to_arrays
from .monitors import BufferMonitor
from .sampled_batches import Batch, Sample, SampleCheck, SampleRefusal, stream_batches
from .sampler import Candidates, require_possible, select_candidates

if TYPE_CHECKING:
    import tensorflow as tf


class ReplayBuffer(Closing, Replacing):
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
    replaces = ("IBuffer", "NaiveReplayBuffer", "AdvancedReplayBuffer", "EpisodeReplayBuffer", "SequenceReplayBuffer")

    def __init__(
        self,
        name: str,
        config: BufferConfig | Mapping[str, Any] | None = None,
        *,
        spec: Nest | None = None,
        mmap_dir: str | Path | None = None,
        checkpoint_root: str | Path | None = None,
        seed: int | None = None,
    ):
        """Opens a buffer and restores its newest checkpoint if there is one.

        Args:
          name: name of the buffer, and prefix of its ids.
          config: configuration, or a dict of its options (see `BufferConfig.read`); None for the defaults of the class.
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
        self.config = BufferConfig.read(config or {}, self.kind)
        if self.kind and self.config.kind != self.kind:
            raise ValueError(f"{type(self).__name__} requires a config of kind {self.kind!r}, got {self.config.kind!r}")
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"the name of a buffer must be a non-empty string, got {name!r}; pass it before the configuration"
            )
        self.name = name
        #: The lock of all methods; hold it to make several calls atomic.
        self.lock = threading.RLock()
        #: Counts and summarizes what happens; None for no monitor.
        self.monitor: BufferMonitor | None = None
        self._is_closed, self._spec = False, spec
        #: The elements and counts, which `load` replaces under the lock.
        self.contents = Contents(
            name, self.config, None if mmap_dir is None else Path(mmap_dir), np.random.default_rng(seed)
        )
        self._holder = self.contents.holder
        self._checkpoints = None if checkpoint_root is None else CheckpointFolder(Path(checkpoint_root))
        try:
            if self._checkpoints is not None and (states := self._checkpoints.read_newest()) is not None:
                self.contents = self.restore(states[""])
            elif spec is not None:
                self.contents.set_spec(spec)
        except BaseException:
            self.close()
            raise

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

    def _record(self, event: str, count: int, **values: np.ndarray) -> None:
        """Passes an event to the monitor; see `BufferMonitor.record`."""
        if self.monitor is not None:
            self.monitor.record(event, count, **values)

    @contextmanager
    def _use_contents(self) -> Iterator[Contents]:
        """Holds the lock and provides the contents; raises `ValueError` if the buffer is closed."""
        with self.lock:
            if self._is_closed:
                raise ValueError(f"{self._holder} is closed; create a new one")
            yield self.contents

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
        if not items:
            return []
        options = push_validation.read_item_options(items)
        with self._use_contents() as contents:
            spec = contents.spec or contents.make_spec(items[0])
            numbers = self._insert(spec.convert_items(items), *options)
        return [f"{self.name}_{number}" if number >= 0 else "" for number in numbers.tolist()]

    def extend_columns(
        self, columns: Mapping[str, Any], *, priorities: Any = None, collect_iters: Any = None
    ) -> np.ndarray:
        """Adds stacked elements, all or none of them; much faster than `extend` for many elements.

        Args:
          columns: nest of an item, with arrays `[N, ...]`; the optional keys are those of `extend`.
          priorities: one number, or `[N]`, in place of the key `priority`; None for the highest up to now.
          collect_iters: one integer, or `[N]`, in place of the key `collect_iter`; None or -1 if unknown.

        Returns:
          int64 `[N]`, numbers of the elements, which `update` accepts as ids; -1 for an episode that is too short.

        Raises:
          The same as `extend`; `SpecMismatchError` also if the columns have different N.
        """
        arrays = to_arrays(get_fields(columns))
        with self._use_contents() as contents:
            rows = (contents.spec or contents.make_spec(take_first(arrays))).convert_columns(arrays)
            priorities = columns.get(PRIORITY) if priorities is None else priorities
            collect_iters = columns.get(COLLECT_ITER) if collect_iters is None else collect_iters
            return self._insert(
                rows, *push_validation.read_column_options(priorities, collect_iters, len(rows.lengths))
            )

    def extend_episodes(
        self, episodes: Iterable[Episode], *, priority: float | None = None, collect_iter: int | None = None
    ) -> int:
        """Adds RLDS episodes.

        A buffer of single items stores their transitions (see `adders.Transitions`), an episode buffer their
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
                options = push_validation.read_column_options(priority, collect_iter, len(batch.num_steps))
                with self._use_contents() as contents:
                    spec = contents.spec or contents.make_spec(batch.episodes[0].steps)
                    numbers.append(self._insert(spec.join(spec.convert_steps(batch.steps), batch.num_steps), *options))
            else:
                others = tuple(name for name in batch.steps if name not in fields.STEP_FIELDS)
                transitions, _ = Transitions(other_fields=others).transform(batch.steps, batch.num_steps)
                numbers.append(self.extend_columns(transitions, priorities=priority, collect_iters=collect_iter))
        return int(np.count_nonzero(np.concatenate(numbers) >= 0))

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
          ValueError: If the period is below 1, or the buffer is not of the kind 'sequence'.
          SpecMismatchError: If columns have different lengths; see also `extend`.
        """
        require_count("period", period)
        if self.config.kind != "sequence":
            raise ValueError(f"append_episode requires a buffer of kind 'sequence', got {self.config.kind!r}")
        numbers = self._add_sequences(episode, period, episode.get(PRIORITY), episode.get(COLLECT_ITER))
        return [f"{self.name}_{number}" for number in numbers.tolist()]

    def _add_sequences(self, steps: Mapping[str, Any], period: int, priority: Any, collect_iter: Any) -> np.ndarray:
        """Adds the sequences of an episode that begin at steps 0, period, 2 * period, ... and end within it."""
        length, arrays = self.config.length or 1, to_arrays(get_fields(steps))
        columns = [column for _, column in leaves(arrays)]
        num_steps = len(columns[0]) if columns and columns[0].ndim else 0
        starts = np.arange(0, num_steps - length + 1, period)
        if not len(starts):
            return np.zeros(0, np.int64)
        options = push_validation.read_column_options(priority, collect_iter, len(starts))
        with self._use_contents() as contents:
            spec = contents.spec or contents.make_spec(map_structure(lambda column: column[:length], arrays))
            rows = ItemRows(spec.convert_steps(arrays), starts, np.full(len(starts), length), spec)
            return self._insert(rows, *options)

    def _insert(self, rows: ItemRows, priorities: np.ndarray | None, collect_iters: np.ndarray) -> np.ndarray:
        """Adds elements; see `Contents.insert`."""
        count = len(self)
        numbers, priorities = self.contents.insert(rows, priorities, collect_iters)
        self._record("removed_full", count + len(priorities) - len(self))
        self._record("pushed", len(priorities), priority=priorities)
        return numbers

    # --- update

    def update(self, info: SampleInfo | Mapping[str, Any], td_errors: Any = None, *, priority: Any = None) -> int:
        """Sets priorities, plus `priority_eps`, of the elements that are still there; ignores and counts the others.

        Implements `reverb.sampling.PrioritySink.update`; `priority` and dicts are DI-engine's.

        Args:
          info: the info of a batch, or a dict such as `Learner.priority_info`: `replay_unique_id`, ids from `sample` or
            `extend`; `priority`, one number from 0 to 1e12 per id; and optionally `replay_buffer_idx`, which has no
            effect. For duplicate ids the last priority wins. Without priorities nothing happens.
          td_errors: TD errors, one per id, whose absolute values are the priorities.
          priority: priorities that replace those in the info.

        Returns:
          The number of ids whose elements are still there.

        Raises:
          TypeError: If the info is neither a dict nor the info of a batch.
          ValueError: If a key is unknown, a priority is out of its range (see `extend`), there is not one per id, an id
            belongs to a different buffer, a manager sampled the batch, or both `td_errors` and `priority` are set;
            nothing is changed then.
        """
        update = push_validation.read_update(self._holder, info, td_errors, priority)
        if update is None:
            return 0
        ids, priorities, owners = update
        if owners is not None:
            raise ValueError(f"a batch of a manager cannot update {self._holder}; pass its info to manager.update")
        return self.set_priorities(self.validate_update(ids, priorities), priorities)

    def validate_update(self, ids: Any, priorities: np.ndarray) -> np.ndarray:
        """Returns the element numbers of an update; raises `ValueError` if an id or a priority is invalid."""
        numbers = push_validation.read_ids(self.name, ids)
        require_priorities(priorities, lambda index: f"{ids[index]}")
        with_eps = priorities + self.config.priority_eps
        push_validation.require_priorities(with_eps, self.config, lambda index: f"{ids[index]} with priority_eps")
        return numbers

    def set_priorities(self, numbers: np.ndarray, priorities: np.ndarray) -> int:
        """Applies an update that `validate_update` has checked; returns how many of the elements are still there."""
        with self._use_contents() as contents:
            updated = contents.set_priorities(numbers, priorities)
            self._record("updated", len(updated), priority=updated)
            return len(updated)

    # --- sample

    def sample_check(
        self, size: int, cur_learner_iter: int | None = None, sample_range: slice | None = None
    ) -> SampleCheck:
        """Returns whether a sample would be allowed now, and the reason if not; removes stale elements.

        Arguments and errors are those of `sample`.
        """
        learner_iter = push_validation.read_learner_iter(cur_learner_iter, "cur_learner_iter")
        with self._use_contents():
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
            newest 20. The cost is proportional to the length of the range, or to `max_size` if elements were removed
            early.

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
        learner_iter = push_validation.read_learner_iter(cur_learner_iter, "cur_learner_iter")
        with self._use_contents() as contents:
            candidates = self._select_candidates(size, learner_iter, sample_range)
            if isinstance(candidates, SampleRefusal):
                return candidates
            sample, exhausted = contents.sample(candidates, int(size), learner_iter)
            info = sample.info
            self._record("sampled", size, use=info.times_sampled, staleness=info.staleness, priority=info.priority)
            self._remove(exhausted, "used")
            return sample

    def _select_candidates(
        self, size: int, learner_iter: int, sample_range: slice | None
    ) -> Candidates | SampleRefusal:
        if sample_range is not None and not isinstance(sample_range, slice):
            got = type(sample_range).__name__
            raise TypeError(f"sample_range must be a slice, such as slice(-20, None), got {got}")
        require_possible(self._holder, self.config, size)
        elements = self.contents.elements
        self._remove(elements.find_stale(learner_iter), "stale")
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
            the last refusal. (A TensorFlow graph raises a `tf.errors.OpError`; see `reverb.sampling.translate_error`.)

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
        with self._use_contents() as contents:
            return contents.make_empty_sample().to_batch()

    # --- remove

    def clear(self) -> None:
        """Removes all elements and resets the highest priority to 1; counts continue, so ids stay unique."""
        with self._use_contents() as contents:
            self._remove(np.flatnonzero(contents.elements.alive), "cleared")
            contents.highest_priority = INITIAL_PRIORITY

    def _remove(self, slots: np.ndarray, reason: str) -> None:
        if len(slots):
            self.contents.elements.remove(slots)
            self._record(f"removed_{reason}", len(slots))

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

        Other threads wait while the state is copied, but not while it is written. A buffer that is later created with
        the same `checkpoint_root` continues from the newest complete checkpoint, even if this process was killed.

        Raises:
          ValueError: If the buffer has no `checkpoint_root`, or is closed.
          StorageFullError: If the disk is full; earlier checkpoints are kept.
        """
        return self.checkpoint_folder.write(lambda: {"": self.state_dict()})

    @property
    def checkpoint_folder(self) -> CheckpointFolder:
        """The directory of the buffer's checkpoints; raises `ValueError` if it has none."""
        if self._checkpoints is None:
            raise ValueError(f"{self._holder} has no checkpoint_root; create it with one")
        return self._checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the whole state, elements included, as a dict of plain values and arrays.

        Raises:
          ValueError: If the buffer is closed.
        """
        with self._use_contents() as contents:
            return contents.state()

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
        """Writes a checkpoint to a new directory, and returns the checkpoint's path; see `checkpoint`."""
        with CheckpointFolder(Path(folder)) as checkpoints:
            return checkpoints.write(lambda: {"": self.state_dict()})

    def load_data(self, folder: str | Path) -> None:
        """Loads the newest state that `save_data` wrote; raises as `load_state_dict`, or if no state exists."""
        self.load_state_dict(read_saved(Path(folder))[""])

    def restore(self, state: Mapping[str, Any]) -> Contents:
        """Returns the contents of a state for `load`; raises as `load_state_dict`."""
        contents = self.contents.restore(state)
        if self._spec is not None:
            contents.set_spec(self._spec)
        return contents

    def load(self, contents: Contents) -> None:
        """Replaces the contents by those that `restore` returned."""
        with self._use_contents():
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
