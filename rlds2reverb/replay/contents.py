"""The state of a buffer at one moment: elements, bookkeeping, counts and generator. Loading replaces it as a whole."""

from __future__ import annotations

import errno
from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import CheckpointError, RateLimitedError
from rlds2reverb.types.sample_info import SampleInfo, note_repeated_items
from rlds2reverb.types.specs import ArraySpec, Nest, leaves, require_match

from . import push_validation
from .configs import UNKNOWN_ITER, BufferConfig
from .element_table import ElementTable
from .item_spec import MASK, ItemRows, ItemSpec
from .rows import RowRing
from .sampled_batches import Sample
from .sampler import Candidates, importance_weights

INITIAL_PRIORITY = 1.0
#: Initial capacity in rows if elements can have any length.
_INITIAL_ROWS = 4096


class Contents:
    """The elements of a buffer, its generator and its counts. Callers hold the buffer's lock.

    Attributes:
      name: name of the buffer.
      config: configuration of the buffer.
      holder: name of the buffer in messages, such as "buffer 'demo'".
      spec: spec of the elements; None before the first one if none was passed.
      ring: rows of the elements. They are overwritten in the order of the element numbers: an element that was removed
        early keeps its rows until its number is `max_size` back.
      elements: bookkeeping of the elements.
      generator: random generator used for sampling.
      sample_count: number of elements sampled up to now.
      ignored_count: number of priorities ignored by updates because their elements had been removed.
      beta: exponent of the importance weights of the next sample.
      highest_priority: see `ReplayBuffer.highest_priority`.
    """

    def __init__(self, name: str, config: BufferConfig, mmap_dir: Path | None, generator: np.random.Generator):
        """Creates empty contents; `mmap_dir` is that of `RowRing`."""
        self.name, self.config, self.generator, self._mmap_dir = name, config, generator, mmap_dir
        self.holder = f"buffer {name!r}"
        self.spec: ItemSpec | None = None
        self.ring = RowRing([], 1)
        self.elements = ElementTable(config)
        self.sample_count = self.ignored_count = 0
        self.beta, self.highest_priority = float(config.beta), INITIAL_PRIORITY

    @property
    def push_count(self) -> int:
        """Number of elements pushed up to now."""
        return self.elements.next_number

    # --- spec

    def make_spec(self, example: Any) -> ItemSpec:
        """Returns the spec of elements like an example; see `ItemSpec.from_example`."""
        spec = ItemSpec.from_example(example, self.holder, self.config.time_axes)
        if self.config.has_mask and MASK in spec.rows:
            raise ValueError(f"an episode cannot have a field {MASK!r} because padding adds one; rename the field")
        return spec

    def set_spec(self, example: Any) -> None:
        """Sets the spec, or checks that it matches a restored one."""
        spec = self.make_spec(example)
        if self.spec is None:
            self._open_ring(spec)
            return
        advice = "pass the spec of the checkpoint, or use a new checkpoint_root"
        require_match(spec.rows, self.spec.rows, holder=self.holder, advice=advice, root="item")
        self.spec = spec  # Takes the caller's named tuple classes.

    def _open_ring(self, spec: ItemSpec, capacity: int | None = None) -> None:
        default = _INITIAL_ROWS if spec.length is None else self.config.max_size * spec.length
        self.ring, self.spec = RowRing(spec.leaves, capacity or default, self._mmap_dir), spec

    # --- adding and updating elements

    def insert(
        self, rows: ItemRows, priorities: np.ndarray | None, collect_iters: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Adds elements, all or none of them, except episodes that are shorter than a window.

        Args:
          rows: rows of the elements.
          priorities: float64 `[N]`, NaN for the highest priority up to now; None if all are.
          collect_iters: int64 `[N]`, -1 if unknown.

        Returns:
          The numbers of the elements, int64 `[N]`, -1 for those that are not stored; and the priorities of the others.
        """
        added = np.flatnonzero(rows.lengths >= self.config.min_length)
        count, numbers = len(added), np.full(len(rows.lengths), -1)
        if not count:
            return numbers, np.zeros(0)
        priorities = None if priorities is None else priorities[added]
        priorities = push_validation.fill_missing_priorities(priorities, count, self.highest_priority)
        push_validation.require_priorities(priorities, self.config, lambda index: f"item {added[index]}")
        max_rate = self.config.push_sample_rate_limit[1]
        if self.sample_count and self.push_count + count > max_rate * self.sample_count:
            raise RateLimitedError(
                f"{self.holder} has {self.push_count} elements pushed and {self.sample_count} sampled; pushing {count} "
                f"more would exceed {max_rate:g} pushed per sampled element (push_sample_rate_limit); sample first"
            )
        if self.spec is None:
            self._open_ring(rows.spec)
        numbers[added] = np.arange(self.push_count, self.push_count + count)
        kept = added[-self.config.max_size :]  # The last ones replace the others.
        starts, lengths = rows.starts[kept], rows.lengths[kept]
        new_starts = starts - starts[0] + self.ring.num_written
        columns = [column[starts[0] : starts[-1] + lengths[-1]] for column in rows.columns]
        self.ring.write(columns, self.elements.find_first_row(count, self.ring.num_written))
        self.elements.add(count, priorities[-len(kept) :], collect_iters[kept], new_starts, lengths)
        self.highest_priority = max(self.highest_priority, float(priorities.max()))
        return numbers, priorities

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
          The sample, and the slots of its elements that reached `max_use`, each once.
        """
        elements, config = self.elements, self.config
        note_repeated_items(size, elements.count)
        slots = candidates.sample(size, self.generator)
        columns, mask, lengths = self._read(slots)
        weights = np.ones(len(slots))
        if config.exponent is not None and size:
            powers = elements.min_tree.leaves[slots]
            uses_buffer = config.weight_normalization == "buffer"
            min_power = elements.min_tree.root if uses_buffer else float(powers.min())
            weights = importance_weights(powers, self.beta, min_power)
        uses, exhausted = elements.count_uses(slots)
        info = SampleInfo(
            key=elements.slots_to_numbers(slots).astype(np.uint64),
            probability=elements.sum_tree.leaves[slots] / candidates.tree.root,
            table_size=np.full(size, elements.count),
            priority=elements.priorities[slots],
            times_sampled=uses.astype(np.int32),
            weight=weights,
            server=np.zeros(size, np.int32),
            staleness=elements.compute_staleness(slots, learner_iter),
            collect_iter=elements.collect_iters[slots],
            slot=slots,
        )
        self.sample_count += size
        if config.anneal_step and size:
            self.beta = min(1.0, self.beta + (1 - config.beta) / config.anneal_step)
        return Sample(self.spec, columns, mask, lengths, info), exhausted

    def _read(self, slots: np.ndarray) -> tuple[list[np.ndarray], np.ndarray | None, np.ndarray | None]:
        """Returns the `columns`, `mask` and `lengths` of a `Sample`, with a random window of each element if set."""
        window, elements = self.config.window, self.elements
        rows, lengths = elements.starts[slots], elements.lengths[slots]
        if not self.config.time_axes:
            return self.ring.read(rows), None, None
        if window is not None:
            offsets = self.generator.integers(np.maximum(lengths - window, 0) + 1)
            rows, lengths = rows + offsets, np.minimum(lengths - offsets, window)
        steps = np.arange(window or self.config.length or lengths.max(initial=0))
        mask = steps < lengths[:, None]
        columns = self.ring.read(rows[:, None] + np.where(mask, steps, 0))
        if not self.config.has_mask:
            return columns, None, None
        for column in columns if not mask.all() else ():
            column[~mask] = 0
        return columns, mask, lengths if window is None else None

    def make_empty_sample(self) -> Sample:
        """Returns a sample of no elements, with the structure, dtypes and shapes of other samples.

        Raises:
          ValueError: If there is no spec yet.
        """
        if self.spec is None:
            raise ValueError(f"{self.holder} has no elements yet; push first, or pass its spec")
        return self.sample(Candidates(self.elements.sum_tree), 0, UNKNOWN_ITER)[0]

    # --- state

    @property
    def _identity(self) -> dict[str, Any]:
        """The entries of a header that must be equal in the buffer that restores it."""
        config = self.config
        return {"name": self.name, "kind": config.kind, "max_size": config.max_size, "length": config.length}

    def state(self) -> dict[str, Any]:
        """Returns everything as a `header` of plain values and a dict of copied `arrays`, for `restore`."""
        header = {
            **self._identity,
            "push_count": self.push_count,
            "sample_count": self.sample_count,
            "ignored_count": self.ignored_count,
            "beta": self.beta,
            "highest_priority": self.highest_priority,
            "generator": self.generator.bit_generator.state,
            "spec": None if self.spec is None else _describe_nest(self.spec.rows),
        }
        return {"header": header, "arrays": {**self.elements.state(), **self.ring.state()}}

    def restore(self, state: Mapping[str, Any]) -> Contents:
        """Returns new contents with a saved state and this configuration.

        Elements that have reached the present `max_use`, and episodes shorter than the present `window`, are left out.

        Raises:
          CheckpointError: If the state is damaged, or belongs to a different buffer or configuration.
        """
        try:
            header, arrays = state["header"], state["arrays"]
            for key, expected in self._identity.items():
                if key not in header or header[key] != expected:
                    raise CheckpointError(
                        f"the state belongs to a buffer with {key} {header.get(key)!r}, but this one has {expected!r}; "
                        "use the same value, or a new directory"
                    )
            generator = np.random.default_rng()
            generator.bit_generator.state = header["generator"]
            restored = Contents(self.name, self.config, self._mmap_dir, generator)
            if header["spec"] is not None:
                restored._restore_rows(_parse_nest(header["spec"]), arrays, self.spec)
            restored.elements.load(int(header["push_count"]), arrays)
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

    def _restore_rows(self, rows: Nest, arrays: Mapping[str, np.ndarray], previous_spec: ItemSpec | None) -> None:
        """Restores spec and rows; takes the named tuple classes of the previous spec if it is the same."""
        if not leaves(rows):
            raise ValueError("an item must have at least one field")
        if previous_spec is not None and leaves(previous_spec.rows) == leaves(rows):
            rows = previous_spec.rows
        num_written, capacity = (int(number) for number in arrays["ring"])
        self._open_ring(ItemSpec(rows, self.holder, self.config.time_axes), capacity)
        self.ring.num_written = num_written
        for index, column in enumerate(self.ring.columns):
            saved = arrays[f"column_{index}"]
            if len(saved) != min(num_written, capacity):
                raise ValueError(f"column {index} must have {min(num_written, capacity)} rows")
            column[: len(saved)] = saved


def _describe_nest(nest: Nest) -> Any:
    """Converts a nest of `ArraySpec`s to plain values; `_parse_nest` is the inverse."""
    if isinstance(nest, ArraySpec):
        return {"dtype": nest.dtype.name, "shape": list(nest.shape)}
    if isinstance(nest, dict):
        return {"dict": {key: _describe_nest(part) for key, part in nest.items()}}
    if hasattr(nest, "_fields"):
        return {"named": [type(nest).__name__, {key: _describe_nest(getattr(nest, key)) for key in nest._fields}]}
    return {type(nest).__name__: [_describe_nest(part) for part in nest]}


def _parse_nest(description: Any) -> Nest:
    """Returns the nest of a description; named tuples become new classes with the same name and fields."""
    if "dtype" in description:
        return ArraySpec(tuple(description["shape"]), np.dtype(description["dtype"]))
    if "dict" in description:
        return {key: _parse_nest(part) for key, part in description["dict"].items()}
    if "named" in description:
        name, parts = description["named"]
        return namedtuple(name, parts)(**{key: _parse_nest(part) for key, part in parts.items()})
    ((kind, parts),) = description.items()
    return {"list": list, "tuple": tuple}[kind](_parse_nest(part) for part in parts)
