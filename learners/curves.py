"""Plots of training runs: learning curves, time spent waiting for data, and histograms of priorities."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.types.arguments import require_one_of
from rlds2reverb.types.scores import d4rl_score
from rlds2reverb.types.short_repr import short_repr

from .csv_log import STEP
from .figure_style import COLOURS, GREY, add_legend, escape_label, get_line_style, make_figure, style_axes
from .run_directory import DATA_WAIT_SECS, PRIORITY_BINS, TRAIN_SECS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .runs import Run

#: Number of characters after which the labels of a legend are wrapped.
_LABEL_WIDTH = 34
_MAX_HISTOGRAMS, _MAX_INTERVALS = 3, 50
#: Share of the time above which a panel shows how long runs have waited for data.
_MIN_WAIT = 0.1
#: Number of evaluations at the end of a run whose mean is its result.
NUM_LAST = 5
#: What ± means in all tables of runs.
SPREAD = "± is the standard deviation over seeds (that of the population, divided by N)"
#: Settings that are too long for a label, though runs may differ in them.
_NOT_LABELLED = ("path", "observations", "actions", "action bounds", "environment_spec", "code")
#: Columns of the evaluations by metric.
_COLUMNS = {"return": "mean", "score": "score"}
_METRICS = ("auto", *_COLUMNS)


@dataclass(frozen=True)
class Curve:
    """The mean and spread of a group of runs that differ only in their seeds.

    Attributes:
      label: algorithm, and the settings in which the group differs from the others.
      runs: runs of the group.
      steps: int64 [N], increasing, from the first to the last step that all runs have in common.
      mean: float64 [N], over the runs; for a single run, over the episodes of an evaluation.
      std: float64 [N], population standard deviation over the same.
      metric: 'return' or 'score'.
      data_return: mean return of the data, or its score; None if unknown.
    """

    label: str
    runs: tuple[Run, ...]
    steps: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    metric: str
    data_return: float | None = None

    __repr__ = short_repr

    def summarize(self) -> dict[str, tuple[float, float]]:
        """Returns mean and standard deviation over the runs of their evaluations; see `summarize_runs`."""
        return summarize_runs([run.results[_COLUMNS[self.metric]] for run in self.runs])

    def format_row(self) -> tuple[str, ...]:
        """Returns a row of a table: label, number of runs, last update, last evaluations, and best evaluation."""
        results, num_runs = self.summarize(), len(self.runs)
        cells = [format_spread(results[name], num_runs) for name in ("last_five", "best")]
        return self.label, str(num_runs), f"{self.steps[-1]:,}", *cells


def summarize_runs(values: Sequence[np.ndarray]) -> dict[str, tuple[float, float]]:
    """Returns mean and standard deviation over runs of the last, the last five and the best of their evaluations.

    The deviation is that of the population.

    Args:
      values: the evaluations of each run, each float64 `[N]` with its own N of at least 1.
    """
    by_name = {
        "last": [series[-1] for series in values],
        "last_five": [series[-NUM_LAST:].mean() for series in values],
        "best": [series.max() for series in values],
    }
    return {name: (float(np.mean(numbers)), float(np.std(numbers))) for name, numbers in by_name.items()}


def format_spread(pair: tuple[float, float], num_runs: int) -> str:
    """Returns a mean ± its standard deviation over seeds (see `SPREAD`), which a single run does not have."""
    return f"{pair[0]:,.1f} ± {pair[1]:,.1f}" if num_runs > 1 else f"{pair[0]:,.1f}"


def describe_bands(curves: Sequence[Curve]) -> str:
    """Returns what the bands of curves are deviations over: seeds, or the episodes of a single run's evaluations."""
    names = {"seeds": True, "episodes": False}
    over = [name for name, is_group in names.items() if any((len(curve.runs) > 1) == is_group for curve in curves)]
    return over[0] if len(over) == 1 else "seeds (over episodes for single runs)"


def learning_curves(runs: Sequence[Run], *, metric: str = "auto") -> list[Curve]:
    """Computes a curve for each group of runs whose identities differ only in their seeds.

    Runs of a group that were evaluated at different steps are interpolated linearly between their evaluations. If they
    have no steps in common, for example because hooks ended them early, each run is a separate curve. A run whose only
    evaluation precedes its first update counts as not evaluated.

    Args:
      runs: runs, in the order of the curves.
      metric: 'return', 'score', or 'auto' for scores if all runs have them and returns otherwise.

    Raises:
      ValueError: If there are no runs, if no run has evaluations, or if a run has no scores and `metric` is 'score'.
    """
    if not runs:
        raise ValueError("runs must contain at least one run")
    return make_curves(label_runs(_require_evaluated(runs)), metric=metric)


