"""Environments that return time steps as Gymnasium's environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from rlds2reverb.types.specs import Nest

from .env_specs import read_reward
from .environment import Environment, require_environment
from .gymnasium_spaces import make_space


def to_gymnasium(env: Environment, *, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Converts an environment to a `gymnasium.Env`, the inverse of `GymnasiumEnvironment`.

    A LAST step is terminated if its discount is 0, and truncated otherwise. A dict `env_info` becomes `info`. A step
    after the end of an episode, or after an interrupted step, raises `gymnasium.error.ResetNeeded`.

    Args:
      env: an environment that is not batched and has scalar rewards. The result closes it.
      render_mode: mode that `render` passes to the environment; None if it is not rendered.

    Raises:
      TypeError: If the environment is batched, has several rewards, or has specs that no space has.
    """
    return _FromTimeSteps(env, render_mode)


class _FromTimeSteps(gymnasium.Env[Any, Any]):
    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, env: Environment, render_mode: str | None):
        if require_environment(env, "to_gymnasium").batched:
            raise TypeError("env must not be batched; convert the environments of the batch one by one")
        if env.reward_spec().shape:
            raise TypeError(f"env must have scalar rewards, got {env.reward_spec()}; combine them into one first")
        self._env, self.render_mode = env, render_mode
        self.observation_space, self.action_space = make_space(env.observation_spec()), make_space(env.action_spec())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Nest, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._env.seed(seed)
        time_step = self._env.reset()
        return time_step.observation, _make_info(time_step.env_info)

    def step(self, action: Nest) -> tuple[Nest, float, bool, bool, dict[str, Any]]:
        time_step = self._env.step(action)
        if time_step.is_first():
            raise gymnasium.error.ResetNeeded("the episode has ended or was interrupted; call reset()")
        is_terminated, is_truncated = bool(time_step.is_terminated()), bool(time_step.is_truncated())
        info = _make_info(time_step.env_info)
        reward = float(read_reward(time_step.reward, (), type(self._env).__name__))
        return time_step.observation, reward, is_terminated, is_truncated, info

    def render(self) -> Any:
        return None if self.render_mode is None else self._env.render(self.render_mode)

    def close(self) -> None:
        self._env.close()


def _make_info(env_info: Nest) -> dict[str, Any]:
    return {name: np.asarray(value)[()] for name, value in env_info.items()} if isinstance(env_info, dict) else {}
