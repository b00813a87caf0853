"""DI-engine's `ext_args`: the options of a hook as a dict, in which `every` is called `freq`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rlds2reverb.system.text import advise

if TYPE_CHECKING:
    from .hook import LearnerHook

HookT = TypeVar("HookT", bound="type[LearnerHook]")


class ExtArgs(dict[str, Any]):
    """The `ext_args` of a hook, whose entries are also attributes, as those of DI-engine's EasyDict."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"ext_args has no {name!r}{advise(name, self) if self else ''}")
        return self[name]


def read_ext_args(hook: str, ext_args: Any) -> dict[str, Any]:
    """Returns the options in the `ext_args` of a hook; raises `TypeError` if they are not a dict or None."""
    if not isinstance(ext_args, (Mapping, type(None))):
        raise TypeError(f"ext_args of hook {hook!r} must be a dict, such as {{'freq': 100}}, got {ext_args!r}")
    return {"every" if name == "freq" else name: value for name, value in (ext_args or {}).items()}


def accept_ext_args(cls: HookT) -> HookT:
    """Lets the entries of a hook's argument `ext_args` precede its keyword arguments.

    The constructor then raises `TypeError` if they are not a dict, and `ValueError` if they contain an unknown option.
    """
    hook: Any = cls  # Type checkers do not allow assignments to the constructor of a class.
    construct, signature = hook.__init__, inspect.signature(hook.__init__)
    keywords = [name for name, parameter in signature.parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    allowed = [name for name in keywords if name not in ("position", "ext_args")]

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, ext_args: Mapping[str, Any] | None = None, **options: Any) -> None:
        bound = signature.bind(self, *args, **options)
        bound.apply_defaults()
        name = bound.arguments["name"]
        given = read_ext_args(name, ext_args)
        if unknown := [option for option in given if option not in allowed]:
            valid = ["freq" if option == "every" else option for option in allowed]
            raise ValueError(f"ext_args of hook {name!r} has the unknown key {unknown[0]!r}; use {', '.join(valid)}")
        construct(self, *args, **{**options, **given})

    hook.__init__ = __init__
    return cls
