"""Descriptions of functions and classes: references such as `my_module:MyAgent`, and fingerprints of their code."""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import importlib.util
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

_PLAIN = (type(None), bool, int, float, complex, str, bytes, Path, np.dtype, range, slice, re.Pattern)
_STDLIB = sysconfig.get_path("stdlib")
#: What wraps functions, and the attributes that contain them.
_WRAPPERS: tuple[type, ...] = (property, functools.cached_property, staticmethod, classmethod, functools.partial)
_WRAPPERS += (functools.partialmethod, types.MethodType)
_PARTS = ("fget", "fset", "fdel", "func", "__func__", "__self__", "args", "keywords")
_CODE: tuple[type, ...] = (types.FunctionType, type, *_WRAPPERS)
#: Methods that set up objects, and so change attributes only once.
_CONSTRUCTORS = ("__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__setstate__")
_READ = ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD", "LOAD_DEREF")
_WRITTEN = ("STORE_GLOBAL", "STORE_ATTR", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_ATTR")
_ELEMENT_WRITTEN = ("STORE_SUBSCR", "DELETE_SUBSCR", "COPY", "DUP_TOP_TWO")
_MUTATING = ("add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update")


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


def fingerprint_code(value: Any) -> str:
    """Returns a hash of what a function, class or object does, which distinguishes those of one name.

    It covers all code outside of installed packages that the value uses: functions and methods with their defaults, the
    enclosing and global variables that they read, and what they import from other modules; classes with their bases and
    attributes; and objects with their state. Numbers, strings, arrays and containers count by their content, and what
    belongs to installed packages by its name, or by its class and the functions that it wraps.

    Comments, line numbers and the docstrings of functions do not count. Neither do variables and attributes that the
    code itself reads and changes, such as counters and caches. The hash depends on the minor version of Python.
    """
    return xxhash.xxh3_64_hexdigest(repr(_describe_content(value, set())).encode())


@functools.cache
def is_installed(module: str) -> bool:
    """Returns whether a module belongs to Python, to this package or to another installed one; imports nothing."""
    root = module.partition(".")[0]
    if root in ("__main__", __name__.partition(".")[0], *sys.builtin_module_names):
        return root != "__main__"
    try:  # A namespace such as `tests` may have folders among installed packages and others.
        spec = importlib.util.find_spec(module if module in sys.modules else root)
    except (ImportError, ValueError):
        return False
    found = [] if spec is None else [spec.origin] if spec.origin else [*(spec.submodule_search_locations or ())]
    folders = {"site-packages", "dist-packages", "frozen"}
    return bool(found) and all(path.is_relative_to(_STDLIB) or folders & {*path.parts} for path in map(Path, found))


def _describe_content(value: Any, seen: set[int]) -> Any:
    """Returns a value whose `repr` depends on the content of `value`, as far as that can be compared."""
    describe = functools.partial(_describe_content, seen=seen)
    if isinstance(value, _PLAIN):
        return repr(value)
    if type(value).__name__ == "EagerTensor":
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind != "O":
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [describe(element) for element in value]
    if isinstance(value, (set, frozenset)):
        return "set", sorted(repr(_describe_content(element, {*seen})) for element in value)
    if isinstance(value, Mapping):
        return [(describe(key), describe(element)) for key, element in value.items()]
    if isinstance(value, types.CodeType):
        names = [value.co_names, value.co_varnames, value.co_freevars, value.co_argcount, value.co_kwonlyargcount]
        return value.co_code, getattr(value, "co_exceptiontable", b""), value.co_flags, names, describe(value.co_consts)
    if isinstance(value, _WRAPPERS):
        return type(value).__name__, [describe(getattr(value, part)) for part in _PARTS if hasattr(value, part)]
    if id(value) in seen or isinstance(value, types.ModuleType):
        return _name(value)
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        return describe(_list_parts(value))
    if isinstance(value, type):
        return _name(value), [] if is_installed(value.__module__) else describe([value.__bases__, _read_members(value)])
    return _name(value), describe(_read_state(value))


def _name(value: Any) -> str:
    owner = value if isinstance(getattr(value, "__name__", None), str) else type(value)
    return f"{getattr(owner, '__module__', None)}:{getattr(owner, '__qualname__', owner.__name__)}"


def _list_parts(function: types.FunctionType) -> list[Any]:
    """Returns what determines what a function does; for one of an installed package its name, and what it wraps."""
    if is_installed(str(function.__globals__.get("__name__"))):
        return [_name(function), _select_own(dict(_read_cells(function)))]
    code = function.__code__
    if function.__doc__ is not None and code.co_consts[:1] == (function.__doc__,):
        code = code.replace(co_consts=(None, *code.co_consts[1:]))
    return [code, function.__defaults__, function.__kwdefaults__, dict(_read_variables(function))]


def _read_members(owner: type) -> dict[str, Any]:
    """Returns the methods and attributes of a class, except for attributes that its code or its module changes."""
    changed = _find_changed(_list_methods(owner), vars(sys.modules.get(owner.__module__, types)))
    return {
        name: member
        for name, member in sorted(vars(owner).items())
        if isinstance(member, _CODE) or not (name in changed or name.startswith("__"))
    }


def _read_state(value: Any) -> dict[str, Any]:
    """Returns the class and the state of an object, or what an object of an installed package wraps."""
    owner = type(value)
    slots = [name for base in owner.__mro__ for name in vars(base).get("__slots__", ()) if hasattr(value, name)]
    state = dict(sorted({**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}.items()))
    if is_installed(owner.__module__):
        return state if dataclasses.is_dataclass(value) else _select_own(state)
    changed = _find_changed(_list_methods(owner), {})
    return {"": owner, **{name: part for name, part in state.items() if name not in changed}}


def _select_own(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns functions, classes, and objects of classes outside of installed packages."""
    return {k: v for k, v in values.items() if isinstance(v, _CODE) or not is_installed(type(v).__module__)}


def _read_cells(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():
            yield name, cell.cell_contents


def _read_variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the enclosing and global variables that a function reads, and what it uses of modules, by name."""
    namespace, codes = function.__globals__, list(_walk_codes(function.__code__))
    changed, used = _find_changed([function], namespace), {name for code in codes for name in code.co_names}
    found = {name: value for name, value in _read_cells(function) if name not in _find_changed([function], {})}
    for instructions in map(list, map(dis.get_instructions, codes)):
        for number, instruction in enumerate(instructions):
            name = instruction.argval
            if instruction.opname == "LOAD_GLOBAL" and name in namespace and name not in changed:
                found[name] = namespace[name]
            elif instruction.opname == "IMPORT_NAME":
                level = instructions[number - 2].argval
                found[name] = _import_own("." * level + name, namespace.get("__package__"))
    for name, value in found.items():
        yield name, value
        if isinstance(value, types.ModuleType):
            yield from _read_module(value, used)


def _read_module(module: types.ModuleType, used: set[str]) -> Iterator[tuple[str, Any]]:
    """Yields those members of a module outside of installed packages that have one of the names."""
    for name in sorted(used & vars(module).keys()) if not is_installed(module.__name__) else ():
        member = vars(module)[name]
        yield f"{module.__name__}.{name}", member
        if isinstance(member, types.ModuleType):
            yield from _read_module(member, used - {name})


def _import_own(name: str, package: str | None) -> types.ModuleType | None:
    """Returns a module that a function imports; None if it is installed, or cannot be imported."""
    with contextlib.suppress(Exception):  # Modules raise errors of any type.
        name = importlib.util.resolve_name(name, package)
        return None if is_installed(name) else importlib.import_module(name)
    return None


def _list_methods(owner: type) -> list[Any]:
    """Returns the methods of a class and its bases outside of installed packages, except for constructors."""
    bases = [base for base in owner.__mro__ if not is_installed(base.__module__)]
    members = [member for base in bases for name, member in vars(base).items() if name not in _CONSTRUCTORS]
    return members + [getattr(member, part, None) for member in members for part in _PARTS]


def _walk_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _walk_codes(constant)


def _find_changed(members: Iterable[Any], namespace: Mapping[str, Any]) -> set[str]:
    """Returns the names of variables and attributes that functions among members, or of a module, read and change."""
    of_module = [value for value in namespace.values() if getattr(value, "__module__", None) == namespace["__name__"]]
    methods = [method for value in of_module if isinstance(value, type) for method in _list_methods(value)]
    functions = [value for value in (*members, *of_module, *methods) if isinstance(value, types.FunctionType)]
    return {name for function in functions for code in _walk_codes(function.__code__) for name in _list_changed(code)}


@functools.lru_cache(10_000)
def _list_changed(code: types.CodeType) -> frozenset[str]:
    instructions = list(dis.get_instructions(code))
    read = {instruction.argval for instruction in instructions if instruction.opname in _READ}
    changed = {instruction.argval for instruction in instructions if instruction.opname in _WRITTEN}
    for one, two, three in zip(instructions, instructions[1:], instructions[2:], strict=False):
        # A method that mutates, or an assignment to an element: x[key] = ... or x[key] += ...
        if one.opname in _READ and (two.argval in _MUTATING or three.opname in _ELEMENT_WRITTEN):
            changed.add(one.argval)
    return frozenset(read & changed)
