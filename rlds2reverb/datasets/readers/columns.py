"""Validation of columns, for sources of every format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tree

from rlds2reverb.errors import SourceError, SpecMismatchError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode, from_transitions
from rlds2reverb.types.specs import describe, leaves, map_structure

from .continuity import find_discontinuities

#: Paths of columns of observations.
Paths = frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class ColumnReader:
    """Reads the episodes of a format, without columns that are to be left out.

    Attributes:
      function: returns the episodes of a range, given the columns to leave out.
      list_columns: returns the paths of all columns that can be left out, by default those of observations.
      left_out: the columns to leave out.
      above: the keys above these paths in the steps.
    """

    function: Callable[[Paths, int, int | None], Iterator[Episode]]
    list_columns: Callable[[], Iterable[tuple[str, ...]]]
    left_out: Paths = frozenset()
    above: tuple[str, ...] = (fields.OBSERVATION,)

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        """Yields the episodes of a range."""
        return self.function(self.left_out, first, stop)

    def without(self, dropped: Sequence[str]) -> tuple[ColumnReader, list[str]]:
        """Returns a reader that does not read some fields, and the paths of those among them that it has read."""
        known = {(*self.above, *path) for path in {*self.list_columns()} - self.left_out}
        paths, columns = match_paths(dropped, known)
        removed = {path[0] for path in known} - {path[0] for path in known - columns}
        if removed & {fields.OBSERVATION, fields.ACTION}:
            return self, []
        return replace(self, left_out=self.left_out | {path[len(self.above) :] for path in columns}), paths


def match_paths(dropped: Sequence[str], known: Collection[tuple[str, ...]]) -> tuple[list[str], set[tuple[str, ...]]]:
    """Returns the paths of fields to drop that are columns or groups of columns, and these columns."""
    found = {path: {part for part in known if f"{'/'.join(part)}/".startswith(f"{path}/")} for path in dropped}
    return [path for path in dropped if found[path]], set().union(*found.values())


def as_columns(nest: Any, where: str) -> Any:
    """Returns the same nest of dicts and tuples with validated columns as leaves; lists are rows, not nests.

    Args:
      nest: nest of arrays `[T, ...]`, or of anything that `np.asarray` converts to one.
      where: description of the nest, for error messages.

    Returns:
      Arrays in native byte order: bool, integers, floats of at most 64 bits, or strings as objects.

    Raises:
      SourceError: If a leaf is not such an array, or has no leading axis.
    """
    if isinstance(nest, Mapping):
        return {name: as_columns(inner, f"{where}[{name!r}]") for name, inner in nest.items()}
    if isinstance(nest, tuple) and not all(np.isscalar(value) for value in nest):
        inner = [as_columns(inner, f"{where}[{place}]") for place, inner in enumerate(nest)]
        return type(nest)(*inner) if hasattr(nest, "_fields") else tuple(inner)
    try:
        column = np.asarray(nest)
    except ValueError as error:
        raise SourceError(f"{where} is not an array: its rows differ in shape ({error})") from error
    if not column.shape:
        raise SourceError(f"{where} must be a column with one row per step, got a single {type(nest).__name__}")
    kind = column.dtype.kind
    if kind in "SU" or (kind == "O" and all(isinstance(value, (str, bytes)) for value in column.reshape(-1))):
        return column.astype(object)
    if kind not in "biuf" or column.dtype.itemsize > 8:
        raise SourceError(f"{where} must contain bool, integers or floats of at most 64 bits, got {column.dtype}")
    return column.astype(column.dtype.newbyteorder("="), copy=False)


def as_flags(column: np.ndarray, where: str, *, first_row: int = 0) -> np.ndarray:
    """Returns a column of zeros and ones as bool `[T]`; a second axis of size 1 is dropped.

    Raises:
      SourceError: If it has any other shape or contains any other value, naming the row.
    """
    if column.shape[1:] not in ((), (1,)):
        raise SourceError(f"{where} must have one flag per row, got shape {column.shape}")
    column = column.reshape(len(column))
    invalid = (column != 0) & (column != 1)
    if invalid.any():
        row = int(np.argmax(invalid))
        raise SourceError(f"{where}[{first_row + row}] must be 0 or 1, got {column[row]}")
    return column.astype(bool)


def require_equal_lengths(where: str, columns: Mapping[str, Any]) -> None:
    """Raises `SourceError` unless all columns have the same number of rows, at least 1."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise SourceError(f"{where}: all columns must have the same number of rows >= 1, got {lengths}")


