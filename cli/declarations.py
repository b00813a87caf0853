"""Declarations of options: paths as their values, defaults that `--help` shows, and whether an option was passed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from rlds2reverb.types.locations import expand_path

Command = TypeVar("Command", bound=Callable[..., Any])


class _Path(click.Path):
    """The type of a path, with `~` expanded, which must not be '': that would be the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path; fails if it is '', or as click's own type does."""
        try:
            path = expand_path(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return super().convert(path, param, ctx)


PATH = _Path(path_type=Path)
FILE = _Path(path_type=Path, dir_okay=False)
EXISTING_PATH = _Path(path_type=Path, exists=True)
EXISTING_FILE = _Path(path_type=Path, dir_okay=False, exists=True)
DIRECTORY = _Path(path_type=Path, file_okay=False)
EXISTING_DIRECTORY = _Path(path_type=Path, file_okay=False, exists=True)


def option(*names: str, choices: Sequence[str] = (), **attributes: Any) -> Callable[[Any], Any]:
    """Returns `click.option`, whose `--help` shows the default if there is one; `show_default` replaces it.

    Args:
      *names: names of the option and of its parameter.
      choices: the values that the option may have, beginning with the default; `()` for any value.
      **attributes: other arguments of `click.option`.
    """
    if choices:
        attributes = {"type": click.Choice(choices), "default": choices[0], **attributes}
    return click.option(*names, **{"show_default": "default" in attributes, **attributes})


#: Declares an option without a value.
flag = functools.partial(option, is_flag=True)


def combine(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Returns a decorator that adds options to a command, in the given order."""
    return lambda command: functools.reduce(lambda decorated, decorate: decorate(decorated), reversed(options), command)


def parameter_names(*decorators: Callable[[Any], Any]) -> list[str]:
    """Returns the names of the parameters that option decorators add, in order."""

    def command() -> None: ...

    for decorator in reversed(decorators):
        decorator(command)
    return [parameter.name for parameter in reversed(getattr(command, "__click_params__", []))]


def is_on_command_line(name: str) -> bool:
    """Returns whether a parameter of the running command was passed."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