def label_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Returns the groups of runs whose identities differ only in their seeds, by label, in the order of the runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_get_group_settings(run), sort_keys=True, default=str), []).append(run)
    labelled: dict[str, list[Run]] = {}
    for label, group in zip(_make_labels([group[0] for group in groups.values()]), groups.values(), strict=True):
        number = 2
        unique = label
        while unique in labelled:  # Labels do not contain all settings.
            unique, number = f"{label} #{number}", number + 1
        labelled[unique] = group
    return labelled


def make_curves(groups: Mapping[str, Sequence[Run]], *, metric: str = "auto") -> list[Curve]:
    """Computes a curve for each group of runs, under the given label; runs without evaluations are left out.

    A group whose runs have no steps in common has a curve for each run.

    Args:
      groups: runs that differ only in their seeds, by label.
      metric: see `learning_curves`.

    Raises:
      ValueError: As `learning_curves`.
    """
    require_one_of("metric", metric, _METRICS)
    evaluated = _require_evaluated([run for group in groups.values() for run in group])
    metric = _resolve_metric(evaluated, metric)
    curves = []
    for label, group in groups.items():
        runs = [run for run in group if _is_evaluated(run)]
        if runs and len(_find_common_steps(runs)):
            curves.append(_make_curve(label, runs, metric))
        else:
            curves += [_make_curve(f"{label}, seed {run.identity.get('seed', '?')}", [run], metric) for run in runs]
    return curves


def _is_evaluated(run: Run) -> bool:
    return bool(len(run.results.get(STEP, ())))


def _require_evaluated(runs: Sequence[Run]) -> list[Run]:
    """Returns the runs with evaluations; raises `ValueError` if no run has any."""
    evaluated = [run for run in runs if _is_evaluated(run)]
    if not evaluated:
        names = ", ".join(str(run.path) for run in runs)
        raise ValueError(f"no evaluations were logged in {names}; train with an environment for evaluation")
    return evaluated


