"""Descriptions of functions and classes: references such as `my_module:MyAgent`, and fingerprints of their code."""

from __future__ import annotations

import dataclasses
import dis
import functools
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

_PLAIN = (type(None), bool, int, float, complex, str, bytes, Path, np.dtype)


def describe_reference(value: Any) -> str:
    """Returns a string for an object, if possible a reference to it.

    Functions and classes become references, and dataclasses calls with their fields. Other objects are described by the
    reference of their class.
    """
    if isinstance(value, functools.partial):
        return f"{describe_reference(value.func)} with {value.args} and {value.keywords}"
    owner = value if hasattr(value, "__qualname__") else type(value)
    name = owner.__qualname__
    if owner is not value and dataclasses.is_dataclass(value):
        fields = (f"{field.name}={getattr(value, field.name)!r}" for field in dataclasses.fields(value))
        name += f"({', '.join(fields)})"
    return f"{owner.__module__}:{name}"


def fingerprint_code(function: Any) -> str:
    """Returns a hash of what a function does, which distinguishes functions of one name.

    It depends on the bytecode, and thus on the minor version of Python, and on the constants, defaults, and values of
    enclosing and global variables that the bytecode uses: numbers, strings, arrays, dataclasses, containers of these,
    and functions and classes of the same module. Classes count by the code of their methods, and numbers and strings of
    enclosing functions; other objects count by their class, and what other modules contain by its name, so that changes
    inside of them are not noticed.
    """
    return xxhash.xxh3_64_hexdigest(repr(_describe_content(function, _find_module(function), set())).encode())


def _find_module(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__module__", None) or ""


def _describe_content(value: Any, module: str, seen: set[int]) -> Any:
    """Returns a value whose `repr` depends on the content of `value`, as far as that can be compared."""
    describe = functools.partial(_describe_content, module=module, seen=seen)
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind != "O":
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [describe(element) for element in value]
    if isinstance(value, (set, frozenset)):
        return "set", sorted(repr(describe(element)) for element in value)
    if isinstance(value, Mapping):
        return [(repr(key), describe(element)) for key, element in value.items()]
    if isinstance(value, functools.partial):
        return describe([value.func, value.args, value.keywords])
    if isinstance(value, types.MethodType):
        return describe([value.__func__, value.__self__])
    if isinstance(value, types.CodeType):
        return value.co_code, value.co_names, value.co_varnames, value.co_freevars, describe(value.co_consts)
    if isinstance(value, types.FunctionType) and value.__module__ == module and id(value) not in seen:
        seen.add(id(value))
        parts = [value.__code__, value.__defaults__, value.__kwdefaults__, dict(_read_variables(value))]
        return describe(parts)
    if isinstance(value, type) and value.__module__ == module and id(value) not in seen:
        seen.add(id(value))
        return describe_reference(value), describe([*value.__bases__, *_read_methods(value)])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return describe_reference(type(value)), [
            describe(getattr(value, field.name)) for field in dataclasses.fields(value)
        ]
    return describe_reference(value)


def _read_methods(owner: type) -> Iterator[Any]:
    """Yields the code and the defaults of each method of a class, and the constants of enclosing functions.

    Class attributes, global variables and containers may be counters that change while the class is used.
    """
    for member in vars(owner).values():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if isinstance(function, types.FunctionType):
            cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
            constants = [value for value in cells if isinstance(value, _PLAIN)]
            yield [function.__name__, function.__code__, function.__defaults__, function.__kwdefaults__, constants]


def _read_variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the enclosing and global variables that a function reads, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():
            yield name, cell.cell_contents
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_GLOBAL" and instruction.argval in function.__globals__:
                yield instruction.argval, function.__globals__[instruction.argval]
