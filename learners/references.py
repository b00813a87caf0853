"""References to Python objects: `my_module:MyAgent`, or `my_module:MyHook(every=10)` for the result of a call."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
from typing import Any

from rlds2reverb._text import suggest


def is_reference(value: Any) -> bool:
    """Returns whether a value is a string of the form `module:name`, possibly followed by arguments."""
    return isinstance(value, str) and all(part.strip() for part in value.partition(":"))


def resolve_reference(argument: str, reference: str) -> Any:
    """Imports the module of a reference, and returns the object.

    With arguments in parentheses, which must be literals such as numbers, strings and tuples, the object is called.

    Args:
      argument: name of the argument that contains the reference, for messages.
      reference: the reference.

    Raises:
      ValueError: If it is malformed, if there is no such module or no such name in it, if the module cannot be
        imported, or if the object does not accept the arguments.
    """
    module_name, path, arguments = _parse(argument, reference)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f"{argument} is {reference!r}, but {module_name} cannot be imported: {error}") from error
        raise ValueError(
            f"{argument} is {reference!r}, but there is no module {error.name!r}; install it, or add its folder to "
            "PYTHONPATH"
        ) from None
    except (ImportError, SyntaxError) as error:
        raise ValueError(f"{argument} is {reference!r}, but {module_name} cannot be imported: {error}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise ValueError(
                f"{argument} is {reference!r}, but {module_name} has no {path!r}{suggest(name, dir(found))}"
            )
        found = getattr(found, name)
    if arguments is None:
        return found
    positional, named = arguments
    try:
        inspect.signature(found).bind(*positional, **named)
    except TypeError as error:
        raise ValueError(f"{argument} is {reference!r}, but {path} does not accept these arguments: {error}") from None
    return found(*positional, **named)


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
        fields = (f"{each.name}={getattr(value, each.name)!r}" for each in dataclasses.fields(value))
        name += f"({', '.join(fields)})"
    return f"{owner.__module__}:{name}"


def is_importable(reference: str) -> bool:
    """Returns whether a different process can import what a reference refers to, as far as its text tells."""
    return is_reference(reference) and "<" not in reference and not reference.startswith("__main__:")


def _parse(argument: str, reference: str) -> tuple[str, str, tuple[list[Any], dict[str, Any]] | None]:
    """Returns the module, the dotted name in it, and the arguments of a reference; None if it has no parentheses."""
    module_name, _, expression = reference.strip().partition(":")
    try:
        node = ast.parse(expression.strip(), mode="eval").body
        arguments = None
        if isinstance(node, ast.Call):
            if any(each.arg is None for each in node.keywords):
                raise ValueError("** is not supported")
            named = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
            arguments = [ast.literal_eval(each) for each in node.args], named
            node = node.func
        path = ast.unparse(node)
        is_valid = all(name.isidentifier() for name in [*module_name.split("."), *path.split(".")])
    except (ValueError, SyntaxError):
        is_valid = False
    if not is_valid:
        raise ValueError(
            f"{argument} must be written as 'my_module:name' or 'my_module:name(argument=1)' with literals as "
            f"arguments, got {reference!r}"
        )
    return module_name, path, arguments
