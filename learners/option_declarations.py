"""Declarations of options: the type, range, default and description of each hyperparameter and of each training option.

The type and the range are those of an annotation, and the description is the entry in the docstring:

    def __init__(self, ..., expectile: Annotated[float, Range(0, 1, min_open=True, max_open=True)] = 0.7)

Numbers may be Python's or numpy's, and must be finite. An integer may be written as a float, such as 1e6. A bool is
not a number. A single integer is not a sequence of layer sizes, because 256 might mean one or two layers of 256.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np

from rlds2reverb.errors import ArgumentError
from rlds2reverb.system.references import is_reference, resolve_reference

#: A function `(input_spec, output_size, seed)` that creates a network, or its reference; see `custom_networks`.
NetworkFactory = Callable[[Any, int, int], Any]
#: Default of an option that has none.
REQUIRED = inspect.Parameter.empty
#: Maximum length of a value in a message.
_MAX_SHOWN = 60
#: The types that values are checked against: their annotations, and what a value must be, with `{}` for its range.
_TYPES: dict[str, tuple[Any, str]] = {
    "number": (float, "a number {}"),
    "integer": (int, "an integer {}"),
    "integers": (Sequence[int], "a sequence of integers {}, such as (256, 256)"),
    "two numbers": (tuple[float, float], "two ascending numbers {}"),
    "three numbers": (tuple[float, float, float], "three numbers {}"),
    "boolean": (bool, "True or False"),
    "string": (Literal, "{}"),
    "array": (Any, "an array or a nest of arrays"),
    "network": (NetworkFactory, "a function (input_spec, output_size, seed) that creates a network (my_module:name)"),
}


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


@dataclass(frozen=True)
class Option:
    """The declaration of one option.

    Attributes:
      name: name of the argument.
      default: default value, or `REQUIRED`.
      type: "number", "integer", "integers", "two numbers", "three numbers", "boolean", "string", "array" or "network";
        "any" if values are not checked.
      limits: range of numbers.
      choices: allowed strings; empty for other types.
      text: description.
      is_optional: whether None is allowed.
    """

    name: str
    default: Any
    type: str
    limits: Range
    choices: tuple[str, ...]
    text: str
    is_optional: bool

    @property
    def range(self) -> str:
        """The allowed values, such as "in (0, 1)" or ">= 1"; '' if there is no restriction."""
        return " or ".join(map(repr, self.choices)) or str(self.limits)

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
            return _convert(value, self)
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
        words = _TYPES[self.type][1].format(self.range).rstrip()
        return f"{words} or None" if self.is_optional else words

    def _error(self, value: Any) -> ValueError:
        shown = value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
        got = repr(shown)
        got = got if len(got) <= _MAX_SHOWN else f"{got[:_MAX_SHOWN]}..."
        advice = f"the default is {self.default!r}"
        if self.type == "integers" and type(shown) is int and shown > 0:
            advice = f"write ({shown},) for one layer of {shown}"
        return ArgumentError(f"must be {self.describe()}, got {got}; {advice}", about=self.name)


def declare(name: str, default: Any, hint: Any, text: str, *, is_custom: bool = True) -> Option:
    """Returns the declaration of an argument.

    Args:
      name: name of the argument.
      default: default value.
      hint: annotation.
      text: description.
      is_custom: whether values are checked only if the annotation contains a `Range`, a `Literal`, `bool` or a function
        that creates a network, and None is a valid default, as for custom agents and options of training.
    """
    hint, is_optional = _split_optional(hint)
    limits = None
    if get_origin(hint) is Annotated:
        hint, *annotations = get_args(hint)
        limits = next((annotation for annotation in annotations if isinstance(annotation, Range)), None)
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    kind = "string" if choices else next((kind for kind, (known, _) in _TYPES.items() if hint == known), "any")
    if is_custom and limits is None and kind not in ("string", "boolean", "network"):
        kind = "any"
    is_optional = is_optional or kind == "any" or (is_custom and default is None)
    return Option(name, default, kind, limits or Range(), choices, text, is_optional)


def _split_optional(hint: Any) -> tuple[Any, bool]:
    """Returns a type without None, and whether None was an alternative."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    others = [alternative for alternative in alternatives if alternative is not type(None)]
    return others[0] if len(others) == 1 else hint, len(others) < len(alternatives)


def read_descriptions(documented: Any) -> dict[str, str]:
    """Returns the entries of the section `Args` or `Attributes` of a docstring by name, each as one line."""
    docstring = inspect.getdoc(documented) or ""
    section = re.search(r"^(?:Args|Attributes):\n((?:(?:  .*)?\n?)*)", docstring, re.MULTILINE)
    entries = re.findall(r"^  (\w+): (.*(?:\n    .*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(description.split()) for name, description in entries}


def _evaluate(text: str) -> Any:
    """Returns the value of a Python literal, or the text itself if it is not a literal."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def parse_literal(text: str) -> Any:
    """Returns the value of a text of unknown type: a Python literal, `true`, `false`, `none`, or the text itself."""
    words = {"true": True, "false": False, "none": None, "null": None}
    text = text.strip()
    return words[text.lower()] if text.lower() in words else _evaluate(text)


def _convert(value: Any, option: Option) -> Any:
    """Returns a value as Python's own type; raises an error of any text if it is invalid."""
    if option.type == "number":
        return _to_float(value, option.limits)
    if option.type == "integer":
        return _to_int(value, option.limits)
    if option.type == "integers":
        return tuple(_to_int(element, option.limits) for element in _to_tuple(value))
    if option.type == "two numbers":
        low, high = (_to_float(element, option.limits) for element in _to_tuple(value))
        return (low, high) if low <= high else _reject()
    if option.type == "three numbers":
        numbers = tuple(_to_float(element, option.limits) for element in _to_tuple(value))
        return numbers if len(numbers) == 3 else _reject()
    if option.type == "boolean":
        return bool(value) if isinstance(value, (bool, np.bool_)) else _reject()
    if option.type == "string":
        return value if isinstance(value, str) and value in option.choices else _reject()
    if option.type == "array":
        return _reject() if isinstance(value, str) else value
    return _to_network(value) if option.type == "network" else value


def _reject() -> Any:
    raise ValueError


def _to_float(value: Any, limits: Range) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        _reject()
    number = float(value)
    return number if math.isfinite(number) and number in limits else _reject()


def _to_int(value: Any, limits: Range) -> int:
    number = _to_float(value, limits)
    if not number.is_integer():
        _reject()
    return int(value) if isinstance(value, Integral) else int(number)


def _to_tuple(value: Any) -> tuple[Any, ...]:
    return _reject() if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)) else tuple(value)


def _to_network(value: Any) -> Any:
    """Returns a function that creates a network; a network itself is callable as well, but must not be shared."""
    if not callable(value) or hasattr(type(value), "trainable_variables"):
        _reject()
    with contextlib.suppress(ValueError):  # The signature of some built-in functions is not known.
        inspect.signature(value).bind(None, 1, 0)
    return value
