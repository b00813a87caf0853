"""Hyperparameters: declared in the signature of an agent's constructor, checked wherever they are set.

The type, range and default of a hyperparameter are those of the argument, and its description is the argument's entry
in the docstring:

    def __init__(self, ..., expectile: Annotated[float, Range(0, 1, min_open=True, max_open=True)] = 0.7)

Numbers may be Python's or numpy's, and must be finite. An integer may be written as a float, such as 1e6. A bool is
not a number. A single integer is not a sequence of layer sizes, because 256 might mean one or two layers of 256.

An agent of the user's own may be any class or function. Of its arguments, those annotated with a `Range`, a `Literal`
or `bool` are checked in the same way, and others are passed on as they are.
"""

import ast
import contextlib
import functools
import inspect
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import gin
import numpy as np

from ..references import is_reference, resolve_reference

_MODULE = "rlds2reverb"
#: Maximum length of a value in a message.
_MAX_SHOWN = 60


@dataclass(frozen=True)
class Range:
    """The range of a number, or of each number in a sequence.

    Attributes:
      min: lower bound.
      max: upper bound.
      min_open: whether the lower bound itself is excluded.
      max_open: whether the upper bound itself is excluded.
    """

    min: float = -math.inf
    max: float = math.inf
    min_open: bool = False
    max_open: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.min if self.min_open else value >= self.min
        return above and (value < self.max if self.max_open else value <= self.max)

    def __str__(self) -> str:
        """Formats the range as `>= 1` or `in (0, 1]`; '' if it contains all numbers."""
        if self.max == math.inf:
            return "" if self.min == -math.inf else f"{'>' if self.min_open else '>='} {self.min:.10g}"
        left, right = "(" if self.min_open else "[", ")" if self.max_open else "]"
        return f"in {left}{self.min:.10g}, {self.max:.10g}{right}"


