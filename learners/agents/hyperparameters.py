"""Hyperparameters: annotated attributes of an agent's class, which subclasses inherit and override.

    @configurable
    class IQLAgent(ActorCriticAgent):
        expectile: Expectile = 0.7

`IQLAgent(time_step_spec, action_spec, expectile=0.9)` checks the value, and sets it as an attribute of the agent. A
subclass that declares one as a `ClassVar` fixes its value. See `options` for types, ranges and descriptions; those of a
class are the section `Attributes` of its docstring.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_origin, get_type_hints

import gin

from rlds2reverb.system.text import advise

from ..option_declarations import Option as Option, Range as Range, declare, read_descriptions

_MODULE = "rlds2reverb"

Positive = Annotated[float, Range(0, min_open=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
PositiveFraction = Annotated[float, Range(0, 1, min_open=True)]
FractionBelowOne = Annotated[float, Range(0, 1, max_open=True)]
#: Expectile of a value function; 0.5 is the mean.
Expectile = Annotated[float, Range(0, 1, min_open=True, max_open=True)]
Count = Annotated[int, Range(1)]
LayerSizes = Annotated[Sequence[int], Range(1)]
#: Minimum and maximum of a log standard deviation.
LogStdBounds = Annotated[tuple[float, float], Range(-20, 20)]
#: Architecture of the encoder of images; see `ImageEncoder`.
ImageEncoderName = Literal["nature", "impala", "resnet"]
Seed = Annotated[int, Range(0, 2**32 - 1)]

_Agent = TypeVar("_Agent")


def read_attributes(agent: type) -> dict[str, Option]:
    """Returns the hyperparameters that a class and its base classes declare, those of the bases first."""
    hints = get_type_hints(agent, include_extras=True)
    owners = {name: owner for owner in reversed(agent.__mro__) for name in vars(owner).get("__annotations__", {})}
    descriptions: dict[str, str] = {}
    for owner in reversed(agent.__mro__):
        descriptions |= read_descriptions(owner)
    return {
        name: declare(
            name,
            getattr(agent, name),
            hints[name],
            descriptions.get(name, ""),
            is_custom=not owner.__module__.startswith(f"{_MODULE}."),
        )
        for name, owner in owners.items()
        if hasattr(agent, name) and not name.startswith("_") and get_origin(hints[name]) is not ClassVar
    }


def resolve_attributes(agent: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value of each hyperparameter of a class: the given ones, gin's for its name, and the defaults.

    Raises:
      TypeError: If the class has no such hyperparameter.
      ValueError: If a value is not of the declared type or not in its range.
    """
    declared, values = read_attributes(agent), {**get_gin_bindings(agent), **values}
    for name in values:
        if name not in declared:
            raise TypeError(f"{agent.__name__} has no hyperparameter {name!r}{advise(name, declared)}")
    defaults = {name: option.default for name, option in declared.items()}
    return {**defaults, **check_hyperparameters(declared, values)}


def configurable(cls: _Agent) -> _Agent:
    """Makes the hyperparameters of a class those that gin binds to its name, unless the caller sets others.

    The class is registered with gin, but gin does not wrap its constructor, because it would append "In call to
    configurable ..." to every message.
    """
    agent: Any = cls
    agent.gin_name = agent.__name__
    gin.register(module=_MODULE)(agent)
    return cls


def check_hyperparameters(declared: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as Python's own types; those that are not declared are returned as they are.

    Raises:
      ValueError: If a value is not of the declared type or not in its range.
    """
    return {name: declared[name].check(value) if name in declared else value for name, value in values.items()}


def get_gin_bindings(agent: Any) -> dict[str, Any]:
    """Returns the values that gin binds to the hyperparameters of a `configurable` class in the current scope."""
    name = getattr(agent, "gin_name", None)
    return dict(gin.get_bindings(f"{_MODULE}.{name}")) if name else {}
