"""`rlds2reverb demo`: runs the main commands on a dataset in one directory, and prints each command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from . import output
from .declarations import DIRECTORY, EXISTING_FILE, option
from .number_types import at_least_1
from .options import reference_option


@click.command()
@click.argument("file", type=EXISTING_FILE)
@option("--out", type=DIRECTORY, default=Path("demo"), metavar="DIR", help="Directory for the results.")
@reference_option("Returns that define the scores 0 and 100; see train --help.")
@option("--steps", type=at_least_1, default=5000, help="Number of updates.")
def demo(file: Path, out: Path, reference_returns: Any, steps: int) -> int:
    """Convert a dataset, validate it, train an agent on it, and write a report on the run.

    \b
    Example:
      rlds2reverb demo pendulum_mixed-v2.hdf5

    FILE is a dataset whose name tells the environment in which the agent is evaluated. Each command is printed before
    it runs, so that you can repeat it. A second demo in the same directory continues the first one.
    """
    from .main import run

    out.mkdir(parents=True, exist_ok=True)
    references = ["--reference-returns", reference_returns] if reference_returns else []
    every = ["--eval-every", max(1, steps // 10), "--log-every", max(1, steps // 2)]
    items, run_dir = out / "items", out / "run"
    agent = ["--algo", "bc", "--top-percent", 50, "--run-dir", run_dir]
    commands = (
        ["inspect", file],
        ["validate", file],
        ["convert", file, "--out", items, "--verify"],
        ["train", "--data", file, *agent, "--steps", steps, *every, *references],
        ["inspect", run_dir, "--report", out / "report.html"],
    )
    for command in commands:
        words = list(map(str, command))
        output.console().print(
            f"\n[bold]$ {output.escape_markup(shlex.join(['rlds2reverb', *words]))}[/]", soft_wrap=True
        )
        if code := run(words):
            return code
    return 0
