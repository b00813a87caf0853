"""Custom modules, which options name as `my_module:MyAgent`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from .quiet import import_quietly


def add_current_directory() -> None:
    """Makes modules in the current directory importable, as `python -m` does."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)


def allow_custom_modules(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Makes modules in the current directory importable if a value names one.

    A callback of options; returns the value unchanged.
    """
    if any(":" in name for name in ([value] if isinstance(value, str) else value or ())):
        add_current_directory()
        import_quietly("tf_agents.agents.tf_agent")  # Most of these modules import it, with many notices.
    return value
