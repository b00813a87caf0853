"""Declarations of options: paths as their values, and defaults that `--help` shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
DIRECTORY = click.Path(path_type=Path, file_okay=False)
EXISTING_DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


def option(*names: str, **attributes: Any) -> Callable[[Any], Any]:
    """Returns `click.option`, whose `--help` shows the default if there is one; `show_default` replaces it."""
    return click.option(*names, **{"show_default": "default" in attributes, **attributes})
