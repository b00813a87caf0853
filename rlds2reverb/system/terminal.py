"""Consoles for progress and messages, which know a terminal from the output of a notebook's cell."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

from rich.console import Console


def is_terminal(stream: TextIO) -> bool:
    """Returns whether a stream is a terminal on which lines can be overwritten."""
    return stream.isatty() and not _in_jupyter()


def make_console(**options: Any) -> Console:
    """Returns a console for stderr; options are those of `rich.console.Console`."""
    return Console(file=sys.stderr, highlight=False, force_terminal=False if _in_jupyter() else None, **options)


def _in_jupyter() -> bool:
    """Returns whether this process or its parent is a kernel of Jupyter.

    Jupyter runs `!command` on a pseudo-terminal, but shows every state of an overwritten line.
    """
    return "JPY_PARENT_PID" in os.environ
