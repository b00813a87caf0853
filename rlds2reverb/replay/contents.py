"""The state of a buffer at one moment: elements, bookkeeping, counts and generator. Loading replaces it as a whole."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import CheckpointError, RateLimitedError
from rlds2reverb.priorities import require_priorities
from rlds2reverb.sample_info import SampleInfo
from rlds2reverb.specs import leaves, require_match

from . import validation
from .batches import Sample
from .configs import BufferConfig
from .element_table import ElementTable
from .item_spec import MASK, ItemRows, ItemSpec
from .sampler import Candidates, importance_weights
from .snapshots import describe_nest, parse_nest
from .store import Store

INITIAL_PRIORITY = 1.0


class Contents:
    """The elements of a buffer, its generator and its counts. Callers hold the buffer's lock.

    Attributes:
      name: name of the buffer.
      config: configuration of the buffer.
      holder: name of the buffer in messages, such as "buffer 'demo'".
      store: data of the elements; None before the first one if no spec was passed.
      elements: bookkeeping of the elements.
      generator: random generator used for sampling.
      sample_count: number of elements sampled up to now.
      ignored_count: number of priorities ignored by updates because their elements had been removed.
      beta: exponent of the importance weights of the next sample.
      highest_priority: see `ReplayBuffer.highest_priority`.
    """

    def __init__(self, name: str, config: BufferConfig, mmap_dir: Path | None, generator: np.random.Generator):
        """Creates empty contents; `mmap_dir` is that of `rows.RowRing`."""
        self.name, self.config, self.generator, self._mmap_dir = name, config, generator, mmap_dir
        self.holder = f"buffer {name!r}"
        self.store: Store | None = None
        self.elements = ElementTable(config)
        self.sample_count = self.ignored_count = 0
        self.beta, self.highest_priority = float(config.beta), INITIAL_PRIORITY

    @property
    def push_count(self) -> int:
        """Number of elements pushed up to now."""
        return self.elements.next_number

    # --- spec

    @property
    def spec(self) -> ItemSpec | None:
        """Spec of the elements; None if there is no store yet."""
        return None if self.store is None else self.store.spec

    def make_spec(self, example: Any) -> ItemSpec:
        """Returns the spec of elements like an example; see `ItemSpec.from_example`."""
        config = self.config
        spec = ItemSpec.from_example(example, self.holder, has_time_axis=config.has_time_axis, length=config.num_rows)
        if config.has_mask and MASK in spec.rows:
            raise ValueError(f"an episode cannot have a field {MASK!r} because padding adds one; rename the field")
        return spec

    def set_spec(self, example: Any) -> None:
        """Sets the spec, or checks that it matches a restored one."""
        spec = self.make_spec(example)
        if self.store is None:
            self.store = Store(spec, self.config.max_size, self._mmap_dir)
            return
        spec = spec.apply_widening(self.store.spec)
        advice = "pass the spec of the checkpoint, or use a new checkpoint_root"
        require_match(spec.rows, self.store.spec.rows, holder=self.holder, advice=advice, root="item")
        self.store.spec = replace(self.store.spec, rows=spec.rows)  # Takes the caller's named tuple classes.

    # --- adding and updating elements

    def insert(
        self, rows: ItemRows, priorities: np.ndarray | None, collect_iters: np.ndarray, starts: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Adds elements, all or none of them.

        Args:
          rows: rows of the elements.
          priorities: float64 `[N]`, NaN for the highest priority up to now; None if all are.
          collect_iters: int64 `[N]`, -1 if unknown.
          starts: see `Store.write`.

        Returns:
          The numbers of the elements, int64 `[N]`, and their priorities, float64 `[N]`.
        """
        count, max_rate = len(rows.lengths), self.config.push_sample_rate_limit[1]
        priorities = validation.fill_missing_priorities(priorities, count, self.highest_priority)
        min_positive = self.config.min_positive_priority
        validation.require_positive_powers(priorities, min_positive, lambda index: f"item {index}")
        if self.sample_count and self.push_count + count > max_rate * self.sample_count:
            raise RateLimitedError(
                f"{self.holder} has {self.push_count} elements pushed and {self.sample_count} sampled; pushing {count} "
                f"more would exceed {max_rate:g} pushed per sampled element (push_sample_rate_limit); sample first"
            )
        if self.store is None:
            self.store = Store(rows.spec, self.config.max_size, self._mmap_dir)
        elif rows.spec is not self.store.spec:
            self.store.widen(rows.spec)
        self.store.write(self.push_count, rows, starts)
        numbers = self.elements.add(priorities, collect_iters, self._count_windows(rows.lengths))
        self.highest_priority = max(self.highest_priority, float(priorities.max()))
        return numbers, priorities

    def find_removals(
        self, rows: ItemRows, starts: np.ndarray | None, with_data: bool
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """Yields the numbers, and data or None, of elements that `insert` displaces or does not store at all."""
        count = len(rows.lengths)
        numbers = self.elements.find_displaced(count)
        if len(numbers):
            yield numbers, self.read_elements(numbers) if with_data else None
        if num_skipped := max(0, count - self.config.max_size):
            indices, data = np.arange(num_skipped), None
            if with_data:
                temporary = Store(rows.spec, count)
                temporary.write(0, rows, starts)
                data = temporary.read_elements(indices)
            yield self.push_count + indices, data

    def read_elements(self, numbers: np.ndarray) -> Any:
        """Returns copies of elements; see `Store.read_elements`."""
        return None if self.store is None else self.store.read_elements(numbers)

    def _count_windows(self, lengths: np.ndarray) -> np.ndarray | None:
        """Returns how many windows each element has, if its probability depends on that."""
        if self.config.window is None or not self.config.counts_windows:
            return None
        return np.maximum(lengths - self.config.window, 0) + 1

    def set_priorities(self, numbers: np.ndarray, priorities: np.ndarray) -> np.ndarray:
        """Sets priorities, plus `priority_eps`, of the elements that are still there, and counts the others.

        Args:
          numbers: int64 `[M]`; for duplicates the last priority wins.
          priorities: float64 `[M]`.

        Returns:
          float64, the new priorities of the elements that are still there.
        """
        exists = self.elements.contains(numbers)
        if not exists.all():
            self.ignored_count += int(np.count_nonzero(~exists))
            numbers, priorities = numbers[exists], priorities[exists]
        if len(numbers):
            highest = max(self.highest_priority * (self.config.priority_decay or 1.0), float(priorities.max()))
            # New elements get the highest priority and must be possible to sample.
            self.highest_priority = max(highest, self.config.min_positive_priority)
            priorities = priorities + self.config.priority_eps
            self.elements.set_priorities(numbers, priorities)
        return priorities

    # --- sampling

    def sample(self, candidates: Candidates, size: int, learner_iter: int) -> tuple[Sample, np.ndarray]:
        """Samples elements and counts their uses; elements that reached `max_use` are still there.

        Args:
          candidates: result of `sampler.select_candidates`.
          size: number of elements to sample.
          learner_iter: learner iteration; -1 if unknown.

        Returns:
          The sample, and the numbers of its elements that reached `max_use`, each once.
        """
        elements, config = self.elements, self.config
        slots = candidates.sample(size, self.generator)
        numbers, priorities = elements.slots_to_numbers(slots), elements.priorities[slots]
        columns, mask, lengths = self._read(numbers)
        weights = np.ones(len(slots))
        if config.exponent is not None and size:
            powers = elements.min_tree.leaves[slots]
            uses_buffer = config.weight_normalization == "buffer"
            min_power = elements.min_tree.root if uses_buffer else float(powers.min())
            weights = importance_weights(powers, self.beta, min_power)
        info = SampleInfo(
            key=numbers.astype(np.uint64),
            probability=elements.sum_tree.leaves[slots] / candidates.tree.root,
            table_size=np.full(size, elements.count),
            priority=priorities,
            times_sampled=(),
            weight=weights,
            server=np.zeros(size, np.int32),
            staleness=elements.compute_staleness(slots, learner_iter),
            collect_iter=elements.collect_iters[slots],
        )
        uses, exhausted = elements.count_uses(slots)
        info = info._replace(times_sampled=uses.astype(np.int32))
        self.sample_count += size
        if config.anneal_step and size:
            self.beta = min(1.0, self.beta + (1 - config.beta) / config.anneal_step)
        return Sample(self.spec, columns, mask, lengths, slots, info), elements.slots_to_numbers(exhausted)

    def _read(self, numbers: np.ndarray) -> tuple[list[np.ndarray], np.ndarray | None, np.ndarray | None]:
        """Returns the `columns`, `mask` and `lengths` of a `Sample`, with a random window of each element if set."""
        window, store = self.config.window, self.store
        if store is None:
            return [], None, None
        lengths = store.get_lengths(numbers)
        offsets: np.ndarray | int = (
            0 if window is None else self.generator.integers(np.maximum(lengths - window, 0) + 1)
        )
        columns, mask = store.read(numbers, offsets, window or store.spec.length)
        if not self.config.has_mask:
            return columns, None, None
        if mask is None:
            mask = np.ones((len(numbers), columns[0].shape[1]), bool)
        return columns, mask, lengths if window is None else None

    def make_empty_sample(self) -> Sample:
        """Returns a sample of no elements, with the structure, dtypes and shapes of other samples.

        Raises:
          ValueError: If there is no spec yet.
        """
        if self.store is None:
            raise ValueError(f"{self.holder} has no elements yet; push first, or pass its spec")
        none = np.zeros(0, np.int64)
        dtypes = dict(zip(SampleInfo._fields, ("u8", "f8", "i8", "f8", "i4", "f8", "i4"), strict=False))
        info = SampleInfo(**{name: none.astype(dtype) for name, dtype in dtypes.items()})
        return Sample(self.spec, *self._read(none), none, info._replace(staleness=none, collect_iter=none))

    # --- state

    @property
    def _identity(self) -> dict[str, Any]:
        """The entries of a header that must be equal in the buffer that restores it."""
        config = self.config
        return {"name": self.name, "kind": config.kind, "max_size": config.max_size, "length": config.length}

    def header(self) -> dict[str, Any]:
        """Returns everything except the arrays as plain values for `restore`."""
        return {
            **self._identity,
            "push_count": self.push_count,
            "sample_count": self.sample_count,
            "ignored_count": self.ignored_count,
            "beta": self.beta,
            "highest_priority": self.highest_priority,
            "generator": self.generator.bit_generator.state,
            "spec": None if self.spec is None else describe_nest(self.spec.rows),
            "widening": [] if self.spec is None else sorted(self.spec.widening),
        }

    def restore(self, state: Mapping[str, Any]) -> Contents:
        """Returns new contents with a saved state (`header` and `arrays`) and this configuration.

        Elements that have reached the present `max_use`, and episodes shorter than the present `window`, are left out.

        Raises:
          CheckpointError: If the state is damaged, or belongs to a different buffer or configuration.
        """
        try:
            header, arrays = state["header"], state["arrays"]
            self._require_same(header)
            generator = np.random.default_rng()
            generator.bit_generator.state = header["generator"]
            restored = Contents(self.name, self.config, self._mmap_dir, generator)
            restored._restore_elements(header, arrays, self.spec)
            restored.sample_count, restored.ignored_count = int(header["sample_count"]), int(header["ignored_count"])
            restored.beta, restored.highest_priority = float(header["beta"]), float(header["highest_priority"])
            return restored
        except CheckpointError:
            raise
        except (AttributeError, KeyError, IndexError, OSError, OverflowError, TypeError, ValueError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOMEM:  # An impossible number of rows.
                raise
            raise CheckpointError(
                f"the state of {self.holder} is damaged ({error!r}); pass the result of state_dict, or restore a "
                "copy of the files"
            ) from error

    def _require_same(self, header: Mapping[str, Any]) -> None:
        for key, expected in self._identity.items():
            if key not in header or header[key] != expected:
                raise CheckpointError(
                    f"the state belongs to a buffer with {key} {header.get(key)!r}, but this one has {expected!r}; use "
                    "the same value, or a new directory"
                )

    def _restore_elements(
        self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], previous_spec: ItemSpec | None
    ) -> None:
        """Restores store and table; takes the named tuple classes of the previous spec if it is the same."""
        push_count, max_size = int(header["push_count"]), self.config.max_size
        lengths = np.ones(max_size, np.int64)
        if header["spec"] is not None:
            rows = parse_nest(header["spec"])
            if not leaves(rows):
                raise ValueError("an item must have at least one field")
            if previous_spec is not None and leaves(previous_spec.rows) == leaves(rows):
                rows = previous_spec.rows
            widening = frozenset(header["widening"])
            spec = ItemSpec(rows, self.holder, self.config.has_time_axis, self.config.num_rows, widening)
            self.store = Store.load(spec, max_size, self._mmap_dir, arrays, push_count)
            lengths = self.store.get_lengths(np.arange(max_size))
        is_long_enough = (lengths >= self.config.min_length)[: min(push_count, max_size)]
        kept = {**arrays, "alive": arrays["alive"] & is_long_enough}
        require_priorities(arrays["priorities"][kept["alive"]], lambda index: f"element {index}")
        self.elements.load(push_count, kept, self._count_windows(lengths))
        priorities = self.elements.priorities[self.elements.select_numbers() % max_size]
        validation.require_positive_powers(
            priorities, self.config.min_positive_priority, lambda index: f"element {index}"
        )