def as_steps(steps: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns RLDS steps with validated columns, and the flags as bool `[T]`."""
    columns = as_columns(dict(steps), where)
    for name in fields.FLAG_FIELDS:
        if not isinstance(columns[name], np.ndarray):
            raise SourceError(f"{where}[{name!r}] must be a column of flags, got a {type(columns[name]).__name__}")
    return columns | {name: as_flags(columns[name], f"{where}[{name!r}]") for name in fields.FLAG_FIELDS}


def make_log_episode(
    where: str,
    index: int,
    observations: Any,
    actions: Any,
    *,
    rewards: Any,
    terminated: bool,
    next_observations: Any = None,
    final_observation: Any = None,
    extras: dict[str, Any] | None = None,
) -> Episode:
    """Returns the episode made of the validated columns of one log; rewards `[T, 1]` lose their second axis.

    Args:
      where: description of the log, for error messages.
      index: index of the episode.
      observations: nest of arrays `[T, ...]`, or `[T + 1, ...]` with the final observation.
      actions: nest of arrays `[T, ...]`.
      rewards: `[T]` or `[T, 1]`.
      terminated: whether the episode ended in a terminal state.
      next_observations: nest of arrays `[T, ...]`; the last row is the final observation unless observations have it.
      final_observation: nest of arrays `[...]`, or of columns `[T, ...]` whose last row it is; takes precedence.
      extras: additional columns `[T, ...]`.

    Raises:
      SourceError: If rewards are not one number per row, there are no observations, or the columns do not match.
    """
    rewards = require_log_columns(where, observations, actions, rewards=rewards, next_observations=next_observations)
    final = None
    if next_observations is not None and len(tree.flatten(observations)[0]) == len(rewards):
        final = map_structure(lambda rows: rows[-1], next_observations)
    try:
        if final_observation is not None:
            final = tree.map_structure(_select_last_row, observations, final_observation)
            observations = map_structure(lambda column: column[: len(rewards)], observations)
        steps = from_transitions(
            observations, actions, rewards=rewards, terminated=terminated, final_observation=final, extras=extras
        )
        rows = () if next_observations is None else find_discontinuities(observations, next_observations)
    except (SpecMismatchError, TypeError, ValueError) as error:
        raise SourceError(f"{where}: {str(error).splitlines()[0]}") from error
    is_known = final is not None or len(tree.flatten(observations)[0]) > len(rewards)
    marks: Any = {"unknown_final_observation" if terminated else "dropped_last_transition": not is_known}
    return Episode(steps, index, discontinuities=rows, **marks)


def make_demonstration(
    where: str, index: int, columns: dict[str, Any], *, timestamps: np.ndarray | None = None
) -> Episode:
    """Returns the episode of a format that records neither rewards nor ends by itself, in which all actions are real.

    Without the column `reward`, rewards are 0. The last row of the column `is_terminal` decides how the episode ends;
    without it, the episode is truncated and `unterminated`. The observation after the last action is not known.

    Args:
      where: description of the episode, for messages.
      index: its index.
      columns: nest of columns `[T, ...]`: `observation`, `action`, and further fields.
      timestamps: times in seconds `[T]`, or None.

    Raises:
      SourceError: If there is no observation or action, or the columns differ in length.
    """
    extras = dict(columns)
    observations, actions = extras.pop(fields.OBSERVATION, {}), extras.pop(fields.ACTION, {})
    if not tree.flatten(observations) or not tree.flatten(actions):
        raise SourceError(f"{where} must have observations and actions, got {', '.join(columns) or 'nothing'}")
    named = {"/".join(map(str, path)): column for path, column in leaves(columns)}
    require_equal_lengths(where, named)
    rewards = extras.pop(fields.REWARD, np.zeros(len(next(iter(named.values()))), np.float32))
    ends = extras.pop(fields.IS_TERMINAL, None)
    terminated = ends is not None and bool(np.all(ends[-1]))
    episode = make_log_episode(
        *(where, index, observations, actions), rewards=rewards, terminated=terminated, extras=extras
    )
    return replace(episode, unterminated=ends is None, timestamps=timestamps)


def describe_demonstrations(name: str) -> str:
    """Returns the sentence about what `make_demonstration` assumes."""
    return (
        f"{name} records neither rewards nor how its episodes end: rewards are 0, which only cloning can use, and all "
        "episodes are truncated after their last action"
    )


def select_cameras(known: Sequence[str], cameras: Sequence[str], name: str) -> list[str]:
    """Returns the columns of images that the option `cameras` names: whole names, or their ends after a dot.

    Raises:
      SourceError: If a name does not stand for exactly one camera.
    """
    selected: list[str] = []
    for camera in cameras:
        matches = [column for column in known if column == camera] or [
            column for column in known if column.endswith(f".{camera}")
        ]
        if len(matches) != 1:
            raise SourceError(
                f"{name} must have one camera '{camera}', got {len(matches)}; its cameras are "
                f"{', '.join(known) or '(none)'}",
                cameras=...,
            )
        selected += matches
    return selected


def insert_column(nest: dict[str, Any], path: Sequence[str], column: Any, where: str) -> None:
    """Inserts a column into nested dicts; raises `SourceError` if another one has its path, or a part of it."""
    for part in path[:-1]:
        nest = nest.setdefault(part, {})
        if not isinstance(nest, dict):
            break
    if not isinstance(nest, dict) or path[-1] in nest:
        raise SourceError(f"{where}: the column '{'.'.join(path)}' has the name of a group of columns; rename it")
    nest[path[-1]] = column


def _select_last_row(column: np.ndarray, final: np.ndarray) -> np.ndarray:
    return final if final.shape == column.shape[1:] else final[-1]


def require_log_columns(
    where: str, observations: Any, actions: Any, *, rewards: Any, next_observations: Any = None
) -> np.ndarray:
    """Returns the rewards of a log as `[T]`; raises `SourceError` if the columns do not have one row per reward."""
    if not isinstance(rewards, np.ndarray) or rewards.shape[1:] not in ((), (1,)) or rewards.dtype.kind not in "biuf":
        got = describe(rewards) if isinstance(rewards, np.ndarray) else f"a {type(rewards).__name__}"
        raise SourceError(f"{where}: rewards must be one number per row, got {got}")
    columns = {"observations": observations, "actions": actions}
    if next_observations is not None:
        columns["next_observations"] = next_observations
    num_rows = len(rewards)
    for name, nest in columns.items():
        lengths = {len(column) for column in tree.flatten(nest)}
        allowed = {num_rows, num_rows + 1} if name == "observations" else {num_rows}
        if len(lengths) != 1 or not lengths <= allowed:
            raise SourceError(f"{where}: {name} must have as many rows as rewards ({num_rows}), got {sorted(lengths)}")
    return rewards.reshape(num_rows)
