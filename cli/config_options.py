"""Command-line options made from the declarations of `TrainingConfig`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING
from typing import Any

import click
from click.core import ParameterSource
from rlds2reverb.training.config import Option, declared_options, default_value, option_types

#: Options whose name on the command line is not that of the attribute.
_FLAGS = {"hyperparameters": "--set", "drop_fields": "--drop-field"}


def config_options(*names: str) -> Callable[[Any], Any]:
    """Returns a decorator that adds options of `TrainingConfig` to a command, in the given order."""

    def decorate(command: Any) -> Any:
        for name in reversed(names):
            command = _make_option(name, declared_options()[name])(command)
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


def _make_option(name: str, option: Option) -> Callable[[Any], Any]:
    kind, is_optional = option_types()[name]
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    default = default_value(name)
    declaration: dict[str, Any] = {"help": option.text, "metavar": option.metavar}
    if kind is bool and not is_optional:
        return click.option(flag, name, is_flag=True, help=option.text)
    if name in _FLAGS:
        return click.option(flag, name, **{**declaration, "multiple": True, "help": f"{option.text} Repeatable."})
    if default is MISSING:
        declaration["required"] = True
    else:
        declaration |= {"default": default, "show_default": option.default_text or True}
    if kind is bool:
        flag = f"{flag}/--no-{flag[2:]}"
    elif option.choices:
        declaration["type"] = click.Choice(option.choices)
    elif kind is int:
        declaration |= {"type": click.IntRange(min=int(option.minimum or 0)), "metavar": option.metavar or "N"}
    elif kind is float:
        range_ = click.FloatRange(option.minimum, option.maximum, min_open=option.excludes_minimum)
        declaration |= {"type": range_, "metavar": option.metavar or "FLOAT"}
    return click.option(flag, name, **declaration)
