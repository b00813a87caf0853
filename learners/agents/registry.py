"""Agents by name."""

import difflib
import inspect
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

#: The class of each name.
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

#: What a name sets, where it is its class with other defaults.
PRESETS: dict[str, dict[str, Any]] = {
    # Adam as in the authors' batch_rl/multi_head/quantile_agent.py, the weight as in their README for 10 % of the data.
    "discrete_cql": {"conservative_weight": 1.0, "learning_rate": 5e-5, "adam_epsilon": 3.125e-4},
    "double_dqn": {"double": True},
    "td3": {"alpha": None},
}


def make_agent(name: str, time_step_spec: Any, action_spec: Any, **overrides: Any) -> OfflineAgent:
    """Returns a new agent with its published defaults.

    Args:
      name: one of `AGENTS`.
      time_step_spec: TimeStep of specs, of the data and the environment.
      action_spec: BoundedTensorSpec of the action.
      **overrides: hyperparameters of the class, in the place of its defaults; `observation_mean`, `observation_std`
        and `seed` too.

    Raises:
      ValueError: if there is no such agent.
      TypeError: if the agent has no such hyperparameter.
    """
    if name not in AGENTS:
        raise ValueError(
            f"expected one of the agents {', '.join(sorted(AGENTS))}, got {name!r}{_nearest(name, AGENTS)}"
        )
    known = hyperparameters(name)
    for each in overrides:
        if each not in known:
            raise TypeError(
                f"expected a hyperparameter of {name} ({', '.join(sorted(known))}), got {each!r}{_nearest(each, known)}"
            )
    return AGENTS[name](time_step_spec, action_spec, **{**_presets(name), **overrides})


def hyperparameters(name: str) -> dict[str, Any]:
    """Returns the keyword arguments of an agent with their defaults, for a name of `AGENTS`."""
    parameters = inspect.signature(AGENTS[name].__init__).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    return {**defaults, **_presets(name)}


def is_bound(parameter: str) -> bool:
    """Returns whether gin has a value for a parameter, such as `IQLAgent.expectile`."""
    try:
        gin.query_parameter(parameter)
    except ValueError:  # which says that there is none
        return False
    return True


def resolved(name: str, **overrides: Any) -> dict[str, Any]:
    """Returns the hyperparameters that an agent has with some overrides: these, gin's, or its own defaults."""
    bound = {each: f"{AGENTS[name].__name__}.{each}" for each in hyperparameters(name)}
    from_gin = {each: gin.query_parameter(parameter) for each, parameter in bound.items() if is_bound(parameter)}
    return {**hyperparameters(name), **from_gin, **overrides}


def _presets(name: str) -> dict[str, Any]:
    """Returns what a name sets, but for what gin does."""
    given = PRESETS.get(name, {})
    return {each: value for each, value in given.items() if not is_bound(f"{AGENTS[name].__name__}.{each}")}


def _nearest(name: str, known: Any) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
