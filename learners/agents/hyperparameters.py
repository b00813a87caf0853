"""Hyperparameters: declared in the signature of an agent's constructor, checked wherever they are set.

The default of a hyperparameter is that of the argument; see `options` for its type, range and description.

A custom agent may be any class or function. Of its arguments, those annotated with a `Range`, a `Literal`
or `bool` are checked in the same way, and others are passed on as they are.
"""

import functools
import inspect
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import gin

from ..options import Option as Option, Range as Range, declare, read_descriptions

_MODULE = "rlds2reverb"

Positive = Annotated[float, Range(0, min_open=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
PositiveFraction = Annotated[float, Range(0, 1, min_open=True)]
Count = Annotated[int, Range(1)]
LayerSizes = Annotated[Sequence[int], Range(1)]
#: Minimum and maximum of a log standard deviation.
LogStdBounds = Annotated[tuple[float, float], Range(-20, 20)]
#: Architecture of the encoder of images; see `ImageEncoder`.
ImageEncoderName = Literal["nature", "impala", "resnet"]
Seed = Annotated[int, Range(0, 2**32 - 1)]


def read_declarations(agent: Any) -> dict[str, Option]:
    """Returns the hyperparameters that a class or function declares: its arguments, except for the two specs.

    Those of a class whose constructor passes `**kwargs` on include those of its base class; see `OfflineAgent.hides`.

    Args:
      agent: class or function that is called with `(time_step_spec, action_spec, **hyperparameters)`.
    """
    bases, own = find_bases(agent), vars(agent) if isinstance(agent, type) else {}
    inherited = read_declarations(bases[0]) if bases else {}
    for name, default in own.get("inherited_defaults", {}).items():
        inherited[name] = replace(inherited[name], default=default)
    kept = {name: option for name, option in inherited.items() if name not in own.get("hides", ())}
    return kept | read_own_declarations(agent)


def find_bases(agent: Any) -> list[Any]:
    """Returns the base classes with constructors of a class whose own one accepts `**kwargs`, the next first."""
    owners = [base for base in getattr(agent, "__mro__", ()) if "__init__" in vars(base)]
    return owners[1:-1] if owners and _has_kwargs(agent) else []


def read_own_declarations(agent: Any) -> dict[str, Option]:
    """Returns the hyperparameters in the signature of a class or function itself; see `read_declarations`."""
    construct, parameters = _read_signature(agent)
    try:
        hints = get_type_hints(construct, include_extras=True)
    except (NameError, TypeError):  # Annotations of the user's own may refer to names for type checking only.
        hints = {}
    descriptions = {**read_descriptions(agent), **read_descriptions(construct)}
    is_custom = not is_configurable(agent)
    return {
        name: declare(name, parameter.default, hints.get(name, Any), descriptions.get(name, ""), is_custom=is_custom)
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }


def accepts_any_hyperparameter(agent: Any) -> bool:
    """Returns whether a custom class or function accepts keyword arguments that it does not declare."""
    return not is_configurable(agent) and _has_kwargs(agent)


def _has_kwargs(agent: Any) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in _read_signature(agent)[1].values())


def is_configurable(agent: Any) -> bool:
    """Returns whether an agent is a class that `configurable` decorates, or one that is being decorated."""
    return isinstance(agent, type) and "_declares_hyperparameters" in vars(agent)


def _read_signature(agent: Any) -> tuple[Any, dict[str, inspect.Parameter]]:
    """Returns the function that constructs an agent, and its parameters after the two specs, by name."""
    construct = inspect.unwrap(getattr(agent, "__init__") if isinstance(agent, type) else agent)  # noqa: B009
    parameters = inspect.signature(construct).parameters
    # Kinds have the order of a signature.
    positional = [name for name, parameter in parameters.items() if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD]
    skipped = positional[: 3 if isinstance(agent, type) else 2]
    return construct, {name: parameter for name, parameter in parameters.items() if name not in skipped}


_Agent = TypeVar("_Agent")
#: The arguments that the constructors of agents were called with.
_PASSED: "weakref.WeakKeyDictionary[Any, dict[str, Any]]" = weakref.WeakKeyDictionary()


def find_not_passed_on(agent: Any, hyperparameters: Mapping[str, Any]) -> list[str]:
    """Returns the names of inherited hyperparameters that an agent's own constructor has not passed on to its base."""
    own, bases = read_own_declarations(type(agent)), find_bases(type(agent))
    inherited = read_declarations(bases[0]).keys() - own.keys() if bases and agent in _PASSED else set()
    return [name for name in hyperparameters if name in inherited and name not in _PASSED[agent]]


def configurable(cls: _Agent) -> _Agent:
    """Makes an agent's constructor check its hyperparameters and use those that gin binds to the class's name.

    Arguments of the call take precedence over gin's. The class is registered with gin, but gin does not wrap its
    constructor, because it would append "In call to configurable ..." to every message.
    """
    agent: Any = cls  # Type checkers do not allow assignments to the constructor of a class.
    agent._declares_hyperparameters = True
    declared, construct = read_declarations(agent), agent.__init__
    defaults = {name: option.default for name, option in declared.items()}

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _PASSED.setdefault(self, kwargs)
        if unknown := kwargs.keys() - declared.keys() - {"time_step_spec", "action_spec"}:
            raise TypeError(f"{agent.__name__}.__init__() got an unexpected keyword argument {min(unknown)!r}")
        kwargs = {**defaults, **get_gin_bindings(agent.__name__), **kwargs}
        construct(self, *args, **check_hyperparameters(declared, kwargs))

    agent.__init__ = __init__
    gin.register(module=_MODULE)(agent)
    return cls


def check_hyperparameters(declared: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as Python's own types; those that are not declared are returned as they are.

    Raises:
      ValueError: If a value is not of the declared type or not in its range.
    """
    return {name: declared[name].check(value) if name in declared else value for name, value in values.items()}


def get_gin_bindings(class_name: str) -> dict[str, Any]:
    """Returns the values that gin binds to the arguments of an agent's class in the current scope."""
    return dict(gin.get_bindings(f"{_MODULE}.{class_name}"))
