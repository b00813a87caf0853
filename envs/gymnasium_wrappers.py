"""Wrappers of Gymnasium environments that Gymnasium itself does not have, after those of ALF.

They are arguments of `suite_gym.load(..., gym_wrappers=[...])`. Wrappers of observations act on the whole observation,
or on the parts of a nested one that dotted paths name:

    functools.partial(ImageChannelFirst, fields="camera.front")

Here a Tuple observation has paths as well ('joints.0'); a path may name a Dict or Tuple, for everything in it; all
spaces are changed with their values; and randomness is seeded by `reset(seed=...)`. None of this holds in ALF.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from rlds2reverb.types.arguments import require_number
from rlds2reverb.types.nest_paths import Keys, find_leaves, format_path, get_part, replace_part

Env = gymnasium.Env[Any, Any]


class SparseReward(gymnasium.RewardWrapper[Any, Any], RecordConstructorArgs):
    """Replaces positive rewards by 1, and all others by 0. NaN stays NaN, so that it is reported."""

    def __init__(self, env: Env):
        RecordConstructorArgs.__init__(self)
        gymnasium.RewardWrapper.__init__(self, env)

    def reward(self, reward: SupportsFloat) -> float:
        """Returns 1 for a positive reward, and 0 for any other."""
        return math.nan if math.isnan(float(reward)) else float(float(reward) > 0)


class NonEpisodic(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """An environment whose episodes never end: neither terminated nor truncated is ever set. ALF's `NonEpisodicEnv`.

    The environment is not reset, so it must be able to continue from its terminal states, as MuJoCo's can.
    `TimeLimit`, which is applied outside of it, still ends episodes. To reset after terminal states and hide them only
    from the agent, use `NonEpisodicAgent`.
    """

    def __init__(self, env: Env):
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Executes an action."""
        observation, reward, _, _, info = self.env.step(action)
        return observation, reward, False, False, info


class ObservationTransform(gymnasium.ObservationWrapper[Any, Any, Any], RecordConstructorArgs, abc.ABC):
    """Base class of wrappers that change some leaves of the observation and of its space.

    Subclasses implement `accepts`, `transform_space` and `transform_observation`. They may override `start_episode` to
    choose random numbers that hold for the whole episode.

    Attributes:
      spaces: the leaves that are changed, by their keys: their spaces before the change.
      random: random generator, seeded by `reset(seed=...)` independently of the environment and of other wrappers.
    """

    #: The kind of leaves that can be changed, for messages.
    supported: ClassVar[str]

    def __init__(self, env: Env, fields: str | Sequence[str] | None = None, **arguments: Any):
        """Wraps an environment, and changes its observation space.

        Args:
          env: the environment.
          fields: path of a leaf, such as 'camera.front', or several paths; None for the whole observation. The path of
            a Dict or Tuple stands for the leaves in it that the wrapper can change, of which there must be one.
          **arguments: the other arguments of the subclass, with which `gymnasium.make` recreates the wrapper.

        Raises:
          ValueError: If there is no such path; the message lists those that exist.
          TypeError: If the wrapper cannot change a leaf.
        """
        RecordConstructorArgs.__init__(self, fields=fields, **arguments)
        gymnasium.ObservationWrapper.__init__(self, env)
        self.random = np.random.default_rng()
        self.spaces: dict[Keys, Any] = {}
        space: Any = env.observation_space
        for keys, is_named in find_leaves(space, fields):
            leaf = get_part(env.observation_space, keys)
            if self.accepts(leaf, is_named=is_named):
                self.spaces[keys] = leaf
                space = replace_part(space, keys, self.transform_space)
            elif is_named:
                name = f"the observation {format_path(keys)!r}" if keys else "the observation"
                raise TypeError(f"{type(self).__name__} requires {self.supported}, but {name} is {leaf}")
        if not self.spaces:
            place = "the observation" if fields is None else repr(fields)
            raise TypeError(f"{type(self).__name__} requires {self.supported}, but {place} contains none: {space}")
        self.observation_space = space

    @abc.abstractmethod
    def accepts(self, space: Any, *, is_named: bool) -> bool:
        """Returns whether to change a leaf of this space; `is_named` if `fields` contains its path."""

    @abc.abstractmethod
    def transform_space(self, space: spaces.Box) -> spaces.Box:
        """Returns the space of a changed leaf."""

    @abc.abstractmethod
    def transform_observation(self, observation: np.ndarray, keys: Keys) -> np.ndarray:
        """Returns a changed leaf, given the leaf and its keys in the observation."""

    def start_episode(self) -> None:
        """Chooses what holds for the whole episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts a new episode; a seed also seeds the random numbers of the wrapper."""
        if seed is not None:
            # With their number, equal wrappers around one environment make different choices.
            self.random = np.random.default_rng((seed, _count_wrappers(self.env)))
        self.start_episode()
        return super().reset(seed=seed, options=options)

    def observation(self, observation: Any) -> Any:
        """Returns the observation with its leaves changed."""
        for keys in self.spaces:
            observation = replace_part(observation, keys, functools.partial(self._transform, keys=keys))
        return observation

    def _transform(self, leaf: Any, keys: Keys) -> np.ndarray:
        return self.transform_observation(np.asarray(leaf), keys)


class ObservationClip(ObservationTransform):
    """Clips observations, by default to [-200, 200] as in OpenAI's baselines. ALF's `ObservationClipWrapper`.

    In a Dict or Tuple, all floats are clipped; integers, such as images, only if a path names them.
    """

    supported = "floats"

    def __init__(
        self, env: Env, min_v: float = -200.0, max_v: float = 200.0, *, fields: str | Sequence[str] | None = None
    ):
        """Wraps an environment.

        Args:
          env: the environment.
          min_v: lowest value; rounded up for integers.
          max_v: highest value, at least `min_v`; rounded down for integers.
          fields: see `ObservationTransform`.

        Raises:
          ValueError: If the values are out of order, or there is no such path.
          TypeError: If a leaf is not a Box.
        """
        require_number("min_v", min_v)
        require_number("max_v", max_v, min_v)
        self._bounds = min_v, max_v
        super().__init__(env, fields, min_v=min_v, max_v=max_v)

    def accepts(self, space: Any, *, is_named: bool) -> bool:
        """Returns whether the space is a Box of floats, or of integers that have a path of their own."""
        kinds = "fiu" if is_named else "f"
        return isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in kinds

    def transform_space(self, space: spaces.Box) -> spaces.Box:
        """Returns the space with clipped bounds."""
        return make_box(self._clip(space.low), self._clip(space.high), space)

    def transform_observation(self, observation: np.ndarray, keys: Keys) -> np.ndarray:
        """Returns the clipped values; NaN stays NaN."""
        return self._clip(observation)

    def _clip(self, values: np.ndarray) -> np.ndarray:
        low, high = self._bounds
        if values.dtype.kind == "f":
            return np.clip(values, low, high).astype(values.dtype, copy=False)
        limits = np.iinfo(values.dtype)
        low, high = (int(min(max(bound, limits.min), limits.max)) for bound in (math.ceil(low), math.floor(high)))
        return np.clip(values, low, high)


def make_box(low: np.ndarray, high: np.ndarray, like: Any) -> spaces.Box:
    """Returns a Box with these bounds and the dtype of `like`."""
    return spaces.Box(np.ascontiguousarray(low), np.ascontiguousarray(high), dtype=like.dtype.type)


def _count_wrappers(env: Any) -> int:
    return 1 + _count_wrappers(env.env) if isinstance(env, gymnasium.Wrapper) else 0
