"""Environments as TF-Agents' `PyEnvironment`, for its drivers, policies and metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.environments import py_environment
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from rlds2reverb.types.specs import ArraySpec, Nest

from .env_specs import BoundedArraySpec, read_reward
from .environment import EnvAttributes, Environment, require_environment
from .time_steps import TimeStep

_FLOAT32 = np.dtype(np.float32)


def to_py_environment(env: Environment) -> AgentsEnvironment:
    """Converts an environment to TF-Agents' `PyEnvironment`.

    Args:
      env: an environment, batched or not. The result closes it.
    """
    return AgentsEnvironment(env)


class AgentsEnvironment(EnvAttributes, py_environment.PyEnvironment):
    """A TF-Agents `PyEnvironment` whose time steps are those of an `Environment`, without the additional fields.

    Attributes:
      env: the environment. Its `current_time_step()` has the other fields of the current time step.
    """

    def __init__(self, env: Environment):
        super().__init__(handle_auto_reset=False)
        self.env = require_environment(env, "to_py_environment")
        self._observation_spec = _convert_spec(env.observation_spec(), "observation")
        self._action_spec = _convert_spec(env.action_spec(), "action")
        self._reward_spec = _convert_spec(env.reward_spec(), "reward")
        leading = (self.batch_size,) if self.batched else ()
        self._reward_shape: Any = (*leading, *env.reward_spec().shape)

    @property
    def batched(self) -> bool:
        """True if time steps and actions have a leading axis B."""
        return self.env.batched

    @property
    def batch_size(self) -> int | None:
        """The number B of environments in the batch; None without a batch."""
        return self.env.batch_size

    def observation_spec(self) -> Nest:
        """Returns TF-Agents' specs of one observation."""
        return self._observation_spec

    def action_spec(self) -> Nest:
        """Returns TF-Agents' specs of one action, with its bounds."""
        return self._action_spec

    def reward_spec(self) -> Any:
        """Returns TF-Agents' spec of one reward."""
        return self._reward_spec

    def get_info(self) -> Nest:
        """Returns the `env_info` of the current time step; `()` before the first one."""
        current = self.env.current_time_step()
        return () if current is None else current.env_info

    def seed(self, seed: int) -> None:
        """Sets the seed of the next `reset`."""
        self.env.seed(seed)

    def render(self, mode: str = "rgb_array") -> Any:
        """Returns an image of the environment."""
        return self.env.render(mode)

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _reset(self) -> ts.TimeStep:
        return self._convert(self.env.reset())

    def _step(self, action: Nest) -> ts.TimeStep:
        return self._convert(self.env.step(action))

    def _convert(self, time_step: TimeStep) -> ts.TimeStep:
        reward = time_step.reward
        if getattr(reward, "shape", None) != self._reward_shape or reward.dtype is not _FLOAT32:
            reward = read_reward(reward, self._reward_shape, type(self.env).__name__)
            time_step = time_step._replace(reward=reward)
        return ts.TimeStep(*time_step[:4])


def _convert_spec(spec: Nest, name: str) -> Nest:
    def convert(leaf: ArraySpec) -> Any:
        if isinstance(leaf, BoundedArraySpec):
            return array_spec.BoundedArraySpec(leaf.shape, leaf.dtype, leaf.minimum, leaf.maximum, name=name)
        return array_spec.ArraySpec(leaf.shape, leaf.dtype, name=name)

    return tf.nest.map_structure(convert, spec)
