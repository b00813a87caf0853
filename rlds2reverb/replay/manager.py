"""A manager of several replay buffers: one door for what goes in, and batches mixed from all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from rlds2reverb._shares import by_largest_remainders
from rlds2reverb.errors import CheckpointError
from rlds2reverb.specs import ArraySpec, make_step_spec, map_structure, require_match

from . import refusals
from .batches import Batch, BatchInfo
from .buffer import ReplayBuffer
from .configs import BufferConfig
from .item_spec import PRIORITY, UNIQUE_ID, ItemSpec
from .kinds import make_buffer
from .listeners import held_together
from .monitors import BufferMonitor
from .snapshots import Snapshot

if TYPE_CHECKING:
    import tensorflow as tf


class BufferManager:
    """Several replay buffers by name. Use it as a context manager, or call `close`.

    `manager['demo']` is a buffer itself. Threads may use the manager and its buffers at the same time.

    Attributes:
      names: of the buffers, in the order in which they were given.
      monitors: by name, what goes into each buffer and out of it (`monitors.table` puts them side by side).
    """

    def __init__(
        self,
        configs: Mapping[str, BufferConfig],
        *,
        sample_ratio: Mapping[str, float] | None = None,
        checkpoint_root: str | Path | None = None,
        folder: str | Path | None = None,
        seed: int | None = None,
    ):
        """Makes the buffers, each from its newest checkpoint if there is one.

        Args:
          configs: of the buffers, by name.
          sample_ratio: for calls that give none; see `sample`.
          checkpoint_root: a directory in which each buffer has one of its own name; None for no checkpoints.
          folder: a directory in which the data of each buffer are, instead of in memory; see `ReplayBuffer`.
          seed: of the buffers' draws, and of those between the buffers, which the first one's generator makes, so
            that checkpoints and states have it.

        Raises:
          ValueError: if there is no buffer, a name cannot be a directory's, or the ratio is wrong.
          CheckpointError: if a root is not ours, or damaged or of another configuration.
        """
        _require_names(configs)
        self.names = tuple(configs)
        self._buffers: dict[str, ReplayBuffer] = {}
        self._shares = None if sample_ratio is None else self._known_shares(sample_ratio)
        seeds = np.random.SeedSequence(seed).generate_state(len(configs)).tolist()
        self._told = threading.local()
        self._alike: list[ItemSpec | None] = []
        self._root = None if checkpoint_root is None else Path(checkpoint_root)
        self.monitors = {name: BufferMonitor(name) for name in configs}
        with ExitStack() as stack:
            for (name, config), buffer_seed in zip(configs.items(), seeds, strict=True):
                root = self._root / name if self._root else None
                data = None if folder is None else Path(folder) / name
                buffer = make_buffer(name, config, folder=data, checkpoint_root=root, seed=buffer_seed)
                self._buffers[name] = stack.enter_context(buffer)
                buffer.add_listener(self.monitors[name])
            self._resources = stack.pop_all()

    def __enter__(self) -> BufferManager:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __getitem__(self, name: str) -> ReplayBuffer:
        self._require_known([name])
        return self._buffers[name]

    @property
    def refusal(self) -> str:
        """Which buffers refused this thread's last `sample`, and why; empty if none did."""
        return getattr(self._told, "refusal", "")

    def push_data(self, data: Any, buffer_name: str) -> list[str]:
        """Appends one item (a mapping) or a list of them to a buffer, and returns their `replay_unique_id`s.

        Raises:
          ValueError: if there is no such buffer.
          TypeError: if the data are neither.
          SpecMismatchError: if an item is not of the buffer's structure; none is stored then.
        """
        if isinstance(data, Mapping):
            return [self[buffer_name].append(data)]
        if not isinstance(data, (list, tuple)):
            raise TypeError(f"data is a {type(data).__name__}, expected an item (a mapping) or a list of items")
        return self[buffer_name].extend(data)

    def sample(
        self,
        batch_size: int | Mapping[str, int],
        sample_ratio: Mapping[str, float] | None = None,
        *,
        cur_learner_iter: int | None = None,
        exact: bool = False,
    ) -> Any:
        """A batch of dicts; the buffer of each element is drawn by the ratio.

        All buffers are checked first, and only if none refuses are they sampled, each once; no other thread gets
        between. The next call after a refusal draws again.

        Args:
          batch_size: number of items, or numbers by name, which leave nothing to the ratio.
          sample_ratio: shares of the buffers, of any sum above 0. None for the manager's, or its only buffer.
          cur_learner_iter: the learner's iteration; None where not known.
          exact: gives each buffer its share, by largest remainders, instead of drawing the buffers: items of the first,
            then of the second, and so on.

        Returns:
          The items, as `ReplayBuffer.sample` gives them, in the order of the draws. For numbers by name a dict of
          lists by name, or the list if there is one name. None if a buffer refuses (see `refusal`); nothing is
          changed then, but stale items have left.

        Raises:
          ValueError: if a buffer is unknown, the shares or a size are wrong, or a buffer with a share could not give
            the whole batch.
        """
        if isinstance(batch_size, Mapping):
            if sample_ratio is not None:
                raise ValueError("batch_size says how many of each buffer; leave sample_ratio out, or give one number")
            self._require_known(batch_size)
            parts = self._sample_each(batch_size, cur_learner_iter, ReplayBuffer.sample)
            return next(iter(parts.values())) if parts is not None and len(parts) == 1 else parts
        owners, counts = self._owners(batch_size, sample_ratio, exact)
        parts = self._sample_each(counts, cur_learner_iter, ReplayBuffer.sample)
        if parts is None:
            return None
        items = [iter(part) for part in parts.values()]
        return [next(items[owner]) for owner in owners]

    def sample_batch(
        self,
        batch_size: int,
        sample_ratio: Mapping[str, float] | None = None,
        *,
        cur_learner_iter: int | None = None,
        exact: bool = False,
    ) -> Batch | None:
        """As `sample`, but as one batch of columns in the order of the draws: several times as fast.

        `info.buffer` is each element's buffer by its place in `names`; elements of other lengths than the longest are
        filled up with zeros. Raises `SpecMismatchError` if the buffers' items differ, naming the field.
        """
        owners, counts = self._owners(batch_size, sample_ratio, exact)
        wanted = {name: count for name, count in counts.items() if count}
        if not wanted:
            return self[next(iter(counts))].empty_batch()
        parts = self._sample_each(wanted, cur_learner_iter, ReplayBuffer.sample_batch, self._require_alike)
        if parts is None:
            return None
        marked = []
        for name, part in parts.items():
            own = np.full(counts[name], self.names.index(name), np.int32)
            marked.append(part._replace(info=part.info._replace(buffer=own)))
        if len(marked) == 1:
            return marked[0]
        order = np.argsort(np.argsort(owners, kind="stable"), kind="stable")  # the place of each in the joined parts
        return _scattered(marked, order)

    def _owners(
        self, batch_size: int, sample_ratio: Mapping[str, float] | None, exact: bool
    ) -> tuple[np.ndarray, dict[str, int]]:
        """The buffer of each element of a batch, by its place among those with shares; and how many each gives."""
        shares = self._shares_for(sample_ratio)
        for name in (name for name, share in shares.items() if share):  # each of them may be drawn for the whole batch
            refusals.require_possible(f"buffer {name!r}", self[name].config, batch_size)
        if exact:
            counts = by_largest_remainders(batch_size, shares.values())
            owners = np.repeat(np.arange(len(shares)), counts)
        else:
            first = self._buffers[self.names[0]]
            with first.lock:
                owners = first.contents.generator.choice(len(shares), batch_size, p=list(shares.values()))
            counts = np.bincount(owners, minlength=len(shares))
        return owners, dict(zip(shares, counts.tolist(), strict=True))

    def update(self, info: Mapping[str, Any] | BatchInfo, *, priority: Any = None) -> int:
        """Gives items of any of the buffers new priorities, and returns how many of the items are still there.

        Args:
          info: `replay_unique_id`, a list, and `priority`, as many numbers in [0, 1e12]; nothing is done without. Or
            the info of a batch, which says whose its numbers are.
          priority: instead of that in the info, so that a batch's info can be given as it is.

        Raises:
          ValueError: if an id is of no buffer here, there are none, or a priority is wrong; nothing is changed then.
        """
        ids, given, owners = refusals.update_given("an update", info, priority)
        if given is None:
            return 0
        priorities = np.asarray(given).reshape(-1)
        if len(ids) != len(priorities):
            raise ValueError(f"info has {len(ids)} ids and {len(priorities)} priorities, expected as many of both")
        updates = {}
        for name, places in self._places(ids, owners).items():
            numbers = refusals.numbers_given(name, np.asarray(ids)[places])
            refusals.priorities_updated(
                f"buffer {name!r}", priorities[places], [ids[i] for i in places], self[name].config
            )
            updates[name] = {UNIQUE_ID: numbers, PRIORITY: priorities[places]}
        return sum(self[name].update(own) for name, own in updates.items())

    def _places(self, ids: Any, owners: Any) -> dict[str, np.ndarray]:
        """Which of some ids each buffer has."""
        if owners is None:
            owners = np.array([self.names.index(self._owner(unique_id)) for unique_id in ids], np.int64)
        owners = np.asarray(owners)
        if owners.shape != (len(ids),) or (len(ids) and not 0 <= owners.min() <= owners.max() < len(self.names)):
            raise ValueError(f"the buffers of an update are {owners}, expected for each id a place in {self.names}")
        return {self.names[owner]: np.flatnonzero(owners == owner) for owner in np.unique(owners)}

    def dataset(
        self,
        batch_size: int,
        sample_ratio: Mapping[str, float] | None = None,
        *,
        cur_learner_iter: Callable[[], int] | None = None,
        prefetch: int = 2,
        timeout_secs: float = 30.0,
    ) -> tf.data.Dataset:
        """Batches with fixed shares of the buffers, without an end: items of the first, then of the second, and so on.

        RLPD takes half of each batch from offline data and half from online data (Ball et al. 2023, arXiv:2302.02948,
        section 4.1).

        Args:
          batch_size: items in a batch, shared out by largest remainders.
          sample_ratio: see `sample`.
          cur_learner_iter: gives the learner's iteration, for limits of staleness.
          prefetch: batches that are made ready ahead.
          timeout_secs: see `ReplayBuffer.dataset`.

        Returns:
          Data set of `Batch`, as `sample_batch` gives it.

        Raises:
          ValueError: if a buffer is unknown, the shares or the size are wrong, a share gives no item, or a buffer has
            no elements yet.
          SpecMismatchError: if the buffers' items differ, naming the field.
        """
        from .streams import batches

        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, expected at least 1")
        _, counts = self._owners(batch_size, sample_ratio, True)
        for name, share in self._shares_for(sample_ratio).items():
            if share and not counts[name]:
                raise ValueError(
                    f"a share of {share:g} gives buffer {name!r} none of {batch_size} items; give it more, or 0"
                )
        names = [name for name, count in counts.items() if count]
        self._require_alike(names)

        def sample() -> Batch | None:
            learner_at = None if cur_learner_iter is None else cur_learner_iter()
            return self.sample_batch(batch_size, sample_ratio, cur_learner_iter=learner_at, exact=True)

        return batches(
            sample,
            self[names[0]].empty_batch(),
            batch_size,
            why_not=lambda: self.refusal,
            prefetch=prefetch,
            timeout_secs=timeout_secs,
        )

    def _require_alike(self, names: Iterable[str]) -> None:
        """Raises `SpecMismatchError` unless the batches of some buffers can be joined."""
        specs = [self[name].contents.spec for name in names]
        if len(specs) == len(self._alike) and all(own is seen for own, seen in zip(specs, self._alike, strict=True)):
            return
        found = {name: map_structure(_of_any_length, make_step_spec(self[name].empty_batch().data)) for name in names}
        for (name, got), (other, wanted) in permutations(found.items(), 2):
            advice, root = "mix buffers of like items", f"an item of buffer {name!r}"
            require_match(got, wanted, holder=f"buffer {other!r}", advice=advice, root=root)
        self._alike = specs

    def count(self, buffer_name: str) -> int:
        """Items in a buffer; `ValueError` if there is no such buffer."""
        return self[buffer_name].count()

    def state_dict(self) -> dict[str, Any]:
        """The buffers' states by name, all of one moment; see `ReplayBuffer.state_dict`."""
        with self._snapshots(self.names) as snapshots:
            return {name: snapshot.state()._asdict() for name, snapshot in snapshots.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave, in all buffers or in none.

        Raises:
          CheckpointError: if a state is damaged, or of another buffer or configuration; nothing is changed then.
          ValueError: if it is of buffers with other names; nothing is changed then.
        """
        if set(state) != set(self.names):
            raise ValueError(f"the state is of buffers {_listed(state)}; the manager has {_listed(self.names)}")
        restored = {}
        for name, buffer in self._buffers.items():
            try:
                restored[name] = buffer.restored(state[name])
            except CheckpointError as error:
                raise CheckpointError(f"buffer {name!r} cannot take over its state: {error}") from error
        with self._locked(self.names):
            for name, buffer in self._buffers.items():
                buffer.load(restored[name])

    def clear(self) -> None:
        """Empties all buffers."""
        for buffer in self._buffers.values():
            buffer.clear()

    def checkpoint(self) -> dict[str, Path]:
        """Writes a checkpoint of each buffer that has a spec, all of one moment, and returns their paths by name.

        Each goes on from its newest complete one: a process killed in the middle leaves some a checkpoint behind.

        Raises:
          ValueError: if there is no checkpoint root.
          StorageFullError: see `ReplayBuffer.checkpoint`.
        """
        if self._root is None:
            raise ValueError("the manager has no checkpoint_root; make it with one")
        with self._snapshots([name for name in self.names if self[name].spec is not None]) as snapshots:
            return {name: self[name].root.write(snapshot) for name, snapshot in snapshots.items()}

    def close(self) -> None:
        """Ends all buffers."""
        self._resources.close()

    def _sample_each(
        self,
        sizes: Mapping[str, int],
        cur_learner_iter: int | None,
        sample: Callable[..., Any],
        check: Callable[[Iterable[str]], None] | None = None,
    ) -> dict[str, Any] | None:
        """What `sample`, a method of buffers, gives of each; None if one refuses. `check` is called right before."""
        with self._locked(sizes):
            checks = [self[name].sample_check(size, cur_learner_iter) for name, size in sizes.items()]
            self._told.refusal = "; ".join(check.reason for check in checks if not check.allowed)
            if self._told.refusal:
                return None
            if check is not None:
                check(sizes)
            return {name: sample(self[name], size, cur_learner_iter) for name, size in sizes.items()}

    @contextmanager
    def _snapshots(self, names: Iterable[str]) -> Iterator[dict[str, Snapshot]]:
        """Snapshots of buffers, of one moment."""
        with ExitStack() as stack:
            for name in sorted(names):
                stack.enter_context(self[name].saving)
            snapshots: dict[str, Snapshot] = {}
            with self._locked(names):
                for name in names:
                    snapshots[name] = self[name].snapshot()
                    stack.callback(snapshots[name].end)
            yield snapshots

    @contextmanager
    def _locked(self, names: Iterable[str]) -> Iterator[None]:
        """Holds the locks of buffers, taken in the order of their names so that no two threads wait for each other."""
        with held_together(self._buffers[name].lock for name in sorted(names)):
            yield

    def _known_shares(self, ratio: Mapping[str, float]) -> dict[str, float]:
        """Shares of sum 1, from numbers of any sum; `ValueError` if one is below 0 or not finite, or all are 0."""
        self._require_known(ratio)
        shares = np.array(list(ratio.values()), np.float64)
        if not np.isfinite(shares).all() or (shares < 0).any() or not shares.any():
            raise ValueError(f"sample_ratio is {dict(ratio)}, expected finite shares of at least 0 that are not all 0")
        shares = shares / shares.max()
        return dict(zip(ratio, (shares / shares.sum()).tolist(), strict=True))

    def _shares_for(self, ratio: Mapping[str, float] | None) -> dict[str, float]:
        if ratio is not None:
            return self._known_shares(ratio)
        if self._shares is None and len(self.names) > 1:
            raise ValueError(f"there are buffers {_listed(self.names)}; give sample_ratio={{name: share}}")
        return self._shares or {self.names[0]: 1.0}

    def _require_known(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.names:
                raise ValueError(f"there is no buffer {name!r}; there is {_listed(self.names)}")

    def _owner(self, unique_id: Any) -> str:
        name, _, number = str(unique_id).rpartition("_")
        if name not in self.names or not (number.isascii() and number.isdigit()):
            raise ValueError(f"{unique_id!r} is not an id of an item in {_listed(self.names)}, which is NAME_NUMBER")
        return name


def _require_names(names: Iterable[str]) -> None:
    if not list(names):
        raise ValueError("a manager needs at least one buffer, got none")
    for name in names:
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            raise ValueError(
                f"a buffer's name is {name!r}, expected one that can be a directory's, without '/' or '.' first"
            )


def _scattered(parts: Sequence[Batch], order: np.ndarray) -> Batch:
    """Batches one after the other, and then in an order; time axes are filled up to the longest."""

    def joined(*columns: np.ndarray) -> np.ndarray:
        if len({column.shape[1:] for column in columns}) > 1:
            longest = max(column.shape[1] for column in columns)
            columns = tuple(
                np.pad(column, [(0, 0), (0, longest - column.shape[1]), *[(0, 0)] * (column.ndim - 2)])
                for column in columns
            )
        return np.concatenate(columns)[order]

    batch: Batch = tree.map_structure(joined, *parts)
    return batch


def _of_any_length(spec: ArraySpec) -> ArraySpec:
    return ArraySpec(tuple(size or None for size in spec.shape), spec.dtype)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
