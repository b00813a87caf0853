"""Checks of columns: what an array may be, whatever kind of source it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tree

from rlds2reverb import fields
from rlds2reverb.episodes import Episode, from_transitions
from rlds2reverb.errors import SourceError, SpecMismatchError
from rlds2reverb.specs import describe, map_structure

from .continuity import discontinuities


def as_columns(nest: Any, where: str) -> Any:
    """Returns the same nest of dicts and tuples with checked columns as leaves; lists are rows, not nests.

    Args:
      nest: arrays, or anything that `np.asarray` makes into one, `[T, ...]`.
      where: place of the nest, for the message.

    Returns:
      Arrays in the machine's byte order: bool, integers, floats up to 64 bits, or strings as objects.

    Raises:
      SourceError: if a leaf is not such an array, or has no leading axis.
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
        raise SourceError(f"{where} is a single {type(nest).__name__}, expected a column with one row for each step")
    if column.dtype.kind in "SU" or (column.dtype.kind == "O" and _holds_text(column)):
        return column.astype(object)
    if column.dtype.kind not in "biuf" or column.dtype.itemsize > 8:
        raise SourceError(f"{where} holds {column.dtype}, expected bool, integers or floats of up to 64 bits")
    return column.astype(column.dtype.newbyteorder("="), copy=False)


def _holds_text(column: np.ndarray) -> bool:
    return all(isinstance(value, (str, bytes)) for value in column.reshape(-1))


def as_flags(column: np.ndarray, where: str, *, first_row: int = 0) -> np.ndarray:
    """Returns a column of 0 and 1 as bool `[T]`; a second axis of size 1 is dropped.

    Raises:
      SourceError: if it has another shape, or holds anything else, naming the row.
    """
    if column.shape[1:] not in ((), (1,)):
        raise SourceError(f"{where} has shape {column.shape}, expected one flag for each row")
    column = column.reshape(len(column))
    wrong = (column != 0) & (column != 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise SourceError(f"{where}[{first_row + row}] is {column[row]}, expected 0 or 1")
    return column.astype(bool)


def episode_of_log(
    where: str,
    index: int,
    observations: Any,
    actions: Any,
    *,
    rewards: Any,
    terminated: bool,
    next_observations: Any = None,
    extras: dict[str, Any] | None = None,
) -> Episode:
    """Returns the episode of checked columns of one log; rewards `[T, 1]` lose their second axis.

    Args:
      where: place of the log, for messages.
      index: of the episode.
      observations: nest of arrays, `[T, ...]`, or `[T + 1, ...]` with the final one.
      actions: nest of arrays `[T, ...]`.
      rewards: `[T]` or `[T, 1]`.
      terminated: whether it ended in a terminal state.
      next_observations: nest of arrays `[T, ...]`; the last one is the final observation if observations lack it.
      extras: further columns `[T, ...]`.

    Raises:
      SourceError: if rewards are not one number a row, there are no observations, or columns do not fit together.
    """
    rewards = require_log(where, observations, actions, rewards=rewards, next_observations=next_observations)
    final = None
    if next_observations is not None and len(tree.flatten(observations)[0]) == len(rewards):
        final = map_structure(lambda rows: rows[-1], next_observations)
    jumps: tuple[int, ...] = ()
    try:
        steps = from_transitions(
            observations, actions, rewards=rewards, terminated=terminated, final_observation=final, extras=extras
        )
        if next_observations is not None:
            jumps = discontinuities(observations, next_observations)
    except (SpecMismatchError, TypeError, ValueError) as error:
        raise SourceError(f"{where}: {str(error).splitlines()[0]}") from error
    dropped_last_transition = len(steps[fields.IS_FIRST]) == len(rewards)
    return Episode(steps, index, dropped_last_transition=dropped_last_transition, discontinuities=jumps)


def require_log(
    where: str, observations: Any, actions: Any, *, rewards: Any, next_observations: Any = None
) -> np.ndarray:
    """Returns the rewards of a log as `[T]`; `SourceError` if its columns do not have one row for each of them."""
    if not isinstance(rewards, np.ndarray) or rewards.shape[1:] not in ((), (1,)) or rewards.dtype.kind not in "biuf":
        raise SourceError(f"{where}: rewards are {_described(rewards)}, expected one number for each row")
    columns = {"observations": observations, "actions": actions}
    if next_observations is not None:
        columns["next_observations"] = next_observations
    for name, nest in columns.items():
        lengths = {len(column) for column in tree.flatten(nest)}
        allowed = {len(rewards), len(rewards) + 1} if name == "observations" else {len(rewards)}
        if len(lengths) != 1 or not lengths <= allowed:
            raise SourceError(f"{where}: {name} have {sorted(lengths)} rows, rewards have {len(rewards)}")
    return rewards.reshape(len(rewards))


def _described(column: Any) -> str:
    return describe(column) if isinstance(column, np.ndarray) else f"a {type(column).__name__}"


def as_steps(steps: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns RLDS steps with checked columns, the flags as bool `[T]`."""
    columns = as_columns(dict(steps), where)
    for name in fields.FLAG_FIELDS:
        if not isinstance(columns[name], np.ndarray):
            raise SourceError(f"{where}[{name!r}] is a {type(columns[name]).__name__}, expected a column of flags")
    flags = {name: as_flags(columns[name], f"{where}[{name!r}]") for name in fields.FLAG_FIELDS}
    return {**columns, **flags}
