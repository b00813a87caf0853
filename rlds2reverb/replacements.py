"""What replaces the classes, functions and arguments of DI-engine, ALF and TF-Agents, for messages about their names.

`replacements.ini` has a section for each class or function of these libraries. docs/coming_from.md shows it as tables.
"""

from __future__ import annotations

import abc
import configparser
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar

from rlds2reverb._system.text import advise

#: Names that are at least this similar are the same word with a typing error.
_SAME_WORD = 0.85


@functools.cache
def read_replacements() -> dict[str, dict[str, str]]:
    """Returns the replacement of each name, by section, such as 'DI-engine BaseLearner'."""
    parser = configparser.ConfigParser(delimiters="=", interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((resources.files("rlds2reverb") / "replacements.ini").read_text(encoding="utf-8"))
    return {
        section: {name.strip(): text for names, text in parser[section].items() for name in names.split(",")}
        for section in parser.sections()
    }


def find_replacement(name: str, *owners: str) -> str:
    """Returns the end of a message about an unknown name: `; use X in its place`, a reason, or '' if it is not listed.

    Args:
      name: name of a class, function, attribute or argument.
      *owners: the classes or functions of other libraries that it may belong to; none for a class or a function.
    """
    for section, texts in read_replacements().items():
        library, owner = section.split(" ", 1)
        if name in texts and (owner in owners or (not owners and owner in (name, "names"))):
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
    parameters = inspect.signature(function).parameters
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in names:
        if name in parameters or (is_open and not own):
            continue
        similar = difflib.get_close_matches(name, own, 1, _SAME_WORD)
        if similar or not is_open or find_replacement(name, *owners):
            raise TypeError(describe_unknown(holder, "argument", name, similar or [*parameters], *owners))


def explain_missing(get: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module, which names the replacement of another library's class or function.

    The error is an `ImportError`, because `from module import name` discards the message of an `AttributeError`.
    """

    def get_or_explain(name: str) -> Any:
        try:
            return get(name)
        except AttributeError as error:
            if replacement := find_replacement(name):
                raise ImportError(f"there is no {name}{replacement}") from error
            raise

    return get_or_explain


class ExplainingType(abc.ABCMeta):
    """The type of classes whose constructors say what replaces an argument of another library."""

    if not TYPE_CHECKING:  # Type checkers would accept any arguments.

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Creates an object."""
            require_arguments(cls.__init__, kwargs, cls.__name__, *cls.replaces)
            return super().__call__(*args, **kwargs)

        @property
        def __signature__(cls) -> inspect.Signature:
            """The signature of the constructor, which that of `__call__` would hide."""
            return inspect.Signature(list(inspect.signature(cls.__init__).parameters.values())[1:])


class Replacing(metaclass=ExplainingType):
    """A class that says what replaces an attribute or an argument of another library's class.

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
