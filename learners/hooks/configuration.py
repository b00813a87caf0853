"""Hooks by name: the registry, and DI-engine's two ways to configure them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from .built_in import EarlyStopHook, LoadCkptHook, LogReduceHook, LogShowHook, SaveCkptHook
from .hook import LearnerHook

HookT = TypeVar("HookT", bound=type[LearnerHook])

#: Hooks by the `type` of a configuration.
HOOKS: dict[str, Callable[..., LearnerHook]] = {
    "load_ckpt": LoadCkptHook,
    "save_ckpt": SaveCkptHook,
    "log_show": LogShowHook,
    "log_reduce": LogReduceHook,
    "early_stop": EarlyStopHook,
}

#: DI-engine's shorthand: what each name stands for, given its value.
_SHORTHAND: dict[str, Callable[[Any], LearnerHook]] = {
    "load_ckpt_before_run": lambda path: LoadCkptHook(load_path="latest" if path is True else path),
    "save_ckpt_after_iter": lambda every: SaveCkptHook(**_interval(every)),
    "save_ckpt_after_run": lambda _: SaveCkptHook("save_ckpt_after_run", position="after_run"),
    "log_show_after_iter": lambda every: LogShowHook(**_interval(every)),
    "log_reduce_after_iter": lambda every: LogReduceHook(**_interval(every)),
}


def _interval(value: Any) -> dict[str, Any]:
    return {} if value is True else {"every": value}


def register_learner_hook(name: str, hook: HookT) -> HookT:
    """Makes a class of hooks available to configurations under a name, and returns it.

    Raises:
      TypeError: if it is not a subclass of `LearnerHook`.
      ValueError: if another class has the name.
    """
    if not (isinstance(hook, type) and issubclass(hook, LearnerHook)):
        raise TypeError(f"hook is {hook!r}, expected a subclass of LearnerHook")
    if HOOKS.get(name, hook) is not hook:
        raise ValueError(f"there is a hook {name!r} already; give it another name")
    HOOKS[name] = hook
    return hook


def hooks_from_config(config: Mapping[str, Any]) -> list[LearnerHook]:
    """Returns the hooks of a configuration, in DI-engine's shorthand or in its long form.

        {"save_ckpt_after_iter": 10000, "log_show_after_iter": 100, "load_ckpt_before_run": path,
         "save_ckpt_after_run": True}

        {"my_save": {"type": "save_ckpt", "priority": 20, "position": "after_iter", "ext_args": {"freq": 10000}}}

    A value of False, None or '' means that there is no such hook, True that it has its default interval. In the long
    form `name` is the key where it is not
    given, and `freq` in `ext_args` is `every`.

    Raises:
      ValueError: for an unknown name or type, with the nearest known one; or arguments that a hook does not take.
    """
    hooks = []
    for name, value in config.items():
        if value is None or value is False or value == "":
            continue
        if isinstance(value, Mapping):
            hooks.append(_of_long_form(name, value))
        elif name in _SHORTHAND:
            hooks.append(_SHORTHAND[name](value))
        else:
            raise ValueError(f"there is no hook {name!r}{_nearest(name, _SHORTHAND)}")
    return hooks


def _of_long_form(key: str, value: Mapping[str, Any]) -> LearnerHook:
    kind = value.get("type", key)
    if kind not in HOOKS:
        raise ValueError(f"hook {key!r} is of the unknown type {kind!r}{_nearest(kind, HOOKS)}")
    unknown = [name for name in value if name not in ("name", "type", "priority", "position", "ext_args")]
    if unknown:
        raise ValueError(f"hook {key!r} has {unknown[0]!r}, expected name, type, priority, position, ext_args")
    arguments = {
        "every" if name == "freq" else name: given for name, given in dict(value.get("ext_args") or {}).items()
    }
    for name in ("priority", "position"):
        if name in value:
            arguments[name] = value[name]
    if kind == "load_ckpt" and arguments.pop("position", "before_run") != "before_run":
        raise ValueError(f"hook {key!r} loads a checkpoint, expected the position 'before_run'")
    try:
        return HOOKS[kind](value.get("name", key), **arguments)
    except TypeError as error:
        raise ValueError(f"hook {key!r} of type {kind!r} does not take its arguments: {error}") from error


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(sorted(known))}"


def merge_hooks(first: Iterable[LearnerHook], second: Iterable[LearnerHook]) -> list[LearnerHook]:
    """Returns all hooks in the order in which they are called: by priority, those of `first` before equal ones."""
    return sorted([*first, *second], key=lambda hook: hook.priority)
