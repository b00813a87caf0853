"""Checks of times: gaps, drift, and rates that differ from that of the metadata or between episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ..source import Source
from .findings import CHECKS, Finding, Tallies, Tally
from .transition_blocks import Block

#: Last parts of the names of fields with times or numbers of frames.
_TIME_NAMES = ("timestamp", "timestamps", "time_stamp", "sim_time", "time", "frame_index")
#: Deviations of times, in intervals: a single interval, the sum up to a step, and a gap.
_MAX_JITTER, _MAX_DRIFT, _MIN_GAP = 0.2, 0.5, 1.5
#: Maximum deviation of the median interval of an episode, in intervals, up to which its rate is the expected one.
_MAX_RATE_ERROR = 0.05


def round_rate(rate: float) -> float:
    """Returns a rate in Hz as an integer if it is within 1% of one, and otherwise with three decimals."""
    whole = round(rate)
    return whole if whole and abs(rate / whole - 1) <= 0.01 else round(rate, 3)


class Times:
    """Times that stand still, leave gaps, depart from a constant rate, or run at another rate than stated.

    The times are those of fields such as 'timestamp', and those that a source has apart from the steps. The rate of an
    episode is the inverse of its median interval if it is not close to that of the metadata (`fps`), or else to that of
    the first episode.
    """

    def __init__(self, source: Source):
        fps = source.metadata.get("fps")
        self._fps = float(fps) if isinstance(fps, (int, float)) and fps > 0 else None
        self._tallies: Tallies = defaultdict(Tally)
        #: Episodes and rows by name and rate in Hz.
        self._rates: dict[str, dict[float, Tally]] = defaultdict(lambda: defaultdict(Tally))

    def add(self, block: Block) -> None:
        """Adds a block."""
        for field in block.fields:
            if field.path[-1] in _TIME_NAMES and field.flat.shape[1] == 1 and field.rows.dtype.kind in "fiu":
                self._add(block, field.name, field.flat[:, 0].astype(np.float64))
        times = [episode.timestamps for episode in block.batch.episodes]
        lengths = block.lengths.tolist()
        if all(part is not None and len(part) >= length for part, length in zip(times, lengths, strict=True)):
            parts = [part[:length] for part, length in zip(times, lengths, strict=True) if part is not None]
            self._add(block, _TIME_NAMES[0], np.concatenate(parts).astype(np.float64))

    def _add(self, block: Block, name: str, times: np.ndarray) -> None:
        intervals = np.diff(times, prepend=np.nan)
        intervals[block.is_first] = np.nan
        if np.isnan(intervals).all():
            return
        interval = self._find_intervals(block, name, intervals)[block.numbers]
        is_gap = intervals >= _MIN_GAP * interval
        drift = times - times[block.starts][block.numbers] - block.step_numbers * interval
        # Gaps are reported on their own, and shift all later times.
        gaps = np.cumsum(np.where(is_gap, intervals - interval, 0.0))
        drift -= gaps - gaps[block.starts][block.numbers]
        is_off = (np.abs(intervals - interval) > _MAX_JITTER * interval) | (np.abs(drift) > _MAX_DRIFT * interval)
        is_reversed = intervals <= 0
        has_reversed = block.spread(np.maximum.reduceat(is_reversed, block.starts))[block.positions]
        found = {"timestamps-not-increasing": is_reversed, "dropped-frames": is_gap & ~has_reversed}
        found["timestamp-drift"] = is_off & ~is_gap & ~has_reversed
        usual = float(np.median(interval))
        for check, is_found in found.items():
            message = f"{CHECKS[check][1]}; expected an interval of {usual:.4g}"
            self._tallies[check, name, message].add(block, is_found)

    def _find_intervals(self, block: Block, name: str, intervals: np.ndarray) -> np.ndarray:
        """Returns the interval of each episode with transitions, float64 `[F]`, and counts the rates."""
        rates = self._rates[name]
        is_frame = name.endswith("frame_index")
        known = None if is_frame else self._fps
        known = next(iter(rates), None) if known is None and rates else known
        stops = [*block.starts[1:].tolist(), len(intervals)]
        found = np.empty(len(stops))
        for number, (start, stop) in enumerate(zip(block.starts.tolist(), stops, strict=True)):
            # The first interval of an episode is unknown, and one with a single transition has none.
            median = float(np.median(intervals[start + 1 : stop])) if stop > start + 1 else 0.0
            if median > 0 and (known is None or abs(median * known - 1) > _MAX_RATE_ERROR):
                rate = 1 / median
                close = [other for other in rates if abs(other / rate - 1) <= _MAX_RATE_ERROR]
                rate = close[0] if close else rate
                known = rate if known is None else known
            elif known is None:
                found[number] = np.inf
                continue
            else:
                rate = known
            found[number] = 1 / rate
            index = block.get_index(block.positions[start])
            if not (intervals[start + 1 : stop] <= 0).any():  # Otherwise, the order of the times is wrong.
                rates[rate].add_counts(stop - start, 1, index, None)
        return found

    def find_contradicting_rates(self) -> dict[str, float]:
        """Returns the rates in Hz at which all episodes run in contradiction to the metadata, by name of the times."""
        stated = {name: rates for name, rates in self._rates.items() if not name.endswith("frame_index")}
        alike = {name: next(iter(rates)) for name, rates in stated.items() if len(rates) == 1}
        return {name: rate for name, rate in alike.items() if self._fps not in (None, rate)}

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        for key, tally in self._tallies.items():
            yield from tally.report(*key)
        for name, rates in self._rates.items():
            usual = max(rates, key=lambda rate: rates[rate].num_episodes, default=0.0)
            if name in self.find_contradicting_rates():
                message = f"the times run at {usual:.4g} Hz, but fps in the metadata is {self._fps:.4g}"
                yield from rates[usual].report("contradicting-rate", name, message)
            for rate, tally in rates.items():
                if rate != usual:
                    others = f"{rates[usual].num_episodes:,} others at {usual:.4g} Hz"
                    yield from tally.report("mixed-rates", name, f"these episodes run at {rate:.4g} Hz, but {others}")
