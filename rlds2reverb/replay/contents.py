"""What a buffer holds at a moment: elements, what is known of them, and counts. A load puts in another one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import CheckpointError
from rlds2reverb.specs import leaves, require_match

from . import refusals
from .batches import BatchInfo, Drawn
from .configs import BufferConfig
from .drawing import choose, importance_weights
from .element_table import ElementTable
from .item_spec import MASK, ItemSpec, Rows
from .snapshots import State, described, nest_of
from .store import Store

FIRST_PRIORITY = 1.0


class Contents:
    """The elements of a buffer, its generator and its counts. Whoever calls holds the buffer's lock.

    Attributes:
      config: of the buffer.
      holder: the buffer, in words.
      spec: of the elements; None before the first one.
      store: their data; None before the first one.
      ledger: what is known of them.
      generator: of all draws.
      sample_count: elements sampled since the beginning.
      ignored_count: priorities of updates that were ignored, since their elements had left.
      beta: the exponent of the importance weights of the next sample.
      highest_priority: see `ReplayBuffer.highest_priority`.
    """

    def __init__(self, config: BufferConfig, holder: str, folder: Path | None, generator: np.random.Generator):
        """Empty.

        Args:
          config: of the buffer.
          holder: the buffer, for messages, such as "buffer 'demo'".
          folder: see `rows.RowRing`.
          generator: of all draws.
        """
        self.config, self.holder, self.generator, self._folder = config, holder, generator, folder
        self.spec: ItemSpec | None = None
        self.store: Store | None = None
        self.ledger = ElementTable(
            config.max_size,
            alpha=config.exponent,
            max_use=config.max_use,
            max_staleness=config.max_staleness,
            has_shares=config.has_shares,
        )
        self.sample_count = self.ignored_count = 0
        self.beta, self.highest_priority = float(config.beta), FIRST_PRIORITY

    @property
    def push_count(self) -> int:
        """Elements pushed since the beginning."""
        return self.ledger.next_number

    # --- what elements are

    def spec_like(self, example: Any) -> ItemSpec:
        """The spec of elements like an example; see `ItemSpec.of`."""
        has_time = self.config.has_time
        spec = ItemSpec.of(example, self.holder, has_time=has_time, length=self.config.length if has_time else 1)
        if self.config.has_mask and MASK in spec.rows:
            raise ValueError(f"an episode has a field {MASK!r}, which padding adds; give it another name")
        return spec

    def begin_with(self, example: Any) -> None:
        """Fixes the spec, or checks that it is the one that was restored."""
        spec = self.spec_like(example)
        if self.spec is None:
            self.spec = spec
            return
        spec = spec.with_widened(self.spec)
        advice = "give the spec of the checkpoint, or a new checkpoint_root"
        require_match(spec.rows, self.spec.rows, holder=self.holder, advice=advice, root="item")
        self.spec = replace(self.spec, rows=spec.rows)  # with the caller's own kinds of named tuples
        if self.store is not None:
            self.store.spec = self.spec

    # --- what comes

    def insert(
        self,
        rows: Rows,
        priorities: np.ndarray | None,
        collect_iters: np.ndarray,
        starts: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Adds elements, all or none of them.

        Args:
          rows: of the elements.
          priorities: float64 `[N]`, NaN for the highest so far; None if all are.
          collect_iters: int64 `[N]`, -1 where not known.
          starts: see `Store.write`.

        Returns:
          Their numbers, int64 `[N]`, and their priorities, float64 `[N]`.
        """
        filled = refusals.filled_priorities(priorities, len(rows.lengths), self.highest_priority)
        refusals.require_drawable(filled, self.config.lowest_priority, lambda place: f"item {place}")
        most = self.config.push_sample_rate_limit[1]
        if most < math.inf:
            refusals.require_rate(self.holder, self.push_count, self.sample_count, len(filled), most)
        if self.store is None:
            self.store = Store(rows.spec, self.config.max_size, self._folder)
        elif rows.spec is not self.spec:
            self.store.widen(rows.spec)
        self.spec = rows.spec
        self.store.write(self.push_count, rows, starts)
        numbers = self.ledger.add(filled, collect_iters, self._num_windows(rows.lengths))
        self.highest_priority = max(self.highest_priority, float(filled.max()))
        return numbers, filled

    def leaving_for(self, rows: Rows, starts: np.ndarray | None, with_data: bool) -> Iterator[tuple[np.ndarray, Any]]:
        """Yields what leaves when such rows come, and those of them that never get in: numbers, and data or None."""
        count = len(rows.lengths)
        numbers = self.ledger.displaced_by(count)
        if len(numbers):
            yield numbers, self.data_of(numbers) if with_data else None
        if too_many := max(0, count - self.config.max_size):
            passing, places = Store(rows.spec, count), np.arange(too_many)
            passing.write(0, rows, starts)
            yield self.push_count + places, passing.elements(places) if with_data else None

    def data_of(self, numbers: np.ndarray) -> Any:
        """Copies of elements; see `Store.elements`."""
        return None if self.store is None else self.store.elements(numbers)

    def _num_windows(self, lengths: np.ndarray) -> np.ndarray | None:
        """How many windows each element counts for, where it counts for more than one."""
        if self.config.window is None or not self.config.has_shares:
            return None
        return np.maximum(lengths - self.config.window, 0) + 1

    # --- what changes

    def set_priorities(self, numbers: np.ndarray, priorities: np.ndarray) -> np.ndarray:
        """Gives those elements that are still there new priorities, plus `eps`; others are counted.

        Args:
          numbers: int64 `[M]`; of one that comes twice the later priority counts.
          priorities: float64 `[M]`.

        Returns:
          The priorities of those that are there, float64.
        """
        there = self.ledger.has(numbers)
        if not there.all():
            self.ignored_count += int(np.count_nonzero(~there))
            numbers, priorities = numbers[there], priorities[there]
        if len(numbers):
            highest = max(self.highest_priority * (self.config.priority_decay or 1.0), float(priorities.max()))
            self.highest_priority = max(highest, self.config.lowest_priority)  # so that new elements can be drawn
            priorities = priorities + self.config.eps
            self.ledger.set_priorities(numbers, priorities)
        return priorities

    # --- what is drawn

    def draw(self, size: int, learner_iter: int, sample_range: slice | None) -> tuple[Drawn | None, np.ndarray, str]:
        """Draws elements, of which there have to be enough but in a range, and notes that they were used.

        Args:
          size: elements to draw.
          learner_iter: the learner's iteration, -1 where not known.
          sample_range: only elements at these places; None for all.

        Returns:
          The elements, or None if the range has too few; the numbers of those that are used up now, which the caller
          removes; and why there are none.
        """
        config, ledger = self.config, self.ledger
        slots, refusal = choose(ledger, config, size, self.generator, sample_range, self.holder)
        if refusal:
            return None, slots, refusal
        numbers, priorities = ledger.numbers_in(slots), ledger.priorities[slots]
        columns, mask, lengths = self._read(numbers)
        weights = np.ones(len(slots))
        if config.exponent is not None and len(slots):
            powers = ledger.powers.leaves[slots]
            least = ledger.powers.root if config.weights == "buffer" else float(powers.min())
            weights = importance_weights(powers, self.beta, least)
        staleness, collect_iters = ledger.staleness_of(slots, learner_iter), ledger.collect_iters[slots]
        buffer = np.zeros(len(slots), np.int32)
        uses, used = ledger.use(slots)
        self.sample_count += len(slots)
        if config.anneal_step and len(slots):
            self.beta = min(1.0, self.beta + (1 - config.beta) / config.anneal_step)
        info = BatchInfo(numbers, slots, weights, priorities, uses, staleness, collect_iters, buffer)
        return Drawn(self.spec, columns, mask, lengths, info), ledger.numbers_in(used), ""

    def _read(self, numbers: np.ndarray) -> tuple[list[np.ndarray], np.ndarray | None, np.ndarray | None]:
        """The columns, `mask` and `lengths` of `Drawn`; of episodes a window each, if there are windows."""
        window, store = self.config.window, self.store
        if store is None:
            return [], None, None
        lengths = store.lengths_of(numbers)
        if window is None:
            columns, there = store.read(numbers)
        else:
            columns, there = store.read(numbers, self.generator.integers(np.maximum(lengths - window, 0) + 1), window)
        if not self.config.has_mask:
            return columns, None, None
        if there is None:
            there = np.ones((len(numbers), columns[0].shape[1]), bool)
        return columns, there, lengths if window is None else None

    def none_drawn(self) -> Drawn:
        """No elements, in the structure, dtypes and shapes of those that are drawn.

        Raises:
          ValueError: if there is no spec yet.
        """
        spec, config = self.spec, self.config
        if spec is None:
            raise ValueError(f"{self.holder} has no elements yet; push first, or give its spec")
        time = (config.window or spec.length or 0,) if spec.has_time else ()
        shapes = [(0, *time, *(size or 0 for size in leaf.shape)) for leaf in spec.leaves]
        columns = [np.zeros(shape, leaf.dtype) for shape, leaf in zip(shapes, spec.leaves, strict=True)]
        mask = np.zeros((0, *time), bool) if config.has_mask else None
        info = [np.zeros(0, dtype) for dtype in ("i8", "i8", "f8", "f8", "i8", "i8", "i8", "i4")]
        return Drawn(spec, columns, mask, None, BatchInfo(*info))

    # --- what is kept

    def header(self, name: str) -> dict[str, Any]:
        """All but the arrays, as plain values, for `restored`; with the name of the buffer."""
        return {
            **_identity(name, self.config),
            "push_count": self.push_count,
            "sample_count": self.sample_count,
            "ignored_count": self.ignored_count,
            "beta": self.beta,
            "highest_priority": self.highest_priority,
            "generator": self.generator.bit_generator.state,
            "spec": None if self.spec is None else described(self.spec.rows),
            "widening": [] if self.spec is None else sorted(self.spec.widening),
        }

    def restored(self, state: State | Mapping[str, Any], name: str) -> Contents:
        """The contents of a state, with the configuration of these, which stay as they are.

        Elements that were used as often as they may be now, or are episodes too short for the window now, are left out.

        Raises:
          CheckpointError: if the state is damaged, or of another buffer or configuration.
        """
        try:
            header, arrays = (state["header"], state["arrays"]) if isinstance(state, Mapping) else state
            require_same(header, name, self.config)
            rng = np.random.default_rng()
            rng.bit_generator.state = header["generator"]
            found = Contents(self.config, self.holder, self._folder, rng)
            push_count, max_size = int(header["push_count"]), self.config.max_size
            if header["spec"] is not None:
                found.spec = self._spec_of(nest_of(header["spec"]), frozenset(header["widening"]))
                if "ring" in arrays:
                    found.store = Store.loaded(found.spec, max_size, self._folder, arrays, push_count)
            lengths = np.ones(max_size, np.int64)
            if found.store is not None:
                lengths = found.store.lengths_of(np.arange(max_size))
            is_long_enough = (lengths >= self.config.least_length)[: min(push_count, max_size)]
            known = {**arrays, "alive": arrays["alive"] & is_long_enough}
            found.ledger.load(push_count, known, self._num_windows(lengths))
            alive = found.ledger.priorities[found.ledger.numbers() % max_size]
            refusals.require_drawable(alive, self.config.lowest_priority, lambda place: f"its element {place}")
            found.sample_count, found.ignored_count = int(header["sample_count"]), int(header["ignored_count"])
            found.beta, found.highest_priority = float(header["beta"]), float(header["highest_priority"])
            return found
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"the state of {self.holder} is damaged ({error}); give what state_dict gave, or a copy of the files"
            ) from error

    def _spec_of(self, rows: Any, widening: frozenset[int]) -> ItemSpec:
        """A spec of which the rows are known, with the named tuples of the present one where it is the same."""
        if self.spec is not None and leaves(self.spec.rows) == leaves(rows):
            rows = self.spec.rows
        length = self.config.length if self.config.has_time else 1
        return ItemSpec(rows, self.holder, self.config.has_time, length, widening)


def _identity(name: str, config: BufferConfig) -> dict[str, Any]:
    return {"name": name, "kind": config.kind, "max_size": config.max_size, "length": config.length}


def require_same(header: Mapping[str, Any], name: str, config: BufferConfig) -> None:
    """Raises `CheckpointError` if a header is of another buffer, or of one of another configuration."""
    for what, now in _identity(name, config).items():
        if what not in header or header[what] != now:
            raise CheckpointError(
                f"the state is of a buffer with {what} {header.get(what)!r}, this one has {now!r}; make it as that "
                "one was, or give a new directory"
            )
