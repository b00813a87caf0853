"""Plots of training runs: learning curves, the share of time spent waiting for data, histograms of priorities."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb._arguments import require_one_of
from rlds2reverb.sources.scores import d4rl_score

from .csv_log import STEP
from .run_directory import DATA_WAIT_SECS, PRIORITY_BINS, TRAIN_SECS, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which colour-blind readers can tell apart, black and yellow left out.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_GREY = "#666666"
#: Settings in which the runs of one curve may differ.
_OF_ONE_RUN = ("seed", "run_dir")
_LONGEST_LABEL = 34
_MOST_HISTOGRAMS, _MOST_STRETCHES = 3, 50
_NUM_LAST = 5


@dataclass(frozen=True)
class Curve:
    """Mean and spread of a group of runs that differ in their seeds alone.

    Attributes:
      label: the algorithm, and the settings in which the group differs from others.
      runs: of the group.
      steps: int64 [N], rising; from the first step that all runs have reached to the last.
      mean: float64 [N], over the runs; of one run, over the episodes of an evaluation.
      std: float64 [N], the same, divided by the number and not by one less.
      metric: 'return' or 'score'.
      behaviour: the mean return in the data, or its score; None where it is not known.
    """

    label: str
    runs: tuple[Run, ...]
    steps: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    metric: str
    behaviour: float | None = None

    @property
    def last(self) -> tuple[float, float]:
        """Mean and standard deviation of the last five evaluations of every run, taken together."""
        values = np.concatenate([_values(run, self.metric)[-_NUM_LAST:] for run in self.runs])
        return float(values.mean()), float(values.std())

    @property
    def best(self) -> float:
        """The best evaluation of each run, averaged over the runs."""
        return float(np.mean([_values(run, self.metric).max() for run in self.runs]))


def learning_curves(runs: Sequence[Run], *, metric: str = "auto") -> list[Curve]:
    """Returns a curve for each group of runs whose configurations differ in `seed` and `run_dir` alone.

    Runs of a group that were evaluated at different steps are interpolated linearly between their evaluations.

    Args:
      runs: in the order of the curves.
      metric: 'return', 'score', or 'auto' for scores where all runs have some, else returns.

    Raises:
      ValueError: if there are no runs, if no run has evaluations, or for scores where a run has none.
    """
    require_one_of("metric", metric, ("auto", "return", "score"))
    if not runs:
        raise ValueError("there are no runs, expected at least one")
    evaluated = [run for run in runs if len(run.evaluations.get(STEP, ()))]
    if not evaluated:
        names = ", ".join(str(run.path) for run in runs)
        raise ValueError(f"no evaluation has been logged in {names}; train with an environment to evaluate in")
    metric = _metric_of(evaluated, metric)
    groups: dict[str, list[Run]] = {}
    for run in evaluated:
        groups.setdefault(json.dumps(_shared(run), sort_keys=True, default=str), []).append(run)
    labels = _labels([group[0] for group in groups.values()])
    return [_curve(label, group, metric) for label, group in zip(labels, groups.values(), strict=True)]


def waiting_shares(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the share of the time that runs spent waiting for data, in at most 50 equal stretches of the training.

    The share of a stretch is the sum of `data_wait_secs` over the sum of `data_wait_secs` and `train_secs`, of all rows
    of `progress.csv` in it.

    Returns:
      Last steps of the stretches, float64 [N], and shares, float64 [N] in [0, 1]; empty if no run has logged them.
    """
    logged = [run.progress for run in runs if {STEP, DATA_WAIT_SECS, TRAIN_SECS} <= run.progress.keys()]
    if not logged:
        return np.zeros(0), np.zeros(0)
    names = (STEP, DATA_WAIT_SECS, TRAIN_SECS)
    steps, waited, trained = (np.concatenate([progress[name] for progress in logged]) for name in names)
    known = waited + trained > 0  # rejects NaN
    steps, waited, trained = steps[known], waited[known], trained[known]
    ends = np.linspace(0, steps.max(initial=0), min(_MOST_STRETCHES, len(np.unique(steps))) + 1)[1:]
    stretch = np.searchsorted(ends[:-1], steps)
    totals, waits = (np.bincount(stretch, secs, minlength=len(ends)) for secs in (waited + trained, waited))
    return ends[totals > 0], waits[totals > 0] / totals[totals > 0]


