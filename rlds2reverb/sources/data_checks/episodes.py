"""Checks of whole episodes: rewards, ends, lengths, times, texts, copies and conventions."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from rlds2reverb import fields

from ..source import Source
from ..summary import episode_digests
from .blocks import Block
from .findings import CHECKS, Finding, Tally

#: Maximum share of the episodes that can be exceptions from what the others do.
_MAX_EXCEPTIONS = 1 / 4
#: Minimum number of episodes of the same length to take it for a time limit, their share, and the minimum length.
_MIN_AT_LIMIT, _MIN_SHARE_AT_LIMIT, _MIN_LIMIT = 3, 0.2, 5
#: Last parts of the names of fields with times or numbers of frames.
_TIME_NAMES = ("timestamp", "timestamps", "time_stamp", "sim_time", "time", "frame_index")
#: Deviations of times, in intervals: a single interval, the sum up to a step, and a gap.
_MAX_JITTER, _MAX_DRIFT, _MIN_GAP = 0.2, 0.5, 1.5


def _is_scalar(block: Block) -> bool:
    reward = block.batch.steps[fields.REWARD]
    return isinstance(reward, np.ndarray) and reward.ndim == 1 and reward.dtype.kind in "fiub"


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
        if self._is_assumed or not _is_scalar(block):
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
        if len(self._values) == 2:
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
        if sum(tally.count for tally in others) > sum(tally.count for tally in expected):
            expected, others = others, expected
        num_exceptions = sum(tally.count for tally in others)
        if num_exceptions > _MAX_EXCEPTIONS * (num_exceptions + sum(tally.count for tally in expected)):
            return
        for (value, is_terminal), tally in self._ends.items():
            if any(tally is other for other in others):
                kind = "terminal" if is_terminal else "not terminal"
                message = f"{kind} with the last reward {value:g}, unlike most others"
                yield from tally.report("end-disagrees-with-reward", fields.IS_TERMINAL, message)


class Ends:
    """Discounts that disagree with the ends, and episodes without transitions."""

    def __init__(self, source: Source):
        self._discounts, self._single = Tally(), Tally()

    def add(self, block: Block) -> None:
        """Adds a block."""
        self._single.add_episodes(block, block.lengths == 0)
        discount = np.asarray(block.batch.steps[fields.DISCOUNT])
        if discount.ndim != 1:
            return
        last = block.last_steps
        before = np.where(block.has_transitions, last - 1, last)
        is_known = ~np.array([episode.unknown_final_observation for episode in block.batch.episodes])
        is_zero = discount == 0
        is_open = block.is_terminal & (discount[last] == 1) & (discount[before] == 1)
        starts = last - block.batch.num_steps + 1
        num_zeros = np.add.reduceat(is_zero, starts)
        num_last = is_zero[last].astype(int) + (is_zero[before] & block.has_transitions & block.is_terminal)
        is_closed = num_zeros > num_last
        zeros = np.append(np.flatnonzero(is_zero), len(discount))
        first_zeros = zeros[np.searchsorted(zeros, starts)] - starts
        steps = np.where(is_closed, first_zeros, block.lengths)
        self._discounts.add_episodes(block, (is_open | is_closed) & is_known, steps)

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        message = "0 without a terminal end, or 1 at a terminal end"
        yield from self._discounts.report("discount-disagrees-with-end", fields.DISCOUNT, message)
        message = "episodes with a single step, which have no transition"
        yield from self._single.report("single-step-episodes", fields.STEPS, message)


def _find_limit(env_spec: str | None) -> int | None:
    try:
        limit = json.loads(env_spec or "{}").get("max_episode_steps")
    except (AttributeError, ValueError):
        return None
    return limit if isinstance(limit, int) and limit > 0 else None


class Lengths:
    """Episodes that are longer than the time limit, or terminal at it.

    The limit is that of the dataset's environment, or else the length of most truncated episodes.
    """

    def __init__(self, source: Source):
        self._limit = _find_limit(source.env_spec)
        self._ends: dict[tuple[int, str], Tally] = defaultdict(Tally)

    def add(self, block: Block) -> None:
        """Adds a block."""
        for position, episode in enumerate(block.batch.episodes):
            if episode.num_transitions:
                length = episode.num_transitions + episode.dropped_last_transition
                is_chosen = np.arange(len(block.lengths)) == position
                kind = _OPEN if episode.unterminated else _TERMINAL if episode.is_terminal else _TRUNCATED
                self._ends[length, kind].add_episodes(block, is_chosen, block.lengths - 1)

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        counts = Counter({key: tally.count for key, tally in self._ends.items()})
        truncated = Counter({length: count for (length, kind), count in counts.items() if kind == _TRUNCATED})
        limit, min_terminal = self._limit, 1
        if limit is None and truncated:
            length, count = truncated.most_common(1)[0]
            limit = length if count >= _MIN_AT_LIMIT and 2 * count >= truncated.total() else None
        if limit is None and counts and not truncated:
            limit = max(length for length, _ in counts)
            min_terminal = max(_MIN_AT_LIMIT, int(np.ceil(_MIN_SHARE_AT_LIMIT * counts.total())))
        if limit is None or (self._limit is None and limit < _MIN_LIMIT):
            return
        longer = Tally()
        for (length, _), tally in self._ends.items():
            if length > limit:
                first = min((longer, tally), key=lambda part: part.episode if part.count else np.inf)
                longer = Tally(longer.count + tally.count, longer.count + tally.count, first.episode, limit)
        message = f"longer than the time limit of {limit:,} steps"
        yield from longer.report("episode-longer-than-limit", fields.IS_LAST, message)
        terminal = self._ends[limit, _TERMINAL]
        if terminal.count >= min_terminal:
            message = f"terminal after {limit:,} steps, the time limit"
            yield from terminal.report("time-limit-marked-terminal", fields.IS_TERMINAL, message)


class Copies:
    """Episodes with the same content as an earlier one."""

    def __init__(self, source: Source):
        self._tally = Tally()
        self._digests: set[int] = set()

    def add(self, block: Block) -> None:
        """Adds a block."""
        digests = [int.from_bytes(digest[:8], "little") for digest in episode_digests(block.batch)]
        is_copy = np.zeros(len(digests), bool)
        for number, digest in enumerate(digests):
            if block.lengths[number] > 1:
                is_copy[number] = digest in self._digests
                self._digests.add(digest)
        self._tally.add_episodes(block, is_copy)

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        message = "all steps equal those of an earlier episode"
        yield from self._tally.report("duplicate-episodes", fields.STEPS, message)


class Times:
    """Times that stand still, leave gaps, or depart from a constant rate.

    The times are those of fields such as 'timestamp', and those that a source has apart from the steps. The rate is
    that of the metadata (`fps`), or else the inverse of the median interval of the first episodes.
    """

    def __init__(self, source: Source):
        fps = source.metadata.get("fps")
        self._interval = 1 / fps if isinstance(fps, (int, float)) and fps > 0 else None
        self._intervals: dict[str, float] = {}
        self._tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)

    def add(self, block: Block) -> None:
        """Adds a block."""
        for field in block.fields:
            if field.path[-1] in _TIME_NAMES and field.flat.shape[1] == 1 and field.rows.dtype.kind in "fiu":
                self._add_times(block, field.name, field.flat[:, 0].astype(np.float64))
        times = [episode.timestamps for episode in block.batch.episodes]
        lengths = block.lengths.tolist()
        if all(part is not None and len(part) >= length for part, length in zip(times, lengths, strict=True)):
            parts = [part[:length] for part, length in zip(times, lengths, strict=True) if part is not None]
            self._add_times(block, _TIME_NAMES[0], np.concatenate(parts).astype(np.float64))

    def _add_times(self, block: Block, name: str, times: np.ndarray) -> None:
        intervals = np.diff(times, prepend=np.nan)
        intervals[block.is_first] = np.nan
        if np.isnan(intervals).all():
            return
        nominal = None if name.endswith("frame_index") else self._interval
        interval = self._intervals.setdefault(name, nominal or float(np.nanmedian(intervals)))
        is_gap = intervals >= _MIN_GAP * interval
        drift = times - times[block.starts][np.cumsum(block.is_first) - 1] - block.steps_of * interval
        # Gaps are reported on their own, and shift all later times.
        drift -= _sum_within_episodes(np.where(is_gap, intervals - interval, 0.0), block)
        is_off = (np.abs(intervals - interval) > _MAX_JITTER * interval) | (np.abs(drift) > _MAX_DRIFT * interval)
        is_reversed = intervals <= 0
        has_reversed = block.spread(np.maximum.reduceat(is_reversed, block.starts))[block.positions]
        self._tallies["timestamps-not-increasing", name].add(block, is_reversed)
        self._tallies["dropped-frames", name].add(block, is_gap & ~has_reversed)
        self._tallies["timestamp-drift", name].add(block, is_off & ~is_gap & ~has_reversed)

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        for (check, name), tally in self._tallies.items():
            interval = f"expected an interval of {self._intervals[name]:.4g}"
            yield from tally.report(check, name, f"{CHECKS[check][1]}; {interval}")


def _sum_within_episodes(values: np.ndarray, block: Block) -> np.ndarray:
    sums = np.cumsum(values)
    before = (sums - values)[block.starts]
    return sums - before[np.cumsum(block.is_first) - 1]


class Texts:
    """Empty strings."""

    def __init__(self, source: Source):
        self._tallies: dict[str, Tally] = defaultdict(Tally)

    def add(self, block: Block) -> None:
        """Adds a block."""
        for field in block.fields:
            if field.is_text and len(field.rows):
                is_empty = [any(not text.strip() for text in row) for row in field.flat.tolist()]
                self._tallies[field.name].add(block, np.array(is_empty, bool))

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        for name, tally in self._tallies.items():
            yield from tally.report("missing-text", name, "empty strings")


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

    def add(self, block: Block) -> None:
        """Adds a block."""
        if not len(block.positions):
            return
        for field in block.fields:
            if field.is_image and field.rows.dtype.kind == "f":
                self._add_values(block, field.name, "values", field.flat.max(axis=1), _describe_images)
            elif field.group == fields.ACTION and field.is_float:
                for number, column in enumerate(field.flat.T):
                    self._add_values(block, field.name, f"element {number}", column, _describe_gripper)
        if _is_scalar(block):
            (reward,) = (field.rows for field in block.select(fields.REWARD))
            self._add_values(block, fields.REWARD, "rewards", reward, _describe_rewards)
        self._add_last_actions(block)

    def _add_values(self, block: Block, name: str, what: str, values: np.ndarray, describe: _Describe) -> None:
        low, high = (part.reduceat(values, block.starts) for part in (np.minimum, np.maximum))
        numbers = np.cumsum(block.is_first) - 1
        is_other = (values != low[numbers]) & (values != high[numbers])
        labels = describe(low, high, ~np.maximum.reduceat(is_other, block.starts))
        self._add_labels(block, (name, what), block.spread(labels, ""))

    def _add_last_actions(self, block: Block) -> None:
        actions = [field for field in block.select(fields.ACTION) if field.is_float]
        is_used = np.array(
            [
                not (episode.dropped_last_transition or episode.unknown_final_observation)
                for episode in block.batch.episodes
            ]
        )
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
                message = f"{what}: {label}, but {usual} in other episodes"
                yield from tally.report("mixed-conventions", name, message)
