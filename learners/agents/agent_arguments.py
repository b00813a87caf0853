"""Hyperparameters of any agent: the attributes of rlds2reverb's classes, and the arguments of custom ones.

A custom agent may be any class or function. Of its arguments, those annotated with a `Range`, a `Literal` or `bool` are
checked, and others are passed on as they are.
"""

import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from ..option_declarations import Option, declare, read_descriptions
from .hyperparameters import read_attributes
from .offline_agent import OfflineAgent


def read_declarations(agent: Any) -> dict[str, Option]:
    """Returns the hyperparameters of a class or function, without the two specs.

    They are the arguments of its constructor. If it accepts `**kwargs`, those of its base class are included; for a
    subclass of `OfflineAgent`, the attributes that are declared.

    Args:
      agent: class or function that is called with `(time_step_spec, action_spec, **hyperparameters)`.
    """
    return _read_inherited(agent) | read_own_declarations(agent)


def read_own_declarations(agent: Any) -> dict[str, Option]:
    """Returns the hyperparameters of a class or function itself; see `read_declarations`."""
    construct, parameters = _read_signature(agent)
    if construct is OfflineAgent.__init__:
        return read_attributes(agent)
    try:
        hints = get_type_hints(construct, include_extras=True)
    except (NameError, TypeError):  # Annotations of the user's own may refer to names for type checking only.
        hints = {}
    descriptions = {**read_descriptions(agent), **read_descriptions(construct)}
    return {
        name: declare(name, parameter.default, hints.get(name, Any), descriptions.get(name, ""))
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }


def accepts_any_hyperparameter(agent: Any) -> bool:
    """Returns whether a custom class or function accepts keyword arguments that it does not declare."""
    construct, parameters = _read_signature(agent)
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return is_open and construct is not OfflineAgent.__init__


def find_not_passed_on(agent: Any, hyperparameters: Mapping[str, Any]) -> list[str]:
    """Returns the names of attributes that the constructor of a custom agent has not passed on to its base class."""
    if not isinstance(agent, OfflineAgent):
        return []
    inherited = _read_inherited(type(agent)).keys() - read_own_declarations(type(agent)).keys()
    return [name for name in hyperparameters if name in inherited and name not in agent.passed_hyperparameters]


def _read_inherited(agent: Any) -> dict[str, Option]:
    """Returns the hyperparameters that a class that overrides the constructor passes on to its base class."""
    owners = [base for base in getattr(agent, "__mro__", ()) if "__init__" in vars(base)]
    if not owners or not accepts_any_hyperparameter(agent):
        return {}
    if owners[1] is OfflineAgent:
        return read_attributes(agent)
    return read_declarations(owners[1]) if owners[2:] else {}


def _read_signature(agent: Any) -> tuple[Any, dict[str, inspect.Parameter]]:
    """Returns the function that constructs an agent, and its parameters after the two specs, by name."""
    construct = inspect.unwrap(getattr(agent, "__init__") if isinstance(agent, type) else agent)  # noqa: B009
    parameters = inspect.signature(construct).parameters
    # Kinds have the order of a signature.
    positional = [name for name, parameter in parameters.items() if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD]
    skipped = positional[: 3 if isinstance(agent, type) else 2]
    return construct, {name: parameter for name, parameter in parameters.items() if name not in skipped}
