"""A manager of several replay buffers, with batches that mix them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.errors import CheckpointError
from rlds2reverb.system.closing import Closing
from rlds2reverb.system.replacements import Replacing
from rlds2reverb.types.mixtures import allocate_items, apportion, join_batches, require_same_items
from rlds2reverb.types.sample_info import PRIORITY, UNIQUE_ID, SampleInfo
from rlds2reverb.types.specs import ArraySpec, make_step_spec, map_structure

from . import push_validation
from .buffer import ReplayBuffer
from .buffer_checkpoints import CheckpointFolder, read_saved
from .configs import BufferConfig
from .item_spec import ItemSpec
from .monitors import BufferMonitor
from .sampled_batches import Batch, SampleCheck, SampleRefusal, stream_batches
from .sampler import require_possible

if TYPE_CHECKING:
    import tensorflow as tf


class BufferManager(Closing, Replacing):
    """Several replay buffers by name. It is thread-safe; use it as a context manager, or call `close`.

    `manager['demo']` is one of the buffers, which can also be used directly.

    Attributes:
      names: names of the buffers, in the order of the configurations.
      monitors: monitors of the buffers by name (`monitors.table` prints them side by side).
    """

    replaces = ("BufferManager",)

    def __init__(
        self,
        configs: Mapping[str, BufferConfig | Mapping[str, Any]],
        *,
        sample_ratio: Mapping[str, float] | None = None,
        checkpoint_root: str | Path | None = None,
        mmap_dir: str | Path | None = None,
        seed: int | None = None,
    ):
        """Creates the buffers and restores their newest checkpoints if there are any.

        Args:
          configs: configurations of the buffers, or dicts of their options (see `BufferConfig.read`), by name.
          sample_ratio: default for calls without one; see `sample`.
          checkpoint_root: directory with one subdirectory of checkpoints per buffer; None for no checkpoints.
          mmap_dir: directory with one subdirectory of memory-mapped data per buffer; None for memory.
          seed: random seed for sampling. The generator of the first buffer also selects the buffers of mixed batches,
            so that checkpoints include it.

        Raises:
          ValueError: If there is no buffer, a name cannot be the name of a directory, or the ratio is invalid.
          CheckpointError: If all checkpoints of a buffer are damaged, or belong to a different buffer or configuration.
        """
        _require_names(configs)
        self.names = tuple(configs)
        self._shares = {self.names[0]: 1.0} if len(configs) == 1 else None
        if sample_ratio is not None:
            self._shares = self._normalize_ratio(sample_ratio)
        self._buffers: dict[str, ReplayBuffer] = {}
        self._matching_specs: list[ItemSpec | None] = []
        self._root = None if checkpoint_root is None else Path(checkpoint_root)
        self.monitors = {name: BufferMonitor(name) for name in configs}
        seeds = np.random.SeedSequence(seed).generate_state(len(configs)).tolist()
        #: The lock of all buffers.
        self.lock = threading.RLock()
        try:
            for (name, config), buffer_seed in zip(configs.items(), seeds, strict=True):
                root = self._root / name if self._root else None
                data = None if mmap_dir is None else Path(mmap_dir) / name
                buffer = ReplayBuffer(name, config, mmap_dir=data, checkpoint_root=root, seed=buffer_seed)
                buffer.lock, buffer.monitor = self.lock, self.monitors[name]
                self._buffers[name] = buffer
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> ReplayBuffer:
        self._require_known([name])
        return self._buffers[name]

    def __len__(self) -> int:
        """Returns the number of items in all buffers."""
        return sum(map(len, self._buffers.values()))

    def count(self, buffer_name: str | None = None) -> int:
        """Returns the number of items in a buffer, or in the smallest one; raises `ValueError` for an unknown name."""
        return min(map(len, self._buffers.values())) if buffer_name is None else len(self[buffer_name])

    def push_data(self, data: Any, buffer_name: str) -> list[str]:
        """Appends one item (a mapping) or a list of items to a buffer, and returns their `replay_unique_id`s.

        Raises:
          ValueError: If the name is unknown.
          TypeError: If the data are neither an item nor a list.
          SpecMismatchError: If an item does not match the structure of the buffer; none is stored then.
        """
        if isinstance(data, Mapping):
            return [self[buffer_name].append(data)]
        if not isinstance(data, (list, tuple)):
            raise TypeError(f"data must be an item (a mapping) or a list of items, got {type(data).__name__}")
        return self[buffer_name].extend(data)

    # --- sample

    def sample_check(self, sizes: Mapping[str, int], *, cur_learner_iter: int | None = None) -> SampleCheck:
        """Returns whether samples of all these sizes, by buffer, would be allowed now, and the reason if not."""
        with self.lock:
            checks = [self[name].sample_check(size, cur_learner_iter) for name, size in sizes.items()]
        reason = "; ".join(check.reason for check in checks if not check.allowed)
        return SampleCheck(not reason, reason)

    def sample(
        self,
        batch_size: int | Mapping[str, int],
        sample_ratio: Mapping[str, float] | int | None = None,
        cur_learner_iter: int | Mapping[str, float] | None = None,
        *,
        exact: bool = False,
    ) -> Any:
        """Samples items as dicts from several buffers.

        All buffers are checked first; only if none refuses, each of them is sampled once, without any other thread in
        between. A call after a refusal selects the buffers again.

        Args:
          batch_size: number of items; or numbers by buffer name, without a ratio.
          sample_ratio: relative shares of the buffers; None for the manager's ratio, or its only buffer.
          cur_learner_iter: learner iteration; None if unknown. As in DI-engine, it can also precede the ratio.
          exact: whether to split the batch by largest remainders and return the items buffer by buffer, instead of
            selecting the buffer of each item at random.

        Returns:
          The items as `ReplayBuffer.sample` returns them, in the order in which they were sampled. For numbers by name
          a dict of lists, or one list if there is one name. None if a buffer refuses, which `sample_check` and
          `sample_batch` explain; nothing is changed then except that stale items are removed.

        Raises:
          ValueError: If a buffer is unknown, the ratio or a size is invalid, or a buffer in the ratio can never return
            the whole batch.
        """
        ratio, learner_iter = _read_order(sample_ratio, cur_learner_iter)
        if isinstance(batch_size, Mapping):
            if ratio is not None:
                raise ValueError("sample_ratio cannot be set if batch_size has numbers by buffer; use one number")
            owners, counts = None, batch_size
        else:
            owners, counts = self._select_owners(batch_size, ratio, exact)
        samples = self._sample_each(counts, learner_iter, ReplayBuffer.sample, must_match=False)
        if isinstance(samples, SampleRefusal):
            return None
        if owners is None:
            return next(iter(samples.values())) if len(samples) == 1 else samples
        items = [iter(sample) for sample in samples.values()]
        return [next(items[owner]) for owner in owners]

    def sample_batch(
        self,
        batch_size: int,
        sample_ratio: Mapping[str, float] | int | None = None,
        cur_learner_iter: int | Mapping[str, float] | None = None,
        *,
        exact: bool = False,
    ) -> Batch | SampleRefusal:
        """Samples one batch of columns from several buffers; several times as fast as `sample`, with its arguments.

        `info.dataset_index` is the index of each element's buffer in `names`. Shorter elements are padded with zeros.
        Raises `SpecMismatchError` if the items of the buffers differ, naming the field. A refused sample returns a
        `SampleRefusal`, which is false in a condition.
        """
        ratio, learner_iter = _read_order(sample_ratio, cur_learner_iter)
        owners, counts = self._select_owners(batch_size, ratio, exact)
        sizes = {name: count for name, count in counts.items() if count}
        if not sizes:
            return self._make_empty_batch(next(iter(counts)))
        samples = self._sample_each(sizes, learner_iter, ReplayBuffer.sample_batch, must_match=True)
        if isinstance(samples, SampleRefusal):
            return samples
        joined = self._join(samples)
        if len(samples) == 1 or exact:
            return joined
        positions = np.argsort(np.argsort(owners, kind="stable"), kind="stable")
        return Batch(*map_structure(lambda column: column[positions], tuple(joined)))

    def _join(self, batches: Mapping[str, Batch]) -> Batch:
        """Returns one batch with the elements of batches, by the name of their buffer."""
        return Batch(*join_batches(list(batches.values()), list(map(self.names.index, batches))))

    def _make_empty_batch(self, name: str) -> Batch:
        return self._join({name: self[name].make_empty_batch()})

    def _select_owners(
        self, batch_size: int, sample_ratio: Mapping[str, float] | None, exact: bool
    ) -> tuple[np.ndarray, dict[str, int]]:
        """Returns the buffer of each element, as index in the ratio, and the number of elements per buffer."""
        shares = self._normalize_ratio(sample_ratio)
        for name in (name for name, share in shares.items() if share):
            # Any of these buffers could be selected for the whole batch.
            require_possible(f"buffer {name!r}", self[name].config, batch_size)
        if exact:
            counts = apportion(batch_size, shares.values())
            owners = np.repeat(np.arange(len(shares)), counts)
        else:
            with self.lock:
                generator = self._buffers[self.names[0]].contents.generator
                owners = generator.choice(len(shares), batch_size, p=list(shares.values()))
            counts = np.bincount(owners, minlength=len(shares))
        return owners, dict(zip(shares, counts.tolist(), strict=True))

    def _sample_each(
        self, sizes: Mapping[str, int], cur_learner_iter: int | None, sample: Callable[..., Any], *, must_match: bool
    ) -> dict[str, Any] | SampleRefusal:
        """Calls `sample`, a method of the buffers, for each buffer, unless one of them refuses."""
        with self.lock:
            allowed, reason = self.sample_check(sizes, cur_learner_iter=cur_learner_iter)
            if not allowed:
                return SampleRefusal(reason)
            if must_match:
                self._require_matching_specs(sizes)
            return {name: sample(self[name], size, cur_learner_iter) for name, size in sizes.items()}

    def _require_matching_specs(self, names: Iterable[str]) -> None:
        """Raises `SpecMismatchError` unless the batches of these buffers can be concatenated."""
        specs = [self[name].contents.spec for name in names]
        if list(map(id, specs)) == list(map(id, self._matching_specs)):
            return
        batches = {name: self[name].make_empty_batch() for name in names}
        items = {name: map_structure(_drop_sizes, make_step_spec(batch.data)) for name, batch in batches.items()}
        has_mask = {name: not isinstance(batch.info.mask, tuple) for name, batch in batches.items()}
        require_same_items(items, has_mask, kind="buffer")
        self._matching_specs = specs

    def dataset(
        self,
        batch_size: int,
        sample_ratio: Mapping[str, float] | None = None,
        *,
        cur_learner_iter: Callable[[], int] | None = None,
        prefetch: int = 2,
        timeout_secs: float = 30.0,
    ) -> tf.data.Dataset:
        """Returns an endless dataset of batches with exact shares of the buffers, ordered by buffer.

        RLPD takes half of each batch from offline data and half from online data (Ball et al. 2023, arXiv:2302.02948,
        section 4.1).

        Args:
          batch_size: number of items per batch, split by largest remainders.
          sample_ratio: see `sample`.
          cur_learner_iter: function that returns the learner iteration, for `max_staleness`; None if unknown.
          prefetch: number of batches to sample ahead.
          timeout_secs: see `ReplayBuffer.dataset`.

        Returns:
          A dataset of `Batch`, as `sample_batch` returns it.

        Raises:
          ValueError: If a buffer is unknown, the ratio or the size is invalid, a share yields no item, or a buffer has
            no elements yet.
          SpecMismatchError: If the items of the buffers differ, naming the field.
        """
        shares = {name: share for name, share in self._normalize_ratio(sample_ratio).items() if share}
        names = list(allocate_items(batch_size, shares, kind="buffer"))
        for name in names:
            require_possible(f"buffer {name!r}", self[name].config, batch_size)
        self._require_matching_specs(names)

        def sample() -> Batch | SampleRefusal:
            learner_iter = None if cur_learner_iter is None else cur_learner_iter()
            return self.sample_batch(batch_size, sample_ratio, cur_learner_iter=learner_iter, exact=True)

        return stream_batches(sample, self._make_empty_batch(names[0]), batch_size, prefetch, timeout_secs)

    # --- update

    def update(self, info: SampleInfo | Mapping[str, Any], td_errors: Any = None, *, priority: Any = None) -> int:
        """Sets priorities of items in any of the buffers, and returns how many of the items are still there.

        Implements `reverb.sampling.PrioritySink.update`; each buffer adds its own `priority_eps`.

        Args:
          info: the info of a batch that the manager sampled; or a dict with `replay_unique_id`s and as many `priority`
            numbers in [0, 1e12], such as `Learner.priority_info` (see `ReplayBuffer.update`); or, as in DI-engine, a
            dict of these by the name of the buffer. Without priorities nothing happens.
          td_errors: TD errors, one per id, whose absolute values are the priorities.
          priority: priorities that replace those in the info.

        Raises:
          TypeError: If the info is neither a dict nor the info of a batch.
          ValueError: If a key or the buffer of an id is unknown, there are no ids, or a priority is invalid; nothing is
            changed then. A batch that was sampled from a buffer directly can be passed only to the `update` of that
            buffer.
        """
        if isinstance(info, Mapping) and info and info.keys() <= set(self.names):
            parts = info.values()
            info = {key: [value for part in parts for value in part[key]] for key in (UNIQUE_ID, PRIORITY)}
        update = push_validation.read_update("a manager", info, td_errors, priority)
        if update is None:
            return 0
        ids, priorities, dataset_index = update
        updates, owners = [], self._find_owners(ids, dataset_index)
        for owner in np.unique(owners).tolist():
            buffer, indices = self._buffers[self.names[owner]], np.flatnonzero(owners == owner)
            own_ids = ids[indices] if isinstance(ids, np.ndarray) else [ids[index] for index in indices]
            updates.append((buffer, buffer.validate_update(own_ids, priorities[indices]), priorities[indices]))
        return sum(buffer.set_priorities(numbers, values) for buffer, numbers, values in updates)

    def _find_owners(self, ids: Any, owners: np.ndarray | None) -> np.ndarray:
        """Returns the index of the buffer of each id in an update, int `[M]`."""
        if owners is None:
            return np.array([self._find_owner(unique_id) for unique_id in ids], np.int64)
        if owners.shape != (len(ids),) or (len(ids) and not 0 <= owners.min() <= owners.max() < len(self.names)):
            raise ValueError(
                f"dataset_index must be one index in {self.names} per item, got {owners}; pass the info of a batch of "
                "this manager"
            )
        return owners

    def _find_owner(self, unique_id: Any) -> int:
        name, _, number = str(unique_id).rpartition("_")
        if not isinstance(unique_id, str):
            raise ValueError(
                f"the id {unique_id} does not name a buffer; pass the info of a batch of this manager, or call "
                "manager[name].update for a batch that was sampled from one buffer"
            )
        if name not in self.names or not (number.isascii() and number.isdigit()):
            raise ValueError(f"{unique_id!r} is not an id of an item in {_join(self.names)}; ids are NAME_NUMBER")
        return self.names.index(name)

    # --- save and load

    def state_dict(self) -> dict[str, Any]:
        """Returns the buffers' states by name, all of the same moment; see `ReplayBuffer.state_dict`."""
        with self.lock:
            return {name: buffer.state_dict() for name, buffer in self._buffers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the states of all buffers, or of none, by the result of `state_dict`.

        Raises:
          CheckpointError: If a state is damaged, belongs to a different buffer or configuration, or the names of the
            buffers differ; nothing is changed then.
        """
        if set(state) != set(self.names):
            raise CheckpointError(f"the state must have the buffers {_join(self.names)}, got {_join(state)}")
        restored = {}
        for name, buffer in self._buffers.items():
            try:
                restored[name] = buffer.restore(state[name])
            except CheckpointError as error:
                raise CheckpointError(f"buffer {name!r} cannot load its state: {error}") from error
        with self.lock:
            for name, buffer in self._buffers.items():
                buffer.load(restored[name])

    def save_data(self, folder: str | Path) -> Path:
        """Writes the states of all buffers, of the same moment, to a directory; returns the checkpoint's path.

        The states are in one checkpoint, so that a process that is killed leaves all of them or none.
        """
        with CheckpointFolder(Path(folder)) as checkpoints:
            return checkpoints.write(self.state_dict)

    def load_data(self, folder: str | Path) -> None:
        """Loads the newest states that `save_data` wrote; raises as `load_state_dict`, or if no state exists."""
        self.load_state_dict(read_saved(Path(folder), of_manager=True))

    def checkpoint(self) -> dict[str, Path]:
        """Writes checkpoints of the same moment for all buffers with a spec, and returns their paths by name.

        Each buffer continues from its own newest complete checkpoint: if the process is killed in between, some buffers
        are one checkpoint behind.

        Raises:
          ValueError: If there is no checkpoint root.
          StorageFullError: See `ReplayBuffer.checkpoint`.
        """
        if self._root is None:
            raise ValueError("the manager has no checkpoint_root; create it with one")
        with self.lock:
            states = {name: buffer.state_dict() for name, buffer in self._buffers.items() if buffer.spec is not None}
        return {name: self[name].checkpoint_folder.write(partial(dict, {"": state})) for name, state in states.items()}

    def clear(self, buffer_name: Iterable[str] | None = None) -> None:
        """Removes all items from the buffers of these names, or from all buffers."""
        for name in self.names if buffer_name is None else buffer_name:
            self[name].clear()

    def close(self) -> None:
        """Closes all buffers. Idempotent."""
        for buffer in self._buffers.values():
            buffer.close()

    # --- arguments

    def _normalize_ratio(self, ratio: Mapping[str, float] | None) -> dict[str, float]:
        """Returns shares that sum to 1; None stands for the manager's own."""
        if ratio is None:
            if self._shares is None:
                raise ValueError(f"sample_ratio must be set for the buffers {_join(self.names)}")
            return self._shares
        if not isinstance(ratio, Mapping):
            raise TypeError(f"sample_ratio must be a dict of the buffers' shares, got {ratio!r}")
        self._require_known(ratio)
        shares = np.array(list(ratio.values()), np.float64)
        if not np.isfinite(shares).all() or (shares < 0).any() or not shares.any():
            raise ValueError(f"sample_ratio must have finite numbers >= 0, at least one above 0, got {dict(ratio)}")
        shares = shares / shares.max()
        return dict(zip(ratio, (shares / shares.sum()).tolist(), strict=True))

    def _require_known(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.names:
                raise ValueError(f"there is no buffer {name!r}; the buffers are {_join(self.names)}")


def _require_names(names: Iterable[str]) -> None:
    if not list(names):
        raise ValueError("a manager requires at least one buffer")
    for name in names:
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            raise ValueError(
                f"the name of a buffer must be a possible directory name without '/' and a leading '.', got {name!r}"
            )


def _drop_sizes(spec: ArraySpec) -> ArraySpec:
    """Replaces the size 0 of an empty batch's time axis, which varies, by None."""
    return ArraySpec(tuple(size or None for size in spec.shape), spec.dtype)


def _read_order(first: Any, second: Any) -> tuple[Any, Any]:
    """Returns a sampling ratio and a learner iteration, which may be given in the opposite order."""
    is_swapped = isinstance(first, (int, np.integer)) or isinstance(second, Mapping)
    return (second, first) if is_swapped else (first, second)


def _join(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
