"""Experiments: several runs as one, with a table over seeds and learning curves. Killed ones are continued."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.errors import CheckpointError
from rlds2reverb.learners.csv_log import STEP
from rlds2reverb.learners.curves import (
    NUM_LAST,
    SPREAD,
    draw_curves,
    format_spread,
    make_curves,
    summarize_runs,
)
from rlds2reverb.learners.figure_style import save_figure
from rlds2reverb.learners.run_directory import RunDirectory
from rlds2reverb.learners.runs import Run, is_run_directory, load_run, read_run_config
from rlds2reverb.system.file_lock import FileLock
from rlds2reverb.system.sealed_files import load_json, replace_text, save_json
from rlds2reverb.system.text import format_columns
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.locations import expand_path
from rlds2reverb.types.short_repr import short_repr

from .config import TrainingConfig
from .directories import find_run_dir
from .placement import Outcome, Placement, run_here, run_in_processes
from .plans import PLAN_FILE, PlannedRun, is_experiment, plan_seeds, require_continuation
from .progress import Progress, raise_if_interrupted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATUS_FILE, SUMMARY_FILE, CURVES_FILE = "status.json", "summary.json", "curves.png"


@dataclass(frozen=True)
class Row:
    """The results of the runs with the same data and options, which differ only in their seeds.

    `last`, `last_five` and `best` are mean and population standard deviation over seeds, in returns or, in `scores`,
    in normalised scores; None without evaluations.

    Attributes:
      data: name of the data.
      variant: name of the algorithm and of the options that the experiment varies.
      seeds: seeds of the runs with evaluations or, if no run has any, with logged updates.
      planned: number of planned runs.
      updates: number of updates of the run with the fewest; 0 if nothing is logged.
      data_return: mean return of the data, or None if unknown.
      last: last evaluation.
      last_five: mean of the last five evaluations of each run.
      swing: standard deviation of the last five evaluations within a run, averaged over seeds.
      best: best evaluation of each run.
      scores: `last`, `last_five` and `best` in normalised scores, by name; empty without reference returns.
    """

    data: str
    variant: str
    seeds: tuple[int, ...]
    planned: int
    updates: int = 0
    data_return: float | None = None
    last: tuple[float, float] | None = None
    last_five: tuple[float, float] | None = None
    swing: float | None = None
    best: tuple[float, float] | None = None
    scores: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Returns the attributes as JSON values, with means and deviations by name."""
        pairs = {name: _describe_pair(getattr(self, name)) for name in ("last", "last_five", "best")}
        return {**vars(self), **pairs, "scores": {name: _describe_pair(pair) for name, pair in self.scores.items()}}


