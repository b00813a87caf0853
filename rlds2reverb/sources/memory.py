"""Episodes of the user's own: dicts of arrays, in a list or made one after the other by a function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from rlds2reverb import fields
from rlds2reverb.episodes import Episode, one_step_episodes
from rlds2reverb.errors import SourceError, SpecMismatchError
from rlds2reverb.specs import leaves, map_structure, path_name

from . import d4rl
from .columns import as_columns, as_flags, as_steps, episode_of_log, require_log
from .continuity import ContinuityCheck
from .source import Source

_LOG_FIELDS = (d4rl.OBSERVATIONS, d4rl.ACTIONS, d4rl.REWARDS)
_TERMINATED = "terminated"
#: What logs call the flag of a terminal end, and the one of a truncation, which says nothing more.
_TERMINAL_NAMES = (_TERMINATED, "terminations", d4rl.TERMINALS, "terminal")
_TRUNCATION_NAMES = ("truncated", "truncations", d4rl.TIMEOUTS, "timeout")


def from_episodes(
    episodes: Sequence[Mapping[str, Any]], *, name: str = "episodes in memory", independent_rows: bool = False
) -> Source:
    """Returns a list of episodes as a source; all are checked at once.

    Each episode is a dict of (nests of) arrays, in one of two forms:

    - RLDS steps: `observation, action, reward, discount, is_first, is_last, is_terminal`, `[N, ...]`, taken as it is;
    - a log: `observations` (`[T + 1, ...]`, or `[T, ...]` and perhaps `next_observations`), `actions`, `rewards`
      `[T, ...]`, and `terminated`: whether it ended in a terminal state (a bool, or flags `[T]` of which the last
      counts). It may also be named `terminations`, `terminals` or `terminal`. `truncated` (or `truncations`,
      `timeouts`, `timeout`) says nothing more. Further keys are further step fields.

    A truncated log without a final observation loses its last transition (`Episode.dropped_last_transition`).

    Args:
      episodes: the episodes.
      name: of the source.
      independent_rows: whether each row of a log is an episode of its own, `[T]` flags saying which are terminal. Logs then
        need a next observation for each row. They are checked while they are read.

    Raises:
      SourceError: if an episode has neither form, naming it; if in more than 1 % of the rows `next_observations` is
        not the next row's observation.
    """
    if independent_rows:
        return Source(name, "memory", lambda: _read_rows(episodes))
    checked = list(_read(name, episodes))
    return Source(
        name,
        "memory",
        lambda: iter(checked),
        num_episodes=len(checked),
        num_rows=sum(episode.num_steps for episode in checked),
    )


def from_function(
    make_episodes: Callable[[], Iterable[Mapping[str, Any]]], *, name: str, independent_rows: bool = False
) -> Source:
    """Returns the episodes that a function gives as a source; only those in use are in memory.

    Args:
      make_episodes: called each time the source is read (once or twice in an ingestion); gives the same episodes
        each time, of the forms of `from_episodes`. A generator function is one.
      name: of the source.
      independent_rows: see `from_episodes`.

    Raises:
      TypeError: while iterating, if the function does not give an iterable.
      SourceError: while iterating, as `from_episodes`; or if the function gives an iterator that was read before.
    """
    used: list[Iterator[Any]] = []

    def read() -> Iterator[Episode]:
        made = make_episodes()
        if not isinstance(made, Iterable):
            raise TypeError(f"{name}: the function returned a {type(made).__name__}, expected an iterable of episodes")
        episodes = iter(made)
        if any(episodes is before for before in used):
            raise SourceError(
                f"{name}: the function returned the same iterator again, which was read already; "
                "let it make a new one each time"
            )
        used[:] = [episodes]
        with contextlib.ExitStack() as stack:
            if hasattr(episodes, "close"):
                stack.callback(episodes.close)
            yield from _read_rows(episodes) if independent_rows else _read(name, episodes)

    return Source(name, "memory", read)


def _read(name: str, episodes: Iterable[Any]) -> Iterator[Episode]:
    check = ContinuityCheck(name)
    for index, given in enumerate(episodes):
        episode = _episode(index, given)
        check.add(episode, episode.num_transitions + episode.dropped_last_transition)
        yield episode
    check.finish()


def _episode(index: int, given: Any) -> Episode:
    where = f"episode {index}"
    if isinstance(given, Mapping) and all(name in given for name in fields.STEP_FIELDS):
        return Episode(as_steps(given, where), index)
    log, terminated = _log(where, given)
    if terminated[:-1].any():
        raise SourceError(
            f"{where}: {_TERMINATED} is {terminated.tolist()[:9]}, expected one flag, or one a row with only the last "
            "set"
        )
    return episode_of_log(where, index, terminated=bool(terminated[-1]), **log)


def _read_rows(episodes: Iterable[Any]) -> Iterator[Episode]:
    """Yields each row of logs as an episode of its own."""
    num_rows = 0
    for index, given in enumerate(episodes):
        where = f"episode {index}"
        log, terminated = _log(where, given)
        extras = log.pop("extras")
        log["rewards"] = rewards = require_log(where, **log)
        _require_rows(where, extras, len(rewards))
        observations = log["observations"]
        if log["next_observations"] is None:
            if len(tree.flatten(observations)[0]) == len(rewards):
                raise SourceError(f"{where} has no {d4rl.NEXT_OBSERVATIONS}, which transitions of one step need")
            log["next_observations"] = map_structure(lambda column: column[1:], observations)
        log["observations"] = map_structure(lambda column: column[: len(rewards)], observations)  # noqa: B023
        if len(terminated) == 1:
            terminated = np.arange(len(rewards)) == len(rewards) - (1 if terminated[0] else 0)
        try:
            yield from one_step_episodes(**log, terminated=terminated, extras=extras, first_index=num_rows)
        except (SpecMismatchError, TypeError, ValueError) as error:
            raise SourceError(f"{where}: {str(error).splitlines()[0]}") from error
        num_rows += len(rewards)


def _require_rows(where: str, extras: dict[str, Any], num_rows: int) -> None:
    for path, column in leaves(extras):
        if len(column) != num_rows:
            raise SourceError(f"{where}: {path_name(path, root='')} has {len(column)} rows, rewards have {num_rows}")


def _log(where: str, given: Any) -> tuple[dict[str, Any], np.ndarray]:
    """The checked columns of a log by the names of `episode_of_log`, and its flags: one, or one a row."""
    if not isinstance(given, Mapping):
        raise SourceError(f"{where} is a {type(given).__name__}, expected a dict of arrays")
    flag_name = _flag_name(where, given)
    missing = [name for name in _LOG_FIELDS if name not in given] + ([] if flag_name else [_TERMINATED])
    if missing or flag_name is None:
        raise SourceError(
            f"{where} lacks {', '.join(missing)}; give RLDS steps ({', '.join(fields.STEP_FIELDS)}) "
            f"or a log ({', '.join(_LOG_FIELDS)}, {_TERMINATED})"
        )
    ended = as_columns(np.atleast_1d(_plain(given[flag_name], where, flag_name)), f"{where}['{flag_name}']")
    terminated = as_flags(ended, f"{where}['{flag_name}']")
    flags = (flag_name, *_TRUNCATION_NAMES)
    arrays = as_columns({name: nest for name, nest in given.items() if name not in flags}, where)
    log = {name: arrays.pop(name) for name in _LOG_FIELDS}
    log[d4rl.NEXT_OBSERVATIONS] = arrays.pop(d4rl.NEXT_OBSERVATIONS, None)
    num_rows = len(log[d4rl.REWARDS])
    if not num_rows:
        raise SourceError(f"{where} has no rewards; leave empty episodes out")
    if len(terminated) not in (1, num_rows):
        raise SourceError(
            f"{where}: {_TERMINATED} is {terminated.tolist()[:9]}, expected one flag, or one for each of the "
            f"{num_rows} rows"
        )
    d4rl.require_free_names(arrays, where)
    return {**log, "extras": arrays}, terminated


def _flag_name(where: str, given: Mapping[str, Any]) -> str | None:
    """The name under which a log says whether it ended in a terminal state; None where it does not."""
    names = [name for name in _TERMINAL_NAMES if name in given]
    if len(names) > 1:
        raise SourceError(f"{where} has {' and '.join(names)}, which mean the same; give one of them")
    dones = next((name for name in d4rl.DONES if name in given), None)
    if dones and not names:
        raise SourceError(
            f"{where} has {dones}, which does not say whether it ended in a terminal state or was cut off; "
            f"give {_TERMINATED}, True for the former"
        )
    return names[0] if names else None


def _plain(flag: Any, where: str, name: str) -> Any:
    if flag is None or isinstance(flag, (Mapping, str)):
        raise SourceError(f"{where}['{name}'] is {flag!r}, expected a flag")
    try:
        return np.asarray(flag)
    except ValueError as error:
        raise SourceError(f"{where}['{name}'] is not an array ({error})") from error
