"""Episodes that are in memory already: dicts of arrays, or the user's own RLDS data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from rlds2reverb import fields
from rlds2reverb.episodes import Episode, from_transitions

from . import d4rl
from .source import Source, SourceError

_LOG_FIELDS = (d4rl.OBSERVATIONS, d4rl.ACTIONS, d4rl.REWARDS)


def from_episodes(episodes: Sequence[Mapping[str, Any]], *, name: str = "episodes in memory") -> Source:
    """A list of episodes as a source.

    Each episode is a dict of (nests of) arrays, in one of two forms:

    - RLDS steps: `observation, action, reward, discount, is_first, is_last, is_terminal`, `[N, ...]`, taken as it is;
    - a log: `observations` (`[T + 1, ...]`, or `[T, ...]` and perhaps `next_observations`), `actions`, `rewards`
      `[T, ...]`, and `terminated`: whether it ended in a terminal state (a bool, or flags `[T]` of which the last
      counts). Further keys are further step fields.

    Raises:
      SourceError: if an episode has neither form, naming it.
    """
    steps = [_steps(index, dict(episode)) for index, episode in enumerate(episodes)]

    def read() -> Iterator[Episode]:
        return (Episode(columns, index) for index, columns in enumerate(steps))

    return Source(name, "memory", read, num_episodes=len(steps), num_rows=sum(len(s[fields.REWARD]) for s in steps))


def _arrays(nest: Any) -> Any:
    """The same nest of dicts and tuples with arrays as leaves; lists are rows, not nests."""
    if isinstance(nest, Mapping):
        return {name: _arrays(inner) for name, inner in nest.items()}
    if isinstance(nest, tuple):
        return tuple(_arrays(inner) for inner in nest)
    return np.asarray(nest)


def _steps(index: int, episode: dict[str, Any]) -> dict[str, Any]:
    arrays = _arrays(episode)
    if all(name in arrays for name in fields.STEP_FIELDS):
        flags = {name: arrays[name].astype(bool) for name in fields.FLAG_FIELDS}
        return {**arrays, **flags}
    missing = [name for name in (*_LOG_FIELDS, "terminated") if name not in arrays]
    if missing:
        raise SourceError(
            f"episode {index} lacks {', '.join(missing)}; give RLDS steps ({', '.join(fields.STEP_FIELDS)}) "
            f"or a log ({', '.join(_LOG_FIELDS)}, terminated)"
        )
    following = arrays.pop(d4rl.NEXT_OBSERVATIONS, None)
    observations, actions, rewards = (arrays.pop(name) for name in _LOG_FIELDS)
    terminated = bool(arrays.pop("terminated").reshape(-1)[-1])
    if not len(rewards):
        raise SourceError(f"episode {index} has no rewards; leave empty episodes out")
    if len(tree.flatten(observations)[0]) > len(rewards):
        following = None
    return from_transitions(
        observations,
        actions,
        rewards=rewards,
        terminated=terminated,
        final_observation=None if following is None else tree.map_structure(lambda rows: rows[-1], following),
        extras=arrays,
    )
