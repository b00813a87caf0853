"""Declarations of options: paths as their values, defaults that `--help` shows, and whether an option was passed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
DIRECTORY = click.Path(path_type=Path, file_okay=False)
EXISTING_DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


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


def is_on_command_line(name: str) -> bool:
    """Returns whether a parameter of the running command was passed."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
