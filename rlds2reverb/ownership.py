"""Copies of arrays at the borders with user code, which may reuse what it returned and modify what it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

Value = TypeVar("Value")


def copy_arrays(value: Value) -> Value:
    """Returns a value with copies of its arrays: an array, a nest, or a dataclass of these such as an `Episode`."""
    return _copy(value)  # type: ignore[no-any-return]


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {name: _copy(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_copy(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _copy(getattr(value, field.name)) for field in fields(value)})
    return value


def is_user_code(function: Any) -> bool:
    """Returns whether a function, or the class of an object, is defined outside of this package."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0] != "rlds2reverb"


def isolate(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of the user that is called with copies and whose results are copied; others unchanged."""
    return _Isolated(function) if is_user_code(function) else function


@dataclass(frozen=True)
class _Isolated:
    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return copy_arrays(self.function(*map(copy_arrays, arguments)))
