"""Episodes that are in memory already: dicts of arrays, or the user's own RLDS data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from rlds2reverb import fields
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError

from . import d4rl
from .columns import as_columns, as_flags, as_steps, steps_of_log
from .source import Source

_LOG_FIELDS = (d4rl.OBSERVATIONS, d4rl.ACTIONS, d4rl.REWARDS)
_TERMINATED, _TRUNCATED = "terminated", "truncated"


def from_episodes(episodes: Sequence[Mapping[str, Any]], *, name: str = "episodes in memory") -> Source:
    """A list of episodes as a source.

    Each episode is a dict of (nests of) arrays, in one of two forms:

    - RLDS steps: `observation, action, reward, discount, is_first, is_last, is_terminal`, `[N, ...]`, taken as it is;
    - a log: `observations` (`[T + 1, ...]`, or `[T, ...]` and perhaps `next_observations`), `actions`, `rewards`
      `[T, ...]`, and `terminated`: whether it ended in a terminal state (a bool, or flags `[T]` of which the last
      counts); `truncated` beside it says nothing more. Further keys are further step fields.

    Raises:
      SourceError: if an episode has neither form, naming it.
    """
    steps = [_steps(index, episode) for index, episode in enumerate(episodes)]

    def read() -> Iterator[Episode]:
        return (Episode(columns, index) for index, columns in enumerate(steps))

    return Source(
        name, "memory", read, num_episodes=len(steps), num_rows=sum(len(columns[fields.IS_FIRST]) for columns in steps)
    )


def _steps(index: int, episode: Any) -> dict[str, Any]:
    where = f"episode {index}"
    if not isinstance(episode, Mapping):
        raise SourceError(f"{where} is a {type(episode).__name__}, expected a dict of arrays")
    if all(name in episode for name in fields.STEP_FIELDS):
        return as_steps(episode, where)
    missing = [name for name in (*_LOG_FIELDS, _TERMINATED) if name not in episode]
    if missing:
        raise SourceError(
            f"{where} lacks {', '.join(missing)}; give RLDS steps ({', '.join(fields.STEP_FIELDS)}) "
            f"or a log ({', '.join(_LOG_FIELDS)}, {_TERMINATED})"
        )
    ended = as_columns(np.atleast_1d(_plain(episode[_TERMINATED], where)), f"{where}['{_TERMINATED}']")
    terminated = as_flags(ended, f"{where}['{_TERMINATED}']")
    arrays = as_columns({name: nest for name, nest in episode.items() if name not in (_TERMINATED, _TRUNCATED)}, where)
    following = arrays.pop(d4rl.NEXT_OBSERVATIONS, None)
    observations, actions, rewards = (arrays.pop(name) for name in _LOG_FIELDS)
    num_rows = len(rewards)
    if not num_rows:
        raise SourceError(f"{where} has no rewards; leave empty episodes out")
    if len(terminated) not in (1, num_rows) or terminated[:-1].any():
        raise SourceError(
            f"{where}: {_TERMINATED} is {terminated.tolist()[:9]}, expected one flag, or one a row with only the last "
            "set"
        )
    d4rl.require_free_names(arrays, where)
    return steps_of_log(
        where,
        observations,
        actions,
        rewards=rewards,
        terminated=bool(terminated[-1]),
        final_observation=_final(observations, following, num_rows, where),
        extras=arrays,
    )


def _plain(flag: Any, where: str) -> Any:
    if flag is None or isinstance(flag, (Mapping, str)):
        raise SourceError(f"{where}['{_TERMINATED}'] is {flag!r}, expected a flag")
    try:
        return np.asarray(flag)
    except ValueError as error:
        raise SourceError(f"{where}['{_TERMINATED}'] is no array ({error})") from error


def _final(observations: Any, following: Any, num_rows: int, where: str) -> Any:
    """The last of `next_observations`, or None where the observations hold the final one themselves."""
    if following is None or any(len(column) > num_rows for column in tree.flatten(observations)):
        return None
    if any(len(column) != num_rows for column in tree.flatten(following)) or not tree.flatten(following):
        raise SourceError(f"{where}: {d4rl.NEXT_OBSERVATIONS} and rewards differ in their number of rows")
    return tree.map_structure(lambda rows: rows[-1], following)
