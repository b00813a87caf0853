"""Checks of rewards, ends and lengths of episodes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from rlds2reverb.types import fields

from ..readers.json_files import parse_object
from ..source import Source
from .findings import Finding, Tallies, Tally
from .transition_blocks import Block

#: Maximum share of the episodes that can be exceptions from what the others do.
_MAX_EXCEPTIONS = 1 / 4
#: Minimum number of episodes of the same length to take it for a time limit, their share, and the minimum length.
_MIN_AT_LIMIT, _MIN_SHARE_AT_LIMIT, _MIN_LIMIT = 3, 0.2, 5
#: Minimum number and share of terminal episodes that end at the limit, if others end before it: a few do so by chance.
_MIN_TERMINAL_BY_CHANCE, _MIN_SHARE_BY_CHANCE = 2, 0.05
_TERMINAL, _TRUNCATED, _OPEN = "terminal", "truncated", "open"


class Rewards:
    """Rewards that are constant or sparse, in steps without a transition, or that disagree with the ends."""

    def __init__(self, source: Source):
        self._is_assumed = fields.REWARD in source.assumed_fields
        self._values: set[float] = set()
        self._all, self._last, self._lost = Tally(), Tally(), Tally()
        self._num_inner = self._num_inner_rewards = 0
        #: Episodes by the reward of their last transition and by whether they are terminal.
        self._ends: dict[tuple[float, bool], Tally] = defaultdict(Tally)

    def add(self, block: Block) -> None:
        """Adds a block."""
        if self._is_assumed or not block.has_scalar_rewards:
            return
        column = np.asarray(block.batch.steps[fields.REWARD], np.float64)
        (rewards,) = (field.rows for field in block.select(fields.REWARD))
        if len(self._values) < 3:
            self._values.update(np.unique(rewards)[:3].tolist())
        has_reward = rewards != 0
        is_last = np.append(block.is_first[1:], True)[: len(rewards)]
        self._all.add(block, np.ones(len(rewards), bool))
        self._last.add(block, has_reward & is_last)
        self._num_inner += int((~is_last).sum())
        self._num_inner_rewards += int((has_reward & ~is_last).sum())
        num_rewarded = np.add.reduceat(has_reward, block.starts) if len(rewards) else np.zeros(0)
        is_lost = (column[block.last_steps] != 0) & (block.spread(num_rewarded) == 0)
        self._lost.add_episodes(block, is_lost, block.batch.num_steps - 1)
        if len(self._values) < 3:
            last_rewards = block.spread(rewards[is_last].astype(np.float64), np.nan)
            for value in self._values:
                for is_terminal in (False, True):
                    chosen = (last_rewards == value) & (block.is_terminal == is_terminal)
                    self._ends[value, is_terminal].add_episodes(block, chosen, block.lengths - 1)

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        name = fields.REWARD
        if len(self._values) == 1:
            (value,) = self._values
            yield from self._all.report("constant-reward", name, f"all rewards are {value:g}")
        elif self._num_inner and not self._num_inner_rewards:
            message = "all rewards apart from those of last transitions are 0"
            yield from self._last.report("sparse-final-reward", name, message)
        message = "the only reward of an episode is in its last step, to which no transition belongs"
        yield from self._lost.report("reward-in-last-step", name, message)
        if len(self._values) == 2:
            yield from self._find_disagreements(*sorted(self._values))

    def _find_disagreements(self, low: float, high: float) -> Iterator[Finding]:
        """Yields the kinds of ends that contradict the others: rewards either imply terminal ends, or exclude them."""
        expected = [self._ends[high, True], self._ends[low, False]]
        others = [self._ends[high, False], self._ends[low, True]]
        num_exceptions, num_expected = (sum(tally.count for tally in tallies) for tallies in (others, expected))
        if num_exceptions > num_expected:
            others, num_exceptions, num_expected = expected, num_expected, num_exceptions
        if num_exceptions > _MAX_EXCEPTIONS * (num_exceptions + num_expected):
            return
        for (value, is_terminal), tally in self._ends.items():
            if any(tally is other for other in others):
                kind = "terminal" if is_terminal else "not terminal"
                message = f"{kind} with the last reward {value:g}, unlike most others"
                yield from tally.report("end-disagrees-with-reward", fields.IS_TERMINAL, message)


def find_odd_ends(block: Block, tallies: Tallies) -> None:
    """Finds discounts that disagree with the ends, and episodes without transitions."""
    message = "episodes with a single step, which have no transition"
    tallies["single-step-episodes", fields.STEPS, message].add_episodes(block, block.num_stored == 0)
    discount = np.asarray(block.batch.steps[fields.DISCOUNT])
    if discount.ndim != 1:
        return
    last = block.last_steps
    before = np.where(block.has_transitions, last - 1, last)
    is_known = ~block.get_flags("unknown_final_observation") | block.is_terminal
    is_zero = discount == 0
    is_open = block.is_terminal & (discount[last] == 1) & (discount[before] == 1)
    starts = last - block.batch.num_steps + 1
    num_zeros = np.add.reduceat(is_zero, starts)
    num_last = is_zero[last].astype(int) + (is_zero[before] & block.has_transitions & block.is_terminal)
    is_closed = num_zeros > num_last
    zeros = np.append(np.flatnonzero(is_zero), len(discount))
    first_zeros = zeros[np.searchsorted(zeros, starts)] - starts
    steps = np.where(is_closed, first_zeros, block.lengths)
    message = "0 without a terminal end, or 1 at a terminal end"
    tally = tallies["discount-disagrees-with-end", fields.DISCOUNT, message]
    tally.add_episodes(block, (is_open | is_closed) & is_known, steps)


class Lengths:
    """Episodes that are longer than the time limit, or terminal at it.

    The limit is that of the dataset's environment, or else the length of most truncated episodes.
    """

    def __init__(self, source: Source):
        limit = parse_object(source.env_spec).get("max_episode_steps")
        self._limit = limit if isinstance(limit, int) and limit > 0 else None
        self._ends: dict[tuple[int, str], Tally] = defaultdict(Tally)

    def add(self, block: Block) -> None:
        """Adds a block."""
        kinds = np.where(block.is_terminal, _TERMINAL, np.where(block.get_flags("unterminated"), _OPEN, _TRUNCATED))
        keys = list(zip(block.num_stored.tolist(), kinds.tolist(), strict=True))
        for length, kind in set(keys):
            if length:
                is_chosen = (block.num_stored == length) & (kinds == kind)
                self._ends[length, kind].add_episodes(block, is_chosen, block.lengths - 1)

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        limit, min_terminal = (self._limit, 1) if self._limit else self._guess_limit()
        if limit is None:
            return
        longer = [tally for (length, _), tally in self._ends.items() if length > limit]
        if longer:
            count = sum(tally.count for tally in longer)
            first = Tally(count, count, min(tally.episode for tally in longer), limit)
            message = f"longer than the time limit of {limit:,} steps"
            yield from first.report("episode-longer-than-limit", fields.IS_LAST, message)
        terminal = self._ends[limit, _TERMINAL]
        if terminal.count >= min_terminal:
            message = f"terminal after {limit:,} steps, the time limit"
            yield from terminal.report("time-limit-marked-terminal", fields.IS_TERMINAL, message)

    def _guess_limit(self) -> tuple[int | None, int]:
        """Returns the probable limit, or None, and the minimum number of terminal episodes of that length."""
        truncated = Counter({length: tally.count for (length, kind), tally in self._ends.items() if kind == _TRUNCATED})
        limit, min_terminal = None, 1
        if truncated:
            length, count = truncated.most_common(1)[0]
            limit = length if count >= _MIN_AT_LIMIT and 2 * count >= truncated.total() else None
            if any(kind == _TERMINAL and length != limit for length, kind in self._ends):
                min_terminal = max(_MIN_TERMINAL_BY_CHANCE, math.ceil(_MIN_SHARE_BY_CHANCE * count))
        elif self._ends:
            limit = max(length for length, _ in self._ends)
            total = sum(tally.count for tally in self._ends.values())
            min_terminal = max(_MIN_AT_LIMIT, math.ceil(_MIN_SHARE_AT_LIMIT * total))
        return limit if limit is not None and limit >= _MIN_LIMIT else None, min_terminal
