"""Copies of arrays at the borders with user code, which may reuse what it returned and modify what it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np


def copy_arrays(value: Any) -> Any:
    """Returns a value with copies of its arrays: an array, a nest, or a dataclass of these such as an `Episode`."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {name: copy_arrays(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [copy_arrays(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: copy_arrays(getattr(value, field.name)) for field in fields(value)})
    return value


def is_user_code(function: Any) -> bool:
    """Returns whether a function, or the class of an object, is defined outside of this package."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0] != "rlds2reverb"


def isolate(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls user code with copies and copies its results; others are returned unchanged."""
    isolated: Callable[..., Any] = _Isolated(function)
    return isolated if is_user_code(function) else function


@dataclass(frozen=True)
class _Isolated:
    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return copy_arrays(self.function(*map(copy_arrays, arguments)))
