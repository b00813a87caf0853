"""Environments that are registered with Gymnasium."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlds2reverb.system.installation import install_command
from rlds2reverb.system.replacements import require_arguments
from rlds2reverb.system.text import suggest
from rlds2reverb.types.specs import ArraySpec

from .environment import Environment
from .gymnasium_environment import GymnasiumEnvironment


def load(
    name: str,
    env_id: int | None = None,
    discount: float = 1.0,
    max_episode_steps: int | None = None,
    gym_wrappers: Sequence[Callable[[Any], Any]] = (),
    env_wrappers: Sequence[Callable[[Environment], Environment]] = (),
    *,
    info_fields: Sequence[str] | Mapping[str, ArraySpec] = (),
    auto_reset: bool = True,
    **options: Any,
) -> Environment:
    """Creates an environment that is registered with Gymnasium.

    The order, from the inside to the outside, is: the environment without Gymnasium's own time limit, `gym_wrappers` in
    their order, `GymnasiumEnvironment` with the limit, and `env_wrappers` in their order. Wrappers on time steps see
    the ends of episodes by time, and neither hides whether an episode was terminated or truncated.

    Args:
      name: id of the environment, such as 'Hopper-v5', or 'my_module:MyEnv-v0' to import a module first.
      env_id: index of the environment in a batch; None for 0.
      discount: discount of all steps except terminal ones.
      max_episode_steps: number of steps after which episodes are truncated; None for the registered limit, 0 for no
        limit.
      gym_wrappers: functions, such as classes of wrappers, that take and return a `gymnasium.Env`.
      env_wrappers: functions that take and return an `Environment`.
      info_fields: fields of `info` that become `TimeStep.env_info`; see `GymnasiumEnvironment`.
      auto_reset: see `Environment`.
      **options: arguments of the environment, such as `render_mode`.

    Raises:
      ImportError: If Gymnasium or a dependency of the environment is not installed.
      TypeError: If the environment has no such option; the message contains the most similar one, or the replacement of
        one that ALF has.
      ValueError: If there is no environment of this name; the message contains the most similar one.
    """
    spec = find_spec(name)
    with contextlib.suppress(ImportError, AttributeError, ValueError):  # Creating the environment raises them.
        create = spec.entry_point
        create = create if callable(create) else import_gymnasium().envs.registration.load_env_creator(create)
        require_arguments(create, options.keys() - {"render_mode"}, name, "suite_gym.load", own=OWN_OPTIONS)
    env = make_gym(replace(spec, max_episode_steps=None, order_enforce=False), **options)
    duration = spec.max_episode_steps if max_episode_steps is None else max_episode_steps
    own = {"discount": discount, "env_id": env_id or 0, "info_fields": info_fields, "auto_reset": auto_reset}
    convert = functools.partial(GymnasiumEnvironment, **own)
    return wrap_in_order(env, gym_wrappers, convert, duration, env_wrappers)


#: The arguments of `load` in which a typing error would make an option of the environment.
OWN_OPTIONS = tuple(inspect.signature(load).parameters)[:-1]


def wrap_in_order(
    env: Any,
    gym_wrappers: Sequence[Callable[[Any], Any]],
    convert: Callable[..., Environment],
    duration: int | None,
    env_wrappers: Sequence[Callable[[Environment], Environment]],
) -> Environment:
    """Applies the wrappers of a suite, in the order that `load` describes.

    Args:
      env: a `gymnasium.Env` without a time limit.
      gym_wrappers: see `load`.
      convert: `GymnasiumEnvironment`, possibly with some of its arguments.
      duration: number of steps after which episodes are truncated; None or 0 for no limit.
      env_wrappers: see `load`.
    """
    for wrap in gym_wrappers:
        env = wrap(env)
    result = convert(env, duration=duration or None)
    for wrap_env in env_wrappers:
        result = wrap_env(result)
    return result


def import_gymnasium() -> Any:
    """Imports Gymnasium; raises `ImportError` with advice if it is not installed."""
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(f"environments require Gymnasium ({error}); run {install_command('eval')}") from error
    return gymnasium


def find_spec(name: str) -> Any:
    """Returns Gymnasium's registered spec of an environment.

    Raises:
      ImportError, ValueError: See `load`.
    """
    gymnasium = import_gymnasium()
    if not isinstance(name, str):
        raise TypeError(f"the name of an environment must be a string, got {name!r}; use Multitask for several")
    module, _, name_in_module = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(name_in_module)
    except ModuleNotFoundError as error:
        raise ValueError(f"Gymnasium cannot create {name!r}: {error}; check the name of the module") from error
    except gymnasium.error.Error as error:
        advice = suggest(name, list(gymnasium.registry)) or (
            "; use an id such as Hopper-v5 or my_module:MyEnv-v0, or a function such as my_module:make_env"
        )
        raise ValueError(f"Gymnasium has no environment {name!r}{advice}") from error


def serialise_registered_specs() -> list[bytes]:
    """Returns the specs of the environments that are registered with Gymnasium in this process.

    Those that a script has registered are unknown in its workers, which do not run the script. Specs that cannot be
    sent are left out.
    """
    import cloudpickle

    registered = []
    gymnasium = sys.modules.get("gymnasium")
    for spec in list(gymnasium.registry.values()) if gymnasium is not None else ():
        with contextlib.suppress(Exception):  # Objects raise errors of any type.
            registered.append(bytes(cloudpickle.dumps(spec)))
    return registered


def register_specs(specs: Sequence[bytes]) -> None:
    """Registers serialised specs with Gymnasium, unless their modules cannot be imported."""
    if specs:
        registry = import_gymnasium().registry
        for serialised_spec in specs:
            with contextlib.suppress(Exception):  # Modules raise errors of any type.
                spec = pickle.loads(serialised_spec)
                registry[spec.id] = spec


def make_gym(spec: Any, **options: Any) -> Any:
    """Creates a `gymnasium.Env` from its spec, without Gymnasium's checker: `GymnasiumEnvironment` checks it.

    Raises:
      ImportError, ValueError: See `load`.
    """
    gymnasium = import_gymnasium()
    try:
        return gymnasium.make(spec, disable_env_checker=True, **options)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(
            f"a dependency of {spec.id} is not installed ({error}); run {install_command('eval')}"
        ) from error