def draw_curves(curves: Sequence[Curve], *, title: str | None = None) -> Figure:
    """Returns a figure of learning curves, and under them waiting and priorities where the runs have logged them.

    Args:
      curves: see `learning_curves`.
      title: of the figure; None for the environment.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    runs = [run for curve in curves for run in curve.runs]
    waits = any(len(waiting_shares(curve.runs)[0]) for curve in curves)
    prioritized = [(curve.label, run) for curve in curves for run in curve.runs if run.priorities.any()]
    below = [waits, bool(prioritized)]
    figure = Figure(figsize=(7.2, 4.2 + (2.4 if any(below) else 0)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1 + any(below), max(1, sum(below)), height_ratios=[1.7, 1] if any(below) else [1])
    axes = figure.add_subplot(grid[0, :])
    draw_learning_curves(axes, curves)
    environments = sorted({run.environment for run in runs if run.environment})
    axes.set_title(", ".join(environments) if title is None else title)
    if waits:
        draw_waiting(figure.add_subplot(grid[1, 0]), curves)
    if prioritized:
        label, run = prioritized[0]
        draw_priorities(figure.add_subplot(grid[1, sum(below) - 1]), run, label=label)
    return figure


def save_png(figure: Figure, path: str | Path) -> None:
    """Writes a figure as a PNG file, which is there whole or not at all."""
    temporary = Path(path).with_suffix(".tmp")
    figure.savefig(temporary, format="png")
    temporary.replace(path)


def draw_learning_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draws a line and a band of one standard deviation for each curve, and a dashed line for what the data reach."""
    for number, curve in enumerate(curves):
        style = _line_style(number)
        several = f" ({len(curve.runs)} runs)" if len(curve.runs) > 1 else ""
        marker = "o" if len(curve.steps) == 1 else None
        axes.plot(curve.steps, curve.mean, marker=marker, label=f"{curve.label}{several}", **style)
        low, high = curve.mean - curve.std, curve.mean + curve.std
        axes.fill_between(curve.steps, low, high, color=style["color"], alpha=0.18, linewidth=0)
    for number, behaviour in enumerate(sorted({curve.behaviour for curve in curves if curve.behaviour is not None})):
        axes.axhline(
            behaviour, color=_GREY, linestyle="--", linewidth=1.2, label=None if number else "the data's behaviour"
        )
    over = "runs" if any(len(curve.runs) > 1 for curve in curves) else "episodes"
    metric = "normalised score" if curves[0].metric == "score" else "return"
    axes.set_ylabel(f"{metric}, ± std over {over}")
    axes.set_xlabel("training steps")
    _finish(axes)
    _add_legend(axes)


