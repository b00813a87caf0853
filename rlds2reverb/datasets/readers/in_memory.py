"""Episodes in memory: dicts of arrays, in a list or produced by a function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tree

from rlds2reverb.errors import SourceError, SpecMismatchError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode, SplitEpisodes, join_transitions
from rlds2reverb.types.ownership import copy_arrays
from rlds2reverb.types.specs import leaves, make_step_spec, map_structure, path_name, require_match

from ..formats import Format
from ..source import Source
from . import d4rl
from .columns import as_columns, as_flags, as_steps, make_log_episode, require_log_columns
from .continuity import ContinuityCheck

_LOG_FIELDS = (d4rl.OBSERVATIONS, d4rl.ACTIONS, d4rl.REWARDS)
_TERMINATED = "terminated"
#: Names of the flag of truncated ends in logs. It is ignored: an episode that is not terminated is truncated.
_TRUNCATION_NAMES = (*d4rl.ALIASES[d4rl.TIMEOUTS], d4rl.TIMEOUTS)


def from_episodes(
    episodes: Sequence[Mapping[str, Any]],
    *,
    name: str = "episodes in memory",
    independent_rows: bool = False,
    copy: bool = True,
) -> Source:
    """Returns a source for a list of episodes, all of which are checked immediately.

    Each episode is a dict of (nests of) arrays, in one of two forms:

    - RLDS steps: `observation, action, reward, discount, is_first, is_last, is_terminal`, `[N, ...]`, used unchanged;
    - a log: `observations` (`[T + 1, ...]`, or `[T, ...]` and optionally `next_observations`), `actions` and `rewards`
      `[T, ...]`, and `terminated`: whether the episode ended in a terminal state (a bool, or flags `[T]`, of which only
      the last may be set). It may also be named `terminations`, `terminals` or `terminal`. A `truncated` flag
      (or `truncations`, `timeouts`, `timeout`) is ignored. All other keys are additional step fields.

    A truncated log without a final observation loses its last transition (`Episode.dropped_last_transition`).

    Args:
      episodes: the episodes.
      name: name of the source.
      independent_rows: whether to read each row of a log as its own episode, which is terminal if its flag in
        `[T]` is set. Every row then requires a next observation. Logs are checked while they are read.
      copy: whether to copy RLDS steps; if False, they must not change while the source is used.

    Raises:
      SourceError: If an episode is in neither form, or if `next_observations` does not match the observation of the
        next row in more than 1 % of the rows.
    """
    if independent_rows:
        logs = copy_arrays(list(episodes))
        return Source(name, "memory", lambda: _read_rows(logs))
    made = _read_episodes(name, episodes, copy=copy)
    listed = [replace(episode, steps=map_structure(_lock, episode.steps)) for episode in made]

    def read(first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        return iter(listed[first:stop])

    num_rows = sum(episode.num_steps for episode in listed)
    return Source(name, "memory", read, num_episodes=len(listed), num_rows=num_rows, count=lambda: len(listed))


def _lock(column: np.ndarray) -> np.ndarray:
    """Returns a read-only view of an array."""
    view = column.view()
    view.flags.writeable = False
    return view


def from_function(
    make_episodes: Callable[[], Iterable[Mapping[str, Any]]], *, name: str, independent_rows: bool = False
) -> Source:
    """Returns a source for the episodes that a function produces; only those in use are in memory.

    Args:
      make_episodes: function, such as a generator function, that returns an iterable of the same episodes each time, in
        one of the forms of `from_episodes`. It is called whenever the source is read, once or twice in an ingestion,
        and may reuse its arrays.
      name: name of the source.
      independent_rows: see `from_episodes`.

    Raises:
      TypeError: While iterating, if the function does not return an iterable.
      SourceError: While iterating, as in `from_episodes`, or if the function returns the same iterator again.
    """
    last_iterator: Iterator[Any] | None = None

    def read() -> Iterator[Episode]:
        nonlocal last_iterator
        iterable = make_episodes()
        if not isinstance(iterable, Iterable):
            raise TypeError(
                f"{name}: the function must return an iterable of episodes, got a {type(iterable).__name__}"
            )
        episodes: Any = iter(iterable)
        if episodes is last_iterator:
            raise SourceError(
                f"{name}: the function returned an iterator that was already read; make a new one each time"
            )
        last_iterator = episodes
        with contextlib.closing(episodes) if hasattr(episodes, "close") else contextlib.nullcontext():
            yield from _read_rows(episodes) if independent_rows else _read_episodes(name, episodes)

    return Source(name, "memory", read)


def _read_episodes(name: str, logs: Iterable[Any], *, copy: bool = True) -> Iterator[Episode]:
    check = ContinuityCheck(name)
    for index, log in enumerate(logs):
        episode = _make_episode(index, log, copy=copy)
        check.add(episode, episode.num_transitions + episode.dropped_last_transition)
        yield episode
    check.finish()


def _make_episode(index: int, log: Any, *, copy: bool) -> Episode:
    where = f"episode {index}"
    if isinstance(log, Mapping) and all(name in log for name in fields.STEP_FIELDS):
        steps = as_steps(log, where)
        return Episode(copy_arrays(steps) if copy else steps, index)
    columns, terminated = _parse_log(where, log)
    if terminated[:-1].any():
        raise SourceError(
            f"{where}: {_TERMINATED} must be one flag, or one per row with only the last set, got "
            f"{terminated.tolist()[:9]}; split the log there, or pass independent_rows=True"
        )
    return make_log_episode(where, index, terminated=bool(terminated[-1]), **columns)


def _read_rows(logs: Iterable[Any]) -> Iterator[Episode]:
    """Yields each row of the logs as its own episode."""
    num_read = 0
    for index, log in enumerate(logs):
        where = f"episode {index}"
        columns, terminated = _parse_log(where, log)
        extras = columns.pop("extras")
        del columns["final_observation"]
        columns["rewards"] = rewards = require_log_columns(where, **columns)
        num_rows = len(rewards)
        for path, column in leaves(extras):
            if len(column) != num_rows:
                name = path_name(path, root="")
                raise SourceError(f"{where}: {name} must have as many rows as rewards ({num_rows}), got {len(column)}")
        observations = columns["observations"]
        if columns["next_observations"] is None:
            if len(tree.flatten(observations)[0]) == num_rows:
                raise SourceError(f"{where} has no {d4rl.NEXT_OBSERVATIONS}, which independent_rows=True requires")
            columns["next_observations"] = map_structure(lambda column: column[1:], observations)
        columns["observations"] = map_structure(lambda column: column[:num_rows], observations)  # noqa: B023
        columns["final_observations"] = columns.pop("next_observations")
        if len(terminated) == 1:  # A single flag applies to the last row.
            terminated = np.append(np.zeros(num_rows - 1, bool), terminated)
        try:
            got, expected = make_step_spec(columns["final_observations"]), make_step_spec(observations)
            advice = "convert them to the same dtype and shape"
            require_match(got, expected, holder="observations", advice=advice, root="next_observations")
            steps, num_steps = join_transitions(
                **columns, num_transitions=np.ones(num_rows, np.int64), terminated=terminated, extras=extras
            )
        except (SpecMismatchError, TypeError, ValueError) as error:
            raise SourceError(f"{where}: {str(error).splitlines()[0]}") from error
        yield from (replace(episode, index=num_read + episode.index) for episode in SplitEpisodes(steps, num_steps))
        num_read += num_rows


def _parse_log(where: str, log: Any) -> tuple[dict[str, Any], np.ndarray]:
    """Returns the validated columns of a log, named as in `make_log_episode`, and its terminal flags `[1]` or `[T]`."""
    if not isinstance(log, Mapping):
        raise SourceError(f"{where} must be a dict of arrays, got a {type(log).__name__}")
    flag_name = d4rl.find_key(log, d4rl.TERMINALS, where)
    if flag_name is None:
        d4rl.refuse_dones(log, where)
    missing = [name for name in _LOG_FIELDS if name not in log] + ([] if flag_name else [_TERMINATED])
    if missing or flag_name is None:
        raise SourceError(
            f"{where} is missing {', '.join(missing)}; pass RLDS steps ({', '.join(fields.STEP_FIELDS)}) "
            f"or a log ({', '.join(_LOG_FIELDS)}, {_TERMINATED})"
        )
    terminated = _parse_flags(log[flag_name], f"{where}['{flag_name}']")
    flag_names = (flag_name, *_TRUNCATION_NAMES)
    arrays = as_columns({name: nest for name, nest in log.items() if name not in flag_names}, where)
    columns = {name: arrays.pop(name) for name in _LOG_FIELDS}
    columns[d4rl.NEXT_OBSERVATIONS] = arrays.pop(d4rl.NEXT_OBSERVATIONS, None)
    holders = [holder for holder in (arrays, arrays.get("infos")) if isinstance(holder, dict)]
    finals = [holder.pop(name) for holder in holders for name in d4rl.FINAL_NAMES if name in holder]
    columns["final_observation"] = finals[0] if finals else None
    if isinstance(arrays.get("infos"), dict) and not arrays["infos"]:
        del arrays["infos"]
    num_rows = len(columns[d4rl.REWARDS])
    if not num_rows:
        raise SourceError(f"{where} has no rewards; leave out empty episodes")
    if len(terminated) not in (1, num_rows):
        raise SourceError(
            f"{where}: {_TERMINATED} must be one flag, or one for each of the {num_rows} rows, got "
            f"{terminated.tolist()[:9]}"
        )
    d4rl.require_new_names(arrays, where)
    return {**columns, "extras": arrays}, terminated


def _parse_flags(flags: Any, where: str) -> np.ndarray:
    if flags is None or isinstance(flags, (Mapping, str)):
        raise SourceError(f"{where} must be a flag, got {flags!r}")
    try:
        array = np.atleast_1d(np.asarray(flags))
    except ValueError as error:
        raise SourceError(f"{where} is not an array ({error})") from error
    return as_flags(as_columns(array, where), where)


def _is_episodes(source: Any) -> bool:
    if isinstance(source, (str, bytes, bytearray, Path)):
        return False
    return callable(source) or (isinstance(source, Iterable) and not hasattr(source, "__array__"))


def _open_episodes(source: Any, *, independent_rows: bool = False) -> Source:
    """Opens a list, an iterable or a function of episodes."""
    type_name = type(source).__name__
    if isinstance(source, Sequence):
        return from_episodes(source, independent_rows=independent_rows)
    if isinstance(source, Iterator):
        raise TypeError(
            f"a {type_name} can be read only once, but a dataset is read several times; pass the function that makes "
            "it: load(make_episodes) instead of load(make_episodes())"
        )
    is_iterable = isinstance(source, Iterable) and not isinstance(source, type)
    name = f"a {type_name} of episodes" if is_iterable else f"episodes of {getattr(source, '__name__', type_name)}"
    return from_function((lambda: source) if is_iterable else source, name=name, independent_rows=independent_rows)


EPISODES = Format("episodes in memory", _is_episodes, _open_episodes, ("independent_rows", "autoreset"))
