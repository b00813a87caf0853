"""Checks of actions: repeated, outside of the bounds, or nearly always at them; and of repeated observations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds2reverb.types import fields
from rlds2reverb.types.specs import leaves

from ..source import Source
from .findings import Finding, Tallies, Tally, list_elements
from .transition_blocks import MIN_ROWS, Block, Field

#: Minimum number of repetitions of an action of several numbers.
_MIN_REPETITIONS = 10
#: Minimum share of an element's actions at their extreme value; the clean samples reach 0.77.
BOUND_SHARE = 0.9
#: Minimum ratio of the actions slightly within a common bound to those beyond it, to take it for the bound.
_MIN_INSIDE_RATIO = 20
_COMMON_BOUNDS, _INSIDE = (1.0, 2.0, 3.0), 0.9


def find_repetitions(block: Block, tallies: Tallies) -> None:
    """Finds steps that repeat the observation before them, and actions that are repeated many times."""
    observations = [field for field in block.select(fields.OBSERVATION) if not field.is_text]
    actions = [field for field in block.select(fields.ACTION) if not field.is_text]
    if not observations or not actions or not len(block.positions):
        return
    repeats_action = np.all([field.repeats for field in actions], axis=0)
    is_float = any(field.is_float for field in actions)
    if is_float and sum(field.flat.shape[1] for field in actions) > 1:
        message = f"the same action as in the step before, {_MIN_REPETITIONS} times or more in a row"
        is_in_run = np.zeros(len(repeats_action), bool)
        for start, stop in find_runs(repeats_action, _MIN_REPETITIONS):
            is_in_run[start:stop] = True
        tallies["repeated-actions", fields.ACTION, message].add(block, is_in_run)
    has_vector = any(field.is_float for field in observations)
    # Images, and states of games, can stand still; only their repetition with the same real action is suspicious.
    is_repeated = np.ones(len(block.positions), bool) if has_vector else repeats_action & is_float
    for field in sorted(observations, key=lambda field: field.flat.shape[1]):
        if is_repeated.any():
            is_repeated &= field.repeats
    message = "the same observation as in the step before"
    tallies["duplicate-frames", fields.OBSERVATION, message].add(block, is_repeated)


def find_runs(flags: np.ndarray, min_length: int) -> list[tuple[int, int]]:
    """Returns the runs of set flags, of at least this length, among flags `[M]`: the first one and the one after it."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0)).tolist()
    return [run for run in zip(edges[::2], edges[1::2], strict=True) if run[1] - run[0] >= min_length]


class ActionBounds:
    """Actions outside of the action space, or of a common bound that the others keep, and actions stuck at bounds."""

    def __init__(self, source: Source):
        self._source = source
        self._bounds: dict[Any, tuple[Any, Any]] | None = None
        self._outside: dict[tuple[str, Any], Tally] = defaultdict(Tally)
        self._counts: dict[str, np.ndarray] = {}
        self._extremes: dict[str, _Extremes] = {}

    def add(self, block: Block) -> None:
        """Adds a block."""
        if self._bounds is None:
            spec = self._source.make_step_spec(block.batch.episodes[0])
            self._bounds = {path: (leaf.minimum, leaf.maximum) for path, leaf in leaves(spec)}
        for field in block.select(fields.ACTION):
            if field.rows.dtype.kind in "fiu" and field.flat.size:
                low, high = self._bounds[field.path]
                if low is not None:
                    margin = 1e-5 * np.maximum(np.abs(low), np.abs(high))
                    is_outside = (field.rows < low - margin) | (field.rows > high + margin)
                    self._outside[field.name, None].add(block, is_outside.reshape(field.flat.shape).any(axis=1))
                elif field.is_float:
                    self._add_without_bounds(block, field)
                if field.is_float:
                    self._extremes.setdefault(field.name, _Extremes(field.flat)).add(block, field.flat)

    def _add_without_bounds(self, block: Block, field: Field) -> None:
        sizes = np.abs(field.flat)
        counts = self._counts.setdefault(field.name, np.zeros((len(_COMMON_BOUNDS), 3, sizes.shape[1]), np.int64))
        highest = sizes.max()
        for number, bound in enumerate(_COMMON_BOUNDS):
            if highest <= _INSIDE * bound:
                continue
            is_outside = sizes > bound
            is_close = is_outside & (sizes <= bound / _INSIDE)
            is_inside = (sizes > _INSIDE * bound) & ~is_outside
            counts[number] += [part.sum(axis=0) for part in (is_inside, is_outside, is_close)]
            self._outside[field.name, bound].add(block, is_outside.any(axis=1))

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        for (name, bound), tally in self._outside.items():
            if bound is None:
                message = "outside of the dataset's action space"
                yield from tally.report("actions-out-of-bounds", name, message)
        for name, counts in self._counts.items():
            for number, bound in enumerate(_COMMON_BOUNDS):
                if _keeps_bound(*counts[number]):
                    tally = self._outside[name, bound]
                    message = f"outside of [-{bound:g}, {bound:g}], to which all others keep"
                    yield from tally.report("actions-out-of-bounds", name, message)
                    break
        for name, extremes in self._extremes.items():
            yield from extremes.finish(name)


