"""The registry of agents and their hyperparameters by name."""

import difflib
import inspect
from collections.abc import Iterable
from typing import Any

import gin

from .awac import AWACAgent
from .bc import BCAgent
from .cql import CQLAgent
from .discrete_bc import DiscreteBCAgent
from .dqn import DQNAgent
from .iql import IQLAgent
from .offline_agent import OfflineAgent
from .rebrac import ReBRACAgent
from .td3_bc import TD3BCAgent

#: Agent classes by name.
AGENTS: dict[str, type[OfflineAgent]] = {
    "awac": AWACAgent,
    "bc": BCAgent,
    "cql": CQLAgent,
    "discrete_bc": DiscreteBCAgent,
    "discrete_cql": DQNAgent,
    "double_dqn": DQNAgent,
    "dqn": DQNAgent,
    "iql": IQLAgent,
    "rebrac": ReBRACAgent,
    "td3": TD3BCAgent,
    "td3_bc": TD3BCAgent,
}

#: Defaults of names that stand for a class with different defaults.
PRESETS: dict[str, dict[str, Any]] = {
    # Adam's settings are those of the authors' batch_rl/multi_head/quantile_agent.py; the weight is the one in their
    # README for 10 % of the data.
    "discrete_cql": {"conservative_weight": 1.0, "learning_rate": 5e-5, "adam_epsilon": 3.125e-4},
    "double_dqn": {"double": True},
    "td3": {"alpha": None},
}


def make_agent(name: str, time_step_spec: Any, action_spec: Any, **overrides: Any) -> OfflineAgent:
    """Creates an agent with its published defaults.

    Args:
      name: one of `AGENTS`.
      time_step_spec: spec of the time steps of data and environment.
      action_spec: BoundedTensorSpec of the action.
      **overrides: hyperparameters that replace the defaults of the class, including `observation_mean`,
        `observation_std` and `seed`.

    Raises:
      ValueError: If there is no such agent.
      TypeError: If the agent has no such hyperparameter.
    """
    if name not in AGENTS:
        raise ValueError(f"agent must be one of {', '.join(sorted(AGENTS))}, got {name!r}{_suggest(name, AGENTS)}")
    allowed = get_hyperparameters(name)
    for option in overrides:
        if option not in allowed:
            raise TypeError(
                f"hyperparameters of {name} must be among {', '.join(sorted(allowed))}, "
                f"got {option!r}{_suggest(option, allowed)}"
            )
    return AGENTS[name](time_step_spec, action_spec, **{**_get_presets(name), **overrides})


def get_hyperparameters(name: str) -> dict[str, Any]:
    """Returns the keyword arguments of an agent in `AGENTS` with their defaults."""
    parameters = inspect.signature(AGENTS[name].__init__).parameters.values()
    defaults = {
        parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    }
    return {**defaults, **_get_presets(name)}


def is_set_by_gin(parameter: str) -> bool:
    """Returns whether gin sets a parameter, such as `IQLAgent.expectile`."""
    try:
        gin.query_parameter(parameter)
    except ValueError:
        return False
    return True


def resolve_hyperparameters(name: str, **overrides: Any) -> dict[str, Any]:
    """Returns the effective hyperparameters of an agent: the overrides, then gin's values, then the defaults."""
    defaults, prefix = get_hyperparameters(name), AGENTS[name].__name__
    from_gin = {
        option: gin.query_parameter(f"{prefix}.{option}") for option in defaults if is_set_by_gin(f"{prefix}.{option}")
    }
    return {**defaults, **from_gin, **overrides}


def _get_presets(name: str) -> dict[str, Any]:
    """Returns the presets of a name that gin does not override."""
    prefix, presets = AGENTS[name].__name__, PRESETS.get(name, {})
    return {option: value for option, value in presets.items() if not is_set_by_gin(f"{prefix}.{option}")}


def _suggest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {near[0]!r}?" if near else ""