@dataclass(frozen=True)
class Experiment:
    """Several runs with their results, whether complete or not; see `load_experiment`.

    Attributes:
      path: path of the directory.
      plan: description of each planned run by name: `source`, `data`, `variant` and `configuration`.
      outcomes: outcome of each run that has ended, by name.
      runs: each run that has begun, by name.
      stop_reason: name of the signal that stopped the call that returned this, or ''.
    """

    path: Path
    plan: Mapping[str, Mapping[str, Any]] = field(repr=False)
    outcomes: Mapping[str, Outcome]
    runs: Mapping[str, Run] = field(repr=False)
    stop_reason: str = ""

    __repr__ = short_repr

    @property
    def failures(self) -> dict[str, str]:
        """The reason of each failed run, by name."""
        return {name: outcome.reason for name, outcome in self.outcomes.items() if outcome.state == "failed"}

    @property
    def is_complete(self) -> bool:
        """True if all planned runs are complete."""
        return all(name in self.outcomes and self.outcomes[name].state == "complete" for name in self.plan)

    @property
    def rows(self) -> list[Row]:
        """The results by data and variant, in the order of the plan."""
        return [self._make_row(data, variant, names) for (data, variant), names in self._group_names().items()]

    def plot(self, path: str | Path | None = None, *, data: str | None = None, metric: str = "auto") -> Figure:
        """Draws a learning curve with its band for each variant; notebooks display the figure.

        Args:
          path: PNG or SVG file to write; None for none.
          data: name of the data; None if the experiment has only one.
          metric: 'return', 'score', or 'auto' for scores if all runs have them and returns otherwise.

        Raises:
          ValueError: If there are no evaluations, or `data` must be passed, or is unknown.
        """
        all_data = list(dict.fromkeys(name for name, _ in self._group_names()))
        if (data is None and len(all_data) > 1) or (data is not None and data not in all_data):
            raise ValueError(f"data must be one of {', '.join(all_data)}, got {data!r}")
        groups = {
            variant: [self.runs[name] for name in names if name in self.runs]
            for (name, variant), names in self._group_names().items()
            if name == (data or all_data[0])
        }
        figure = draw_curves(make_curves(groups, metric=metric), title=data)
        if path is not None:
            save_figure(figure, path)
        return figure

    def as_dict(self) -> dict[str, Any]:
        """Returns the results as JSON values: the content of `summary.json`."""
        runs = {name: dict(vars(self.outcomes[name])) for name in self.plan if name in self.outcomes}
        return {
            "run_dir": str(self.path),
            "complete": self.is_complete,
            "stopped_by": self.stop_reason or None,
            "rows": [row.as_dict() for row in self.rows],
            "runs": runs,
        }

    def __str__(self) -> str:
        rows = self.rows
        spread = [SPREAD] if any(row.last and len(row.seeds) > 1 for row in rows) else []
        return "\n".join(
            [_format_table(rows), *spread, *(f"{name} failed: {why}" for name, why in self.failures.items())]
        )

    def _group_names(self) -> dict[tuple[str, str], list[str]]:
        groups: dict[tuple[str, str], list[str]] = {}
        for name, run in self.plan.items():
            groups.setdefault((run["data"], run["variant"]), []).append(name)
        return groups

    def _make_row(self, data: str, variant: str, names: Sequence[str]) -> Row:
        begun = {name: self.runs[name] for name in names if name in self.runs}
        begun = {name: run for name, run in begun.items() if len(run.progress.get(STEP, ()))}
        evaluated = {name: run for name, run in begun.items() if run.best_return is not None}
        row = Row(
            data,
            variant,
            seeds=tuple(int(self.plan[name]["configuration"]["seed"]) for name in evaluated or begun),
            planned=len(names),
            updates=min((run.num_updates for run in begun.values()), default=0),
            data_return=next((run.data_return for run in begun.values() if run.data_return is not None), None),
        )
        if not evaluated:
            return row
        returns = [run.results["mean"] for run in evaluated.values()]
        results: dict[str, Any] = summarize_runs(returns)
        results["swing"] = float(np.mean([np.std(means[-NUM_LAST:]) for means in returns]))
        scores = [run.results.get("score", np.array([np.nan])) for run in evaluated.values()]
        if all(np.isfinite(series).all() for series in scores):
            results["scores"] = summarize_runs(scores)
        return replace(row, **results)


def load_experiment(run_dir: str | Path) -> Experiment:
    """Loads the directory of an experiment, including one that is still in progress.

    Raises:
      ValueError: If it is not such a directory.
      CorruptFileError: If a file in it is damaged.
    """
    root = expand_path(run_dir, "run_dir")
    plan = load_json(root / PLAN_FILE)
    if plan is None:
        raise ValueError(f"{run_dir} must be the directory of several runs, but contains no {PLAN_FILE}")
    status = load_json(root / STATUS_FILE) or {}
    outcomes = {
        name: Outcome(*(status[name][key] for key in ("state", "step", "reason"))) for name in plan if name in status
    }
    runs = {name: load_run(root / name) for name in plan if _is_run(root / name)}
    return Experiment(root, plan, outcomes, runs)


def list_runs(path: str | Path) -> list[Run]:
    """Loads the run in a directory, or all runs of an experiment that have begun.

    Raises:
      ValueError: If it is neither.
      CorruptFileError: If a file in it is damaged.
    """
    path = expand_path(path, "path")
    if is_experiment(path) and not is_run_directory(path):
        return list(load_experiment(path).runs.values())
    return [load_run(path)]


