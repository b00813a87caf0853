"""Fields that wrappers add to `TimeStep.env_info`."""

from __future__ import annotations

from rlds2reverb.types.specs import Nest

from .environment import Environment
from .time_steps import TimeStep


def make_info_spec(env: Environment, holder: str, **added: Nest) -> dict[str, Nest]:
    """Returns the specs of an environment's `env_info` with additional fields.

    Args:
      env: the environment.
      holder: name of the wrapper that adds the fields, for messages.
      **added: specs of the fields.

    Raises:
      TypeError: If `env_info` is neither a dict nor `()`.
      ValueError: If it already has one of the fields.
    """
    spec = env.env_info_spec()
    if spec != () and not isinstance(spec, dict):
        raise TypeError(f"{holder} requires an env_info that is a dict or empty, got {spec}")
    existing = [name for name in added if name in spec]
    if existing:
        raise ValueError(f"env_info must not have the field {existing[0]!r}, which {holder} adds; rename it")
    return {**(spec or {}), **added}


def add_info(time_step: TimeStep, **added: Nest) -> TimeStep:
    """Returns a time step with additional fields in its `env_info`."""
    return time_step._replace(env_info={**(time_step.env_info or {}), **added})
