"""Environments by name, for TF-Agents and for training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rlds2reverb._arguments import require_count

from . import suite_gym
from .environment import Environment
from .gymnasium_environment import GymnasiumEnvironment
from .parallel_environment import ParallelEnvironment


def load(
    name: str,
    *,
    num_parallel: int | None = None,
    seed: int | None = None,
    suite: Callable[..., Environment] = suite_gym.load,
    **options: Any,
) -> Any:
    """Creates a TF-Agents `PyEnvironment`.

        env = load("HalfCheetah-v5", num_parallel=8)

    Args:
      name: name of the environment.
      num_parallel: number B of environments in a batch, which are stepped in several processes; None for one
        environment without a batch.
      seed: environment i is seeded with `seed + i`; None for no seeds.
      suite: function with the arguments of `suite_gym.load`.
      **options: other arguments of the suite, such as `max_episode_steps`, or of the environment.

    Raises:
      ImportError, ValueError: See `suite_gym.load`.
    """
    from .py_environment import to_py_environment

    return to_py_environment(create_environment(name, num_parallel, seed=seed, suite=suite, **options))


def create_environment(
    name: str,
    num_parallel: int | None = None,
    *,
    seed: int | None = None,
    suite: Callable[..., Environment] = suite_gym.load,
    parallel_options: dict[str, Any] | None = None,
    **options: Any,
) -> Environment:
    """Creates an environment whose time steps have all fields of `TimeStep`, after ALF's function of this name.

    Args:
      name: name of the environment.
      num_parallel: number of environments in a batch; None for one environment without a batch.
      seed: environment i is seeded with `seed + i`; None for no seeds.
      suite: function with the arguments of `suite_gym.load`.
      parallel_options: arguments of `ParallelEnvironment`.
      **options: other arguments of the suite, such as `max_episode_steps`, or of the environment.

    Raises:
      ImportError, ValueError: See `suite_gym.load`.
    """
    if num_parallel is None:
        env = suite(name, **options)
        if seed is not None:
            env.seed(seed)
        return env
    require_count("num_parallel", num_parallel)
    suite(name, **options).close()  # Errors are those of the suite instead of those of a worker.
    constructors = [functools.partial(suite, name, env_id=index, **options) for index in range(num_parallel)]
    return ParallelEnvironment(constructors, seed=seed, **(parallel_options or {}))


def make_environment(make_env: Any, *, env_id: int = 0) -> Environment:
    """Creates one environment from its name, from a description, or with a function.

    Args:
      make_env: id of a Gymnasium environment, such as 'Hopper-v5' or 'my_module:MyEnv-v0'; a `gymnasium.EnvSpec`; or a
        function that returns a `gymnasium.Env` or an `Environment`.
      env_id: index of the environment in a batch.

    Raises:
      ImportError, ValueError: See `suite_gym.load`.
      TypeError: If a function does not return an environment.
    """
    if isinstance(make_env, str):
        return suite_gym.load(make_env, env_id=env_id)
    env = make_env() if callable(make_env) else suite_gym.make_gym(make_env)
    if isinstance(env, Environment):
        return env
    if not hasattr(env, "observation_space") or not hasattr(env, "step"):
        raise TypeError(f"make_env must return a gymnasium.Env or an Environment, got {type(env).__name__}")
    try:
        return GymnasiumEnvironment(env, env_id=env_id)
    except BaseException:
        env.close()
        raise
