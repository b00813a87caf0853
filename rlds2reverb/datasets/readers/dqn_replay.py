"""Atari in the layout of the DQN Replay Dataset: Dopamine's buffer, one gzipped npy file per column and checkpoint.

Format: Agarwal et al. 2020, arXiv:1907.04543, and Dopamine (Castro et al. 2018, arXiv:1812.06110). Row `t` contains the
frame before action `t`, and the reward and terminal flag after it. Three kinds of rows are no transitions:

- padding: 3 rows of zeros before each episode, for stacks of 4 frames;
- stale rows of the ring buffer, after the rows that `add_count` declares valid;
- the last row of all files but the final one, because the logger writes one row early. The missing row is the stale
  last row of the next file.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import concatenate

from ..formats import Format
from ..source import Source, identify_files
from . import npz
from .columns import as_columns, as_flags, make_log_episode

_FILE_NAME = re.compile(r"\$store\$_observation_ckpt\.(\d{1,9})\.gz")
_SMALL = ("action", "reward", "terminal")
#: Size of `invalid_range`, which is the stack size plus the update horizon 1, less the number of rows of padding.
_NOT_PADDING = 2
_DEFAULT_PADDING = 3


def open_dqn_replay(folder: Path, *, frame_stack: int = 1) -> Source:
    """Opens a folder of replay logs.

    An episode ends in a terminal state, after which no frame is stored, so that its final observation is zeros. Rows
    before a gap between the files, or after the last terminal row, form an `unterminated` episode, which loses its last
    transition.

    Args:
      folder: the folder.
      frame_stack: number of frames in an observation, on the last axis, newest last; 1 for single frames without this
        axis. Before the first frame of an episode there are zeros. The observations of `Source.read` are views, which
        share each frame.

    Raises:
      SourceError: If a file is missing or damaged (see `npz`), or the columns of a file differ in length.
    """
    require_count("frame_stack", frame_stack, 1)
    segments, episodes = _survey(folder)
    count, num_rows = len(episodes), sum(stop - first for first, stop, _ in episodes)

    def read(first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        with contextlib.ExitStack() as stack:
            columns = _OpenColumns(folder, stack)
            for index in range(count)[first:stop]:
                begin, end, is_terminal = episodes[index]
                rows = list(_divide(segments, begin, end))
                frames, actions, rewards = (columns.read(name, rows) for name in ("observation", "action", "reward"))
                where = f"{folder.name}: rows from {begin:,} (episode {index})"
                made = make_log_episode(where, index, frames, actions, rewards=rewards, terminated=is_terminal)
                steps = made.steps
                if frame_stack > 1:
                    steps = {**steps, fields.OBSERVATION: _stack_frames(steps[fields.OBSERVATION], frame_stack)}
                yield replace(made, steps=steps, unterminated=not is_terminal)

    source = Source(folder.name, "dqn_replay", read, num_episodes=count, num_rows=num_rows, count=lambda: count)
    return identify_files(source, lambda: folder.glob("*.gz"))


class _Segment(NamedTuple):
    """Consecutive rows of file `number`, from `start` to `stop`."""

    number: int
    start: int
    stop: int


def _survey(folder: Path) -> tuple[list[_Segment], list[tuple[int, int, bool]]]:
    """Returns the rows of all files in the order of time, each once, and the episodes.

    An episode is its first row, counted over all segments, the row after its last one, and whether it ends in a
    terminal state.
    """
    segments: list[_Segment] = []
    gaps: set[int] = set()
    terminals, is_real = [np.zeros(0, bool)], [np.zeros(0, bool)]
    timeline = _Timeline()
    num_padding: int | None = None
    for number in _list_numbers(folder):
        with contextlib.ExitStack() as stack:
            columns = _OpenColumns(folder, stack)
            parts, is_adjacent = timeline.add(columns, number)
            if num_padding is None:
                num_padding = columns.count_padding(parts, is_start=is_adjacent)
            if not is_adjacent:
                gaps.add(_count_rows(segments))
                parts = list(_divide(parts, columns.count_blank(parts, 0, num_padding), _count_rows(parts)))
            for part in parts:
                block = {name: columns.read(name, [part]) for name in _SMALL}
                terminals.append(as_flags(block["terminal"], "terminal"))
                is_real.append((block["action"] != 0) | (block["reward"] != 0))
        segments += parts
    return segments, _find_episodes(np.concatenate(terminals), np.concatenate(is_real), gaps, num_padding or 0)


class _Timeline:
    """The times of the rows of files, which are added by ascending number."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._stop = 0
        self._actions = np.zeros(0)
        self._is_log = False

    def add(self, columns: _OpenColumns, number: int) -> tuple[list[_Segment], bool]:
        """Returns the rows of a file that the previous one does not contain, and whether they follow those of that."""
        capacity, add_count = columns.count_rows(number)
        actions = columns.read("action", [_Segment(number, 0, capacity)])
        previous, is_final = self._number, self._is_log and add_count < capacity
        is_log = not is_final and (add_count + 1) % capacity == 0 and capacity > 1
        first, stop = max(add_count - capacity + is_log, 0), add_count
        if is_final and previous is not None:
            # A final log right after another one repeats it, under the next number.
            is_repeated = add_count == capacity - 1 and self._agrees(actions, 0, add_count)
            first = self._stop + 1 + (number - previous - 1 - is_repeated) * capacity
            stop = first + add_count
        is_adjacent = number == 0 and first == 0
        if previous is not None:
            # The logger leaves out a file if padding passes the row at which it writes, so that numbers do not suffice.
            oldest = stop - capacity
            is_adjacent = oldest <= self._stop <= stop and self._agrees(actions, oldest, self._stop)
        if is_adjacent:
            first = self._stop
        self._number, self._stop, self._actions, self._is_log = number, stop, actions, is_log
        bounds = [first, *range(first - first % capacity + capacity, stop, capacity), stop]
        pairs = [(begin, end) for begin, end in itertools.pairwise(bounds) if begin < end]
        parts = [_Segment(number, begin % capacity, (end - 1) % capacity + 1) for begin, end in pairs]
        return parts, is_adjacent

    def _agrees(self, actions: np.ndarray, first: int, stop: int) -> bool:
        """Returns whether the previous file has the same actions at some times."""
        rows = np.arange(max(first, 0), stop) % len(actions)
        return len(actions) == len(self._actions) and np.array_equal(actions[rows], self._actions[rows])


