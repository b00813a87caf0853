"""Checks of the numbers of observations and actions: NaN, huge values and constants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds2reverb.types import fields

from ..source import Source
from .findings import Finding, Tally, list_elements
from .transition_blocks import MIN_ROWS, Block, Field

_FINITE_FIELDS = (fields.OBSERVATION, fields.ACTION, fields.REWARD)
#: Values beyond this are huge, if at most this share of the steps has them.
MAX_VALUE, _MAX_SHARE = 1e6, 0.05
#: Minimum number of episodes to call something constant, and to call elements of 0 or 1 so, which may be rare events.
_MIN_EPISODES, _MIN_EPISODES_OF_FLAGS = 2, 5
#: Parts of names of fields that may be the same throughout a dataset.
_CONTEXT = ("language", "instruction", "embedding", "goal", "task")
#: Minimum number of repetitions in an episode to call a field constant in it.
_MIN_CONSTANT = 5


class Numbers:
    """NaN, Inf, huge values, and observations of zeros in the middle of others."""

    def __init__(self, source: Source):
        self._tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
        self._num_rows = 0

    def add(self, block: Block) -> None:
        """Adds a block."""
        self._num_rows += len(block.positions)
        for field in block.fields:
            if field.rows.dtype.kind in "fc" and field.flat.shape[1]:
                self._add_field(block, field)
        vectors = [field.flat for field in block.select(fields.OBSERVATION) if field.is_float]
        if sum(rows.shape[1] for rows in vectors) > 2:
            is_zero = np.all([~rows.any(axis=1) for rows in vectors], axis=0)
            # Many environments start with zeros.
            self._tallies["zero-observations", fields.OBSERVATION].add(block, is_zero & ~block.is_first)

    def _add_field(self, block: Block, field: Field) -> None:
        # The extremes of numbers with NaN are NaN, and a comparison with them is false.
        if len(field.rows) and not max(field.flat.max(), -field.flat.min()) <= MAX_VALUE:
            is_finite = np.isfinite(field.flat)
            self._tallies["non-finite", field.name].add(block, ~is_finite.all(axis=1))
            is_huge = is_finite & (np.abs(field.flat) > MAX_VALUE)
            self._tallies["huge-values", field.name].add(block, is_huge.any(axis=1))

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        for (check, name), tally in self._tallies.items():
            if check == "non-finite":
                severity = "error" if name.partition("[")[0] in _FINITE_FIELDS else "warning"
                yield from tally.report(check, name, "NaN or Inf", severity)
            elif tally.count <= max(1, _MAX_SHARE * self._num_rows):
                message = f"values above {MAX_VALUE:g}" if check == "huge-values" else "only zeros, unlike other steps"
                yield from tally.report(check, name, message)


class Constants:
    """Fields and elements of vectors that never change, and fields that are constant in a few episodes."""

    def __init__(self, source: Source):
        self._first: dict[Any, np.ndarray] = {}
        self._is_constant: dict[Any, np.ndarray] = {}
        self._names: dict[Any, str] = {}
        self._images: set[Any] = set()
        #: By path, and element of an action: the episodes in which it is constant, and the number of the others.
        self._frozen: dict[tuple[Any, int | None], Tally] = defaultdict(Tally)
        self._num_varying: dict[tuple[Any, int | None], int] = defaultdict(int)
        #: Up to three or more values of the elements of actions.
        self._values: dict[tuple[Any, int | None], set[float]] = defaultdict(set)
        self._num_rows = self._num_episodes = 0
        self._first_episode = 0

    def add(self, block: Block) -> None:
        """Adds a block."""
        if not len(block.positions):
            return
        if not self._num_rows:
            self._first_episode = block.get_index(block.positions[0])
        self._num_rows += len(block.positions)
        self._num_episodes += len(block.starts)
        for field in block.select(fields.OBSERVATION, fields.ACTION):
            if not field.is_text and field.flat.shape[1]:
                self._add_field(block, field)

    def _add_field(self, block: Block, field: Field) -> None:
        path = field.path
        if path not in self._first:
            self._first[path], self._names[path] = field.flat[0].copy(), field.name
            self._is_constant[path] = np.ones(field.flat.shape[1], bool)
            if field.is_image:
                self._images.add(path)
        constant = self._is_constant[path]
        if constant.any():
            # Most elements already change in the first rows.
            constant &= (field.flat[:64] == self._first[path]).all(axis=0)
            constant[constant] = (field.flat[:, constant] == self._first[path][constant]).all(axis=0)
        if field.is_float and field.group == fields.ACTION:
            # A motion that is not used in an episode is 0 throughout.
            first = field.flat[block.starts]
            is_same = np.logical_and.reduceat(field.flat == first[block.numbers], block.starts)
            for number, column in enumerate(field.flat.T):
                values = self._values[path, number]
                if len(values) < 3:
                    values.update(np.unique(column)[:3].tolist())
                self._add_frozen(block, (path, number), is_same[:, number], first[:, number] != 0)
        elif field.is_float and field.flat.shape[1] > 1:
            is_same = np.logical_and.reduceat(field.repeats | block.is_first, block.starts)
            self._add_frozen(block, (path, None), is_same)

    def _add_frozen(
        self, block: Block, key: tuple[Any, int | None], is_same: np.ndarray, is_used: np.ndarray | bool = True
    ) -> None:
        is_frozen = is_same & (block.lengths[block.has_transitions] > _MIN_CONSTANT)
        if is_frozen.any():
            self._frozen[key].add_episodes(block, block.spread(is_frozen & is_used))
        self._num_varying[key] += int((~is_frozen).sum())

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        if self._num_rows < MIN_ROWS:
            return
        for path, constant in self._is_constant.items():
            name, values = self._names[path], self._first[path][constant]
            tally = Tally(self._num_rows, self._num_episodes, self._first_episode, 0)
            is_flag = path[0] == fields.OBSERVATION and np.isin(values, (0, 1)).all() and not constant.all()
            min_episodes = _MIN_EPISODES_OF_FLAGS if is_flag else _MIN_EPISODES
            severity = None if self._num_episodes >= min_episodes else "info"
            if constant.all() and not any(word in name.lower() for word in _CONTEXT):
                yield from tally.report("constant-field", name, "the same value in all steps", severity)
            elif constant.any() and not constant.all() and path not in self._images:
                tally.count = len(values)
                message = f"{list_elements(np.flatnonzero(constant).tolist())} of {constant.size:,} never change"
                yield from tally.report("zero-variance-dimension", name, message, severity)
        for (path, number), tally in self._frozen.items():
            num_varying = self._num_varying[path, number]
            # Grippers, which have two values, may stay open or closed.
            is_gripper = number is not None and len(self._values[path, number]) < 3
            if tally.count <= num_varying / (1 if number is None else 2) and not is_gripper:
                what = "constant" if number is None else f"element {number} is constant"
                message = f"{what} in these episodes, but not in {num_varying:,} others"
                yield from tally.report("frozen-field", self._names[path], message)
