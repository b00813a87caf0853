"""`rlds2reverb sweep`: trains every combination of data, options and seeds, and prints one table over all runs."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb._system.signals import raise_on_sigterm
from rlds2reverb.training.plans import plan_sweep

from . import output
from .custom_modules import add_current_directory
from .declarations import DIRECTORY, EXISTING_FILE, option
from .number_types import at_least_1
from .output import json_option
from .quiet import import_quietly

if TYPE_CHECKING:
    from rlds2reverb.training.plans import PlannedRun

jobs_option = option(
    "--jobs", type=at_least_1, default=1, help="Number of processes that train different runs at the same time."
)


def run_dir_option(description: str) -> Callable[[Any], Any]:
    """Returns the option `--run-dir`."""
    return option("--run-dir", type=DIRECTORY, required=True, metavar="DIR", help=description)


@click.command()
@click.argument("file", metavar="FILE", type=EXISTING_FILE)
@run_dir_option("Directory of all runs. If it contains runs of this sweep, they are continued.")
@jobs_option
@json_option
def sweep(file: Path, run_dir: Path, jobs: int, as_json: bool) -> int:
    """Train every combination of data, options and seeds.

    \b
    Example:
      rlds2reverb sweep sweep.json --run-dir runs/sweep --jobs 2

    \b
    FILE contains options of train; a list stands for one run per value:
      {"data": ["hopper_medium-v2.hdf5", "pendulum_mixed-v2.hdf5"],
       "algo": ["bc", "iql", "td3_bc"], "steps": 20000, "seeds": 3}

    Option names contain underscores instead of hyphens. A value that is itself a list is written as a list in a list,
    such as "hidden_sizes": [[64, 64]]. Hyperparameters are listed under "hyperparameters"; input options, such as
    "max_episode_steps", apply to all data. Files ending with .gin contain the same as bindings:
    sweep.algo = ["bc", "iql"].

    The command prints one table over all runs, and draws the learning curves of each dataset. Ctrl-C or SIGTERM saves
    checkpoints and stops with exit code 75; the same command then continues. Runs that fail do not stop the others,
    and lead to exit code 2.
    """
    add_current_directory()  # The file may name custom modules.
    try:
        plan = plan_sweep(file)
    except TypeError as error:  # A value in the file has the wrong type.
        raise click.UsageError(f"{file}: {output.describe_error(error)}") from error
    return run_and_report(plan, run_dir, jobs=jobs, as_json=as_json)


def run_and_report(plan: Sequence[PlannedRun], run_dir: Path, *, jobs: int, as_json: bool) -> int:
    """Trains the runs of a plan, prints the results, and returns the exit code."""
    from rlds2reverb.training.experiments import choose_placement, run_plan

    from .main import INVALID_DATA, OK, TEMPORARY_FAILURE, name_command_options

    import_quietly("tf_agents.agents.tf_agent", "rlds2reverb.training.training")
    with raise_on_sigterm():
        describe = functools.partial(name_command_options, click.get_current_context().info_name)
        place = choose_placement(jobs, quiet=as_json, describe=describe)
        experiment = run_plan(plan, run_dir, place=place, repeat=format_command())
    if as_json:
        output.print_json(experiment.as_dict())
    else:
        print(output.escape_controls(str(experiment)))
        print(output.escape_controls(f"\nwrote {run_dir}/summary.json"))
        if experiment.stop_reason:
            advice = "all runs are complete" if experiment.is_complete else "run the same command to continue"
            print(f"stopped by {experiment.stop_reason}; {advice}")
    if experiment.stop_reason and not experiment.is_complete:
        return TEMPORARY_FAILURE
    return INVALID_DATA if experiment.failures else OK


def format_command() -> str:
    """Returns the shell command that repeats the running one from any directory."""
    return f"cd {shlex.quote(str(Path.cwd()))} && {shlex.join(['rlds2reverb', *sys.argv[1:]])}"