def _find_episodes(
    terminals: np.ndarray, is_real: np.ndarray, gaps: set[int], num_padding: int
) -> list[tuple[int, int, bool]]:
    """Returns the episodes of all rows; see `_survey`.

    Args:
      terminals: bool `[n]`, the terminal rows.
      is_real: bool `[n]`, rows that cannot be padding, because their action or reward is not zero.
      gaps: rows before which rows are missing. There, an episode ends, and the next one begins without padding.
      num_padding: maximum number of rows of padding at the start of other episodes.
    """
    episodes: list[tuple[int, int, bool]] = []
    begin = 0
    for stop in np.union1d(np.flatnonzero(terminals) + 1, [*gaps, len(terminals)]).astype(int).tolist():
        if begin not in gaps:
            begin += int(np.argmax(np.append(is_real[begin : min(begin + num_padding, stop)], True)))
        if begin < stop:
            episodes.append((begin, stop, bool(terminals[stop - 1])))
        begin = stop
    return episodes


def _stack_frames(frames: np.ndarray, num: int) -> np.ndarray:
    """Returns stacks `[T, H, W, num]` as read-only views of one copy of the frames `[T, H, W]`."""
    padded = np.concatenate([np.zeros((num - 1, *frames.shape[1:]), frames.dtype), frames])
    return np.lib.stride_tricks.sliding_window_view(padded, num, axis=0)


def _count_rows(segments: Sequence[_Segment]) -> int:
    return sum(segment.stop - segment.start for segment in segments)


