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
import tree

from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import leaves

from ..source import Source
from .findings import Finding, Tally
from .transition_blocks import Block

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
        """True if the changes are larger than by chance."""
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


def has_final_observation(episode: Episode) -> bool:
    """Returns whether the last observation of an episode is known to be that after its last transition."""
    if episode.dropped_last_transition or episode.unknown_final_observation or not episode.num_transitions:
        return False
    columns = tree.flatten(episode.steps[fields.OBSERVATION])
    # Zeros stand for an unknown final observation of a terminal episode, but can be a discrete state.
    is_discrete = all(column.ndim == 1 and column.dtype.kind in "iu" for column in columns)
    return not episode.is_terminal or is_discrete or any(np.any(column[-1] != _blank(column)) for column in columns)


def _blank(column: np.ndarray) -> Any:
    return b"" if column.dtype == object else 0


def begins_at_end(after: Episode, before: Episode) -> bool:
    """Returns whether an episode begins with the last observation of the other."""
    pairs = zip(*(tree.flatten(episode.steps[fields.OBSERVATION]) for episode in (before, after)), strict=True)
    return all(np.array_equal(last[-1], first[0]) for last, first in pairs)


class Autoresets:
    """Episodes that begin with the reset of the one before, or end in the first observation of the next one.

    Both follow from an episode's first observation, which equals the final one of the episode before. A jump of the
    observations, right after it or right before it, tells the modes apart, and both from a continuing task. Final
    observations that are not stored leave the reward 0 of the first step, where it is rare, and the jump. Discrete
    states have no jumps; there, a terminal state that an episode passes without ending tells that it is a reset.
    """

    def __init__(self, source: Source):
        self._before: Episode | None = None
        self._begins, self._ends, self._unknown = _Jumps(), _Jumps(), _Jumps()
        self._num_unknown = self._num_zeros = self._num_others = self._num_zero_begins = 0
        #: Number of pairs of episodes of which the first has a known end, and of terminal states that were passed.
        self._num_known = self._num_passed = 0
        self._log_chance = 0.0

    def add(self, block: Block) -> None:
        """Adds a block."""
        has_rewards = block.has_scalar_rewards
        if has_rewards:
            (rewards,) = (field.rows[~field.is_first] for field in block.select(fields.REWARD))
            self._num_zeros += int((rewards == 0).sum())
            self._num_others += len(rewards)
        for episode in filter(lambda episode: episode.num_steps, block.batch.episodes):
            before, self._before = self._before, episode
            has_zero = has_rewards and not episode.steps[fields.REWARD][0]
            if before is not None and _is_ended(before):
                self._add_pair(before, episode, has_zero)

    def _add_pair(self, before: Episode, after: Episode, has_zero: bool) -> None:
        """Adds an episode that has ended, and the one after it."""
        if not has_final_observation(before):
            self._num_unknown += 1
            if has_zero:
                self._unknown.compare(after, 0)
            return
        self._num_known += 1
        if begins_at_end(after, before):
            self._begins.compare(after, 0)
            self._ends.compare(before, -1)
            self._num_zero_begins += has_zero
            share, is_passed = _find_passes(before)
            self._num_passed += is_passed
            self._log_chance += math.log(share)

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        name, num = fields.OBSERVATION, self._begins.count
        has_rare_zeros = self._num_zeros < _MAX_RARE * self._num_others
        by_chance = ((self._num_zeros + 1) / (self._num_others + 1)) ** num
        all_zero = has_rare_zeros and num == self._num_zero_begins and by_chance <= _MAX_BY_CHANCE
        is_passed = num == self._num_known and self._num_passed and self._log_chance <= math.log(_MAX_BY_CHANCE)
        message = "an episode begins with the reset after the one before, {}"
        if self._begins.log_shares <= self._ends.log_shares and (self._begins.are_likely or all_zero):
            yield from self._begins.report(NEXT_STEP_CHECK, name, message.format("from its final state"))
        elif self._ends.are_likely or is_passed:
            last, jump = self._before, _Jumps()
            if last is not None and _is_ended(last) and has_final_observation(last):
                jump.compare(last, -1)
                if jump.log_shares <= math.log(_MAX_MEAN_SHARE):
                    self._ends.compare(last, -1)
            sentence = "an episode ends in the first observation of the next one"
            yield from self._ends.report(SAME_STEP_CHECK, name, sentence)
        if has_rare_zeros and self._unknown.are_likely and self._unknown.count >= max(2, self._num_unknown / 2):
            yield from self._unknown.report(NEXT_STEP_CHECK, name, message.format("with a jump and the reward 0"))


def _is_ended(episode: Episode) -> bool:
    return not episode.unterminated and episode.num_transitions + episode.dropped_last_transition > 0


def _find_passes(episode: Episode) -> tuple[float, bool]:
    """Returns the share of steps with the last observation, and whether one inside has it although it is terminal."""
    columns = [column.reshape(len(column), -1) for column in tree.flatten(episode.steps[fields.OBSERVATION])]
    is_same = np.all([(column == column[-1]).all(axis=1) for column in columns], axis=0)
    return float(is_same.mean()), episode.is_terminal and bool(is_same[1:-1].any())
