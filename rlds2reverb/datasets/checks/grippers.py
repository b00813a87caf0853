"""Check of grippers that are inverted in a few episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds2reverb.types import fields

from ..readers.json_files import parse_object
from ..readers.lerobot_meta import FEATURE_NAMES
from ..source import Source
from .findings import Finding, Tally
from .transition_blocks import Block, Field

#: Elements with more values than this among their first steps are grippers only if they are named so.
_MAX_VALUES, _NUM_COMPARED = 3, 256
#: Number of means by which the course of an episode is compared, and of elements of observations that are compared.
_NUM_MEANS, _MAX_ELEMENTS = 10, 64
#: Minimum similarity of episodes, minimum number of episodes, and maximum share of those that are inverted.
_MIN_SIMILARITY, _MIN_EPISODES, _MAX_SHARE = 0.5, 6, 0.25


class Grippers:
    """Grippers of actions that are inverted in a few episodes.

    In all other episodes, they open and close at about the same time, or go along with an element of the observations,
    such as the width of the gripper; in these episodes, it is the other way round. Episodes in which a gripper does not
    move are not compared.
    """

    def __init__(self, source: Source):
        names = source.metadata.get(FEATURE_NAMES)
        self._names = parse_object(names if isinstance(names, str) else None).get(fields.ACTION)
        self._others: set[tuple[Any, int]] = set()
        #: By element of an action: places of the episodes, and what is compared: the course, and correlations.
        self._courses: dict[tuple[str, int], list[tuple[int, np.ndarray, np.ndarray]]] = defaultdict(list)
        self._limits: dict[tuple[str, int], tuple[float, float]] = {}

    def add(self, block: Block) -> None:
        """Adds a block."""
        if not len(block.positions):
            return
        observed = [field.flat for field in block.select(fields.OBSERVATION) if field.is_float]
        states = np.concatenate([np.zeros((len(block.positions), 0)), *observed], axis=1)[:, :_MAX_ELEMENTS]
        for field in (field for field in block.select(fields.ACTION) if field.is_float):
            for number, column in enumerate(field.flat.T):
                if (field.path, number) not in self._others and self._is_gripper(field, number, column):
                    self._add_element(block, (field.name, number), column.astype(np.float64), states)

    def _is_gripper(self, field: Field, number: int, column: np.ndarray) -> bool:
        is_named = isinstance(self._names, list) and number < len(self._names) and "gripper" in str(self._names[number])
        if not is_named and len(np.unique(column[:_NUM_COMPARED])) > _MAX_VALUES:
            self._others.add((field.path, number))
        return (field.path, number) not in self._others

    def _add_element(self, block: Block, key: tuple[str, int], column: np.ndarray, states: np.ndarray) -> None:
        low, high = self._limits.get(key, (np.inf, -np.inf))
        self._limits[key] = (min(low, column.min()), max(high, column.max()))
        for start, stop in zip(block.starts.tolist(), [*block.starts[1:].tolist(), len(column)], strict=True):
            values, rows = column[start:stop], states[start:stop].astype(np.float64)
            if stop - start < _NUM_MEANS or values.min() == values.max():
                continue
            means = [part.mean() for part in np.array_split(values, _NUM_MEANS)]
            centred, others = values - values.mean(), rows - rows.mean(axis=0)
            norms = np.linalg.norm(centred) * np.linalg.norm(others, axis=0)
            correlations = np.divide(centred @ others, norms, out=np.zeros(len(norms)), where=norms > 0)
            index = block.get_index(block.positions[start])
            self._courses[key].append((index, np.array(means), correlations))

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        for (name, number), episodes in self._courses.items():
            if len(episodes) < _MIN_EPISODES:
                continue
            indices, courses, correlations = (np.array(part) for part in zip(*episodes, strict=True))
            courses = courses - np.mean(self._limits[name, number])
            others = courses.sum(axis=0) - courses
            norms = np.linalg.norm(courses, axis=1) * np.linalg.norm(others, axis=1)
            similarities = np.divide((courses * others).sum(axis=1), norms, out=np.zeros(len(norms)), where=norms > 0)
            for column in (similarities, *correlations.T * np.sign(np.median(correlations, axis=0))[:, None]):
                is_inverted = column <= -_MIN_SIMILARITY
                is_alike = is_inverted | (column >= _MIN_SIMILARITY)
                if is_alike.all() and 0 < is_inverted.sum() <= _MAX_SHARE * len(column):
                    found = indices[is_inverted]
                    message = f"element {number} is inverted, unlike in {len(indices) - len(found):,} other episodes"
                    yield from Tally(len(found), len(found), int(found[0])).report("inverted-gripper", name, message)
                    break
