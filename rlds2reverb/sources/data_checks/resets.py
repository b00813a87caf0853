"""Check for the resets of vector environments among the steps of episodes.

Modes: Gymnasium 1.x, `gymnasium.vector.AutoresetMode`. In NEXT_STEP mode, the default, the step after an end is a
reset: it begins in the final observation, ignores its action, has reward 0 and leads to the first observation of the
next episode. In SAME_STEP mode, `next_observations` at an end is already that first observation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb import fields
from rlds2reverb.episodes import Episode
from rlds2reverb.left_out import find_nonzero_final_rows
from rlds2reverb.specs import leaves

from ..source import Source
from .blocks import Block
from .findings import Finding, Tally

#: Names of the checks of both modes.
NEXT_STEP_CHECK, SAME_STEP_CHECK = "reset-steps", "reset-observations"
#: Minimum number of transitions of an episode whose changes are compared, and maximum number of such episodes.
_MIN_COMPARED, _MAX_COMPARED = 3, 64
#: Maximum share of rewards of 0 that are rare.
_MAX_RARE = 0.05
#: Maximum probability of evidence by chance, and geometric mean of the shares of changes that are as large as a jump.
_MAX_BY_CHANCE, _MAX_MEAN_SHARE = 0.02, 0.2


@dataclass
class _Jumps(Tally):
    """A count of episodes, in each of which one change of the observation is compared with all of them.

    Attributes:
      num_compared: number of episodes with enough changes.
      log_shares: sum of the logarithms of the share of changes that are at least as large. If it is as likely as any
        other to be the largest, the mean is -1.
    """

    num_compared: int = 0
    log_shares: float = 0.0

    def compare(self, episode: Episode, place: int) -> None:
        """Adds an episode, with its first (0) or last (-1) change."""
        self.add_counts(1, 1, episode.index, place % episode.num_transitions if episode.num_transitions else 0)
        if episode.num_transitions >= _MIN_COMPARED and self.num_compared < _MAX_COMPARED:
            changes = _measure_changes(episode)
            self.num_compared += 1
            self.log_shares += math.log(np.mean(changes >= changes[place]))

    @property
    def are_likely(self) -> bool:
        """Whether the changes are larger than by chance."""
        return self.log_shares <= min(math.log(_MAX_BY_CHANCE), self.num_compared * math.log(_MAX_MEAN_SHARE))


def _measure_changes(episode: Episode) -> np.ndarray:
    """Returns the size of the change of the observation in each transition.

    It is the sum of squares over all elements, each relative to its mean change, so that a single element can jump.
    """
    total = np.zeros(episode.num_transitions)
    for _, column in leaves(episode.steps[fields.OBSERVATION]):
        rows = column.reshape(len(column), -1)
        changes = rows[1:] != rows[:-1] if rows.dtype.kind in "Ob" else np.abs(np.diff(rows.astype(np.float64), axis=0))
        means = changes.mean(axis=0)
        total += ((changes / np.where(means > 0, means, 1)) ** 2).sum(axis=1)
    return total


class Autoresets:
    """Episodes that begin with the reset of the one before, or end in the first observation of the next one.

    Both follow from an episode's first observation, which equals the final one of the episode before. A jump of the
    observations, right after it or right before it, tells the modes apart, and both from a continuing task. Final
    observations that are not stored leave the reward 0 of the first step, where it is rare, and the jump.
    """

    def __init__(self, source: Source):
        self._before: Episode | None = None
        #: Whether the final observation of the last episode is known, whether it has ended, and its final rows.
        self._last: list[np.ndarray] = []
        self._begins, self._ends, self._unknown = _Jumps(), _Jumps(), _Jumps()
        self._num_unknown = self._num_zeros = self._num_others = self._num_zero_begins = 0

    def add(self, block: Block) -> None:
        """Adds a block."""
        columns = [column for _, column in leaves(block.batch.steps[fields.OBSERVATION])]
        first = block.last_steps - block.batch.num_steps + 1
        is_known = ~(block.get_flags("dropped_last_transition") | block.get_flags("unknown_final_observation"))
        # Zeros stand for an unknown final observation of a terminal episode.
        is_known &= ~block.is_terminal | np.any([find_nonzero_final_rows(block.batch, column) for column in columns], 0)
        states = [is_known, ~block.get_flags("unterminated"), *(column[block.last_steps] for column in columns)]
        last = self._last or [np.zeros_like(state[:1]) for state in states]
        was_known, had_ended, *finals = (np.append(old, new[:-1], 0) for old, new in zip(last, states, strict=True))
        had_ended &= block.num_stored > 0
        is_same = had_ended & was_known
        for column, final in zip(columns, finals, strict=True):
            is_same &= (column[first] == final).reshape(len(first), -1).all(axis=1)
        has_zero = self._find_zero_rewards(block, first)
        self._num_unknown += int((had_ended & ~was_known).sum())
        self._num_zero_begins += int((is_same & has_zero).sum())
        episodes: list[Any] = [self._before, *block.batch.episodes]
        for number in np.flatnonzero(is_same | (had_ended & ~was_known & has_zero)).tolist():
            before, after = episodes[number : number + 2]
            (self._begins if is_same[number] else self._unknown).compare(after, 0)
            if is_same[number]:
                self._ends.compare(before, -1)
        self._last, self._before = [state[-1:] for state in states], episodes[-1]

    def _find_zero_rewards(self, block: Block, first: np.ndarray) -> np.ndarray:
        """Returns which episodes begin with the reward 0, and counts those of other steps."""
        if not block.has_scalar_rewards:
            return np.zeros(len(first), bool)
        (rewards,) = (field.rows[~field.is_first] for field in block.select(fields.REWARD))
        self._num_zeros += int((rewards == 0).sum())
        self._num_others += len(rewards)
        return np.asarray(block.batch.steps[fields.REWARD][first] == 0)

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        name, num = fields.OBSERVATION, self._begins.count
        has_rare_zeros = self._num_zeros < _MAX_RARE * self._num_others
        by_chance = ((self._num_zeros + 1) / (self._num_others + 1)) ** num
        all_zero = has_rare_zeros and num == self._num_zero_begins and by_chance <= _MAX_BY_CHANCE
        message = "an episode begins with the reset after the one before, {}"
        if self._begins.log_shares <= self._ends.log_shares and (self._begins.are_likely or all_zero):
            yield from self._begins.report(NEXT_STEP_CHECK, name, message.format("from its final state"))
        elif self._ends.are_likely:
            sentence = "an episode ends in the first observation of the next one"
            yield from self._ends.report(SAME_STEP_CHECK, name, sentence)
        if has_rare_zeros and self._unknown.are_likely and self._unknown.count >= max(2, self._num_unknown / 2):
            yield from self._unknown.report(NEXT_STEP_CHECK, name, message.format("with a jump and the reward 0"))
