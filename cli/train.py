"""`rlds2reverb train`: trains an agent from a dataset; the same command continues an interrupted run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb.system.signals import raise_on_sigterm
from rlds2reverb.system.text import suggest
from rlds2reverb.training.config import TrainingConfig, declared_options
from rlds2reverb.training.plans import plan_seeds
from rlds2reverb.training.presets import get_preset, preset_names
from rlds2reverb.training.progress import Progress
from rlds2reverb.types.locations import is_table_directory, server_address

from . import checks, output
from .assignments import split_assignments
from .config_options import config_options, group_names
from .declarations import DIRECTORY, EXISTING_FILE, flag, is_on_command_line, option
from .number_types import at_least_1
from .options import GroupedCommand, require_unused
from .output import json_option
from .quiet import import_quietly
from .reading import READING_NAMES, on_invalid_option, open_source, reading_options

if TYPE_CHECKING:
    from rlds2reverb.learners.runs import Run
    from rlds2reverb.training import Training
    from rlds2reverb.training.plans import PlannedRun

_GROUPS = group_names()
_HEADINGS = {
    "Run": ["source", "run_dir", *_GROUPS["Run"], "seeds", "jobs"],
    "Agent": ["presets", "list_presets", "gin_files", *_GROUPS["Agent"]],
    "Batches": _GROUPS["Batches"],
    "Online phase": _GROUPS["Online phase"],
    "Evaluation": _GROUPS["Evaluation"],
    "Output": _GROUPS["Output"],
    "Input": [*READING_NAMES, "on_invalid"],
    "Preprocessing": _GROUPS["Preprocessing"],
}

#: The options that `--help` explains.
_EXPLAINED = [
    *("source", "run_dir", "algo", "steps", "seeds", "presets", "hyperparameters", "env"),
]
#: The options that `--set train.NAME=VALUE` sets.
_SETTABLE = [name for name in declared_options() if name not in ("algo", "hyperparameters")]
#: Value of --data for training without a dataset.
NO_DATA = "none"


def _list_presets(ctx: click.Context, param: click.Parameter, is_passed: bool) -> None:
    if is_passed:
        print("\n".join(preset_names()))
        ctx.exit()


def run_dir_option(description: str) -> Callable[[Any], Any]:
    """Returns the option `--run-dir`."""
    return option("--run-dir", type=DIRECTORY, required=True, metavar="DIR", help=description)


@click.command(
    cls=GroupedCommand,
    headings=_HEADINGS,
    explained=_EXPLAINED,
)
@option(
    "--data",
    "source",
    required=True,
    metavar="SRC",
    help="Dataset (see rlds2reverb --help), directory that convert --out wrote, or HOST:PORT of a Reverb server; none "
    "to learn only from what the agent collects, with --online.",
)
@run_dir_option("Directory for checkpoints, logs and the policy. If it contains a run, the run is continued.")
@option(
    "--seeds",
    type=at_least_1,
    help="Train N runs with the seeds 0, 1, ... in directories seed_0, seed_1, ... of --run-dir, and print a table of "
    "means ± standard deviations over seeds.",
)
@option("--jobs", type=at_least_1, default=1, help="Number of processes that train different runs at the same time.")
@option(
    "--preset",
    "presets",
    multiple=True,
    type=checks.Checked("NAME", get_preset),
    help="Use published settings for a D4RL or OGBench task, such as iql-antmaze. Repeatable.",
)
@flag(
    "--list-presets",
    is_eager=True,
    expose_value=False,
    callback=_list_presets,
    help="Print the names of all presets and exit.",
)
@option(
    "--config",
    "gin_files",
    multiple=True,
    type=EXISTING_FILE,
    metavar="FILE",
    help="Read hyperparameters and options of the run from a gin file; it overrides presets, and the command line "
    "overrides both. Repeatable.",
)
@config_options(*[name for names in _GROUPS.values() for name in names])
@reading_options
@on_invalid_option
@json_option
def train(as_json: bool, **options: Any) -> int:
    """Train an agent from a dataset and evaluate it.

    \b
    Examples:
      rlds2reverb train --algo iql --data hopper_medium-v2.hdf5 --run-dir runs/iql
      rlds2reverb train --algo iql --data hopper.hdf5 --run-dir runs/5 --seeds 5
      rlds2reverb train --algo td3_bc --data hopper-medium-v2 --run-dir runs/td3 \\
          --preset td3_bc-locomotion --reference-returns d4rl
      rlds2reverb train --algo sac --data none --env Pendulum-v1 \\
          --run-dir runs/sac --online 10000

    The command reads the dataset directly; no conversion is needed. The run directory then contains checkpoints, logs,
    the learning curve and the policy. Ctrl-C or SIGTERM saves a checkpoint and stops with exit code 75; the same
    command then continues the run.
    """
    from .main import OK, TEMPORARY_FAILURE

    passed = read_options(options)
    _require_seeds(passed, options)
    algo = passed.pop("algo")
    # Checks everything that does not require TensorFlow, which takes seconds to load.
    TrainingConfig(algo, **passed)
    source = None if options["source"] == NO_DATA else options["source"]
    if source is None:
        require_unused({*READING_NAMES, "on_invalid"}, "requires a dataset")
    elif server_address(source) is None and not is_table_directory(source):
        source = replace(open_source(options), warnings=())  # Which it has printed.
    else:
        require_unused({*READING_NAMES, "on_invalid"}, "requires a dataset; the items of a table are converted")
    import_quietly("tf_agents.agents.tf_agent", "rlds2reverb.training.training")
    from rlds2reverb.learners.runs import load_run
    from rlds2reverb.training import Training

    passed["hyperparameters"] = parse_hyperparameters(algo, passed["hyperparameters"])
    config = TrainingConfig.from_gin(algo, presets=options["presets"], gin_files=options["gin_files"], **passed)
    if options["seeds"]:
        plan = plan_seeds(source, config, options["seeds"])
        return _train_plan(plan, options["run_dir"], jobs=options["jobs"], as_json=as_json)
    progress = Progress(quiet=as_json, describe=output.name_options)
    with (
        raise_on_sigterm(),
        Training(source, config, options["run_dir"], progress=progress) as training,
    ):
        try:
            training.run()
        except KeyboardInterrupt:
            if not training.learner.is_stopped_by_signal:
                raise
        _report(training, load_run(training.run_dir), as_json=as_json)
        return TEMPORARY_FAILURE if training.learner.is_stopped_by_signal and not training.is_complete else OK


def _train_plan(plan: Sequence[PlannedRun], run_dir: Path, *, jobs: int, as_json: bool) -> int:
    """Trains the runs of a plan, prints the results, and returns the exit code."""
    from rlds2reverb.training.experiments import choose_placement, run_plan

    from .main import INVALID_DATA, OK, TEMPORARY_FAILURE, name_command_options

    with raise_on_sigterm():
        describe = functools.partial(name_command_options, click.get_current_context().info_name)
        place = choose_placement(jobs, functools.partial(Progress, quiet=as_json, describe=describe))
        experiment = run_plan(plan, run_dir, place=place)
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


def read_options(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of `TrainingConfig` on the command line; values of hyperparameters are still strings."""
    names = declared_options().keys() & options.keys()
    passed = {name: options[name] for name in names if is_on_command_line(name)}
    passed["hyperparameters"] = hyperparameters = {}
    for name, value in split_assignments("--set", "alpha=2.5", options["hyperparameters"]).items():
        owner, dot, attribute = name.rpartition(".")
        if not dot:
            hyperparameters[name] = value
            continue
        if owner != "train" or attribute not in _SETTABLE:
            raise click.UsageError(f"--set has no name {name!r}{suggest(name, [f'train.{one}' for one in _SETTABLE])}")
        if attribute in passed:
            flag = next(one.opts[0] for one in click.get_current_context().command.params if one.name == attribute)
            raise click.UsageError(f"pass only one of {flag} and --set {name}")
        option = declared_options()[attribute]
        parsed = option.parse(value)
        is_one_of_several = isinstance(option.default, tuple) and isinstance(parsed, str)
        passed[attribute] = (parsed,) if is_one_of_several else parsed
    return passed


