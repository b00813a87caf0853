"""Environments of EnvPool, which steps a whole batch in C++ threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlds2reverb._arguments import require_count
from rlds2reverb._system.installation import install_command
from rlds2reverb._system.text import suggest
from rlds2reverb.replacements import require_arguments
from rlds2reverb.specs import Nest, leaves

from .environment import Environment
from .envpool_environment import EnvPoolEnvironment
from .suite_gym import OWN_OPTIONS


def load(
    name: str,
    env_id: int | None = None,
    discount: float = 1.0,
    max_episode_steps: int | None = None,
    gym_wrappers: Sequence[Callable[[Any], Any]] = (),
    env_wrappers: Sequence[Callable[[Environment], Environment]] = (),
    *,
    batch_size: int = 1,
    **options: Any,
) -> Environment:
    """Creates a batch of environments of EnvPool, with the arguments of `suite_gym.load`.

    Environments that are registered with Gymnasium under the same name have Gymnasium's specs, so that agents do not
    depend on the backend. Environment i is seeded with `seed + i`; the episodes of a seed differ from Gymnasium's.

    Args:
      name: name of the environment in EnvPool, such as 'HalfCheetah-v5'.
      env_id: must be 0 or None; `TimeStep.env_id` is the index in the batch.
      discount: discount of all steps except terminal ones.
      max_episode_steps: number of steps after which episodes are truncated; None for the registered limit, 0 for no
        limit.
      gym_wrappers: must be empty, because there is no `gymnasium.Env` to wrap.
      env_wrappers: functions that take and return an `Environment`; they wrap the batch.
      batch_size: number B of environments.
      **options: `num_threads`, `allow_non_finite` or `render_mode` of `EnvPoolEnvironment`, or arguments of the
        environment, such as `frame_skip`.

    Raises:
      ImportError: If EnvPool is not installed.
      ValueError: If there is no environment of this name, with the most similar one in the message, or an argument is
        out of range.
      TypeError: If a space of the environment, or the number of its players, is not supported.
    """
    try:
        import envpool
    except ImportError as error:
        raise ImportError(
            f"backend='envpool' requires EnvPool ({error}); run {install_command('envpool')} with Python 3.11"
        ) from error
    require_count("batch_size", batch_size)
    if gym_wrappers:
        raise ValueError("gym_wrappers cannot wrap environments of EnvPool; use env_wrappers, or backend='gymnasium'")
    if env_id:
        raise ValueError(f"env_id must be 0 for a batch of EnvPool, got {env_id}; leave it out")
    require_arguments(lambda **options: None, options, "suite_envpool", "suite_gym.load", own=OWN_OPTIONS)
    known = envpool.list_all_envs()
    if name not in known:
        advice = suggest(name, known) or "; use backend='gymnasium' if it is registered there"
        raise ValueError(f"EnvPool has no environment {name!r}{advice}")
    options = {"discount": discount, "max_episode_steps": max_episode_steps, **options}
    env: Environment = EnvPoolEnvironment(name, batch_size, **options)
    specs = _find_registered_specs(name)
    if specs is not None and _have_same_shapes(specs, (env.observation_spec(), env.action_spec())):
        env = EnvPoolEnvironment(name, batch_size, specs=specs, **options)
    for wrap_env in env_wrappers:
        env = wrap_env(env)
    return env


#: `create_environment` calls the suite once for the whole batch.
load.batched = True  # type: ignore[attr-defined]


def _find_registered_specs(name: str) -> tuple[Nest, Nest] | None:
    """Returns the specs of observations and actions of Gymnasium's environment; None if it cannot create it."""
    from . import suite_gym

    try:
        with suite_gym.load(name) as env:
            return env.observation_spec(), env.action_spec()
    except (ImportError, TypeError, ValueError):
        return None


def _have_same_shapes(specs: Nest, others: Nest) -> bool:
    return [(path, leaf.shape) for path, leaf in leaves(specs)] == [(path, leaf.shape) for path, leaf in leaves(others)]
