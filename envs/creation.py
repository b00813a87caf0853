"""Environments by name, for TF-Agents and for training."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rlds2reverb.system.replacements import require_arguments
from rlds2reverb.types.arguments import require_count

from . import suite_gym
from .batched_environment import BatchedEnvironment
from .environment import Environment
from .goal_tasks import add_goals
from .gymnasium_environment import GymnasiumEnvironment
from .parallel_environment import ParallelEnvironment
from .thread_environment import ThreadEnvironment
from .time_limit import set_time_limit
from .worker_count import choose_num_workers

Suite = Callable[..., Environment]


def load(
    name: str,
    *,
    num_parallel: int | None = None,
    seed: int | None = None,
    suite: Suite = suite_gym.load,
    **options: Any,
) -> Any:
    """Creates a TF-Agents `PyEnvironment`.

        env = load("HalfCheetah-v5", num_parallel=8)

    Args:
      name: name of the environment.
      num_parallel: number B of environments in a batch, which are stepped in several processes where that is faster;
        None for one environment without a batch.
      seed: environment i is seeded with `seed + i`; None for no seeds.
      suite: see `create_environment`.
      **options: other arguments of `create_environment`, of the suite, such as `max_episode_steps`, or of the
        environment.

    Raises:
      Exception: See `create_environment`.
    """
    from .py_environment import to_py_environment

    return to_py_environment(create_environment(name, num_parallel, seed=seed, suite=suite, **options))


def create_environment(
    name: str,
    num_parallel: int | None = None,
    seed: int | None = None,
    *,
    nonparallel: bool = False,
    for_evaluation: bool = False,
    suite: Suite = suite_gym.load,
    timeout_secs: float = 60.0,
    parallel_options: dict[str, Any] | None = None,
    **options: Any,
) -> Environment:
    """Creates an environment whose time steps have all fields of `TimeStep`, after ALF's function of this name.

    A suite is a function with the arguments of `suite_gym.load`, and may have two attributes. If `suite.batched` is
    true, it returns batches: it is called once, with the additional argument `batch_size`. If `suite.no_thread_env` is
    true, its environments only work in the main thread of a process.

    Args:
      name: name of the environment.
      num_parallel: number of environments in a batch; None for one environment without a batch. Whether workers step
        them is chosen by measurement (see `worker_count`), unless `parallel_options` contains `num_workers` or
        `caller_steps`.
      seed: environment i is seeded with `seed + i`; None for no seeds.
      nonparallel: whether to create only one environment, as a batch of size 1 in this process, whatever `num_parallel`
        is. It has its own thread, unless the suite has `no_thread_env`.
      for_evaluation: whether to create an environment for evaluation: one environment as a batch of size 1, whatever
        `num_parallel` is. It has its own thread, or its own process if the suite has `no_thread_env`, and
        shares nothing with other environments.
      suite: function that creates the environment.
      timeout_secs: maximum duration of a step in a worker or a thread.
      parallel_options: other arguments of `ParallelEnvironment`.
      **options: other arguments of the suite, such as `max_episode_steps`, or of the environment.

    Raises:
      ImportError: See `suite_gym.load`.
      ValueError: If an argument is out of range, or arguments exclude each other; see also `suite_gym.load`.
      TypeError: If a suite with `batched` does not return a batch of this size.
    """
    own = [*inspect.signature(create_environment).parameters][:-1]
    require_arguments(suite, options, "create_environment", "create_environment", "suite_gym.load", own=own)
    if callable(num_parallel):
        raise TypeError(f"num_parallel must be a number, got the function {num_parallel!r}; pass it as suite=")
    if num_parallel is not None:
        require_count("num_parallel", num_parallel)
    is_single = nonparallel or for_evaluation
    if getattr(suite, "batched", False):
        env = _create_batch(suite, name, 1 if is_single else num_parallel, parallel_options, options)
    elif is_single:
        env = _create_single(suite, name, for_evaluation, timeout_secs, options)
    elif num_parallel is None:
        env = suite(name, **options)
    else:
        parallel_options = {"timeout_secs": timeout_secs, **(parallel_options or {})}
        with suite(name, **options) as trial:  # Errors are those of the suite instead of those of a worker.
            if not parallel_options.keys() & {"num_workers", "caller_steps"}:
                parallel_options["num_workers"] = choose_num_workers(trial, num_parallel)
        constructors = [functools.partial(suite, name, env_id=index, **options) for index in range(num_parallel)]
        env = ParallelEnvironment(constructors, **parallel_options)
    if seed is not None:
        try:
            env.seed(seed)
        except BaseException:
            env.close()
            raise
    return env


def _create_batch(
    suite: Suite, name: str, batch_size: int | None, parallel_options: Any, options: dict[str, Any]
) -> Environment:
    if batch_size is None:
        raise ValueError("this suite creates batches of environments; set num_parallel, which may be 1")
    if parallel_options:
        raise ValueError("parallel_options cannot be used with a suite that creates batches; remove them")
    env = suite(name, batch_size=batch_size, **options)
    if env.batch_size != batch_size:
        size = env.batch_size
        env.close()
        raise TypeError(f"the suite must return a batch of {batch_size} environments, got batch_size={size}")
    return env


def _create_single(
    suite: Suite, name: str, for_evaluation: bool, timeout_secs: float, options: dict[str, Any]
) -> Environment:
    """Creates a batch of one environment, in a thread unless the suite does not allow threads."""
    constructor = functools.partial(suite, name, **options)
    if not getattr(suite, "no_thread_env", False):
        return ThreadEnvironment(lambda: BatchedEnvironment([constructor()]), timeout_secs=timeout_secs)
    if for_evaluation:
        return ParallelEnvironment([constructor], caller_steps=False, timeout_secs=timeout_secs)
    return BatchedEnvironment([constructor()])


def make_environment(
    make_env: Any,
    *,
    env_id: int = 0,
    max_episode_steps: int | None = None,
    info_fields: Sequence[str] = (),
    with_goals: bool = False,
    render_mode: str | None = None,
) -> Environment:
    """Creates one environment from its name, from a description, or with a function.

    Args:
      make_env: id of a Gymnasium environment, such as 'Hopper-v5' or 'my_module:MyEnv-v0'; a `gymnasium.EnvSpec`; or a
        function that returns a `gymnasium.Env` or an `Environment`.
      env_id: index of the environment in a batch.
      max_episode_steps: number of steps after which episodes are truncated, in place of the environment's own limit;
        None for that limit.
      info_fields: see `GymnasiumEnvironment`.
      with_goals: whether observations must show goals; see `add_goals`.
      render_mode: mode of `render`, unless a function creates the environment.

    Raises:
      ImportError, ValueError: See `suite_gym.load` and `GymnasiumEnvironment`; also if a function returns an
        `Environment`, whose `env_info` is set already, and `info_fields` are given.
      TypeError: If a function does not return an environment.
    """
    if max_episode_steps is not None:
        require_count("max_episode_steps", max_episode_steps)
    options: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    if isinstance(make_env, str):
        env = suite_gym.load(make_env, env_id=env_id, info_fields=info_fields, **options)
    else:
        made = make_env() if callable(make_env) else suite_gym.make_gym(make_env, **options)
        env = made if isinstance(made, Environment) else _convert(made, env_id, info_fields)
        if env is made and info_fields:
            raise ValueError(
                "env_info must be True for a function that returns an Environment, got names; create it with "
                "info_fields"
            )
    env = env if max_episode_steps is None else set_time_limit(env, max_episode_steps)
    return add_goals(env) if with_goals else env


def _convert(env: Any, env_id: int, info_fields: Sequence[str]) -> Environment:
    if not hasattr(env, "observation_space") or not hasattr(env, "step"):
        raise TypeError(f"make_env must return a gymnasium.Env or an Environment, got {type(env).__name__}")
    try:
        return GymnasiumEnvironment(env, env_id=env_id, info_fields=info_fields)
    except BaseException:
        env.close()
        raise
