"""A manager of several replay buffers: one door for what goes in, and batches mixed from all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb._encoding.keys import numbers_of

from .buffer import ReplayBuffer
from .checks import updates_given
from .configs import BufferConfig
from .elements import PRIORITY, UNIQUE_ID
from .making import make_buffer
from .mixing import fixed_counts, joined, shares_of
from .monitors import BufferMonitor
from .rules import require_possible
from .states import load_states


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
        seed: int | None = None,
        timeout_secs: float = 30.0,
    ):
        """Makes the buffers, each from its newest checkpoint if there is one.

        Args:
          configs: of the buffers, by name.
          sample_ratio: for calls that give none; see `sample`.
          checkpoint_root: a directory in which each buffer has one of its own name; None for no checkpoints.
          seed: of the draws between the buffers, and of what the buffers draw themselves.
          timeout_secs: how long to wait for a buffer's server.

        Raises:
          ValueError: if there is no buffer, a name cannot be a directory's, or the ratio is wrong.
          CheckpointError: if a root is not ours, or damaged or of another configuration.
        """
        _require_names(configs)
        self.names = tuple(configs)
        self._buffers: dict[str, ReplayBuffer] = {}
        self._shares = None if sample_ratio is None else self._known_shares(sample_ratio)
        own_seed, *seeds = np.random.SeedSequence(seed).generate_state(len(configs) + 1).tolist()
        self._generator, self._drawing = np.random.default_rng(own_seed), threading.Lock()
        self._told, self._timeout_secs = threading.local(), timeout_secs
        self._root = None if checkpoint_root is None else Path(checkpoint_root)
        self.monitors = {name: BufferMonitor(name) for name in configs}
        with ExitStack() as stack:
            for (name, config), buffer_seed in zip(configs.items(), seeds, strict=True):
                root = self._root / name if self._root else None
                buffer = make_buffer(name, config, checkpoint_root=root, seed=buffer_seed, timeout_secs=timeout_secs)
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
          SpecMismatch: if an item is not of the buffer's structure; none is stored then.
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
        cur_learner_iter: int,
    ) -> Any:
        """A batch; the buffer of each element is drawn by the ratio.

        All buffers are checked first, and only if none refuses are they sampled, each once; no other thread gets
        between. The next call after a refusal draws anew.

        Args:
          batch_size: number of items, or numbers by name, which leave nothing to the ratio.
          sample_ratio: shares of the buffers, of any sum above 0. None for the manager's, or its only buffer.
          cur_learner_iter: the learner's iteration.

        Returns:
          The items, as `ReplayBuffer.sample` gives them, in the order of the draws. For numbers by name a dict of
          lists by name, or the list if there is one name. None if a buffer refuses (see `refusal`); nothing is
          changed then, but stale items have left, and where others used up a `push_sample_rate_limit` in the meantime
          the other buffers were sampled.

        Raises:
          ValueError: if a buffer is unknown, the shares or a size are wrong, or a buffer with a share could not give
            the whole batch.
          TooManyDraws, ServerUnavailable: see `ReplayBuffer.sample`; other buffers may have been sampled then.
        """
        if isinstance(batch_size, Mapping):
            if sample_ratio is not None:
                raise ValueError("batch_size says how many of each buffer; leave sample_ratio out, or give one number")
            self._require_known(batch_size)
            parts = self._sample_each(batch_size, cur_learner_iter)
            return next(iter(parts.values())) if parts is not None and len(parts) == 1 else parts
        shares = self._shares_for(sample_ratio)
        for name in (name for name, share in shares.items() if share):  # each of them may be drawn for the whole batch
            require_possible(f"buffer {name!r}", self[name].config, batch_size)
        with self._drawing:
            owners = self._generator.choice(len(shares), batch_size, p=list(shares.values()))
        counts = np.bincount(owners, minlength=len(shares)).tolist()
        parts = self._sample_each(dict(zip(shares, counts, strict=True)), cur_learner_iter)
        if parts is None:
            return None
        items = [iter(parts[name]) for name in shares]
        return [next(items[owner]) for owner in owners]

    def update(self, info: Mapping[str, Any]) -> int:
        """Gives items of any of the buffers new priorities, and returns how many of the items are still there.

        Args:
          info: `replay_unique_id`, a list, and `priority`, as many numbers in [0, 1e12]; nothing is done without.

        Raises:
          ValueError: if an id is of no buffer here, there are none, or a priority is wrong; nothing is changed then.
        """
        if info.get(PRIORITY) is None:
            return 0
        if UNIQUE_ID not in info:
            raise ValueError(f"an update lacks {UNIQUE_ID!r}; give the ids that sample gave")
        ids, priorities = list(info[UNIQUE_ID]), np.asarray(info[PRIORITY]).reshape(-1)
        if len(ids) != len(priorities):
            raise ValueError(f"info has {len(ids)} ids and {len(priorities)} priorities, expected as many of both")
        places: dict[str, list[int]] = {}
        for place, unique_id in enumerate(ids):
            places.setdefault(self._owner(unique_id), []).append(place)
        infos = {name: {UNIQUE_ID: [ids[i] for i in own], PRIORITY: priorities[own]} for name, own in places.items()}
        for name, own_info in infos.items():
            updates_given(name, own_info, self[name].config.eps, lowest=self[name].lowest_priority)
        return sum(self[name].update(own_info) for name, own_info in infos.items())

    def unique_ids(self, info: Any) -> list[str]:
        """The `replay_unique_id`s of a batch of `dataset`, for `update`, by its `info.server` and `info.key`."""
        owners = np.asarray(info.server).tolist(), numbers_of(np.asarray(info.key)).tolist()
        return [f"{self.names[server]}_{number}" for server, number in zip(*owners, strict=True)]

    def dataset(self, batch_size: int, sample_ratio: Mapping[str, float] | None = None) -> tf.data.Dataset:
        """Batches with fixed shares of the buffers, without an end: items of the first, then of the second, and so on.

        RLPD takes half of each batch from offline data and half from online data (Ball et al. 2023, arXiv:2302.02948,
        section 4.1).

        Args:
          batch_size: items in a batch, shared out by `fixed_counts`.
          sample_ratio: see `sample`.

        Returns:
          Data set of `reverb.ReplaySample`, as `ReplayBuffer.dataset` gives it. `info.weight` stays that of each
          buffer's own part; `info.server` int32 `[batch_size]` is the buffer's place in `names`.

        Raises:
          ValueError: if a buffer is unknown, the shares or the size are wrong, a share gives no item, or a buffer has
            too few elements (see `ReplayBuffer.dataset`).
          SpecMismatch: if the buffers' items differ, naming the field.
        """
        counts = fixed_counts(batch_size, self._shares_for(sample_ratio))
        parts = {name: self[name].dataset(count) for name, count in counts.items()}
        return joined(parts, places=[self.names.index(name) for name in parts])

    def count(self, buffer_name: str) -> int:
        """Items in a buffer; `ValueError` if there is no such buffer."""
        return self[buffer_name].count()

    def state_dict(self) -> dict[str, Any]:
        """The buffers' states by name, all of one moment; see `ReplayBuffer.state_dict`."""
        with self._locked(self.names):
            return {name: buffer.state_dict() for name, buffer in self._buffers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave, in all buffers or in none; see `states.load_states`.

        Raises:
          ValueError: if it is of buffers with other names; nothing is changed then.
        """
        if set(state) != set(self.names):
            raise ValueError(f"the state is of buffers {_listed(state)}; the manager has {_listed(self.names)}")
        with self._locked(self.names):
            load_states(self._buffers, state, timeout_secs=self._timeout_secs)

    def clear(self) -> None:
        """Empties all buffers."""
        for buffer in self._buffers.values():
            buffer.clear()

    def checkpoint(self) -> dict[str, Path]:
        """Writes a checkpoint of each buffer that has a table, all of one moment, and returns their paths by name.

        Each goes on from its newest complete one: a process killed in the middle leaves some a checkpoint behind.

        Raises:
          ValueError: if there is no checkpoint root.
          CheckpointError, StorageFull, ServerUnavailable: see `ReplayBuffer.checkpoint`.
        """
        if self._root is None:
            raise ValueError("the manager has no checkpoint_root; make it with one")
        with self._locked(self.names):
            return {name: buffer.checkpoint() for name, buffer in self._buffers.items() if buffer.address is not None}

    def close(self) -> None:
        """Ends all buffers."""
        self._resources.close()

    def _sample_each(self, sizes: Mapping[str, int], cur_learner_iter: int) -> dict[str, list[Any]] | None:
        with self._locked(sizes):
            checks = [self[name].sample_check(size, cur_learner_iter) for name, size in sizes.items()]
            self._told.refusal = "; ".join(check.reason for check in checks if not check.allowed)
            if self._told.refusal:
                return None
            parts = {name: self[name].sample(size, cur_learner_iter) for name, size in sizes.items()}
            # Since the check, others may have taken what the rates allow, whom no lock of ours keeps out.
            self._told.refusal = "; ".join(self[name].refusal for name, part in parts.items() if part is None)
            return None if self._told.refusal else {name: part or [] for name, part in parts.items()}

    @contextmanager
    def _locked(self, names: Iterable[str]) -> Iterator[None]:
        """Holds the locks of buffers, taken in the order of their names so that no two threads wait for each other."""
        with ExitStack() as stack:
            for name in sorted(names):
                stack.enter_context(self._buffers[name].lock)
            yield

    def _known_shares(self, ratio: Mapping[str, float]) -> dict[str, float]:
        self._require_known(ratio)
        return shares_of(ratio)

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
            raise ValueError(f"{unique_id!r} is no id of an item in {_listed(self.names)}, which is NAME_NUMBER")
        return name


def _require_names(names: Iterable[str]) -> None:
    if not list(names):
        raise ValueError("a manager needs at least one buffer, got none")
    for name in names:
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            raise ValueError(
                f"a buffer's name is {name!r}, expected one that can be a directory's, without '/' or '.' first"
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
