"""Checks of the numbers of observations and actions: outliers, constants, repetitions and bounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds2reverb import fields
from rlds2reverb.specs import leaves

from ..source import Source
from .blocks import Block, Field
from .findings import Finding, Tally
from .outliers import LargestValues

_FINITE_FIELDS = (fields.OBSERVATION, fields.ACTION, fields.REWARD)
#: Values beyond this are huge, if at most this share of the steps has them.
MAX_VALUE, _MAX_SHARE = 1e6, 0.05
#: Minimum number of transitions and episodes to call something constant.
_MIN_ROWS, _MIN_EPISODES = 20, 2
#: Parts of names of fields that may be the same throughout a dataset.
_CONTEXT = ("language", "instruction", "embedding", "goal", "task")
#: Minimum ratio of a jump to the next smaller change of its element. Among the clean samples, the largest ratio inside
#: of episodes is 3.5 (contacts of robots). Elements that rarely change, such as objects at rest, need a larger ratio,
#: and switches, which change by the same amount each time, have none.
JUMP_RATIO, _RARE_JUMP_RATIO = 4.0, 16.0
_MIN_CHANGING_SHARE, _MAX_JUMP_SHARE, _MAX_FEW_JUMPS = 0.5, 0.05, 16
#: Minimum ratio of an action to the next smaller one, if no bound is known.
_ACTION_RATIO = 3.0
#: Jumps before this step of an episode are infos: D4RL's antmaze begins episodes with a row of the one before.
_NUM_FIRST_STEPS = 2
_TURNS = (2 * np.pi, 360.0)
#: Minimum ratio of an element's range in an episode to that in others: degrees have 57 times the range of radians, and
#: episodes of the clean samples reach 5.6 times, apart from rare contacts.
SCALE_RATIO, _MIN_SCALED_EPISODES, _NUM_FOR_MEDIAN = 16.0, 3, 64
#: Minimum share of an element's actions at their extreme value; the clean samples reach 0.77.
BOUND_SHARE = 0.9
#: Minimum ratio of the actions slightly within a common bound to those beyond it, to take it for the bound.
_MIN_INSIDE_RATIO = 20
_COMMON_BOUNDS = (1.0, 2.0, 3.0)
#: Minimum number of repetitions of an action of several numbers, and of the values of a constant field.
_MIN_REPETITIONS, _MIN_CONSTANT = 10, 5
#: Places in the dataset are numbered by episode, with this many numbers for the steps of each.
_STEPS = 1 << 32


def _number_places(block: Block) -> np.ndarray:
    indices = np.array([episode.index for episode in block.batch.episodes], np.int64)
    return indices[block.positions] * _STEPS + block.steps_of


def _tally_places(parts: list[np.ndarray]) -> Tally:
    places = np.unique(np.concatenate(parts))
    episodes = np.unique(places // _STEPS)
    episode, step = divmod(int(places.min()), _STEPS)
    return Tally(len(places), len(episodes), episode, step)


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
            self._tallies["zero-observations", fields.OBSERVATION].add(block, is_zero)

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
        self._fields: dict[Any, Field] = {}
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
            self._first_episode = block.index_of(block.positions[0])
        self._num_rows += len(block.positions)
        self._num_episodes += len(block.starts)
        for field in block.select(fields.OBSERVATION, fields.ACTION):
            if not field.is_text and field.flat.shape[1]:
                self._add_field(block, field)

    def _add_field(self, block: Block, field: Field) -> None:
        path = field.path
        if path not in self._first:
            self._first[path], self._fields[path] = field.flat[0].copy(), field
            self._is_constant[path] = np.ones(field.flat.shape[1], bool)
        constant = self._is_constant[path]
        if constant.any():
            # Most elements already change in the first rows.
            constant &= (field.flat[:64] == self._first[path]).all(axis=0)
            constant[constant] = (field.flat[:, constant] == self._first[path][constant]).all(axis=0)
        if field.is_float and field.group == fields.ACTION:
            for number, column in enumerate(field.flat.T):
                values = self._values[path, number]
                if len(values) < 3:
                    values.update(np.unique(column)[:3].tolist())
                # A motion that is not used in an episode is 0 throughout.
                is_used = column[block.starts] != 0
                is_repeated = np.append(False, column[1:] == column[:-1]) & ~block.is_first
                self._add_frozen(block, (path, number), is_repeated, is_used)
        elif field.is_float and field.flat.shape[1] > 1:
            self._add_frozen(block, (path, None), block.repeats(field))

    def _add_frozen(
        self, block: Block, key: tuple[Any, int | None], is_repeated: np.ndarray, is_used: np.ndarray | bool = True
    ) -> None:
        num_repeated = np.add.reduceat(is_repeated, block.starts)
        is_frozen = (num_repeated >= _MIN_CONSTANT) & (num_repeated == block.lengths[block.has_transitions] - 1)
        self._frozen[key].add_episodes(block, block.spread(is_frozen & is_used))
        self._num_varying[key] += int((~is_frozen).sum())

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        if self._num_rows < _MIN_ROWS:
            return
        severity = None if self._num_episodes >= _MIN_EPISODES else "info"
        for path, constant in self._is_constant.items():
            field = self._fields[path]
            tally = Tally(self._num_rows, self._num_episodes, self._first_episode, 0)
            if constant.all():
                if not any(word in field.name.lower() for word in _CONTEXT):
                    message = "the same value in all steps"
                    yield from tally.report("constant-field", field.name, message, severity)
            elif constant.any() and not field.is_image:
                tally.count = int(constant.sum())
                listed = ", ".join(map(str, np.flatnonzero(constant)[:8]))
                message = f"elements that never change, of {constant.size:,}: {listed}"
                yield from tally.report("zero-variance-dimension", field.name, message, severity)
        for (path, number), tally in self._frozen.items():
            num_varying = self._num_varying[path, number]
            # Grippers, which have two values, may stay open or closed.
            is_gripper = number is not None and len(self._values[path, number]) < 3
            if tally.count <= num_varying / (1 if number is None else 2) and not is_gripper:
                what = "constant" if number is None else f"element {number} is constant"
                message = f"{what} in these episodes, but not in {num_varying:,} others"
                yield from tally.report("frozen-field", self._fields[path].name, message)


class Jumps:
    """Changes of observations, and actions, that are far above all others, and episodes in other units."""

    def __init__(self, source: Source):
        self._has_bounds = source.action_space is not None
        self._names: dict[Any, str] = {}
        self._changes: dict[Any, LargestValues] = {}
        self._num_changing: dict[Any, Any] = defaultdict(int)
        self._ranges: dict[Any, LargestValues] = {}
        self._medians: dict[Any, dict[int, np.ndarray]] = defaultdict(dict)
        self._num_rows = self._num_episodes = 0

    def add(self, block: Block) -> None:
        """Adds a block."""
        if not len(block.positions):
            return
        places = _number_places(block)
        is_next = ~block.is_first[1:]
        self._num_rows += int(is_next.sum())
        self._num_episodes += len(block.starts)
        for field in block.select(fields.OBSERVATION, fields.ACTION):
            if field.is_float:
                rows = field.flat
                if field.group == fields.OBSERVATION:
                    self._add_changes(field, np.abs(np.diff(rows, axis=0))[is_next], places[1:][is_next])
                elif not self._has_bounds:
                    self._add_changes(field, np.abs(rows), places)
                self._add_ranges(field, block, np.maximum.reduceat(np.abs(rows), block.starts), places[block.starts])

    def _add_changes(self, field: Field, changes: np.ndarray, places: np.ndarray) -> None:
        path = field.path
        self._names[path] = field.name
        self._changes.setdefault(path, LargestValues(changes.shape[1])).add(np.nan_to_num(changes), places)
        self._num_changing[path] = self._num_changing[path] + (changes > 0).sum(axis=0)

    def _add_ranges(self, field: Field, block: Block, ranges: np.ndarray, places: np.ndarray) -> None:
        self._names[field.path] = field.name
        largest = self._ranges.setdefault(field.path, LargestValues(ranges.shape[1]))
        largest.add(np.nan_to_num(ranges), places)
        kept = set(largest.places.ravel().tolist())
        medians = {place: values for place, values in self._medians[field.path].items() if place in kept}
        for number in np.flatnonzero(np.isin(places, largest.places)).tolist():
            stop = block.starts[number + 1] if number + 1 < len(places) else len(field.flat)
            stride = 1 + (stop - block.starts[number]) // _NUM_FOR_MEDIAN
            medians[int(places[number])] = np.median(np.abs(field.flat[block.starts[number] : stop : stride]), axis=0)
        self._medians[field.path] = medians

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        for path, name in self._names.items():
            if path in self._changes and self._num_rows >= _MIN_ROWS:
                yield from self._find_jumps(path, name)
            if self._num_episodes >= _MIN_SCALED_EPISODES:
                yield from self._find_scales(path, name)

    def _find_jumps(self, path: Any, name: str) -> Iterator[Finding]:
        largest, is_action = self._changes[path], path[0] == fields.ACTION
        ratio = _ACTION_RATIO if is_action else JUMP_RATIO
        places: list[np.ndarray] = []
        dimensions = []
        max_count = min(max(_MAX_FEW_JUMPS, _MAX_JUMP_SHARE * self._num_rows), self._num_rows / 4)
        for dimension, found, changes in largest.find_outliers(ratio, max_count):
            next_change = largest.values[len(found), dimension]
            is_rare = self._num_changing[path][dimension] < _MIN_CHANGING_SHARE * self._num_rows
            is_turn = any(((changes > 0.9 * turn) & (changes < 1.01 * turn)).all() for turn in _TURNS)
            # More than two large changes in a row are a fast motion, such as that of a pressed button.
            is_close = np.diff(np.sort(found)) <= _NUM_FIRST_STEPS
            is_motion = not is_action and (is_close[1:] & is_close[:-1]).any()
            is_far = 0 < next_change <= changes[-1] / (_RARE_JUMP_RATIO if is_rare else ratio)
            if is_far and not is_turn and not is_motion:
                places.append(found)
                dimensions.append(dimension)
        if places and is_action:
            message = f"at least {ratio:g} times as large as all others; elements {_list(dimensions)}"
            yield from _tally_places(places).report("actions-out-of-bounds", name, message)
        elif places:
            is_late = (np.concatenate(places) % _STEPS > _NUM_FIRST_STEPS).any()
            message = f"changes at least {ratio:g} times as large as all others; elements {_list(dimensions)}"
            yield from _tally_places(places).report("observation-jump", name, message, None if is_late else "info")

    def _find_scales(self, path: Any, name: str) -> Iterator[Finding]:
        places: list[np.ndarray] = []
        dimensions = []
        largest = self._ranges[path]
        for dimension, found, _ in largest.find_outliers(SCALE_RATIO, self._num_episodes / 2):
            next_range = largest.values[len(found), dimension]
            # Single outliers, such as the contacts of a robot, have a larger range, but the same median.
            medians = np.array([self._medians[path][int(place)][dimension] for place in found])
            if next_range > 0 and (medians > 2 * next_range).all():
                places.append(found)
                dimensions.append(dimension)
        if places:
            tally = _tally_places(places)
            message = f"at least {SCALE_RATIO:g} times the range of all other episodes; elements {_list(dimensions)}"
            yield from tally.report("mixed-scales", name, message)


def _list(dimensions: list[int]) -> str:
    more = f" and {len(dimensions) - 8} more" if len(dimensions) > 8 else ""
    return ", ".join(map(str, dimensions[:8])) + more


class Repetitions:
    """Steps that repeat the observation before them, and actions that are repeated many times."""

    def __init__(self, source: Source):
        self._frames, self._actions = Tally(), Tally()

    def add(self, block: Block) -> None:
        """Adds a block."""
        observations = [field for field in block.select(fields.OBSERVATION) if not field.is_text]
        actions = [field for field in block.select(fields.ACTION) if not field.is_text]
        if not observations or not actions or not len(block.positions):
            return
        repeats_action = np.all([block.repeats(field) for field in actions], axis=0)
        is_float = any(field.is_float for field in actions)
        if is_float and sum(field.flat.shape[1] for field in actions) > 1:
            self._actions.add(block, find_runs(repeats_action, _MIN_REPETITIONS))
        has_vector = any(field.is_float for field in observations)
        # Images, and states of games, can stand still; only their repetition with the same real action is suspicious.
        is_repeated = np.ones(len(block.positions), bool) if has_vector else repeats_action & is_float
        for field in sorted(observations, key=lambda field: field.flat.shape[1]):
            if is_repeated.any():
                is_repeated &= block.repeats(field)
        self._frames.add(block, is_repeated)

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        message = "the same observation as in the step before"
        yield from self._frames.report("duplicate-frames", fields.OBSERVATION, message)
        message = f"the same action as in the step before, {_MIN_REPETITIONS} times or more in a row"
        yield from self._actions.report("repeated-actions", fields.ACTION, message)


def find_runs(flags: np.ndarray, min_length: int) -> np.ndarray:
    """Returns the flags `[M]` that are in runs of at least this length."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    starts, stops = edges[::2], edges[1::2]
    is_long = stops - starts >= min_length
    marks = np.zeros(len(flags) + 1, np.int64)
    np.add.at(marks, starts[is_long], 1)
    np.add.at(marks, stops[is_long], -1)
    return np.cumsum(marks)[:-1] > 0


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
        for number, bound in enumerate(_COMMON_BOUNDS):
            is_outside = sizes > bound
            is_close = is_outside & (sizes <= 1.1 * bound)
            is_inside = (sizes > 0.9 * bound) & ~is_outside
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
        if self._num_rows < _MIN_ROWS:
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
            message = f"up to {highest:.0%} of the actions at a bound; elements {_list(np.flatnonzero(is_stuck))}"
            yield from self._tally.report("actions-at-bounds", name, message)
