"""Consoles for progress and messages, which know a terminal from the output of a notebook's cell; and closed pipes."""

from __future__ import annotations

import io
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


class _PipeEnd(io.FileIO):
    """A file whose writes are ignored once nobody reads them."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def outlive_readers() -> None:
    """Makes stdout and stderr ignore what is written after their reader has ended, as `head` does after ten lines."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            raw = io.BufferedWriter(_PipeEnd(stream.fileno(), "w", closefd=False))
            ends_lines = stream.line_buffering
            wrapped = io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=ends_lines)
            setattr(sys, name, wrapped)


def _in_jupyter() -> bool:
    """Returns whether this process or its parent is a kernel of Jupyter.

    Jupyter runs `!command` on a pseudo-terminal, but shows every state of an overwritten line.
    """
    return "JPY_PARENT_PID" in os.environ