def _keeps_bound(inside: np.ndarray, outside: np.ndarray, close: np.ndarray) -> bool:
    """Returns whether actions keep to a bound apart from a few outliers, given counts `[D]` around the bound.

    Without a bound, about as many actions are slightly beyond it as slightly within it.
    """
    by_element = (outside > 0) & (inside >= _MIN_INSIDE_RATIO * outside)
    in_total = inside.sum() >= _MIN_INSIDE_RATIO * outside.sum() > 0 and 2 * close.sum() <= outside.sum()
    return bool(by_element.any() or in_total)


class _Extremes:
    """The extreme values of an action, and how often they occur."""

    def __init__(self, rows: np.ndarray):
        """Starts without rows of this width."""
        self._limits = np.full((2, rows.shape[1]), np.inf)
        self._counts = np.zeros((2, rows.shape[1]), np.int64)
        self._num_rows, self._tally = 0, Tally()

    def add(self, block: Block, rows: np.ndarray) -> None:
        """Adds rows `[M, D]`."""
        self._num_rows += len(rows)
        for number, values in enumerate((rows, -rows)):
            lowest = values.min(axis=0)
            is_lower = lowest < self._limits[number]
            self._counts[number][is_lower] = 0
            self._limits[number] = np.where(is_lower, lowest, self._limits[number])
            self._counts[number] += (values == self._limits[number]).sum(axis=0)
        if not self._tally.count:
            limits = (self._limits[0], -self._limits[1])
            self._tally.add(block, ((rows == limits[0]) | (rows == limits[1])).any(axis=1))

    def finish(self, name: str) -> Iterator[Finding]:
        """Yields the elements that are nearly always at a bound; elements with two values, such as grippers, may be."""
        if self._num_rows < MIN_ROWS:
            return
        shares = self._counts / self._num_rows
        is_constant = self._limits[0] == -self._limits[1]
        is_binary = np.isclose(shares.sum(axis=0), 1) | is_constant
        is_stuck = ((shares >= BOUND_SHARE) & (self._limits != 0)).any(axis=0) & ~is_binary
        # Saturated actions are at one of two symmetric bounds. A single such element may be a gripper or a switch.
        is_saturated = (self._limits[0] == self._limits[1]) & (shares.sum(axis=0) >= BOUND_SHARE) & ~is_constant
        if len(is_stuck) == 1:
            is_saturated &= ~is_binary
        if 2 * is_saturated.sum() >= len(is_stuck):
            is_stuck |= is_saturated
        if is_stuck.any():
            highest = shares.sum(axis=0)[is_stuck].max()
            self._tally.count = int(self._counts.sum(axis=0)[is_stuck].max())
            message = (
                f"up to {highest:.0%} of the actions at a bound; {list_elements(np.flatnonzero(is_stuck).tolist())}"
            )
            yield from self._tally.report("actions-at-bounds", name, message)
