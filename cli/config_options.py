"""Command-line options made from the declarations of `TrainingConfig`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from rlds2reverb.learners.option_declarations import REQUIRED
from rlds2reverb.training.config import TrainingConfig, declared_options
from rlds2reverb.training.config_validation import read_offsets
from rlds2reverb.training.option_fields import TrainingOption, declare_fields

from . import checks
from .assignments import AssignmentOption
from .custom_modules import allow_custom_modules
from .number_types import Number

#: Options whose name on the command line is not that of the attribute.
_FLAGS = {
    "hyperparameters": "--set",
    "drop_fields": "--drop-field",
    "hooks": "--hook",
    "track": "--track",
    "online_steps": "--online",
    "num_collectors": "--collectors",
    "num_shards": "--shards",
    "num_cpus": "--cpus",
    "learner_gpus": "--gpus",
    "checkpoint_secs": "--replay-checkpoint-secs",
}
_REPEATABLE = {"drop_fields", "hooks", "track"}
#: Options that take two numbers.
_PAIRS = {"action_bounds"}
#: Types of options that follow from no declaration.
_TYPES = {
    "reward": checks.reward,
    "validation": checks.share,
    "store_dir": checks.directory,
    "reference_returns": checks.reference_returns,
    "observation_offsets": checks.Parsed("OFFSETS", read_offsets),
}
#: Sentences about commands, which follow the texts of the declarations.
_HINTS = {
    "hyperparameters": "`rlds2reverb agents NAME` lists them. Or an option of the run, such as train.batch_size=512. "
    "Repeatable.",
}
#: Callbacks of options, by their names.
_CALLBACKS = dict.fromkeys(("algo", "env", "hooks", "hyperparameters"), allow_custom_modules)


def config_options(*names: str, config: type = TrainingConfig, without_default: bool = False) -> Callable[[Any], Any]:
    """Returns a decorator that adds options of a configuration to a command, in the given order.

    Args:
      *names: names of the options.
      config: class of the configuration.
      without_default: whether to hide the defaults, which are those of training, and make switches plain flags.
    """

    def decorate(command: Any) -> Any:
        for name in reversed(names):
            command = _make_option(name, declare_fields(config)[name], without_default=without_default)(command)
        return command

    return decorate


def group_names() -> dict[str, list[str]]:
    """Returns the names of all options of `TrainingConfig` by their heading in `--help`."""
    groups: dict[str, list[str]] = {}
    for name, option in declared_options().items():
        groups.setdefault(option.group, []).append(name)
    return groups


def _make_option(name: str, option: TrainingOption, *, without_default: bool) -> Callable[[Any], Any]:
    description = f"{option.text} {_HINTS[name]}" if name in _HINTS else option.text
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    declaration: dict[str, Any] = {"help": description, "metavar": option.metavar, "callback": _CALLBACKS.get(name)}
    if option.type == "boolean" and (without_default or not option.is_optional):
        return click.option(flag, name, is_flag=True, help=description)
    if name == "hyperparameters":
        assigned = {option: f"train.{option}" for option in declared_options()}
        return click.option(flag, name, **declaration, cls=AssignmentOption, assigned=assigned)
    if name in _REPEATABLE:
        return click.option(flag, name, **{**declaration, "multiple": True, "help": f"{description} Repeatable."})
    if option.default is REQUIRED:
        declaration["required"] = True
    else:
        shown = not without_default and (option.default_text or True)
        declaration |= {"default": option.default, "show_default": shown}
    if option.type == "boolean":
        flag = f"{flag}/--no-{flag[2:]}"
    elif name in _PAIRS:
        declaration |= {"nargs": 2, "type": Number()}
    elif option.choices:
        declaration["type"] = click.Choice(option.choices)
    elif option.type in ("integer", "number"):
        low, high, above_low = option.limits.min, option.limits.max, option.limits.min_open
        declaration["type"] = Number(low, high, is_integer=option.type == "integer", above_low=above_low)
    if name in _TYPES:
        declaration["type"] = _TYPES[name]
    return click.option(flag, name, **declaration)
