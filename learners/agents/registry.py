"""Agents and their hyperparameters by the name of the algorithm."""

import importlib
from collections.abc import Iterable
from typing import Any

from rlds2reverb._text import suggest

from ..algorithms import get_algorithm
from .hyperparameters import (
    Hyperparameter,
    check_hyperparameters,
    get_gin_bindings,
    read_declarations,
    with_defaults,
)
from .offline_agent import OfflineAgent


def make_agent(algo: str, time_step_spec: Any, action_spec: Any, **hyperparameters: Any) -> OfflineAgent:
    """Creates the agent of an algorithm.

    Args:
      algo: name of the algorithm; see `rlds2reverb.learners.algorithms.ALGORITHMS`.
      time_step_spec: spec of the time steps of data and environment.
      action_spec: BoundedTensorSpec of the action.
      **hyperparameters: values that replace gin's and the published defaults; see `get_hyperparameters`.

    Raises:
      ValueError: If there is no such algorithm, or a hyperparameter is of the wrong type or out of its range.
      TypeError: If the algorithm has no such hyperparameter.
    """
    resolved = resolve_hyperparameters(algo, **hyperparameters)
    return get_agent_class(algo)(time_step_spec, action_spec, **resolved)


def get_agent_class(algo: str) -> Any:
    """Returns the class of an algorithm's agent; raises `ValueError` if there is no such algorithm."""
    module, _, name = get_algorithm(algo).agent.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), name)


def get_hyperparameters(algo: str) -> dict[str, Hyperparameter]:
    """Returns the hyperparameters of an algorithm by name; raises `ValueError` if there is no such algorithm."""
    return with_defaults(read_declarations(get_agent_class(algo)), get_algorithm(algo).defaults)


def resolve_hyperparameters(algo: str, **overrides: Any) -> dict[str, Any]:
    """Returns the effective hyperparameters of an algorithm: the overrides, then gin's values, then the defaults.

    Raises:
      ValueError: If there is no such algorithm, or a value is of the wrong type or out of its range.
      TypeError: If the algorithm has no such hyperparameter.
    """
    declared = get_hyperparameters(algo)
    for name in overrides:
        if name not in declared:
            raise TypeError(_describe_unknown(algo, name, declared))
    defaults = {name: each.default for name, each in declared.items()}
    bindings = get_gin_bindings(get_algorithm(algo).class_name)
    return check_hyperparameters(declared, {**defaults, **bindings, **overrides})


def parse_hyperparameter(algo: str, name: str, text: str) -> Any:
    """Returns the value of a hyperparameter that is written as text, such as `0.9`, `(256, 256)`, `true` or `None`.

    Raises:
      ValueError: If there is no such algorithm or hyperparameter, or the text is not of its type or out of its range.
    """
    declared = get_hyperparameters(algo)
    if name not in declared:
        raise ValueError(_describe_unknown(algo, name, declared))
    return declared[name].parse(text)


def _describe_unknown(algo: str, name: str, declared: Iterable[str]) -> str:
    advice = suggest(name, declared) or f"; use one of {', '.join(sorted(declared))}"
    return f"{algo} has no hyperparameter {name!r}{advice}"
