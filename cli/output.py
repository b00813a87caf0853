"""Printing: results and JSON go to stdout, progress and errors to stderr."""

from __future__ import annotations

import functools
import json
import math
import shlex
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rlds2reverb.errors import name_argument, rename_arguments
from rlds2reverb.system import text
from rlds2reverb.system.terminal import is_terminal, make_console
from rlds2reverb.system.text import WIDTH, format_facts, format_number

if TYPE_CHECKING:
    from rlds2reverb.datasets import Source
    from rlds2reverb.types.episodes import Episode

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")

SECS_BETWEEN_LINES = 5.0
#: Options that express an argument of the library with a different name.
_OPTIONS = {
    "DropFields": "drop_fields",
    "env": "environment",
    "length": "sequence_length",
    "n": "n_step",
    "path": "out",
    "tables": "table_names",
}


def console() -> Console:
    """Returns a console for stdout, 80 columns wide if stdout is not a terminal."""
    return Console(highlight=False) if is_terminal(sys.stdout) else Console(highlight=False, width=WIDTH)


def print_json(value: Any) -> None:
    """Prints one JSON document; NaN and infinities, which JSON cannot express, become null."""
    print(json.dumps(_replace_non_finite(value), indent=2, default=str))


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_result(document: Any, content: str, *, as_json: bool) -> None:
    """Prints a result as a JSON document, or else as text with control characters escaped."""
    if as_json:
        print_json(document)
    else:
        print(escape_controls(content), flush=True)


def print_facts(title: str, facts: list[tuple[str, str]]) -> None:
    """Prints a title and one line per name and value, with control characters escaped."""
    print(escape_controls(format_named_facts(title, facts)), flush=True)


def format_named_facts(title: str, facts: list[tuple[str, str]]) -> str:
    """Returns facts one below the other, in which `Message`s name options."""
    return format_facts(title, [(name, name_options(value)) for name, value in facts])


def add_mapping(content: str, statistics: Mapping[str, Any]) -> str:
    """Returns text with the table of the fields before and after a mapping, if the statistics contain one."""
    from rlds2reverb.datasets.mapping.mapping import describe_mapping

    return "\n\n".join(filter(None, [content, describe_mapping(statistics)]))


def count(number: int, noun: str) -> str:
    """Returns a count with its noun: `1 episode`, `2 episodes`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def say(sentence: str) -> None:
    """Prints a line on stderr."""
    print(sentence, file=sys.stderr, flush=True)


def warn(sentence: str) -> None:
    """Prints a warning on stderr."""
    make_console(soft_wrap=True).print(f"[yellow]warning:[/] {escape_markup(name_options(sentence))}")


def note(sentence: str) -> None:
    """Prints a note on stdout."""
    print(f"note: {name_options(sentence)}")


def describe_error(error: BaseException, command: click.Command | None = None) -> str:
    """Returns the message of an error; see `name_options`."""
    return name_options(str(error), command)


def name_options(message: str, command: click.Command | None = None) -> str:
    """Returns a message with the options of a command, by default the running one, for arguments of the library."""
    context = click.get_current_context(silent=True)
    if command is None and context is not None:
        command = context.command
    return message if command is None else rename_arguments(message, functools.partial(_name_option, command))


def _name_option(command: click.Command, argument: str, value: Any) -> str:
    """Returns the option for an argument with its value; the argument itself if the command has no such option."""
    options = {option.name: option for option in command.params if isinstance(option, click.Option)}
    names = (argument, _OPTIONS.get(argument), f"no_{argument}")
    option = next((options[name] for name in names if name in options), None)
    if option is None:
        setters = (option for option in options.values() if argument in getattr(option, "assigned", ()))
        setter: Any = next(setters, None)
        return name_argument(argument, value) if setter is None else setter.describe(argument, value)
    if value is ... or isinstance(value, bool):
        flags = [*option.secondary_opts, *option.opts] if value is False else option.opts
        return flags[0]
    values = value if isinstance(value, list) else ["none" if value is None else value]
    return " ".join([option.opts[0], *map(str, values)])


def next_command(*words: Any) -> tuple[str, str]:
    """Returns the fact that names the next command, quoted for the shell."""
    return ("next", shlex.join(["rlds2reverb", *map(str, words)]))


def fail(sentence: str) -> None:
    """Prints an error on stderr."""
    make_console(soft_wrap=True).print(f"[red]error:[/] {escape_markup(sentence)}")


def escape_markup(sentence: str) -> str:
    """Returns text with control characters and rich's markup escaped."""
    return escape(escape_controls(sentence))


def escape_controls(content: str) -> str:
    """Returns text with control characters other than newlines escaped."""
    return text.escape_controls(content, kept="\n")


class StepProgress:
    """Progress by stage: a bar with rate and remaining time on a terminal, a line every few seconds elsewhere."""

    def __init__(self, source: Source):
        self._rows, self._episodes = source.num_rows, source.num_episodes
        self._console = make_console()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._steps: dict[str, int] = {}
        self._began: dict[str, float] = {}
        self._secs_between, self._last_shown = 0.1, -float("inf")
        if not self._console.is_terminal:
            self._secs_between, self._last_shown = SECS_BETWEEN_LINES, time.monotonic()

    def __enter__(self) -> StepProgress:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def __call__(self, stage: str, episode: Episode) -> None:
        """Counts an episode in a stage, and shows the progress."""
        self._steps[stage] = self._steps.get(stage, 0) + episode.num_transitions
        completed = episode.index + 1 if self._rows is None else self._steps[stage]
        self._show(stage, completed, self._episodes if self._rows is None else self._rows, "steps")

    def count_read(self, read: int, total: int | None) -> None:
        """Shows how many episodes were read into a store."""
        self._steps["reading"] = read
        self._show("reading", read, total, "episodes")

    def _show(self, stage: str, completed: int, total: int | None, unit: str) -> None:
        now = time.monotonic()
        began = self._began.setdefault(stage, now)
        if now - self._last_shown < self._secs_between:
            return
        self._last_shown = now
        rate = format_number(round(self._steps[stage] / max(now - began, 1e-3))) + f" {unit}/s"
        if self._console.is_terminal:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(stage, total=total, rate="")
            self._bars.update(self._tasks[stage], completed=completed, rate=rate)
        else:
            share = f", {100 * completed / total:.0f} %" if total else ""
            print(f"{stage}: {self._steps[stage]:,} {unit}{share}, {rate}", file=sys.stderr)
