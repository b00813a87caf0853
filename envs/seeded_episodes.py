"""Episodes with a seed of their own, which can be repeated by executing their actions again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.types.specs import Nest, leaves

from .creation import make_environment
from .environment import Environment, Wrapper
from .time_steps import TimeStep


class EpisodeProgress(NamedTuple):
    """The values that determine the state of an environment with `SeededEpisodes`.

    Attributes:
      episode: number of the episode, from 0.
      actions: the actions that were executed in it up to now; there may be none.
      observation: the leaves of the observation that followed them, by path, in any dtypes; leaves may be missing.
    """

    episode: int
    actions: Sequence[Nest]
    observation: Mapping[tuple[Any, ...], np.ndarray] = {}

    def matches(self, time_step: TimeStep) -> bool:
        """Returns whether a time step has the observation."""
        columns = dict(leaves(time_step.observation))
        return all(np.array_equal(columns[path].astype(leaf.dtype), leaf) for path, leaf in self.observation.items())


class SeededEpisodes(Wrapper):
    """An environment whose episodes each have a seed, which depends on nothing but three numbers.

    They are a seed, the index of the environment, and the number of the episode. An environment without other sources
    of randomness can therefore be brought back to a state in the middle of an episode: a new one executes the actions
    of that episode again. Gymnasium's classic-control and MuJoCo environments are of this kind.
    """

    def __init__(self, env: Environment, seed: int, index: int, *, start: EpisodeProgress | None = None):
        """Wraps an environment.

        Args:
          env: an environment that is not batched. If it cannot be seeded, its episodes cannot be repeated.
          seed: seed of all environments, at least 0.
          index: index of this environment, at least 0.
          start: state after the first `reset`; None for the beginning of episode 0. With actions, the first time step
            is therefore the one that follows the last of them; if it has a different observation, the episode cannot be
            repeated, and the next one begins instead.
        """
        super().__init__(env)
        self._seed, self._index = seed, index
        self._start, self._episode = start, 0 if start is None else start.episode

    def skip_episodes(self, number: int) -> None:
        """Leaves out the seeds of `number` episodes; the next `reset` starts an episode at its beginning."""
        self._episode, self._start = self._episode + number, None
        super().skip_episodes(number)

    def _reset(self) -> TimeStep:
        time_step = self._begin()
        start, self._start = self._start, None
        if start is None or not start.actions:
            return time_step
        for action in start.actions:
            time_step = self.env.advance(action)
        return time_step if start.matches(time_step) else self._begin()

    def _begin(self) -> TimeStep:
        with suppress(NotImplementedError):
            self.env.seed(make_episode_seed(self._seed, self._index, self._episode))
        self._episode += 1
        return self.env.reset()


def make_episode_seed(seed: int, index: int, episode: int) -> int:
    """Returns the seed of an episode, in [0, 2^32), for numbers of at least 0."""
    return int(np.random.SeedSequence([seed, index, episode]).generate_state(1)[0])


def make_seeded(make_env: Any, seed: int, index: int, start: EpisodeProgress | None = None) -> SeededEpisodes:
    """Creates an environment with `SeededEpisodes`, in the process that steps it.

    Args:
      make_env: see `creation.make_environment`.
      seed: see `SeededEpisodes`.
      index: see `SeededEpisodes`.
      start: see `SeededEpisodes`.

    Raises:
      ImportError, TypeError, ValueError: See `creation.make_environment`.
    """
    return SeededEpisodes(make_environment(make_env, env_id=index), seed, index, start=start)