def data_wait_shares(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Computes the share of time that runs spent waiting for data, in at most 50 equal intervals of the training.

    The share of an interval is the sum of `data_wait_secs` divided by the sum of `data_wait_secs` and `train_secs`,
    over all rows of `progress.csv` in the interval.

    Returns:
      Last steps of the intervals, float64 [N], and shares, float64 [N] in [0, 1]; empty if no run has logged them.
    """
    logged = [run.progress for run in runs if {STEP, DATA_WAIT_SECS, TRAIN_SECS} <= run.progress.keys()]
    if not logged:
        return np.zeros(0), np.zeros(0)
    names = (STEP, DATA_WAIT_SECS, TRAIN_SECS)
    steps, waited, trained = (np.concatenate([progress[name] for progress in logged]) for name in names)
    is_valid = waited + trained > 0  # False for NaN.
    steps, waited, trained = steps[is_valid], waited[is_valid], trained[is_valid]
    ends = np.linspace(0, steps.max(initial=0), min(_MAX_INTERVALS, len(np.unique(steps))) + 1)[1:]
    intervals = np.searchsorted(ends[:-1], steps)
    totals, waits = (np.bincount(intervals, secs, minlength=len(ends)) for secs in (waited + trained, waited))
    return ends[totals > 0], waits[totals > 0] / totals[totals > 0]


def draw_curves(curves: Sequence[Curve], *, title: str | None = None) -> Figure:
    """Draws learning curves and below them, if they were logged, priorities, and the time spent waiting for data.

    The curves of each environment have a panel of their own. The time is drawn only if a curve's runs have spent more
    than a tenth of theirs so.

    Args:
      curves: curves from `learning_curves`.
      title: title of the figure; None for the names of the environments above their panels.
    """
    panels: dict[str, list[Curve]] = {}
    for curve in curves:
        panels.setdefault(curve.runs[0].environment or "", []).append(curve)
    waits = [data_wait_shares(curve.runs)[1] for curve in curves]
    has_waits = any(len(shares) and shares.mean() > _MIN_WAIT for shares in waits)
    prioritized = [(curve.label, run) for curve in curves for run in curve.runs if run.priorities.any()]
    num_below = has_waits + bool(prioritized)
    figure = make_figure(7.2, 4.2 * len(panels) + 2.4 * (num_below > 0))
    heights = [1.7] * len(panels) + [1] * (num_below > 0)
    grid = figure.add_gridspec(len(heights), max(1, num_below), height_ratios=heights)
    for row, (environment, members) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[row, :])
        draw_learning_curves(axes, members)
        axes.set_title(environment if title is None or len(panels) > 1 else title)
    if title is not None and len(panels) > 1:
        figure.suptitle(title)
    if has_waits:
        below = figure.add_subplot(grid[-1, 0])
        draw_data_waits(below, {curve.label: curve.runs for curve in curves})
        below.set_title("waiting for data", fontsize="medium")
    if prioritized:
        label, run = prioritized[0]
        below = figure.add_subplot(grid[-1, num_below - 1])
        draw_histograms(below, run.priorities, run.priority_steps, "priority")
        below.set_title(f"priorities, {escape_label(label)}", fontsize="medium")
    return figure


def draw_run(run: Run) -> Figure:
    """Draws the learning curve of a run, or the course of its loss if it was not evaluated.

    Raises:
      ValueError: If the run has logged nothing yet.
    """
    if _is_evaluated(run):
        return draw_curves(learning_curves([run]))
    if not len(run.progress.get(STEP, ())):
        raise ValueError(f"{run.path} has logged nothing yet; there is nothing to draw")
    figure = make_figure(7.2, 4.2)
    axes = figure.add_subplot()
    axes.plot(run.progress[STEP], run.progress["loss"], **get_line_style(0, run.progress["loss"]))
    style_axes(axes, "updates", "loss", has_steps=True)
    return figure


def draw_learning_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draws curves with bands of one standard deviation, and lines for the return of the data and for online phases."""
    for number, curve in enumerate(curves):
        style = get_line_style(number, curve.mean)
        suffix = f" ({len(curve.runs)} runs)" if len(curve.runs) > 1 else ""
        wrapped = textwrap.fill(escape_label(curve.label) + suffix, _LABEL_WIDTH)
        axes.plot(curve.steps, curve.mean, label=wrapped, **style)
        low, high = curve.mean - curve.std, curve.mean + curve.std
        axes.fill_between(curve.steps, low, high, color=style["color"], alpha=0.18, linewidth=0)
    for number, level in enumerate(sorted({curve.data_return for curve in curves if curve.data_return is not None})):
        label = None if number else "mean of the whole data"
        axes.axhline(level, color=GREY, linestyle="--", linewidth=1.2, label=label)
    starts = {start for curve in curves for run in curve.runs if (start := _get_online_start(run)) is not None}
    for number, start in enumerate(sorted(starts)):
        label = None if number else "the online phase begins"
        axes.axvline(start, color=GREY, linestyle=":", linewidth=1.2, label=label)
    metric = "normalised score" if curves[0].metric == "score" else "return"
    style_axes(axes, "updates", f"{metric}, ± std over {describe_bands(curves)}", has_steps=True)
    add_legend(axes)


def draw_data_waits(axes: Axes, groups: Mapping[str, Sequence[Run]]) -> None:
    """Draws the share of time that each group of runs waited for data, in the colours of their curves."""
    upper_limit = 10.0
    for number, runs in enumerate(groups.values()):
        steps, shares = data_wait_shares(runs)
        axes.plot(steps, 100 * shares, **get_line_style(number, shares))
        upper_limit = max(upper_limit, 110 * shares.max(initial=0))
    axes.set_ylim(0, upper_limit)
    style_axes(axes, "updates", "% of the time", has_steps=True)


def draw_histograms(axes: Axes, counts: np.ndarray, steps: np.ndarray, x_label: str) -> None:
    """Draws the first, the middle and the last of some histograms, on a logarithmic axis.

    Args:
      axes: axes of the figure.
      counts: int64 [N, B], histograms over `PRIORITY_BINS`.
      steps: int64 [N], the training step of each histogram.
      x_label: name of the counted quantity.
    """
    rows = np.flatnonzero(counts.any(1))
    selected = sorted({rows[round(share * (len(rows) - 1))] for share in np.linspace(0, 1, _MAX_HISTOGRAMS)})
    edges = np.concatenate([[PRIORITY_BINS[1] ** 2 / PRIORITY_BINS[2]], PRIORITY_BINS[1:]])
    edges = np.append(edges, edges[-1] ** 2 / edges[-2])
    opacities = np.linspace(0.35, 1.0, len(selected))
    for row, opacity in zip(selected, opacities, strict=True):
        shares = 100 * counts[row] / counts[row].sum()
        axes.stairs(shares, edges, color=COLOURS[0], alpha=opacity, linewidth=1.2, label=f"step {steps[row]:,}")
    nonempty = np.flatnonzero(counts[selected].any(0))
    axes.set_xscale("log")
    axes.set_xlim(edges[nonempty[0]] / 1.5, edges[nonempty[-1] + 1] * 1.5)
    axes.set_ylim(0, 1.45 * axes.dataLim.y1)  # Leaves room for the legend above the histograms.
    style_axes(axes, x_label, "% of the items")
    axes.legend(frameon=False, fontsize="x-small", loc="upper right")


def _resolve_metric(runs: Sequence[Run], metric: str) -> str:
    without_scores = [run for run in runs if not np.isfinite(run.evaluations.get("score", np.array([np.nan]))).all()]
    if metric == "score" and without_scores:
        raise ValueError(
            f"{without_scores[0].path} has no scores; plot returns, or train with reference returns to log scores"
        )
    return ("return" if without_scores else "score") if metric == "auto" else metric


def _find_common_steps(runs: Sequence[Run]) -> np.ndarray:
    """Returns the steps of all evaluations from the first to the last step that all runs have in common."""
    all_steps = [run.evaluations[STEP] for run in runs]
    first, last = max(steps[0] for steps in all_steps), min(steps[-1] for steps in all_steps)
    grid = np.unique(np.concatenate(all_steps))
    return grid[(grid >= first) & (grid <= last)]


def _make_curve(label: str, runs: Sequence[Run], metric: str) -> Curve:
    grid = _find_common_steps(runs)
    values = np.stack([np.interp(grid, run.evaluations[STEP], run.evaluations[_COLUMNS[metric]]) for run in runs])
    std = values.std(0)
    if len(runs) == 1:
        std = runs[0].evaluations["std"] * _get_metric_scale(runs[0], metric)
    returns = {_get_data_return(run, metric) for run in runs}
    data_return = returns.pop() if len(returns) == 1 else None
    return Curve(label, tuple(runs), grid.astype(np.int64), values.mean(0), std, metric, data_return)


def _get_metric_scale(run: Run, metric: str) -> float:
    """Returns the magnitude of the change of the metric per unit of return."""
    if metric == "return" or run.reference_returns is None:
        return 1.0
    random, expert = run.reference_returns
    return abs(100 / (expert - random))


def _get_data_return(run: Run, metric: str) -> float | None:
    if run.data_return is None or metric == "return":
        return run.data_return
    return None if run.reference_returns is None else d4rl_score(run.data_return, run.reference_returns)


def _get_online_start(run: Run) -> int | None:
    """Returns the update after which the run's online phase begins; None without one, or without updates before it."""
    if not run.configuration.get("online_steps"):
        return None
    return run.identity.get("steps", run.configuration.get("steps")) or None


def _get_group_settings(run: Run) -> dict[str, Any]:
    """Returns the settings that the runs of one curve share; a run without configuration forms its own group."""
    if not run.identity:
        return {"path": str(run.path)}
    spec = run.identity.get("environment_spec") or {}
    wrappers = " ".join(wrapper["name"] for wrapper in spec.get("additional_wrappers") or ())
    parts = {"wrappers": wrappers or None, "time limit": spec.get("max_episode_steps"), **(spec.get("kwargs") or {})}
    settings = {name: value for name, value in run.identity.items() if name != "seed"}
    return {**settings, **{f"env {name}": value for name, value in parts.items()}}


def _make_labels(runs: Sequence[Run]) -> list[str]:
    """Returns a label for each run: its algorithm, and the settings in which runs of this algorithm differ."""
    settings_by_run = [_get_group_settings(run) for run in runs]
    labels = []
    for run, settings in zip(runs, settings_by_run, strict=True):
        rivals = [other for other in settings_by_run if other.get("algo") == settings.get("algo")]
        words = [str(settings["algo"]) if "algo" in settings else run.path.name]
        words += [
            _describe_setting(run, name, value)
            for name, value in settings.items()
            if any(json.dumps(other.get(name), default=str) != json.dumps(value, default=str) for other in rivals)
        ]
        labels.append(", ".join(filter(None, words)))
    return labels


def _describe_setting(run: Run, name: str, value: Any) -> str:
    """Returns a setting for a label: the name of the data, and nothing for specs and for options that are not set."""
    if name == "data":
        return Path(str((run.config.get("data") or {}).get("source", value))).name
    if value in (None, False) or name in _NOT_LABELLED:
        return ""
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name.removeprefix('hyperparameter ')} {shown}"
