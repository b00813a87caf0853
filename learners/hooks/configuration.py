"""The registry of hooks by name, DI-engine's two configuration formats, and hooks by reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from rlds2reverb.system.code_fingerprints import describe_reference
from rlds2reverb.system.references import resolve_reference
from rlds2reverb.system.text import advise

from .built_in import BuiltInHook
from .ext_args import read_ext_args
from .hook import LearnerHook

HookT = TypeVar("HookT", bound=type[LearnerHook])

#: Hooks by their `type` in a configuration.
HOOKS: dict[str, type[LearnerHook]] = {hook.name: hook for hook in BuiltInHook.__subclasses__()}  # type: ignore[type-abstract]

#: The type of each hook in DI-engine's shorthand, and the option that its value stands for.
SHORTHAND = {
    "load_ckpt_before_run": ("load_ckpt", "load_path"),
    "save_ckpt_after_iter": ("save_ckpt", "freq"),
    "save_ckpt_after_run": ("save_ckpt", None),
    "log_show_after_iter": ("log_show", "freq"),
    "log_reduce_after_iter": ("log_reduce", "freq"),
}
_LONG_FORM_KEYS = ("name", "type", "priority", "position", "ext_args")


def register_learner_hook(name: str, hook: HookT) -> HookT:
    """Registers a hook class for configurations, and returns it.

    Raises:
      TypeError: If `hook` is not a subclass of `LearnerHook`.
      ValueError: If a different class is registered under the name.
    """
    if not (isinstance(hook, type) and issubclass(hook, LearnerHook)):
        raise TypeError(f"hook must be a subclass of LearnerHook, got {hook!r}")
    if HOOKS.get(name, hook) is not hook:
        raise ValueError(f"a different hook is already registered as {name!r}; use another name")
    HOOKS[name] = hook
    return hook


def hooks_from_config(config: Mapping[str, Any]) -> list[LearnerHook]:
    """Creates the hooks of a configuration, in DI-engine's shorthand or in its long form.

        {"save_ckpt_after_iter": 10000, "log_show_after_iter": 100, "load_ckpt_before_run": path,
         "save_ckpt_after_run": True}

        {"my_save": {"type": "save_ckpt", "priority": 20, "position": "after_iter", "ext_args": {"freq": 10000}}}

    The values False, None and '' disable a hook, and True selects its default interval. In the long form, `name` and
    `type` default to the key, and all others to the hook's own defaults. A class receives `ext_args` as it is if its
    constructor has a parameter of that name, as DI-engine's have, and otherwise as keyword arguments (`freq` as
    `every`).

    Raises:
      TypeError: If the configuration or an `ext_args` is not a dict.
      ValueError: If a name or type is unknown (the message suggests a similar one), or if a hook does not accept its
        arguments.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"config must be a dict of hooks, such as {{'save_ckpt_after_iter': 1000}}, got {config!r}")
    hooks = []
    for name, value in config.items():
        if value is None or value is False or value == "":
            continue
        hooks.append(_make_from_long_form(name, value if isinstance(value, Mapping) else _expand(name, value)))
    return hooks


def read_shorthand(text: str) -> Any:
    """Returns a hook of DI-engine's shorthand in the form `log_show_after_iter=10` as a dict, and any other text."""
    name, _, value = text.partition("=")
    if name not in SHORTHAND:
        return text
    words: dict[str, Any] = {"": True, "True": True, "False": False}
    return {name: int(value) if value.isdecimal() else words.get(value, value)}


def make_hooks(hooks: Iterable[Any]) -> list[LearnerHook]:
    """Creates hooks from any of the ways to specify them.

    Args:
      hooks: hooks; classes of hooks that need no arguments; references such as "my_module:MyHook", also with arguments
        as in "my_module:MyHook(every=10)"; or configurations, see `hooks_from_config`, also as text such as
        "log_show_after_iter=10".

    Raises:
      TypeError: If something else is given.
      ValueError: If there is no such module or hook, if a class does not accept the arguments, or as
        `hooks_from_config`.
    """
    made: list[LearnerHook] = []
    for entry in hooks:
        entry = read_shorthand(entry) if isinstance(entry, str) else entry
        if isinstance(entry, Mapping):
            made += hooks_from_config(entry)
            continue
        hook = resolve_reference("hooks", entry) if isinstance(entry, str) else entry
        if isinstance(hook, type) and issubclass(hook, LearnerHook):
            hook = _construct(hook)
        if not isinstance(hook, LearnerHook):
            kind = ValueError if isinstance(entry, str) else TypeError
            raise kind(f"hooks must contain instances or subclasses of LearnerHook, got {hook!r}")
        made.append(hook)
    return made


def _construct(hook: Callable[..., LearnerHook]) -> LearnerHook:
    try:
        inspect.signature(hook).bind()
    except TypeError as error:
        name = describe_reference(hook)
        raise ValueError(f"hook {name} requires arguments ({error}); write them as in '{name}(every=10)'") from None
    return hook()


def _expand(name: str, value: Any) -> dict[str, Any]:
    """Returns the long form of a hook in the shorthand."""
    if name not in SHORTHAND and name in HOOKS:
        raise TypeError(f"the value of hook {name!r} must be a dict, such as {{'type': {name!r}}}, got {value!r}")
    if name not in SHORTHAND:
        raise ValueError(f"unknown hook {name!r}{advise(name, SHORTHAND)}")
    kind, option = SHORTHAND[name]
    if option is None:
        return {"type": kind, "position": "after_run"}
    return {"name": kind, "type": kind, "ext_args": {} if value is True else {option: value}}


def _make_from_long_form(key: str, value: Mapping[str, Any]) -> LearnerHook:
    kind = value.get("type", key)
    if kind not in HOOKS:
        raise ValueError(f"hook {key!r} has the unknown type {kind!r}{advise(str(kind), HOOKS)}")
    unknown = [name for name in value if name not in _LONG_FORM_KEYS]
    if unknown:
        raise ValueError(f"hook {key!r} has the unknown key {unknown[0]!r}; use {', '.join(_LONG_FORM_KEYS)}")
    ext_args = value.get("ext_args")
    options = read_ext_args(key, ext_args, HOOKS[kind].list_options())
    arguments = {name: value[name] for name in ("priority", "position") if name in value}
    signature = inspect.signature(HOOKS[kind])
    accepts_ext_args = any(
        parameter.name == "ext_args" or parameter.kind is parameter.VAR_KEYWORD
        for parameter in signature.parameters.values()
    )
    arguments |= {"ext_args": ext_args or {}} if accepts_ext_args else options
    try:
        signature.bind(value.get("name", key), **arguments)
    except TypeError as error:
        raise ValueError(f"hook {key!r} of type {kind!r} does not accept its arguments: {error}") from error
    return HOOKS[kind](value.get("name", key), **arguments)
