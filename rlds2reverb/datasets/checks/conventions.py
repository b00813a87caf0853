"""Check of conventions that differ in a few episodes: of rewards, grippers, images and last steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlds2reverb.types import fields

from ..source import Source
from .findings import Finding, Tally
from .transition_blocks import Block

#: Elements with more values than this among their first steps are no grippers.
_MAX_VALUES, _NUM_COMPARED = 3, 256
#: Returns the convention of each episode with transitions, or '', from its lowest and highest values and whether it has
#: no others: three arrays `[F]`.
_Describe = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def _describe_rewards(low: np.ndarray, high: np.ndarray, is_binary: np.ndarray) -> np.ndarray:
    is_changing = is_binary & (low < high)
    return np.select(
        [is_changing & (low < 0) & (high == 0), is_changing & (low == 0)], ["up to 0", "from 0"], default=""
    )


def _describe_gripper(low: np.ndarray, high: np.ndarray, is_binary: np.ndarray) -> np.ndarray:
    is_unit = is_binary & (high == 1)
    return np.select([is_unit & (low == 0), is_unit & (low == -1)], ["0 or 1", "-1 or 1"], default="")


def _describe_images(low: np.ndarray, high: np.ndarray, is_binary: np.ndarray) -> np.ndarray:
    return np.where(high > 1.5, "up to 255", "up to 1")


class Conventions:
    """Rewards, grippers, images and last steps whose convention differs in a few episodes."""

    def __init__(self, source: Source):
        self._tallies: dict[tuple[str, str], dict[str, Tally]] = defaultdict(lambda: defaultdict(Tally))
        #: Elements of actions that are no grippers.
        self._continuous: set[tuple[Any, int]] = set()

    def add(self, block: Block) -> None:
        """Adds a block."""
        if not len(block.positions):
            return
        for field in block.fields:
            if field.is_image and field.rows.dtype.kind == "f" and not field.is_depth:
                self._add_values(block, field.name, "values", field.flat.max(axis=1), _describe_images)
            elif field.group == fields.ACTION and field.is_float:
                for number, column in enumerate(field.flat.T):
                    if (field.path, number) not in self._continuous:
                        self._add_values(block, field.name, f"element {number}", column, _describe_gripper)
                        if len(np.unique(column[:_NUM_COMPARED])) > _MAX_VALUES:
                            self._continuous.add((field.path, number))
        if block.has_scalar_rewards:
            (reward,) = (field.rows for field in block.select(fields.REWARD))
            self._add_values(block, fields.REWARD, "rewards", reward, _describe_rewards)
        self._add_last_actions(block)

    def _add_values(self, block: Block, name: str, what: str, values: np.ndarray, describe: _Describe) -> None:
        low, high = np.minimum.reduceat(values, block.starts), np.maximum.reduceat(values, block.starts)
        is_other = (values != low[block.numbers]) & (values != high[block.numbers])
        labels = describe(low, high, ~np.maximum.reduceat(is_other, block.starts))
        self._add_labels(block, (name, what), block.spread(labels, ""))

    def _add_last_actions(self, block: Block) -> None:
        actions = [field for field in block.select(fields.ACTION) if field.is_float]
        is_used = ~block.get_flags("dropped_last_transition") & ~block.get_flags("unknown_final_observation")
        if actions:
            last = [field.column[block.last_steps].reshape(len(is_used), -1).any(axis=1) for field in actions]
            labels = np.where(np.any(last, axis=0), "an action", "a zero action")
            for is_terminal, kind in ((True, "terminal"), (False, "truncated")):
                chosen = np.where(is_used & (block.is_terminal == is_terminal) & block.has_transitions, labels, "")
                self._add_labels(block, (fields.ACTION, f"last steps of {kind} episodes"), chosen)

    def _add_labels(self, block: Block, key: tuple[str, str], labels: np.ndarray) -> None:
        for label in set(labels.tolist()) - {""}:
            self._tallies[key][label].add_episodes(block, labels == label)

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        for (name, what), tallies in self._tallies.items():
            if len(tallies) > 1:
                (label, tally), (usual, _) = sorted(tallies.items(), key=lambda pair: pair[1].count)[:2]
                yield from tally.report("mixed-conventions", name, f"{what}: {label}, but {usual} in other episodes")
