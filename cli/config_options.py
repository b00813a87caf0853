"""Command-line options made from the declarations of `TrainingConfig`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING
from typing import Any

import click
from click.core import ParameterSource
from rlds2reverb.training.config import Option, declared_options, default_value, option_types

from . import checks
from .own_modules import allow_own_modules

#: Options whose name on the command line is not that of the attribute.
_FLAGS = {
    "hyperparameters": "--set",
    "drop_fields": "--drop-field",
    "hooks": "--hook",
    "track": "--track",
    "online_steps": "--online",
}
_REPEATABLE = {"hyperparameters", "drop_fields", "hooks", "track"}
#: Options that take two numbers.
_PAIRS = {"action_bounds"}
#: Sentences about commands, which follow the texts of the declarations.
_HINTS = {
    "algo": "`rlds2reverb agents` describes them.",
    "hyperparameters": "`rlds2reverb agents NAME` lists them.",
}
#: Callbacks of options, by their names.
_CALLBACKS: dict[str, Any] = {
    "reward": checks.reward,
    **dict.fromkeys(("algo", "env", "hooks", "hyperparameters"), allow_own_modules),
}


def config_options(*names: str, without_default: bool = False) -> Callable[[Any], Any]:
    """Returns a decorator that adds options of `TrainingConfig` to a command, in the given order.

    Args:
      *names: names of the options.
      without_default: whether to hide the defaults, which are those of training, and make switches plain flags.
    """

    def decorate(command: Any) -> Any:
        for name in reversed(names):
            command = _make_option(name, declared_options()[name], without_default=without_default)(command)
        return command

    return decorate


def group_names() -> dict[str, list[str]]:
    """Returns the names of all options of `TrainingConfig` by their heading in `--help`."""
    groups: dict[str, list[str]] = {}
    for name, option in declared_options().items():
        groups.setdefault(option.group, []).append(name)
    return groups


def passed_options(context: click.Context) -> dict[str, Any]:
    """Returns the options of `TrainingConfig` that are on the command line of a command."""
    names = declared_options().keys() & context.params.keys()
    return {
        name: context.params[name]
        for name in names
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def _make_option(name: str, option: Option, *, without_default: bool) -> Callable[[Any], Any]:
    kind, is_optional = option_types()[name]
    text = f"{option.text} {_HINTS[name]}" if name in _HINTS else option.text
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    default = default_value(name)
    declaration: dict[str, Any] = {"help": text, "metavar": option.metavar, "callback": _CALLBACKS.get(name)}
    if kind is bool and (without_default or not is_optional):
        return click.option(flag, name, is_flag=True, help=text)
    if name in _REPEATABLE:
        return click.option(flag, name, **{**declaration, "multiple": True, "help": f"{text} Repeatable."})
    if default is MISSING:
        declaration["required"] = True
    else:
        declaration |= {"default": default, "show_default": not without_default and (option.default_text or True)}
    if kind is bool:
        flag = f"{flag}/--no-{flag[2:]}"
    elif name in _PAIRS:
        declaration |= {"nargs": 2, "type": checks.Number()}
    elif option.choices:
        declaration["type"] = click.Choice(option.choices)
    elif kind is int:
        maximum = None if option.maximum is None else int(option.maximum)
        declaration |= {"type": checks.integer(int(option.minimum or 0), maximum), "metavar": option.metavar or "N"}
    elif kind is float:
        range_ = checks.Number(option.minimum, option.maximum, above_low=option.excludes_minimum)
        declaration |= {"type": range_, "metavar": option.metavar or "FLOAT"}
    return click.option(flag, name, **declaration)
