"""What commands print: tables and JSON on stdout, progress and errors on stderr."""

from __future__ import annotations

import json
import math
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rlds2reverb._text import WIDTH, facts_text, number_text

if TYPE_CHECKING:
    from rlds2reverb.episodes import Episode
    from rlds2reverb.sources import Source

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")

_SECONDS_BETWEEN_LINES = 5.0


def console() -> Console:
    """The console of stdout, 80 columns wide where it is not a terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=WIDTH)


def print_json(value: Any) -> None:
    """One JSON document; NaN and Inf, which JSON does not have, become null."""
    print(json.dumps(_finite(value), indent=2, default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_facts(title: str, facts: list[tuple[str, str]]) -> None:
    """Prints a title, and a line for each name and value; control characters are shown, not obeyed."""
    print(printable(facts_text(title, facts)), flush=True)


def counted(number: int, word: str) -> str:
    """A count and its word: 1 episode, 2 episodes."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def say(sentence: str) -> None:
    """Prints a line on stderr, apart from the results."""
    print(sentence, file=sys.stderr, flush=True)


def warn(sentence: str) -> None:
    """A warning, on stderr."""
    Console(highlight=False, soft_wrap=True, file=sys.stderr).print(f"[yellow]warning:[/] {plain(sentence)}")


def fail(sentence: str) -> None:
    """An error, on stderr."""
    Console(highlight=False, soft_wrap=True, file=sys.stderr).print(f"[red]error:[/] {plain(sentence)}")


def plain(sentence: str) -> str:
    """Text with nothing in it that rich would take for markup, or a terminal for a command."""
    return escape(printable(sentence))


def printable(text: str) -> str:
    """Text whose control characters are shown, not obeyed."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


class StepProgress:
    """Steps gone by, by stage: a bar with rate and time left on a terminal, a plain line now and then elsewhere."""

    def __init__(self, source: Source):
        self._rows, self._episodes = source.num_rows, source.num_episodes
        self._console = Console(file=sys.stderr, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[rate]} steps/s"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._steps: dict[str, int] = {}
        self._began: dict[str, float] = {}
        self._said = time.monotonic()

    def __enter__(self) -> StepProgress:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def __call__(self, stage: str, episode: Episode) -> None:
        """One more episode went through a stage."""
        now = time.monotonic()
        self._began.setdefault(stage, now)
        self._steps[stage] = self._steps.get(stage, 0) + episode.num_transitions
        done = episode.index + 1 if self._rows is None else self._steps[stage]
        total = self._episodes if self._rows is None else self._rows
        rate = number_text(round(self._steps[stage] / max(now - self._began[stage], 1e-3)))
        if self._console.is_terminal:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(stage, total=total, rate="")
            self._bars.update(self._tasks[stage], completed=done, rate=rate)
        elif now - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = now
            share = f", {100 * done / total:.0f} %" if total else ""
            print(f"{stage}: {self._steps[stage]:,} steps{share}, {rate} steps/s", file=sys.stderr)
