"""Checks of outliers: changes and actions that a wide gap separates from all others, and episodes in other units."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds2reverb.types import fields

from ..source import Source
from .findings import Finding, Tally, list_elements
from .transition_blocks import MIN_ROWS, Block, Field

#: Number of values kept per dimension, and of those that can be outliers.
_NUM_KEPT, _MAX_OUTLIERS = 129, 128
#: Minimum ratio of a jump to the next smaller change of its element. Contacts of robots reach a ratio of 3.5 in the
#: clean samples. Elements that rarely change, such as objects at rest, need a larger ratio. Switches have no jumps,
#: because they change by the same amount each time.
JUMP_RATIO, _RARE_JUMP_RATIO = 4.0, 16.0
_MIN_CHANGING_SHARE, _MAX_JUMP_SHARE, _MAX_FEW_JUMPS = 0.5, 0.05, 16
#: Minimum ratio of an action to the next smaller one, if no bound is known.
_ACTION_RATIO = 3.0
#: Jumps before this step of an episode are infos: D4RL's antmaze begins episodes with a row of the one before.
_NUM_FIRST_STEPS = 2
_TURNS = (2 * np.pi, 360.0)
#: Minimum ratio of an element's range in an episode to that in others: degrees have 57 times the range of radians, and
#: episodes of the clean samples reach 5.6 times, apart from rare contacts.
SCALE_RATIO, _MIN_SCALED_EPISODES, _NUM_FOR_MEDIAN = 16.0, 3, 16
#: Places in the dataset are numbered by episode, with this many numbers for the steps of each.
_STEPS = 1 << 32


class LargestValues:
    """The largest values of each dimension of a stream of rows, each with an index of the place it comes from."""

    def __init__(self, num_dimensions: int):
        """Starts without values."""
        self.values = np.zeros((0, num_dimensions))
        self.places = np.zeros((0, num_dimensions), np.int64)

    def add(self, values: np.ndarray, places: np.ndarray) -> None:
        """Adds rows of values of at least 0, float `[M, D]`, with their places, int64 `[M]`."""
        if len(self.values) == _NUM_KEPT:
            is_larger = (values > self.values[-1]).any(axis=1)
            values, places = values[is_larger], places[is_larger]
        if not len(values):
            return
        values = np.concatenate([self.values, values])
        places = np.concatenate([self.places, np.broadcast_to(places[:, None], (len(places), values.shape[1]))])
        order = np.argsort(-values, axis=0, kind="stable")[:_NUM_KEPT]
        self.values = np.take_along_axis(values, order, 0)
        self.places = np.take_along_axis(places, order, 0)

    def find_outliers(self, min_gap: float, max_count: float = _MAX_OUTLIERS) -> list[tuple[int, np.ndarray, Any]]:
        """Returns the dimensions with outliers: the number of the dimension, the places, and the values.

        Outliers are the largest values if the smallest of them is `min_gap` times the next value, and there are at
        most `max_count` of them.
        """
        max_count = min(int(max_count), _MAX_OUTLIERS, len(self.values) - 1)
        found: list[tuple[int, np.ndarray, Any]] = []
        if max_count < 1:
            return found
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps = self.values[:max_count] / self.values[1 : max_count + 1]
        for dimension in np.flatnonzero((gaps >= min_gap).any(axis=0)).tolist():
            count = int(np.flatnonzero(gaps[:, dimension] >= min_gap)[-1]) + 1
            found.append((dimension, self.places[:count, dimension], self.values[:count, dimension]))
        return found


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
                self._names[field.path], rows = field.name, field.flat
                if field.group == fields.OBSERVATION:
                    self._add_changes(field, np.abs(np.diff(rows, axis=0))[is_next], places[1:][is_next])
                elif not self._has_bounds:
                    self._add_changes(field, np.abs(rows), places)
                self._add_ranges(field, block, np.maximum.reduceat(np.abs(rows), block.starts), places[block.starts])

    def _add_changes(self, field: Field, changes: np.ndarray, places: np.ndarray) -> None:
        path = field.path
        self._changes.setdefault(path, LargestValues(changes.shape[1])).add(np.nan_to_num(changes), places)
        self._num_changing[path] = self._num_changing[path] + (changes > 0).sum(axis=0)

    def _add_ranges(self, field: Field, block: Block, ranges: np.ndarray, places: np.ndarray) -> None:
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
            if path in self._changes and self._num_rows >= MIN_ROWS:
                yield from self._find_jumps(path, name)
            if self._num_episodes >= _MIN_SCALED_EPISODES:
                yield from self._find_scales(path, name)

    def _find_jumps(self, path: Any, name: str) -> Iterator[Finding]:
        largest, is_action = self._changes[path], path[0] == fields.ACTION
        ratio = _ACTION_RATIO if is_action else JUMP_RATIO
        places: dict[int, np.ndarray] = {}
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
                places[dimension] = found
        message = f"at least {ratio:g} times as large as all others"
        if is_action:
            yield from _report_places(places, "actions-out-of-bounds", name, message)
        else:
            is_late = any((found % _STEPS > _NUM_FIRST_STEPS).any() for found in places.values())
            yield from _report_places(places, "observation-jump", name, f"changes {message}", is_late=is_late)

    def _find_scales(self, path: Any, name: str) -> Iterator[Finding]:
        places: dict[int, np.ndarray] = {}
        largest = self._ranges[path]
        for dimension, found, _ in largest.find_outliers(SCALE_RATIO, self._num_episodes / 2):
            next_range = largest.values[len(found), dimension]
            # Single outliers, such as the contacts of a robot, have a larger range, but the same median.
            medians = np.array([self._medians[path][int(place)][dimension] for place in found])
            if next_range > 0 and (medians > 2 * next_range).all():
                places[dimension] = found
        message = f"at least {SCALE_RATIO:g} times the range of all other episodes"
        yield from _report_places(places, "mixed-scales", name, message)


def _number_places(block: Block) -> np.ndarray:
    indices = np.array([episode.index for episode in block.batch.episodes], np.int64)
    return indices[block.positions] * _STEPS + block.step_numbers


def _report_places(
    found: dict[int, np.ndarray], check: str, name: str, message: str, *, is_late: bool = True
) -> Iterator[Finding]:
    """Yields a finding about the places that were found in each dimension, an info if none of them is late."""
    if found:
        places = np.unique(np.concatenate(list(found.values())))
        tally = Tally(len(places), len(np.unique(places // _STEPS)), *divmod(int(places[0]), _STEPS))
        severity = None if is_late else "info"
        yield from tally.report(check, name, f"{message}; {list_elements(list(found))}", severity)
