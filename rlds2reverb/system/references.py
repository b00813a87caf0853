"""References to Python objects: `my_module:MyAgent`, or `my_module:MyHook(every=10)` for the result of a call."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

from rlds2reverb.errors import ArgumentError

from .code_fingerprints import describe_reference
from .text import suggest


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

    def make_error(reason: str) -> ArgumentError:
        return ArgumentError(f"is {reference!r}, but {reason}", about=argument)

    try:
        found: Any = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            advice = "install it, or add its folder to PYTHONPATH"
            raise make_error(f"there is no module {missing!r}; {advice}") from None
        raise make_error(f"{module_name} cannot be imported: {error}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise make_error(f"{module_name} has no {path!r}{suggest(name, dir(found))}")
        found = getattr(found, name)
    if arguments is None:
        return found
    positional, named = arguments
    try:
        inspect.signature(found).bind(*positional, **named)
    except TypeError as error:
        raise make_error(f"{path} does not accept these arguments: {error}") from None
    return found(*positional, **named)


def describe_callable(value: Any) -> Any:
    """Returns the reference of a function or class, and any other value unchanged."""
    return describe_reference(value) if callable(value) else value


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
            if any(keyword.arg is None for keyword in node.keywords):
                raise ValueError("** is not supported")
            named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
            arguments = [ast.literal_eval(positional) for positional in node.args], named
            node = node.func
        path = ast.unparse(node)
        if not all(name.isidentifier() for name in [*module_name.split("."), *path.split(".")]):
            raise ValueError("a name is not an identifier")
    except (ValueError, SyntaxError):
        raise ArgumentError(
            "must be written as 'my_module:name' or 'my_module:name(argument=1)' with literals as arguments, got "
            f"{reference!r}",
            about=argument,
        ) from None
    return module_name, path, arguments
