"""Hyperparameters: declared in the signature of an agent's constructor, checked wherever they are set.

The type, range and default of a hyperparameter are those of the argument, and its description is the argument's entry
in the docstring:

    def __init__(self, ..., expectile: Annotated[float, Range(0, 1, min_open=True, max_open=True)] = 0.7)

Numbers may be Python's or numpy's, and must be finite. An integer may be written as a float, such as 1e6. A bool is
not a number. A single integer is not a sequence of layer sizes, because 256 might mean one or two layers of 256.
"""

import ast
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


@dataclass(frozen=True)
class Hyperparameter:
    """The declaration of one hyperparameter.

    Attributes:
      name: name of the argument.
      default: default value.
      type: "number", "integer", "integers", "two numbers", "boolean", "string" or "array".
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
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = text
        return self.check(value)

    def describe(self) -> str:
        """Returns what a value must be, such as `a number in (0, 1)`."""
        words = {
            "number": f"a number {self.range}",
            "integer": f"an integer {self.range}",
            "integers": f"a sequence of integers {self.range}, such as (256, 256)",
            "two numbers": f"two ascending numbers {self.range}",
            "boolean": "True or False",
            "string": self.range,
            "array": "an array or a nest of arrays",
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


def read_declarations(cls: Any) -> dict[str, Hyperparameter]:
    """Returns the hyperparameters that the constructor of an agent's class declares."""
    construct = inspect.unwrap(cls.__init__)
    hints = get_type_hints(construct, include_extras=True)
    texts = _read_arguments(inspect.getdoc(construct) or "")
    return {
        each.name: _declare(each.name, each.default, hints[each.name], texts.get(each.name, ""))
        for each in inspect.signature(construct).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    }


_Agent = TypeVar("_Agent")


def configurable(cls: _Agent) -> _Agent:
    """Makes an agent's constructor check its hyperparameters and use those that gin binds to the class's name.

    Arguments of the call take precedence over gin's. The class is registered with gin, but gin does not wrap its
    constructor, because it would append "In call to configurable ..." to every message.
    """
    agent: Any = cls  # Type checkers do not allow assignments to the constructor of a class.
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


def _declare(name: str, default: Any, hint: Any, text: str) -> Hyperparameter:
    hint, is_optional = _split_optional(hint)
    limits = Range()
    if get_origin(hint) is Annotated:
        hint, limits = get_args(hint)
    kind, allowed, convert = _read_type(hint, limits)
    return Hyperparameter(name, default, kind, allowed, text, is_optional, convert)


def _split_optional(hint: Any) -> tuple[Any, bool]:
    """Returns a type without None, and whether None was an alternative."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    (other,) = [each for each in alternatives if each is not type(None)]
    return other, len(alternatives) > 1


def _read_type(hint: Any, limits: Range) -> tuple[str, str, Callable[[Any], Any]]:
    """Returns the name of a type, its range as text, and a function that converts a value or raises an error."""
    if hint is Any:
        return "array", "", _to_array
    if hint is bool:
        return "boolean", "", _to_bool
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return "string", " or ".join(map(repr, choices)), functools.partial(_to_choice, choices)
    kind, convert = {
        float: ("number", _to_float),
        int: ("integer", _to_int),
        Sequence[int]: ("integers", _to_ints),
        tuple[float, float]: ("two numbers", _to_ascending_pair),
    }[hint]
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
