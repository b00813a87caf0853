"""Checks of copies of episodes, times and texts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds2reverb.types import fields
from rlds2reverb.types.fingerprints import episode_digests

from ..source import Source
from .findings import CHECKS, Finding, Tallies, Tally
from .transition_blocks import Block

#: Last parts of the names of fields with times or numbers of frames.
_TIME_NAMES = ("timestamp", "timestamps", "time_stamp", "sim_time", "time", "frame_index")
#: Deviations of times, in intervals: a single interval, the sum up to a step, and a gap.
_MAX_JITTER, _MAX_DRIFT, _MIN_GAP = 0.2, 0.5, 1.5


class Contradictions:
    """Statements about episodes that differ from their rows, which the reader has found."""

    def __init__(self, source: Source):
        self._found: dict[str, tuple[Tally, str]] = {}

    def add(self, block: Block) -> None:
        """Adds a block."""
        for episode in block.batch.episodes:
            for step, field, message in episode.contradictions:
                tally, _ = self._found.setdefault(field, (Tally(), message))
                tally.add_counts(1, 1, episode.index, step)

    def finish(self) -> Iterator[Finding]:
        """Yields what was found, with the values of the first episode."""
        for field, (tally, message) in self._found.items():
            yield from tally.report("contradiction", field, message)


class Copies:
    """Episodes with the same content as an earlier one."""

    def __init__(self) -> None:
        self._digests: set[int] = set()

    def find(self, block: Block, tallies: Tallies) -> None:
        """Finds the copies in a block."""
        digests = [int.from_bytes(digest[:8], "little") for digest in episode_digests(block.batch)]
        is_copy = np.zeros(len(digests), bool)
        for number, digest in enumerate(digests):
            if block.lengths[number] > 1:
                is_copy[number] = digest in self._digests
                self._digests.add(digest)
        message = "all steps equal those of an earlier episode"
        tallies["duplicate-episodes", fields.STEPS, message].add_episodes(block, is_copy)


class Times:
    """Times that stand still, leave gaps, or depart from a constant rate.

    The times are those of fields such as 'timestamp', and those that a source has apart from the steps. The rate is
    that of the metadata (`fps`), or else the inverse of the median interval of the first episodes.
    """

    def __init__(self, source: Source):
        fps = source.metadata.get("fps")
        self._interval = 1 / fps if isinstance(fps, (int, float)) and fps > 0 else None
        self._intervals: dict[str, float] = {}

    def find(self, block: Block, tallies: Tallies) -> None:
        """Finds the odd times of a block."""
        for field in block.fields:
            if field.path[-1] in _TIME_NAMES and field.flat.shape[1] == 1 and field.rows.dtype.kind in "fiu":
                self._find(block, tallies, field.name, field.flat[:, 0].astype(np.float64))
        times = [episode.timestamps for episode in block.batch.episodes]
        lengths = block.lengths.tolist()
        if all(part is not None and len(part) >= length for part, length in zip(times, lengths, strict=True)):
            parts = [part[:length] for part, length in zip(times, lengths, strict=True) if part is not None]
            self._find(block, tallies, _TIME_NAMES[0], np.concatenate(parts).astype(np.float64))

    def _find(self, block: Block, tallies: Tallies, name: str, times: np.ndarray) -> None:
        intervals = np.diff(times, prepend=np.nan)
        intervals[block.is_first] = np.nan
        if np.isnan(intervals).all():
            return
        nominal = None if name.endswith("frame_index") else self._interval
        interval = self._intervals.setdefault(name, nominal or float(np.nanmedian(intervals)))
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
        for check, is_found in found.items():
            message = f"{CHECKS[check][1]}; expected an interval of {interval:.4g}"
            tallies[check, name, message].add(block, is_found)


def find_empty_texts(block: Block, tallies: Tallies) -> None:
    """Finds empty strings."""
    for field in block.fields:
        if field.is_text and len(field.rows):
            is_empty = [any(not text.strip() for text in row) for row in field.flat.tolist()]
            tallies["missing-text", field.name, "empty strings"].add(block, np.array(is_empty, bool))