def train_seeds(
    source: Any,
    algo: Any,
    run_dir: str | Path,
    *,
    seeds: int | Iterable[int],
    jobs: int = 1,
    presets: Iterable[str] = (),
    gin_files: Iterable[str | Path] = (),
    progress: bool = True,
    **options: Any,
) -> Experiment:
    """Trains an agent once per seed; the same call continues what is incomplete.

        experiment = train_seeds("hopper_medium-v2.hdf5", "iql", "runs/iql", seeds=5, jobs=2, steps=20_000)
        print(experiment)

    Args:
      source: the data, or None to learn only from what the agent collects; see `Training`.
      algo: name of the algorithm, or a custom agent; see `train`.
      run_dir: directory of all runs, which are in its directories `seed_0`, `seed_1` and so on; created if missing.
      seeds: number of runs, or their seeds.
      jobs: number of processes that train at the same time; with 1 the runs are trained in this process.
      presets: names of published settings, such as 'iql-antmaze'; see `TrainingConfig.from_gin`.
      gin_files: gin files with further settings.
      progress: whether to show notes and progress on stderr; warnings are always shown.
      **options: options of `TrainingConfig` other than `seed`.

    Returns:
      The runs and their results, which `load_experiment(run_dir)` loads again at any time. They are incomplete if
      SIGTERM ended the call, or a notebook cell was interrupted.

    Raises:
      KeyboardInterrupt: If SIGINT (Ctrl-C) ended the call, after everything was saved; not in a notebook.
      ValueError, TypeError: If an option is invalid, see `TrainingConfig`; or if `seed` is set.
      Exception: See `run_plan`.
    """
    if "seed" in options:
        raise ValueError("seed cannot be set together with seeds; pass seeds=[...] to choose the seeds")
    config = TrainingConfig.from_gin(algo, presets=presets, gin_files=gin_files, **options)
    make_progress = functools.partial(Progress, quiet=not progress, notes=progress)
    return run_or_raise(plan_seeds(source, config, seeds), run_dir, place=choose_placement(jobs, make_progress))


def run_or_raise(plan: Sequence[PlannedRun], run_dir: str | Path, *, place: Placement) -> Experiment:
    """Does the same as `run_plan`, but raises `KeyboardInterrupt` if SIGINT ended it, except in a notebook."""
    experiment = run_plan(plan, run_dir, place=place)
    raise_if_interrupted(experiment.stop_reason, f"{run_dir} is saved; the same call continues it")
    return experiment


def run_plan(plan: Sequence[PlannedRun], run_dir: str | Path, *, place: Placement = run_here) -> Experiment:
    """Trains the runs of a plan that are not complete yet, and writes a summary, figures and the plan itself.

    A run that fails is reported, and the others are trained nevertheless.

    Args:
      plan: the runs, such as those of `plan_seeds`, or several such plans together.
      run_dir: directory of all runs, created if missing.
      place: how the runs are run; see `placement`.

    Returns:
      The runs and their results. If `stop_reason` names a signal, the experiment is incomplete.

    Raises:
      CheckpointError: If the directory contains a different plan, or a single run.
      ArgumentError: If the directory contains something else, such as a dataset.
      ResourceInUseError: If another process uses the directory.
      ValueError: If there are no runs, if two of them have the same name, or if a hyperparameter or a hook of a run is
        invalid; then nothing is written.
      FileNotFoundError, SourceError: If data do not exist or cannot be opened; then nothing is written.
    """
    planned, root = {run.name: run for run in plan}, find_run_dir(run_dir)
    if not plan or len(planned) < len(plan):
        raise ValueError("a plan must contain at least one run, and each name only once")
    root.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(FileLock(root / ".lock", str(root), "use a different run directory, or stop that process"))
        if (root / "config.json").is_file():
            raise CheckpointError(f"{root} contains a single run; use a different run directory")
        saved = {name: entry for name, entry in (load_json(root / PLAN_FILE) or {}).items() if _is_run(root / name)}
        require_continuation(saved, plan, root)
        begun = [run for run in plan if run.name in saved]
        _require_same_runs(begun, root)
        for run in begun:
            _set_reference_returns(root / run.name, run.config)
        status = {name: entry for name, entry in (load_json(root / STATUS_FILE) or {}).items() if name in planned}
        waiting = [run for run in plan if not _is_complete(status.get(run.name), run, root)]
        _require_valid(waiting)
        save_json(root / PLAN_FILE, {name: run.as_dict() for name, run in planned.items()})

        def report(name: str, outcome: Outcome) -> None:
            status[name] = {**vars(outcome), **_describe_length(planned[name].config)}
            save_json(root / STATUS_FILE, status)

        stop_reason = place(waiting, root, report) if waiting else ""
        experiment = replace(load_experiment(root), stop_reason=stop_reason)
        _write_results(experiment)
    return experiment


def choose_placement(jobs: int, make_progress: Callable[[], Progress] = Progress) -> Placement:
    """Returns the placement for a number of processes: `run_here` for 1, else `run_in_processes`.

    Args:
      jobs: number of processes.
      make_progress: see `run_here`.

    Raises:
      ValueError: If `jobs` is not an integer >= 1.
    """
    require_count("jobs", jobs)
    place: Any = run_here if jobs == 1 else functools.partial(run_in_processes, jobs=jobs)
    return functools.partial(place, make_progress=make_progress)