def parse_hyperparameters(algo: str, values: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values of hyperparameters that `--set` sets, from their texts."""
    from rlds2reverb.learners.agents import parse_hyperparameter

    parsed = {}
    for name, value in values.items():
        try:
            parsed[name] = parse_hyperparameter(algo, name, value)
        except ValueError as error:
            if name not in _SETTABLE:
                raise
            raise click.UsageError(f"{error}; the option of the run is --set train.{name}") from error
    return parsed


def _require_seeds(passed: dict[str, Any], options: dict[str, Any]) -> None:
    """Raises `UsageError` unless the options of one run and of several runs match."""
    if options["seeds"] and "seed" in passed:
        raise click.UsageError("pass only one of --seed and --seeds")
    if options["jobs"] > 1 and not options["seeds"]:
        raise click.UsageError("--jobs requires --seeds, because a single run is trained in one process")


def _report(training: Training, run: Run, *, as_json: bool) -> None:
    """Prints the results of a run."""
    learner, data, latest = training.learner, training.data, training.learner.latest
    document = {"run_dir": str(run.path), "updates": learner.step, "data_return": data.data_return}
    document |= {"best_return": run.best_return, "stopped_by": learner.stop_reason or None, **latest}
    facts = [("updates", f"{learner.step:,}")]
    if data.data_return is not None:
        facts.append(("data return", f"{data.data_return:,.1f}"))
    rest = "continue" if learner.step < (training.config.num_updates or 0) else "make the last evaluation"
    advice = "all updates are made" if training.is_complete else f"run the same command to {rest}"
    content = format_results(training.config.algo, run, facts, learner.stop_reason, latest, advice)
    output.print_result(document, content, as_json=as_json)


def format_results(
    algo: str,
    run: Run,
    facts: list[tuple[str, str]],
    stop_reason: str | None,
    latest: Mapping[str, float],
    advice: str = "run the same command to continue",
) -> str:
    """Returns facts about a run, its evaluations with the `latest` metrics, its files, and why it was stopped."""
    if run.best_return is not None:
        facts += [("last return", run.describe_last_return()), ("best return", f"{run.best_return:,.1f}")]
        if "evaluation/score" in latest:
            facts.append(("last score", f"{latest['evaluation/score']:.1f}"))
        if "evaluation/success_rate" in latest:
            facts.append(("last success", f"{latest['evaluation/success_rate']:.0%}"))
        facts.append(("curve", str(run.path / "curve.png")))
    facts.append(("policy", str(run.path / "policy")))
    if stop_reason:
        facts.append(("stopped by", f"{stop_reason}; {advice}"))
    return output.format_named_facts(f"{algo} trained in {run.path}", facts)
