"""Agents and their hyperparameters by the name of the algorithm."""

import importlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tf_agents.agents import tf_agent

from rlds2reverb.errors import ArgumentError
from rlds2reverb.system.text import advise

from ..algorithms import get_algorithm
from ..option_declarations import REQUIRED, Option, parse_literal
from .agent_arguments import accepts_any_hyperparameter, find_not_passed_on, read_declarations, read_own_declarations
from .hyperparameters import check_hyperparameters, get_gin_bindings
from .offline_agent import OfflineAgent

#: Hyperparameters that determine a run's items or its length.
_READ_BY_RUNS = ("context_length", "num_density_updates")


def make_agent(algo: Any, time_step_spec: Any, action_spec: Any, **hyperparameters: Any) -> Any:
    """Creates the agent of an algorithm, a `TFAgent`.

    Args:
      algo: name of the algorithm, see `rlds2reverb.learners.algorithms.ALGORITHMS`; or a custom agent, by its
        name in `register_agent`, by its reference "my_module:MyAgent", or as the class or function itself.
      time_step_spec: spec of the time steps of data and environment.
      action_spec: BoundedTensorSpec of the action.
      **hyperparameters: values that replace gin's and the published defaults; see `get_hyperparameters`.

    Raises:
      ValueError: If there is no such algorithm, if a hyperparameter is of the wrong type or out of its range, if a
        required one is missing, or if a custom agent raises one or is not a `TFAgent`.
      TypeError: If the algorithm has no such hyperparameter.
    """
    resolved = resolve_hyperparameters(algo, **hyperparameters)
    algorithm = get_algorithm(algo)
    try:
        agent = get_agent_class(algo)(time_step_spec, action_spec, **resolved)
    except (ValueError, TypeError) as error:
        if algorithm.factory is not None and "keyword argument" in str(error):
            raise ValueError(_describe_rejected(algorithm.name, str(error), resolved)) from error
        if algorithm.factory is None or type(error) not in (ValueError, ArgumentError):
            raise
        raise ValueError(f"{algorithm.name} raised an error: {error}") from error
    if not isinstance(agent, tf_agent.TFAgent):
        raise ValueError(f"{algorithm.name} must return a TFAgent, got {agent!r}")
    if names := find_not_passed_on(agent, resolved):
        raise ValueError(
            f"{algorithm.name} accepts {', '.join(names)}, but does not pass {'them' if names[1:] else 'it'} on to its "
            "base class; pass **kwargs to super().__init__"
        )
    if not isinstance(agent, OfflineAgent):
        agent.initialize()  # TF-Agents' agents copy their weights to the target networks here.
    return agent


def get_agent_class(algo: Any) -> Any:
    """Returns the class or function that creates an algorithm's agent.

    Raises:
      ValueError: If there is no such algorithm.
    """
    algorithm = get_algorithm(algo)
    if algorithm.factory is not None:
        return algorithm.factory
    module, _, name = algorithm.agent.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), name)


def get_hyperparameters(algo: Any) -> dict[str, Option]:
    """Returns the hyperparameters of an algorithm by name; raises `ValueError` if there is no such algorithm."""
    declared, defaults = read_declarations(get_agent_class(algo)), get_algorithm(algo).defaults
    return declared | {name: replace(declared[name], default=default) for name, default in defaults.items()}


def resolve_hyperparameters(algo: Any, **overrides: Any) -> dict[str, Any]:
    """Returns the effective hyperparameters of an algorithm: the overrides, then gin's values, then the defaults.

    Raises:
      ValueError: If there is no such algorithm, if a value is of the wrong type or out of its range, or if a required
        one is missing.
      TypeError: If the algorithm has no such hyperparameter.
    """
    declared, create = get_hyperparameters(algo), get_agent_class(algo)
    own = read_own_declarations(create)
    for name in overrides:
        if name not in declared and not accepts_any_hyperparameter(create):
            raise TypeError(_describe_unknown(algo, name, declared))
    # A base class has its own defaults, unless a subclass sets others.
    used = [option for name, option in declared.items() if name in own or name in _READ_BY_RUNS]
    defaults = {option.name: option.default for option in used if option.default is not REQUIRED}
    bindings = {name: value for name, value in get_gin_bindings(create).items() if name in own}
    values = check_hyperparameters(declared, {**defaults, **bindings, **overrides})
    if missing := [name for name in own if name not in values]:
        raise ValueError(
            f"{get_algorithm(algo).name} requires the hyperparameter {missing[0]!r}, which has no default; set it in "
            "hyperparameters, or give it a default"
        )
    return values


def parse_hyperparameter(algo: Any, name: str, text: str) -> Any:
    """Returns the value of a hyperparameter that is written as text, such as `0.9`, `(256, 256)`, `true` or `None`.

    Raises:
      ValueError: If there is no such algorithm or hyperparameter, or the text is not of its type or out of its range.
    """
    declared = get_hyperparameters(algo)
    if name not in declared and accepts_any_hyperparameter(get_agent_class(algo)):
        return parse_literal(text)
    if name not in declared:
        raise ValueError(_describe_unknown(algo, name, declared))
    return declared[name].parse(text)


def _describe_rejected(name: str, message: str, values: Iterable[str]) -> str:
    """Returns a message about a custom agent that cannot be called with its hyperparameters."""
    rejected = next((value for value in values if f"{value!r}" in message), "")
    advice = (
        f"do not set {rejected} in its code, but leave it to **kwargs or declare it as an argument" if rejected else ""
    )
    return f"{name} cannot be created: {message}" + (f"; {advice}" if "multiple values" in message else "")


def _describe_unknown(algo: Any, name: str, declared: Iterable[str]) -> str:
    owner = get_algorithm(algo).name
    if not declared:
        return f"{owner} has no hyperparameters, got {name!r}"
    return f"{owner} has no hyperparameter {name!r}{advise(name, declared)}"