def _require_valid(runs: Sequence[PlannedRun]) -> None:
    """Raises the error of a run that could not be trained, as far as that is known before its data are read."""
    from rlds2reverb.learners.hooks import make_hooks

    from .sources import open_source

    for run in runs:
        try:
            run.config.require_valid_hyperparameters()
            make_hooks(hook for hook in run.config.hooks if isinstance(hook, (str, Mapping)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{run.name}: {error}") from error
    for run in {str(run.source): run for run in runs if isinstance(run.source, (str, Path))}.values():
        open_source(run.source)


def _require_same_runs(runs: Sequence[PlannedRun], root: Path) -> None:
    """Raises `CheckpointError` if runs that have begun are on other data, in another environment, or have more updates.

    Data in memory, and files whose path has not changed, may have another content, and so may an environment of the
    same name: each dataset is read once.
    """
    from .evaluation_environment import environment_key, find_environment
    from .sources import find_fingerprint, open_source
    from .training import require_same_run

    fingerprints: dict[Any, str | None] = {}
    for run in runs:
        if not any((root / run.name / "checkpoints").glob("*")):
            continue
        source = None if run.source is None else open_source(run.source)
        name = str(run.source) if isinstance(run.source, (str, Path)) else id(run.source)
        key = (name, run.config.drop_fields, run.config.cut_at_terminal)
        if key not in fingerprints:
            fingerprints[key] = find_fingerprint(source, run.config)
        environment = environment_key(find_environment(run.config, source))
        require_same_run(root / run.name, run.config, environment, fingerprints[key])


def _set_reference_returns(run_dir: Path, config: TrainingConfig) -> None:
    """Changes the reference returns of a run, and so the scores of its evaluations, to those of this call."""
    from .evaluation_environment import resolve_reference_returns

    document = read_run_config(run_dir)
    if not document.get("environment"):
        return
    references = resolve_reference_returns(config.reference_returns, document["environment"])
    if references != load_run(run_dir).reference_returns:
        with RunDirectory(run_dir) as directory:
            directory.set_reference_returns(references, option=config.as_dict()["reference_returns"])


def _describe_length(config: TrainingConfig) -> dict[str, int]:
    """Returns how long a run is, as far as that is known before its data are read, as JSON values."""
    if config.num_updates is None:
        return {"epochs": config.epochs or 0, "online_steps": config.online_steps}
    return {"steps": config.num_updates}


def _is_complete(status: Mapping[str, Any] | None, run: PlannedRun, root: Path) -> bool:
    """Returns whether a run needs no more updates; one that a hook ended early is complete as well."""
    if status is None or status["state"] != "complete":
        return False
    is_long = all(status.get(name, 0) >= number for name, number in _describe_length(run.config).items())
    return is_long and _is_run(root / run.name)


def _is_run(path: Path) -> bool:
    """Returns whether a path is the directory of a run; False for a name that the file system does not accept."""
    return os.path.isfile(path / "config.json")


def _write_results(experiment: Experiment) -> None:
    """Writes `summary.json`, and a figure for each of the data whose runs were evaluated."""
    replace_text(experiment.path / SUMMARY_FILE, json.dumps(experiment.as_dict(), indent=1) + "\n")
    evaluated = {row.data for row in experiment.rows if row.last is not None}
    is_single = len({run["data"] for run in experiment.plan.values()}) == 1
    for data in evaluated:
        name = re.sub(r"[^\w.+-]+", "_", data)
        experiment.plot(experiment.path / (CURVES_FILE if is_single else f"curves_{name}.png"), data=data)


def _format_table(rows: Sequence[Row]) -> str:
    headings = ["data", "agent", "seeds", "updates", "data return", "last", "last five", "swing", "best"]
    headings += ["last five scores"] if rows and all(row.scores for row in rows) else []
    # The name of the data is left out if it is the same in all rows.
    columns = slice(int(len({row.data for row in rows}) == 1), len(headings))
    return format_columns(headings[columns], [_format_row(row)[columns] for row in rows])


def _format_row(row: Row) -> list[str]:
    seeds = str(row.planned) if len(row.seeds) == row.planned else f"{len(row.seeds)} of {row.planned}"
    data_return, swing = ("-" if value is None else f"{value:,.1f}" for value in (row.data_return, row.swing))
    pairs = (row.last, row.last_five, row.best, row.scores.get("last_five"))
    cells = ("-" if pair is None else format_spread(pair, len(row.seeds)) for pair in pairs)
    last, last_five, best, scores = cells
    return [row.data, row.variant, seeds, f"{row.updates:,}", data_return, last, last_five, swing, best, scores]


def _describe_pair(pair: tuple[float, float] | None) -> dict[str, float] | None:
    return None if pair is None else {"mean": pair[0], "std": pair[1]}
