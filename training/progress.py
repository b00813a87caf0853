"""The progress of a training run on stderr: live on a terminal and in a notebook, a line per log entry elsewhere."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.markup import escape

from rlds2reverb.system.terminal import is_terminal, make_console


class Progress:
    """Prints notes, warnings, the current activity, and the numbers that a learner logs.

    On a terminal and in a notebook the latest numbers replace the previous ones, and evaluations stay visible.

    Attributes:
      num_iterations: total number of iterations of the run; None until the run sets it.
    """

    num_iterations: int | None = None

    def __init__(self, *, quiet: bool = False, notes: bool = True, describe: Callable[[str], str] = str):
        """Prints nothing yet.

        Args:
          quiet: whether to print only notes and warnings.
          notes: whether to print notes.
          describe: function that names the arguments in a `Message` differently, such as by options of a command.
        """
        self._quiet, self._has_notes, self.describe = quiet, notes, describe
        self._console = make_console(soft_wrap=True)
        self._line: _TerminalLine | _NotebookLine = _NotebookLine() if in_notebook() else _TerminalLine()
        self._score = ""

    def note(self, sentence: str) -> None:
        """Prints a note."""
        if self._has_notes:
            self._line.print(self.describe(sentence))

    def warn(self, sentence: str) -> None:
        """Prints a warning."""
        self._line.clear()
        self._console.print(f"[yellow]warning:[/] {escape(self.describe(sentence))}")

    @contextmanager
    def activity(self, description: str) -> Iterator[None]:
        """Shows what is being done during the context, if it can be shown live."""
        if self._quiet or not self._console.is_terminal:
            yield
            return
        with self._console.status(f"{escape(description)} ..."):
            yield

    @property
    def is_live(self) -> bool:
        """True if each line that `show` prints replaces the one before."""
        return self._line.is_live

    def show(self, line: str) -> None:
        """Prints a line about the progress."""
        if not self._quiet:
            self._line.show(line)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Prints the numbers logged after `step` iterations: an evaluation, or losses and rates."""
        if self._quiet:
            return
        if "evaluation/mean_return" in numbers:
            score = f" score {numbers['evaluation/score']:.1f}" if "evaluation/score" in numbers else ""
            rate = numbers.get("evaluation/success_rate")
            success = "" if rate is None else f" success {rate:.0%}"
            self._score = f"return {numbers['evaluation/mean_return']:,.1f}{score}{success}"
            self._line.print(f"{self._format_step(step)}   {self._score}")
        else:
            self._line.show(self._format_numbers(step, numbers))

    def _format_step(self, step: int) -> str:
        return f"{step:>9,} of {self.num_iterations:,}"

    def _format_numbers(self, step: int, numbers: Mapping[str, float]) -> str:
        rate = numbers.get("updates_per_sec", 0.0)
        parts = [self._format_step(step), f"loss {numbers.get('loss', float('nan')):.4g}"]
        if rate:
            parts += [f"{rate:,.0f} updates/s", f"data wait {numbers['data_wait_share']:.0%}"]
        if rate and step < (total := self.num_iterations or 0):
            parts.append(format_time_left((total - step) / rate))
        if self._score and self._line.is_live:  # Elsewhere the score is on a previous line.
            parts.insert(2, self._score)
        return "   ".join(parts)

    def close(self) -> None:
        """Ends the live line."""
        self._line.clear()


def format_time_left(secs: float) -> str:
    """Returns a duration as in '12 s left'."""
    return f"{secs:.0f} s left" if secs < 60 else f"{secs / 60:.1f} min left"


class _TerminalLine:
    """A line on stderr that is overwritten on a terminal; elsewhere each `show` prints a new line."""

    def __init__(self) -> None:
        self.is_live = is_terminal(sys.stderr)

    def show(self, line: str) -> None:
        """Shows a line until the next one is shown or printed."""
        start, end = ("\r\x1b[K", "") if self.is_live else ("", "\n")
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)

    def print(self, line: str) -> None:
        """Prints a line that stays visible."""
        self.clear()
        print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Removes the line that is shown."""
        if self.is_live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class _NotebookLine:
    """A line below a notebook cell that is replaced in place."""

    is_live = True

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, line: str) -> None:
        """Shows a line until the next one is shown or printed."""
        from IPython.display import display

        data = {"text/plain": line}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def print(self, line: str) -> None:
        """Prints a line that stays visible."""
        if self._handle is None:
            print(line, flush=True)
        else:  # The live line becomes the printed one, and the next live line appears below it.
            self.show(line)
            self._handle = None

    def clear(self) -> None:
        """Leaves the line that is shown."""


def raise_if_interrupted(stop_reason: str, message: str) -> None:
    """Raises `KeyboardInterrupt` with a message if SIGINT was the reason, so that it ends a script as usual.

    In an IPython kernel it returns, because interrupting the cell is how to stop a run there.
    """
    if stop_reason == signal.SIGINT.name and not in_notebook():
        raise KeyboardInterrupt(message)


def in_notebook() -> bool:
    """Returns whether the code runs in an IPython kernel, such as that of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")