def _divide(segments: Sequence[_Segment], begin: int, end: int) -> Iterator[_Segment]:
    """Yields the parts of segments that contain the rows from `begin` to `end`, counted over all segments."""
    first = 0
    for number, start, stop in segments:
        part = _Segment(number, max(start + begin - first, start), min(start + end - first, stop))
        if part.start < part.stop:
            yield part
        first += stop - start


class _OpenColumns:
    """The columns of one file at a time, each of which is read from one stream."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack):
        self._folder, self._stack = folder, stack
        self._number: int | None = None
        self._columns: dict[str, npz.NpzColumn] = {}

    def read(self, name: str, segments: Sequence[_Segment]) -> np.ndarray:
        """Returns the rows of a column in some segments, `[n, ...]`."""
        parts = []
        for number, start, stop in segments:
            column = self._open(name, number)
            with npz.name_damage(self._path(name, number)):  # Several files are open.
                values = column[start:stop]
            parts.append(as_columns(values, f"{self._folder.name}: {name} of file {number}"))
        return concatenate(parts)

    def count_rows(self, number: int) -> tuple[int, int]:
        """Returns the capacity of a file, and its `add_count`."""
        lengths = {name: len(self._open(name, number)) for name in ("observation", *_SMALL)}
        add_count = int(self._open("add_count", number).read().reshape(-1)[0])
        if len(set(lengths.values())) != 1 or 0 in lengths.values() or add_count < 0:
            raise SourceError(
                f"{self._folder.name}: the columns of file {number} must have the same length >= 1, and add_count must "
                f"not be negative, got {lengths} and {add_count:,}"
            )
        return lengths["observation"], add_count

    def count_padding(self, parts: Sequence[_Segment], *, is_start: bool) -> int:
        """Returns the number of rows of padding before each episode: the rows of zeros before the first one.

        `invalid_range` limits it, but does not tell the stack size from the update horizon.

        Args:
          parts: the first rows of the data, all in one file.
          is_start: whether an episode starts in the first row.
        """
        number = parts[0].number if parts else 0
        has_range = bool(parts) and self._path("invalid_range", number).is_file()
        limit = max(len(self._open("invalid_range", number)) - _NOT_PADDING, 0) if has_range else _DEFAULT_PADDING
        if is_start:
            return self.count_blank(parts, 0, limit)
        terminals = np.flatnonzero(self.read("terminal", parts)) if parts else np.zeros(0, int)
        begins = [int(row) + 1 for row in terminals if row + limit < _count_rows(parts)]
        return self.count_blank(parts, begins[0], limit) if begins else limit

    def count_blank(self, parts: Sequence[_Segment], begin: int, limit: int) -> int:
        """Returns the number of rows of zeros from row `begin` of some segments on; at most `limit`."""
        rows = list(_divide(parts, begin, min(begin + limit, _count_rows(parts))))
        is_blank = np.ones(_count_rows(rows) + 1, bool)
        is_blank[-1] = False
        for name in (*_SMALL, "observation") if rows else ():
            is_blank[:-1] &= ~self.read(name, rows).reshape(len(is_blank) - 1, -1).any(axis=1)
        return int(np.argmin(is_blank))

    def _path(self, name: str, number: int) -> Path:
        prefix = "" if name in ("add_count", "invalid_range") else "$store$_"
        return self._folder / f"{prefix}{name}_ckpt.{number}.gz"

    def _open(self, name: str, number: int) -> npz.NpzColumn:
        if number != self._number:
            self._stack.close()
            self._number, self._columns = number, {}
        if name not in self._columns:
            path = self._path(name, number)
            if not path.is_file():
                raise SourceError(f"{self._folder.name} must contain {path.name}; copy or download it again")
            self._columns[name] = self._stack.enter_context(npz.open_gzip(path))
        return self._columns[name]


def _list_numbers(folder: Path) -> list[int]:
    matches = (_FILE_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def _is_folder(location: Any) -> bool:
    return isinstance(location, Path) and location.is_dir() and bool(_list_numbers(location))


FOLDER = Format("a folder of DQN replay logs", _is_folder, open_dqn_replay, ("frame_stack",), "Atari DQN Replay")