Positive = Annotated[float, Range(0, min_open=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
PositiveFraction = Annotated[float, Range(0, 1, min_open=True)]
Count = Annotated[int, Range(1)]
LayerSizes = Annotated[Sequence[int], Range(1)]
#: Minimum and maximum of a log standard deviation.
LogStdBounds = Annotated[tuple[float, float], Range(-20, 20)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
#: A function `(input_spec, output_size, seed)` that creates a network, or its reference; see `own_networks`.
NetworkFactory = Callable[[Any, int, int], Any]
#: Default of a hyperparameter that has none.
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Hyperparameter:
    """The declaration of one hyperparameter.

    Attributes:
      name: name of the argument.
      default: default value.
      type: "number", "integer", "integers", "two numbers", "boolean", "string", "array" or "network"; "any" if values
        are not checked.
      range: values that are allowed, such as "in (0, 1)" or ">= 1"; '' if there is no restriction.
      text: description.
      is_optional: whether None is allowed.
    """

    name: str
    default: Any
    type: str
    range: str
    text: str
    is_optional: bool
    _convert: Callable[[Any], Any] = field(repr=False, compare=False)

    def check(self, value: Any) -> Any:
        """Returns a value as Python's own type.

        Raises:
          ValueError: If it is not of this type or not in the range.
        """
        if value is None and self.is_optional:
            return None
        if self.type == "network" and is_reference(value):
            value = resolve_reference(self.name, value)
        try:
            return self._convert(value)
        except (TypeError, ValueError, OverflowError):
            raise self._error(value) from None

    def parse(self, text: str) -> Any:
        """Returns the value that a text such as `0.9`, `(256, 256)`, `true` or `None` stands for.

        Raises:
          ValueError: If it stands for no value of this type and range.
        """
        text = text.strip()
        if self.is_optional and text.lower() in ("none", "null"):
            return None
        if self.type == "boolean" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        return self.check(parse_literal(text) if self.type == "any" else _evaluate(text))

    def describe(self) -> str:
        """Returns what a value must be, such as `a number in (0, 1)`."""
        if self.type == "any":
            return "not checked"
        words = {
            "number": f"a number {self.range}",
            "integer": f"an integer {self.range}",
            "integers": f"a sequence of integers {self.range}, such as (256, 256)",
            "two numbers": f"two ascending numbers {self.range}",
            "boolean": "True or False",
            "string": self.range,
            "array": "an array or a nest of arrays",
            "network": "a function (input_spec, output_size, seed) that creates a network (my_module:name)",
        }[self.type].rstrip()
        return f"{words} or None" if self.is_optional else words

    def _error(self, value: Any) -> ValueError:
        shown = value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
        got = repr(shown)
        got = got if len(got) <= _MAX_SHOWN else f"{got[:_MAX_SHOWN]}..."
        message = f"{self.name} must be {self.describe()}, got {got}"
        if self.type == "integers" and type(shown) is int and shown > 0:
            return ValueError(f"{message}; write ({shown},) for one layer of {shown}")
        return ValueError(f"{message}; the default is {self.default!r}")


def _evaluate(text: str) -> Any:
    """Returns the value of a Python literal, or the text itself if it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def parse_literal(text: str) -> Any:
    """Returns the value of a text of unknown type: a Python literal, `true`, `false`, `none`, or the text itself."""
    words = {"true": True, "false": False, "none": None, "null": None}
    text = text.strip()
    return words[text.lower()] if text.lower() in words else _evaluate(text)


def read_declarations(agent: Any) -> dict[str, Hyperparameter]:
    """Returns the hyperparameters that a class or function declares: its arguments, except for the two specs.

    Args:
      agent: class or function that is called with `(time_step_spec, action_spec, **hyperparameters)`.
    """
    construct, parameters = _read_signature(agent)
    try:
        hints = get_type_hints(construct, include_extras=True)
    except (NameError, TypeError):  # Annotations of the user's own may refer to names for type checking only.
        hints = {}
    documentation = [inspect.getdoc(each) or "" for each in (agent, construct)]
    texts = {name: text for each in documentation for name, text in _read_arguments(each).items()}
    is_own = not is_configurable(agent)
    return {
        each.name: _declare(each.name, each.default, hints.get(each.name, Any), texts.get(each.name, ""), is_own)
        for each in parameters
        if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)
    }


def accepts_any_hyperparameter(agent: Any) -> bool:
    """Returns whether a class or function accepts keyword arguments that it does not declare."""
    return any(each.kind is each.VAR_KEYWORD for each in _read_signature(agent)[1])


def is_configurable(agent: Any) -> bool:
    """Returns whether an agent is a class that `configurable` decorates, or one that is being decorated."""
    return isinstance(agent, type) and "_declares_hyperparameters" in vars(agent)


def _read_signature(agent: Any) -> tuple[Any, list[inspect.Parameter]]:
    """Returns the function that constructs an agent, and its parameters after the two specs."""
    construct = inspect.unwrap(getattr(agent, "__init__") if isinstance(agent, type) else agent)  # noqa: B009
    parameters = list(inspect.signature(construct).parameters.values())
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    skipped = [each.name for each in positional[: 3 if isinstance(agent, type) else 2]]
    return construct, [each for each in parameters if each.name not in skipped]


_Agent = TypeVar("_Agent")


def configurable(cls: _Agent) -> _Agent:
    """Makes an agent's constructor check its hyperparameters and use those that gin binds to the class's name.

    Arguments of the call take precedence over gin's. The class is registered with gin, but gin does not wrap its
    constructor, because it would append "In call to configurable ..." to every message.
    """
    agent: Any = cls  # Type checkers do not allow assignments to the constructor of a class.
    agent._declares_hyperparameters = True
    declared = read_declarations(agent)
    construct = agent.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = {**get_gin_bindings(agent.__name__), **kwargs}
        construct(self, *args, **check_hyperparameters(declared, kwargs))

    agent.__init__ = __init__
    gin.register(module=_MODULE)(agent)
    return cls


def check_hyperparameters(declared: Mapping[str, Hyperparameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as Python's own types; those that are not declared are returned as they are.

    Raises:
      ValueError: If a value is not of the declared type or not in its range.
    """
    return {name: declared[name].check(value) if name in declared else value for name, value in values.items()}


def get_gin_bindings(class_name: str) -> dict[str, Any]:
    """Returns the values that gin binds to the arguments of an agent's class in the current scope."""
    return dict(gin.get_bindings(f"{_MODULE}.{class_name}"))


def _declare(name: str, default: Any, hint: Any, text: str, is_own: bool) -> Hyperparameter:
    """Returns the declaration of an argument; `is_own` is whether the agent is one of the user's own."""
    hint, is_optional = _split_optional(hint)
    limits: Any = None
    if get_origin(hint) is Annotated:
        hint, *annotations = get_args(hint)
        limits = next((each for each in annotations if isinstance(each, Range)), None)
    if (is_own and not _is_checked(hint, limits)) or not _is_known(hint):
        return Hyperparameter(name, default, "any", "", text, True, _keep)
    is_optional = is_optional or (is_own and default is None)
    kind, allowed, convert = _read_type(hint, limits or Range())
    return Hyperparameter(name, default, kind, allowed, text, is_optional, convert)


def _is_known(hint: Any) -> bool:
    return hint is Any or hint is bool or get_origin(hint) is Literal or hint == NetworkFactory or hint in _READERS


def _is_checked(hint: Any, limits: Range | None) -> bool:
    """Returns whether an argument of a user's own agent has an annotation that values are checked against."""
    return limits is not None or hint is bool or hint == NetworkFactory or get_origin(hint) is Literal


def _keep(value: Any) -> Any:
    return value


def _split_optional(hint: Any) -> tuple[Any, bool]:
    """Returns a type without None, and whether None was an alternative."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    others = [each for each in alternatives if each is not type(None)]
    return others[0] if len(others) == 1 else hint, len(others) < len(alternatives)


def _read_type(hint: Any, limits: Range) -> tuple[str, str, Callable[[Any], Any]]:
    """Returns the name of a type, its range as text, and a function that converts a value or raises an error."""
    if hint is Any:
        return "array", "", _to_array
    if hint is bool:
        return "boolean", "", _to_bool
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return "string", " or ".join(map(repr, choices)), functools.partial(_to_choice, choices)
    if hint == NetworkFactory:
        return "network", "", _to_network
    kind, convert = _READERS[hint]
    return kind, str(limits), functools.partial(convert, limits)


def _to_array(value: Any) -> Any:
    if isinstance(value, str):
        raise TypeError
    return value


def _to_bool(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError
    return bool(value)


def _to_choice(choices: tuple[str, ...], value: Any) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError
    return value


def _to_float(limits: Range, value: Any) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError
    number = float(value)
    if not math.isfinite(number) or number not in limits:
        raise ValueError
    return number


def _to_int(limits: Range, value: Any) -> int:
    number = _to_float(limits, value)
    if not number.is_integer():
        raise ValueError
    return int(value) if isinstance(value, Integral) else int(number)


def _to_ints(limits: Range, value: Any) -> tuple[int, ...]:
    return tuple(_to_int(limits, each) for each in _to_tuple(value))


def _to_ascending_pair(limits: Range, value: Any) -> tuple[float, float]:
    low, high = (_to_float(limits, each) for each in _to_tuple(value))
    if low > high:
        raise ValueError
    return low, high


def _to_tuple(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)):
        raise TypeError
    return tuple(value)


def _to_network(value: Any) -> Any:
    """Returns a function that creates a network; a network itself is callable as well, but must not be shared."""
    if not callable(value) or hasattr(type(value), "trainable_variables"):
        raise TypeError
    with contextlib.suppress(ValueError):  # The signature of some built-in functions is not known.
        inspect.signature(value).bind(None, 1, 0)
    return value


#: Names of the types of numbers, and functions that convert a value.
_READERS: dict[Any, tuple[str, Callable[[Range, Any], Any]]] = {
    float: ("number", _to_float),
    int: ("integer", _to_int),
    Sequence[int]: ("integers", _to_ints),
    tuple[float, float]: ("two numbers", _to_ascending_pair),
}


def _read_arguments(docstring: str) -> dict[str, str]:
    """Returns the entries of the section `Args` by name, each as one line."""
    section = re.search(r"^Args:\n((?:(?:  .*)?\n?)*)", docstring, re.MULTILINE)
    entries = re.findall(r"^  (\w+): (.*(?:\n    .*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def with_defaults(declared: Mapping[str, Hyperparameter], defaults: Mapping[str, Any]) -> dict[str, Hyperparameter]:
    """Returns declarations with some defaults replaced."""
    return {
        name: replace(each, default=defaults[name]) if name in defaults else each for name, each in declared.items()
    }