def draw_waiting(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draws the share of the time in which the runs of each curve waited for data, in the colours of the curves."""
    highest = 10.0
    for number, curve in enumerate(curves):
        steps, shares = waiting_shares(curve.runs)
        axes.plot(steps, 100 * shares, **_line_style(number))
        highest = max(highest, 110 * shares.max(initial=0))
    axes.set_ylim(0, highest)
    axes.set_ylabel("% of the time")
    axes.set_xlabel("training steps")
    axes.set_title("waiting for data", fontsize="medium")
    _finish(axes)


def _line_style(number: int) -> dict[str, Any]:
    dashes = _DASHES[number // len(_COLOURS) % len(_DASHES)]
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": dashes}


def draw_priorities(axes: Axes, run: Run, *, label: str) -> None:
    """Draws the first, the middle and the last histogram of priorities of a run, on a logarithmic axis."""
    rows = [row for row in range(len(run.priorities)) if run.priorities[row].any()]
    chosen = sorted({rows[round(share * (len(rows) - 1))] for share in np.linspace(0, 1, _MOST_HISTOGRAMS)})
    edges = np.concatenate([[PRIORITY_BINS[1] ** 2 / PRIORITY_BINS[2]], PRIORITY_BINS[1:]])
    edges = np.append(edges, edges[-1] ** 2 / edges[-2])
    shades = np.linspace(0.35, 1.0, len(chosen))
    for row, shade in zip(chosen, shades, strict=True):
        shares = 100 * run.priorities[row] / run.priorities[row].sum()
        step = f"step {run.priority_steps[row]:,}"
        axes.stairs(shares, edges, color=_COLOURS[0], alpha=shade, linewidth=1.2, label=step)
    filled = np.flatnonzero(run.priorities[chosen].any(0))
    axes.set_xscale("log")
    axes.set_xlim(edges[filled[0]] / 1.5, edges[filled[-1] + 1] * 1.5)
    axes.set_ylim(0, 1.45 * axes.dataLim.y1)  # the legend is above the histograms
    axes.set_ylabel("% of the items")
    axes.set_xlabel("priority")
    axes.set_title(f"priorities, {label}", fontsize="medium")
    _finish(axes, steps=False)
    axes.legend(frameon=False, fontsize="x-small", loc="upper right")


def _finish(axes: Axes, *, steps: bool = True) -> None:
    from matplotlib.ticker import EngFormatter

    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    if steps:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.margins(x=0.02)


def _add_legend(axes: Axes) -> None:
    """Puts the legend where it hides least: inside for a few short labels, else below the plot."""
    _, labels = axes.get_legend_handles_labels()
    if len(labels) <= 4:
        axes.legend(frameon=False, fontsize="small")
    else:
        columns = 2 if max(map(len, labels)) > 20 else 3
        axes.legend(frameon=False, fontsize="x-small", ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _metric_of(runs: Sequence[Run], metric: str) -> str:
    without = [run for run in runs if not np.isfinite(run.evaluations.get("score", np.array([np.nan]))).all()]
    if metric == "score" and without:
        raise ValueError(
            f"{without[0].path} has no scores, since no reference returns were given; draw returns, or train with them"
        )
    return ("return" if without else "score") if metric == "auto" else metric


def _curve(label: str, runs: Sequence[Run], metric: str) -> Curve:
    all_steps = [run.evaluations[STEP] for run in runs]
    first, last = max(steps[0] for steps in all_steps), min(steps[-1] for steps in all_steps)
    grid = np.unique(np.concatenate(all_steps))
    grid = grid[(grid >= first) & (grid <= last)]
    if not len(grid):
        raise ValueError(f"the runs of {label} have no steps in common; draw them one by one")
    values = np.stack([np.interp(grid, run.evaluations[STEP], _values(run, metric)) for run in runs])
    std = values.std(0)
    if len(runs) == 1:
        std = runs[0].evaluations["std"] * _unit(runs[0], metric)
    behaviours = {_behaviour(run, metric) for run in runs}
    behaviour = behaviours.pop() if len(behaviours) == 1 else None
    return Curve(label, tuple(runs), grid.astype(np.int64), values.mean(0), std, metric, behaviour)


def _values(run: Run, metric: str) -> np.ndarray:
    """Returns the metric of each evaluation, float64 [N]."""
    return run.evaluations["mean" if metric == "return" else "score"]


def _unit(run: Run, metric: str) -> float:
    """Returns how much of the metric one unit of return is."""
    if metric == "return" or run.reference_returns is None:
        return 1.0
    random, expert = run.reference_returns
    return abs(100 / (expert - random))


def _behaviour(run: Run, metric: str) -> float | None:
    if run.behaviour_return is None or metric == "return":
        return run.behaviour_return
    return None if run.reference_returns is None else d4rl_score(run.behaviour_return, run.reference_returns)


def _shared(run: Run) -> dict[str, Any]:
    """Returns the settings that the runs of one curve have in common; without a configuration, each is its own."""
    if not run.configuration:
        return {"path": str(run.path)}
    shared = {name: value for name, value in run.configuration.items() if name not in _OF_ONE_RUN}
    return {**shared, "environment": run.environment}


def _labels(runs: Sequence[Run]) -> list[str]:
    """Returns the algorithm of each run, and every other setting in which they differ."""
    shared = [_shared(run) for run in runs]
    names = dict.fromkeys(name for settings in shared for name in settings)
    differing = [
        name
        for name in names
        if name != "algo" and len({json.dumps(settings.get(name), default=str) for settings in shared}) > 1
    ]
    labels = []
    for run, settings in zip(runs, shared, strict=True):
        words = [str(settings["algo"]) if "algo" in settings else run.path.name]
        words += [f"{name} {_short(settings[name])}" for name in differing if name in settings and name != "path"]
        label = ", ".join(words)
        labels.append(label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…")
    return labels


def _short(value: Any) -> str:
    """Returns a setting as text; of a path its last part."""
    return Path(value).name if isinstance(value, str) else str(value)
