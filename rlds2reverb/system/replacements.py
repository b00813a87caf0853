"""Replacements of the classes, functions and arguments of DI-engine, ALF and TF-Agents, for messages about their names.

`replacements.ini` has a section for each class or function of these libraries. docs/coming_from.md shows it as tables.
"""

from __future__ import annotations

import abc
import difflib
import functools
import inspect
import traceback
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import lazy_loader

from .ini_files import read_sections
from .text import advise

#: Names that are at least this similar are the same word with a typing error.
_SAME_WORD = 0.85
#: The section with the names of arguments that are passed by position.
_POSITIONS = "positions"
#: The text for a name that is the same here.
_SAME = "same"


@functools.cache
def _read_sections() -> dict[str, dict[str, str]]:
    return {
        section: {name.strip(): text for names, text in texts.items() for name in names.split(",")}
        for section, texts in read_sections(__package__, "replacements.ini").items()
    }


@functools.cache
def read_replacements() -> dict[str, dict[str, str]]:
    """Returns the replacement of each name, by section, such as 'DI-engine BaseLearner'."""
    return {section: texts for section, texts in _read_sections().items() if section != _POSITIONS}


def find_replacement(name: str, *owners: str) -> str:
    """Returns the end of a message about an unknown name: `; use X in its place`, a reason, or '' if it is not listed.

    Args:
      name: name of a class, function, attribute or argument.
      *owners: the classes or functions of other libraries that it may belong to; none for a class or a function.
    """
    for section, texts in read_replacements().items():
        library, owner = section.split(" ", 1)
        if texts.get(name, _SAME) != _SAME and (owner in owners or (not owners and owner in (name, "names"))):
            text = texts[name].replace("`", "")
            place = f"{owner}.{name}" if owner[0].isupper() and owner != name else name
            reason = text.removeprefix("none: ")
            return f"; use {text} in place of {library}'s {place}" if reason == text else f": {reason}"
    return ""


def describe_unknown(holder: str, noun: str, name: str, allowed: Iterable[str], *owners: str) -> str:
    """Returns a message about a name that a holder does not have, with what replaces it or a similar one."""
    advice = find_replacement(name, *owners) or (advise(str(name), allowed) if (allowed := list(allowed)) else "")
    return f"{holder} has no {noun} {name!r}{advice}"


def require_arguments(
    function: Callable[..., Any], names: Iterable[str], holder: str, *owners: str, own: Iterable[str] = ()
) -> None:
    """Raises `TypeError` if a function does not accept an argument; the message says what replaces it.

    Args:
      function: the function. If it accepts any argument, only those are refused that have a replacement or are typing
        errors of the caller's own arguments.
      names: names of the arguments.
      holder: name of the function in the message.
      *owners: see `find_replacement`.
      own: the caller's own arguments, of which it passes none on.
    """
    parameters = dict(inspect.signature(function).parameters)
    parameters.pop("self", None)
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in names:
        if name in parameters or (is_open and not own):
            continue
        similar = difflib.get_close_matches(name, own, 1, _SAME_WORD)
        if similar or not is_open or find_replacement(name, *owners):
            raise TypeError(describe_unknown(holder, "argument", name, similar or [*parameters], *owners))


def explain_missing(get: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module, which names the replacement of a class or function of a different library.

    Errors are `ImportError`s, because `from module import name` discards the message of an `AttributeError`, also that
    of a package that does not work with the installed NumPy.
    """

    def get_or_explain(name: str) -> Any:
        try:
            return get(name)
        except AttributeError as error:
            if replacement := find_replacement(name):
                raise ImportError(f"there is no {name}{replacement}") from error
            place = traceback.extract_tb(error.__traceback__)[-1]
            if place.filename == lazy_loader.__file__:  # The module has no such name.
                raise
            raise ImportError(f"{name} cannot be imported: {error} ({place.filename}, line {place.lineno})") from error

    return get_or_explain


def _require_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], holder: str, *owners: str
) -> None:
    """Raises `TypeError` if a method does not accept the arguments of a call; the message says what replaces them."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        reason = str(error)
    else:
        return
    num_places = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in signature.parameters.values())
    listed = _read_sections()[_POSITIONS]
    keys = owners if function.__name__ == "__init__" else (function.__name__,)
    names = next((listed[key].split(", ") for key in keys if key in listed), [])
    require_arguments(function, [*kwargs, *names[num_places - 1 : len(args) - 1]], holder, *owners)
    raise TypeError(f"{holder}: {reason}{find_replacement(function.__name__, *owners)}")


def _explain_arguments(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method of a `Replacing` class whose errors say what replaces an argument of a different library."""

    @functools.wraps(method)
    def call(self: Replacing, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except TypeError as raised:
            error = raised
        holder = f"{type(self).__name__}.{method.__name__}"
        _require_call(method, (self, *args), kwargs, holder, *self.replaces)
        raise error

    return call


class ExplainingType(abc.ABCMeta):
    """The type of classes that say what replaces an argument of a different library.

    This holds for the constructor, and for the methods that have the same names in that library.
    """

    if not TYPE_CHECKING:  # Type checkers would accept any arguments.

        def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
            """Creates a class."""
            owners = namespace.get("replaces", ())
            for section, texts in read_replacements().items() if owners else ():
                for method in texts if section.split(" ", 1)[1] in owners else ():
                    if isinstance(namespace.get(method), types.FunctionType):
                        namespace[method] = _explain_arguments(namespace[method])
            return super().__new__(mcs, name, bases, namespace, **kwargs)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Creates an object."""
            try:
                return super().__call__(*args, **kwargs)
            except TypeError as raised:
                error = raised
            _require_call(cls.__init__, (None, *args), kwargs, cls.__name__, *cls.replaces)
            raise error

        @property
        def __signature__(cls) -> inspect.Signature:
            """The signature of the constructor, which that of `__call__` would hide."""
            return inspect.Signature(list(inspect.signature(cls.__init__).parameters.values())[1:])


class Replacing(metaclass=ExplainingType):
    """A class whose errors name the replacement of an attribute or argument of a different library.

    Attributes:
      replaces: the classes that it replaces, as in `replacements.ini`.
    """

    replaces: ClassVar[tuple[str, ...]] = ()

    if not TYPE_CHECKING:  # Type checkers would accept any attribute.

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or hasattr(type(self), name):  # Of a property, the error is its own.
                return object.__getattribute__(self, name)
            holder = type(self).__name__
            raise AttributeError(f"{holder!r} object has no attribute {name!r}{find_replacement(name, *self.replaces)}")
