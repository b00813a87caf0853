"""Environments of the DeepMind Control Suite."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlds2reverb.system.installation import install_command
from rlds2reverb.system.replacements import require_arguments
from rlds2reverb.system.text import suggest

from . import suite_gym
from .environment import Environment
from .gymnasium_environment import GymnasiumEnvironment

_IMAGE_SIZE = {"height": 240, "width": 320}


def load(
    name: str,
    env_id: int | None = None,
    discount: float = 1.0,
    max_episode_steps: int | None = None,
    gym_wrappers: Sequence[Callable[[Any], Any]] = (),
    env_wrappers: Sequence[Callable[[Environment], Environment]] = (),
    *,
    render_mode: str | None = None,
    task_kwargs: dict[str, Any] | None = None,
    environment_kwargs: dict[str, Any] | None = None,
    auto_reset: bool = True,
    **unknown: Any,
) -> Environment:
    """Creates an environment of the Control Suite, with the arguments of `suite_gym.load`.

    The order of wrappers is that of `suite_gym.load`; the innermost environment is a `gymnasium.Env` without a time
    limit. Observations are dicts of float32 arrays. In dm_control itself, a termination in the step of the time limit
    is a truncation; here it stays a termination.

    Args:
      name: domain and task, such as 'cheetah:run'.
      env_id: index of the environment in a batch; None for 0.
      discount: discount of all steps except terminal ones.
      max_episode_steps: number of steps after which episodes are truncated; None for the limit of the task, 0 for no
        limit.
      gym_wrappers: functions, such as classes of wrappers, that take and return a `gymnasium.Env`.
      env_wrappers: functions that take and return an `Environment`.
      render_mode: 'rgb_array' for images uint8 [240, 320, 3] of the first camera; None for no rendering. On a machine
        without a display, dm_control requires the environment variable MUJOCO_GL=egl or osmesa.
      task_kwargs: arguments of the task.
      environment_kwargs: arguments of dm_control's environment, such as `flat_observation`.
      auto_reset: see `Environment`.
      **unknown: refused.

    Raises:
      ImportError: If dm_control or Gymnasium is not installed.
      ValueError: If there is no such task; the message contains the most similar one.
      TypeError: If there is no such argument, or observations or actions are not numbers.
    """
    require_arguments(lambda: None, unknown, "suite_dm_control", "suite_gym.load", own=suite_gym.OWN_OPTIONS)
    try:
        from dm_control import suite
    except ImportError as error:
        raise ImportError(
            f"suite_dm_control requires dm_control ({error}); run {install_command('dm-control')}"
        ) from error
    known = [":".join(pair) for pair in suite.ALL_TASKS]
    if name not in known:
        raise ValueError(f"dm_control has no environment {name!r}{suggest(name, known)}")
    inner = suite.load(*name.split(":"), task_kwargs=task_kwargs, environment_kwargs=environment_kwargs)
    limit, inner._step_limit = inner._step_limit, math.inf
    env = _make_gymnasium(inner, render_mode)
    duration = (0 if math.isinf(limit) else math.ceil(limit)) if max_episode_steps is None else max_episode_steps
    convert = functools.partial(GymnasiumEnvironment, discount=discount, env_id=env_id or 0, auto_reset=auto_reset)
    return suite_gym.wrap_in_order(env, gym_wrappers, convert, duration, env_wrappers)


def _make_gymnasium(inner: Any, mode: str | None) -> Any:
    """Returns a dm_control environment as a `gymnasium.Env`."""
    gymnasium = suite_gym.import_gymnasium()

    class ControlEnvironment(gymnasium.Env):  # type: ignore[name-defined]
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
        render_mode = mode
        observation_space = _make_space(gymnasium.spaces, inner.observation_spec())
        action_space = _make_space(gymnasium.spaces, inner.action_spec())

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            if seed is not None:
                inner.task.random.seed(seed)
            return inner.reset().observation, {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            time_step = inner.step(action)
            is_terminated = time_step.last() and time_step.discount == 0
            return time_step.observation, time_step.reward, is_terminated, time_step.last() and not is_terminated, {}

        def render(self) -> Any:
            return inner.physics.render(**_IMAGE_SIZE, camera_id=0)

        def close(self) -> None:
            inner.close()

    return ControlEnvironment()


def _make_space(spaces: Any, spec: Any) -> Any:
    """Returns the space of dm_env's specs."""
    if isinstance(spec, dict):
        return spaces.Dict({key: _make_space(spaces, part) for key, part in spec.items()})
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return spaces.MultiBinary(spec.shape)
    if dtype.kind not in "fiu":
        raise TypeError(f"observations and actions must be numbers, got {spec}")
    limits: Any = np.iinfo(dtype) if dtype.kind in "iu" else None
    low = getattr(spec, "minimum", limits.min if limits else -np.inf)
    high = getattr(spec, "maximum", limits.max if limits else np.inf)
    low, high = (np.broadcast_to(bound, spec.shape).astype(dtype) for bound in (low, high))
    return spaces.Box(low, high, spec.shape, dtype.type)
