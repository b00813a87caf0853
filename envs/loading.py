"""Environments by name, for TF-Agents and for training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rlds2reverb._arguments import require_count

from . import suite_gym
from .environment import Environment
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
