"""Operations of mappings on episodes: their selection, the trimming of their ends, and other rates."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode, FinalRow
from rlds2reverb.types.nest_paths import Keys, format_path, get_part, replace_part
from rlds2reverb.types.specs import cast_array, leaves, map_structure

from ..source import Source, SourceReader, identify_step
from ..task_texts import find_task
from ..writers.written_episodes import drop_final_step
from .mapped_source import MappedSource

_SUCCESS = ("next.success", "success", "is_success")
_SLICE = re.compile(r"(\d*)(%?):(\d*)(%?)")
#: Fields that a last step without an action has.
_ENDS = (fields.DISCOUNT, *fields.FLAG_FIELDS)
_KEPT = (fields.OBSERVATION, *_ENDS)
#: Whether an episode is selected, given the metadata of the dataset.
Condition = Callable[[Episode, Mapping[str, Any]], bool]


def select_episodes(dataset: MappedSource, conditions: Mapping[str, Any]) -> MappedSource:
    """Selects the episodes that meet all conditions: 'episodes', 'success', 'terminal', 'task', 'length', 'return'."""
    known = ["episodes", *_CONDITIONS]
    for name in conditions:
        if name not in known:
            raise SourceError(f"select must have conditions of {', '.join(known)}, got {name!r}")
    source = dataset.source
    filters = [_CONDITIONS[name](value) for name, value in conditions.items() if name != "episodes"]
    if "episodes" in conditions:
        source = _take_episodes(source, conditions["episodes"])
    if filters:
        read = _Filtered(source, tuple(filters)).read
        source = replace(source, read=read, count=None, num_episodes=None, num_rows=None)
    return replace(dataset, source=source)


def select_slice(source: Source, text: str) -> Source:
    """Returns the episodes of a slice such as '10:20' or ':20%', for the option `split`."""
    return identify_step(source, _take_episodes(source, text), ["slice", text])


def _take_episodes(source: Source, value: Any) -> Source:
    """Returns some episodes of a source, by a slice such as '10:20' or ':20%', or a list of indices."""
    match = _SLICE.fullmatch(value.strip("[]")) if isinstance(value, str) else None
    is_list = isinstance(value, list) and all(type(index) is int and index >= 0 for index in value)
    if not match and not (is_list and value == sorted(set(value)) and value):
        raise SourceError(
            f"episodes must be a slice such as '10:20' or ':20%', or ascending indices from 0, got {value!r}"
        )
    num_episodes = _count_episodes(source)
    places = value if match is None else _find_slice(match, num_episodes)
    if not places or places[-1] >= num_episodes:
        raise SourceError(f"{source.name} must have the episodes {value!r}, but has {num_episodes}; choose others")
    taken, count = _Taken(source, tuple(places)), len(places)
    return replace(source, read=taken.read, count=lambda: count, num_episodes=count, num_rows=None)


def _find_slice(match: re.Match[str], num_episodes: int) -> list[int]:
    start, start_percent, stop, stop_percent = match.groups()

    def resolve(number: str, percent: str, default: int) -> int:
        return default if not number else round(int(number) * num_episodes / 100) if percent else int(number)

    return list(range(resolve(start, start_percent, 0), min(resolve(stop, stop_percent, num_episodes), num_episodes)))


def _count_episodes(source: Source) -> int:
    if source.num_episodes is not None:
        return source.num_episodes
    return source.count() if source.count is not None else sum(1 for _ in source.read())


@dataclass(frozen=True)
class _Taken(SourceReader):
    """Some episodes of a source, by their ascending indices."""

    places: tuple[int, ...]

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        """Yields the episodes of a range, of which adjacent ones are read together."""
        places = self.places[first:stop]
        numbered = enumerate(places, first)
        for _, run in itertools.groupby(numbered, key=lambda pair: pair[1] - pair[0]):
            indices = {place: index for index, place in run}
            for episode in self.source.read_range(min(indices), max(indices) + 1):  # Without those that are left out.
                yield replace(episode, index=indices[episode.index])


@dataclass(frozen=True)
class _Filtered:
    """The episodes of a source that meet conditions, which are known only after reading them."""

    source: Source
    conditions: tuple[Condition, ...]

    def read(self) -> Iterator[Episode]:
        """Yields the episodes, numbered consecutively.

        Raises:
          SourceError: If no episode meets the conditions.
        """
        index = 0
        for episode in self.source.read():
            if episode.num_steps and all(is_met(episode, self.source.metadata) for is_met in self.conditions):
                yield replace(episode, index=index)
                index += 1
        if not index:
            raise SourceError(f"no episode of {self.source.name} meets the conditions of 'select'; change them")


def _require_success(value: Any) -> Condition:
    expected = _require_flag("success", value)

    def is_met(episode: Episode, _: Mapping[str, Any]) -> bool:
        return _find_success(episode) is expected

    return is_met


def _find_success(episode: Episode) -> bool:
    """Returns whether an episode succeeds, by a field of its steps or of the episode, or by its rewards of 0 and 1."""
    for path, column in [*episode.columns, *leaves(episode.metadata)]:
        if path[-1] in _SUCCESS and column.dtype.kind in "biuf":
            return bool(column.any())
    rewards = episode.steps[fields.REWARD]
    rewards = rewards[: episode.num_transitions + episode.dropped_last_transition]
    if rewards.ndim == 1 and np.isin(rewards, (0, 1)).all():
        return bool(rewards[-1:].any())
    raise SourceError(
        f"episode {episode.index} must tell whether it succeeds, by a field {' or '.join(map(repr, _SUCCESS[:2]))} or "
        "rewards of 0 and 1; select by 'return' or 'terminal' instead"
    )


def _require_terminal(value: Any) -> Condition:
    expected = _require_flag("terminal", value)
    return lambda episode, _: episode.is_terminal is expected


def _require_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SourceError(f"{name!r} must be true or false, got {value!r}")
    return value


def _require_task(value: Any) -> Condition:
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise SourceError(f"'task' must be a text such as 'pick*', or a list of them, got {value!r}")

    def is_met(episode: Episode, metadata: Mapping[str, Any]) -> bool:
        texts = {
            text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
            for text in find_task(episode, metadata)
        }
        return any(fnmatch.fnmatch(text.lower(), pattern.lower()) for text in texts for pattern in patterns)

    return is_met


def _require_range(name: str, measure: Callable[[Episode], float]) -> Callable[[Any], Condition]:
    def make(value: Any) -> Condition:
        ends = list(value) if isinstance(value, (list, tuple)) else []
        if len(ends) != 2 or not all(end is None or type(end) in (int, float) for end in ends):
            raise SourceError(f"{name!r} must be [minimum, maximum], null for none, got {value!r}")
        low, high = (-np.inf if ends[0] is None else ends[0]), (np.inf if ends[1] is None else ends[1])
        return lambda episode, _: bool(low <= measure(episode) <= high)

    return make


_CONDITIONS: dict[str, Callable[[Any], Condition]] = {
    "success": _require_success,
    "terminal": _require_terminal,
    "task": _require_task,
    "length": _require_range("length", lambda episode: episode.num_transitions + episode.dropped_last_transition),
    "return": _require_range("return", lambda episode: episode.total_reward),
}


def trim_frames(dataset: MappedSource, described: Mapping[str, Any]) -> MappedSource:
    """Leaves out steps at the ends of episodes: `{"start": steps, "end": steps, "final_observation": True}`.

    An episode whose end is trimmed is truncated, and its last kept observation is known. With `final_observation`, that
    observation is left out as well, so that the last row of a written episode is its last action.
    """
    values: dict[str, Any] = dict(described) if isinstance(described, Mapping) else {"": described}
    start, end, is_last_left_out = (
        values.pop(name, default) for name, default in (("start", 0), ("end", 0), ("final_observation", False))
    )
    if values or not all(type(count) is int and count >= 0 for count in (start, end)):
        raise SourceError(
            f"trim must have numbers of steps as 'start' and 'end', and may have 'final_observation', got {described!r}"
        )
    _require_flag("final_observation", is_last_left_out)

    def trim(episode: Episode) -> Episode:
        if start or end:
            rows = np.arange(start, episode.num_steps - end)
            if len(rows) < 2:
                raise SourceError(
                    f"episode {episode.index} must have more than {start + end} transitions to be trimmed, got "
                    f"{episode.num_transitions}; select longer ones by 'length'"
                )
            episode = _take_steps(episode, rows)
        return _forget_final_observation(episode) if is_last_left_out else episode

    return _replace_episodes(dataset, trim)


def _forget_final_observation(episode: Episode) -> Episode:
    """Returns an episode as `load` reads it from formats without final observations."""
    if episode.final_row is not FinalRow.OBSERVATION or not episode.num_transitions:
        return episode
    if not episode.is_terminal:
        return drop_final_step(episode)
    steps = {name: nest if name in _ENDS else map_structure(_clear_last, nest) for name, nest in episode.steps.items()}
    steps[fields.DISCOUNT] = map_structure(_end_transitions_in_zero, steps[fields.DISCOUNT])
    return replace(episode, steps=steps, unknown_final_observation=True)


def change_rate(dataset: MappedSource, described: Mapping[str, Any]) -> MappedSource:
    """Reduces the rate: `{"to": hertz, "from": hertz, "average": [paths], "sum": [paths]}`.

    Of the steps that become one, the first is taken. Fields under 'average' become their mean, and those under 'sum'
    and rewards their sum. 'from' defaults to the rate that the dataset states.
    """
    values = dict(described) if isinstance(described, Mapping) else {}
    known = dataset.source.metadata.get("fps")
    old, new = values.get("from", known), values.get("to")
    is_rate = all(type(rate) in (int, float) and rate > 0 for rate in (old, new))
    if not set(values) <= {"from", "to", "average", "sum"} or not is_rate or old < new:
        raise SourceError(
            f"rate must have 'to', in hertz and at most 'from' (by default that of the dataset, {known}), and may have "
            f"paths as 'average' and 'sum', got {described!r}"
        )
    merged = {"product": [(fields.DISCOUNT,)], "sum": [(fields.REWARD,)], "average": []}
    for name in ("average", "sum"):
        for path in values.get(name, []):
            keys, _ = dataset.get_numbers(path, "floats to be averaged or added", kinds="f")
            merged[name].append(keys)
    changed = _replace_episodes(dataset, partial(_reduce, step=old / new, merged=merged), merged["sum"])
    return changed.replace(metadata={**changed.source.metadata, "fps": new})


def _replace_episodes(
    dataset: MappedSource, function: Callable[[Episode], Episode], unbounded: Sequence[Keys] = ()
) -> MappedSource:
    """Applies a function that changes the number of steps, and the bounds of some fields."""
    changed = dataset.change(function, of_bounds=lambda episode: episode, unbounded=unbounded)
    return changed.replace(num_rows=None)


def _reduce(episode: Episode, step: float, merged: Mapping[str, Sequence[Keys]]) -> Episode:
    num_actions = episode.num_steps - (episode.final_row is not FinalRow.ACTION)
    rows = np.round(np.arange(int(np.ceil(num_actions / step))) * step).astype(np.int64)
    rows = rows[rows < num_actions]
    if not len(rows):
        return episode
    is_longer = num_actions < episode.num_steps
    reduced = _take_steps(episode, np.append(rows, num_actions) if is_longer else rows)
    steps = reduced.steps
    for name, paths in merged.items():
        for keys in paths:
            column = get_part(episode.steps, keys)[:num_actions]
            values, changed = cast_array(_MERGES[name](column, rows), column.dtype)
            if changed is not None and changed.any():
                raise SourceError(
                    f"the {name} of {format_path(keys)!r} must be within the range of {column.dtype}, got a larger "
                    f"one in episode {episode.index}; cast it to a larger one before 'rate'"
                )
            steps = replace_part(steps, keys, partial(_replace_first, first=values))
    return replace(reduced, steps=steps)


def _replace_first(column: np.ndarray, first: np.ndarray) -> np.ndarray:
    return np.concatenate([first, column[len(first) :]])


def _add(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.add.reduceat(column, rows, axis=0, dtype=np.float64 if column.dtype.kind == "f" else None)


def _average(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
    counts = np.diff([*rows, len(column)])
    return _add(column, rows) / counts.reshape(-1, *[1] * (column.ndim - 1))


#: How the rows of a column from each of some rows on become one.
_MERGES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "average": _average,
    "sum": _add,
    "product": lambda column, rows: np.multiply.reduceat(column, rows, axis=0),
}


def _take_steps(episode: Episode, rows: np.ndarray) -> Episode:
    """Returns an episode with some of its steps, in order; without its last one, it is truncated there."""
    steps = map_structure(lambda column: column[rows], episode.steps)
    is_cut = rows[-1] < episode.num_steps - 1
    steps = {**steps, fields.IS_FIRST: np.arange(len(rows)) == 0, fields.IS_LAST: np.arange(len(rows)) == len(rows) - 1}
    marks: dict[str, Any] = {}
    if is_cut:
        marks = {"unterminated": False, "unknown_final_observation": False}
    if is_cut and episode.final_row is not FinalRow.ACTION:  # The last step is a known observation without an action.
        steps = {name: nest if name in _KEPT else map_structure(_clear_last, nest) for name, nest in steps.items()}
        steps[fields.DISCOUNT] = map_structure(_end_in_one, steps[fields.DISCOUNT])
    if episode.timestamps is not None:
        marks["timestamps"] = episode.timestamps[rows[rows < len(episode.timestamps)]]
    return replace(episode, steps=steps, discontinuities=(), contradictions=(), **marks)


def _end_in_one(column: np.ndarray) -> np.ndarray:
    return np.concatenate([column[:-1], np.ones_like(column[-1:])])


def _end_transitions_in_zero(column: np.ndarray) -> np.ndarray:
    return np.concatenate([column[:-2], np.zeros_like(column[-2:-1]), column[-1:]])


def _clear_last(column: np.ndarray) -> np.ndarray:
    cleared = column.copy()
    cleared[-1] = b"" if column.dtype == object else 0
    return cleared


EPISODE_OPERATIONS: dict[str, Callable[[MappedSource, Any], MappedSource]] = {
    "select": select_episodes,
    "trim": trim_frames,
    "rate": change_rate,
}
