"""The report on training runs: learning curves, Q-values against achieved returns, throughput, and histograms."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.learners.csv_log import STEP
from rlds2reverb.learners.curves import (
    SPREAD,
    data_wait_shares,
    describe_bands,
    draw_data_waits,
    draw_histograms,
    draw_learning_curves,
    label_runs,
    learning_curves,
)
from rlds2reverb.learners.figure_style import (
    COLOURS,
    FULL_WIDTH,
    add_legend,
    escape_label,
    get_line_style,
    make_axes,
    style_axes,
)
from rlds2reverb.learners.run_directory import DISCOUNTED_RETURN
from rlds2reverb.learners.runs import BEST_POLICY_FOLDER, POLICY_FOLDER, Run
from rlds2reverb.policies.saved_policies import find_policy

from ..evaluation_environment import restore_environment
from ..experiments import list_runs
from ..validation import VALIDATION
from .page import Page, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Q_MEAN, UPDATES_PER_SEC, LOSS = "q_mean", "updates_per_sec", "loss"
#: Numbers of which the report shows the values on held-out episodes: losses, and the scale of the values.
_HELD_OUT_LOSSES = ("critic_loss", "td_error", Q_MEAN, "actor_loss")
#: Kind of the finding that Q-values match the achieved returns.
AGREES = "good"
_MAX_POINTS, _MAX_GROUPS = 500, 12
#: Maximum ratio of Q-values and achieved returns of the same magnitude, in both directions; and of Q-values to the
#: largest returns of data and policy, beyond which they have diverged.
_MAX_RATIO = 3.0
#: Ratio of the largest value to the largest return above which the axis of Q-values is logarithmic.
_SPAN = 12.0
#: Maximum number of films, and the seed of their episodes; evaluations during training use seeds from 0.
_MAX_FILMS, _FILM_SEED = 4, 1000
_POLICIES = {BEST_POLICY_FOLDER: "best", POLICY_FOLDER: "last"}
_HELD_OUT = (
    "The agent does not learn from these episodes. A loss or TD error that rises on them while it falls on the batches "
    "is a sign of overfitting."
)
_Q_VALUES = (
    "Solid: the mean Q-value of the batches. Dashed, with diamonds: what Q-values estimate, the mean over the steps of "
    "the evaluation episodes of the discounted rewards that follow. A critic starts near 0 and approaches the dashed "
    "line if it is sound; it has diverged if it is far beyond that line."
)
_HISTOGRAMS = (
    "Histograms of the items in the batches at the start, in the middle and at the end of the training; of the runs of "
    "a curve, the first one is shown."
)
#: Label, updates and values of a line.
_Series = tuple[str, np.ndarray, np.ndarray]


def report_runs(runs: Any, path: str | Path | None = None, *, has_films: bool = False) -> Report:
    """Makes a report on one or several training runs: one HTML page with figures, which needs no network.

        report_runs(["runs/td3_bc", "runs/iql"], "runs.html")

    Runs that differ only in their seeds share a curve. Runs still in progress can be included.

    Args:
      runs: a `Run`, an `Experiment`, the directory of either, or a sequence of these.
      path: HTML file to write; None for none.
      has_films: whether the report contains a film of the policy of each curve's first run, the best one or, without
        evaluations, the last one; see `record_film`.

    Raises:
      ValueError: If there are no runs, a directory contains none, none has logged anything yet, or a film is wanted of
        an environment that cannot be rendered.
      CorruptFileError: If a file of a run is damaged.
      ImportError: If the packages that films require are not installed.
      StorageFullError: If the disk is full.
    """
    loaded = load_runs(runs)
    logged = [run for run in loaded if len(run.progress.get(STEP, ())) or len(run.evaluations.get(STEP, ()))]
    if not logged:
        names = ", ".join(str(run.path) for run in loaded) or "no runs"
        raise ValueError(f"runs must have logged something, got {names}; train for a while first")
    groups = label_runs(logged)
    environments = sorted({run.environment for run in logged if run.environment})
    what = f"a training run of {next(iter(groups))}" if len(logged) == 1 else f"{len(logged)} training runs"
    page = Page(", ".join(environments) or logged[0].path.name, f"rlds2reverb report on {what}")
    _add_summary(page, logged)
    _add_findings(page, loaded, groups)
    _add_learning_curves(page, logged)
    _add_held_out(page, groups)
    _add_q_values(page, groups)
    _add_throughput(page, groups)
    _add_histograms(page, groups)
    if has_films:
        _add_films(page, groups)
    return page.build(path)


def load_runs(runs: Any) -> list[Run]:
    """Returns the runs that an argument of `report_runs` stands for, without duplicates.

    Raises:
      ValueError: If the list is empty.
      CorruptFileError: If a file of a run is damaged.
    """
    found: dict[Path, Run] = {}
    is_one = isinstance(runs, (str, Path, Run)) or hasattr(runs, "outcomes")
    for entry in [runs] if is_one else runs:
        if isinstance(entry, (str, Path)):
            loaded: Iterable[Run] = list_runs(Path(entry).expanduser())
        else:
            loaded = [entry] if isinstance(entry, Run) else entry.runs.values()
        found |= {run.path.resolve(): run for run in loaded}
    if not found:
        raise ValueError("runs must contain at least one run that has begun")
    return list(found.values())


def _add_summary(page: Page, runs: Sequence[Run]) -> None:
    page.add_section("Runs")
    headings = ("run", "algorithm", "seed", "data", "updates", "data return", "last return", "best return")
    rows = []
    for run in runs:
        data = run.config.get("data") or {}
        last_return = "–" if run.last_return is None else run.describe_last_return()
        last_step = max(int(log[STEP][-1]) for log in (run.progress, run.evaluations) if len(log.get(STEP, ())))
        cells = [run.path.name, str(run.identity.get("algo", "?")), str(run.identity.get("seed", "?"))]
        cells += [Path(str(data.get("source", "?"))).name, f"{last_step:,}"]
        given, best = ("–" if value is None else f"{value:,.1f}" for value in (run.data_return, run.best_return))
        rows.append([*cells, given, last_return, best])
    page.add_table(headings, rows)


def _add_findings(page: Page, runs: Sequence[Run], groups: dict[str, list[Run]]) -> None:
    compared = [
        (found[0], f"{label}{_name_seed(run, group)}: {found[1]}")
        for label, group in groups.items()
        for run in group
        if (found := compare_q_values(run)) is not None
    ]
    findings = [found for found in compared if found[0] != AGREES]
    findings += [
        ("error", f"{run.path} stopped with an error; see {run.path / 'exception.txt'}")
        for run in runs
        if (run.path / "exception.txt").is_file()
    ]
    not_evaluated = [str(run.path) for run in runs if run.best_return is None]
    if not_evaluated:
        findings.append(("note", f"no evaluations were logged in {', '.join(not_evaluated)}"))
    where = "" if len(compared) == len(runs) else f" in {len(compared)} of {len(runs)} runs, which logged both"
    agreement = f" The Q-values are of the magnitude of the achieved discounted returns{where}." if compared else ""
    page.add_section("Findings")
    page.add_findings(findings, f"No run stopped with an error.{agreement}")


def _name_seed(run: Run, group: Sequence[Run]) -> str:
    return f", seed {run.identity.get('seed', '?')}" if len(group) > 1 else ""


def compare_q_values(run: Run) -> tuple[str, str] | None:
    """Compares the last Q-values of a run with the discounted returns that its policy achieves in evaluations.

    Q-values of scaled rewards are divided by the scale.

    Returns:
      A kind of finding and a sentence. The Q-values have diverged (an 'error') if they are larger than any return of
      the data or the policy can explain; they are a 'warning' if they are more than three times the achieved returns or
      of the other sign, a 'note' if they are less than a third of them, as at the start of training, and otherwise
      'good'. None if the run has logged no Q-values or no discounted returns, or if it shifts rewards.
    """
    scale = _get_reward_scale(run)
    steps, values = _get_logged(run.progress, Q_MEAN)
    _, achieved = _get_logged(run.results, DISCOUNTED_RETURN)
    if scale is None or not len(values) or not len(achieved):
        return None
    value, last = values[-1] / scale, achieved[-1]
    compared = f"{value:,.4g} after {steps[-1]:,} updates, but the policy achieves {last:,.4g}"
    advice = "use an algorithm that stays closer to the data, or data that cover more actions"
    largest = float(np.abs([*achieved, run.data_return or 0.0]).max())
    if abs(value) > _MAX_RATIO * max(largest, 1e-9):
        return "error", f"the Q-values have diverged: {compared}; {advice}"
    if abs(value) * _MAX_RATIO < abs(last):
        advice = "a critic starts near 0, so train for longer"
        return "note", f"the Q-values are not near the achieved discounted returns: {compared}; {advice}"
    # Of returns that pass through 0, the largest ones count, because neither the ratio nor the sign says anything.
    unit = float(np.abs(achieved).max()) / _MAX_RATIO
    if abs(value) > _MAX_RATIO * max(abs(last), unit) or (value * last < 0 and abs(last) > unit):
        return "warning", f"the Q-values are far from the achieved discounted returns: {compared}; {advice}"
    return AGREES, "the Q-values are of the magnitude of the achieved discounted returns"


def _get_logged(log: Mapping[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the updates, int64 [N], and values of a logged number, without gaps, thinned out to `_MAX_POINTS`."""
    steps = log.get(STEP, np.zeros(0)).astype(np.int64)
    values = log.get(name, np.full(len(steps), np.nan))
    is_finite = np.isfinite(values)
    stride = -(-int(is_finite.sum()) // _MAX_POINTS) or 1
    return steps[is_finite][::-stride][::-1], values[is_finite][::-stride][::-1]  # Includes the last one.


def _get_reward_scale(run: Run) -> float | None:
    """Returns the factor of the run's rewards, without which Q-values are in units of returns; None if unknown."""
    if run.configuration.get("reward") is None:
        return 1.0
    transform = (run.config.get("data") or {}).get("reward_transform") or {}
    return transform.get("scale") if transform.get("shift") == 0 and transform.get("scale") else None


def _add_learning_curves(page: Page, runs: Sequence[Run]) -> None:
    evaluated = [run for run in runs if run.best_return is not None]
    page.add_section("Learning curves")
    for environment in dict.fromkeys(run.environment for run in evaluated):
        curves = learning_curves([run for run in evaluated if run.environment == environment])
        metric = "normalised score" if curves[0].metric == "score" else "return"
        rows = [
            [*curve.format_row(), "–" if curve.data_return is None else f"{curve.data_return:,.1f}"] for curve in curves
        ]
        page.add_table(("curve", "runs", "updates", f"last five {metric}s", "best", "data"), rows)
        caption = f"Mean ± standard deviation over {describe_bands(curves)}."
        if any(len(curve.runs) > 1 for curve in curves):
            caption += f" In the table, {SPREAD}."
        figure, axes = make_axes(FULL_WIDTH)
        draw_learning_curves(axes, curves)
        heading = f"Evaluations in {environment}" if environment else "Evaluations"
        page.add_figure(heading, figure, caption=caption, is_wide=True)
    if losses := _get_series(label_runs(runs), LOSS):
        page.add_figure("Loss", draw_lines(losses, "loss"), caption="The losses of different algorithms differ.")


def _get_series(groups: dict[str, list[Run]], name: str) -> list[_Series]:
    """Returns the label, the updates and the values of a logged number of each run that has logged it."""
    series = [(label, *_get_logged(run.progress, name)) for label, group in groups.items() for run in group]
    return [line for line in series if len(line[1])]


def draw_lines(series: Sequence[_Series], y_label: str) -> Figure:
    """Draws values over updates, in a colour for each label; several lines may have the same label."""
    figure, axes = make_axes()
    all_labels = [label for label, _, _ in series]
    labels = list(dict.fromkeys(all_labels))
    for number, (label, steps, values) in enumerate(series):
        is_named = len(labels) > 1 and all_labels.index(label) == number
        style = get_line_style(labels.index(label), values)
        axes.plot(steps, values, label=escape_label(label) if is_named else None, linewidth=1.2, **style)
    style_axes(axes, "updates", y_label, has_steps=True)
    add_legend(axes)
    return figure


def _add_held_out(page: Page, groups: dict[str, list[Run]]) -> None:
    """Adds the losses on held-out episodes next to those on the batches; the first run of each curve is shown."""
    begins = True
    for label, (run, *_) in list(groups.items())[:_MAX_GROUPS]:
        for name in _HELD_OUT_LOSSES:
            both = [("batches", *_get_logged(run.progress, name))]
            both.append(("held out", *_get_logged(run.progress, f"{VALIDATION}{name}")))
            if len(both[1][1]):
                if begins:
                    page.add_section("Held-out episodes", _HELD_OUT)
                begins = False
                page.add_figure(f"{name}: {label}", draw_lines([line for line in both if len(line[1])], name))


def _add_q_values(page: Page, groups: dict[str, list[Run]]) -> None:
    with_values: dict[str, list[Run]] = {}
    for label, group in groups.items():
        if chosen := [run for run in group if len(_get_logged(run.progress, Q_MEAN)[1])]:
            with_values[label] = chosen
    if not with_values:
        return
    page.add_section("Q-values and achieved returns", _Q_VALUES)
    if any(run.configuration.get("reward") for group in with_values.values() for run in group):
        page.add_findings([("note", "Q-values are in units of the transformed reward (--reward), returns are not.")])
    for label, group in list(with_values.items())[:_MAX_GROUPS]:
        has_returns = any(len(_get_logged(run.evaluations, DISCOUNTED_RETURN)[1]) for run in group)
        missing = "" if has_returns else "These runs have logged no discounted returns."
        page.add_figure(label, _draw_q_values(group), caption=missing)
    if len(with_values) > _MAX_GROUPS:
        page.add_text(f"{len(with_values) - _MAX_GROUPS} more groups of runs are not shown.")


def _draw_q_values(group: Sequence[Run]) -> Figure:
    figure, axes = make_axes()
    logged = [_get_logged(run.progress, Q_MEAN) for run in group]
    achieved = [_get_logged(run.evaluations, DISCOUNTED_RETURN) for run in group]
    dashed = {"color": COLOURS[0], "linestyle": "--", "marker": "D", "markersize": 4}
    for label, lines, style in (("mean Q-value", logged, {}), ("achieved discounted return", achieved, dashed)):
        for number, (steps, values) in enumerate(lines):
            axes.plot(steps, values, label=None if number else label, **style or get_line_style(1, values))
    q_values, returns = (np.abs(np.concatenate([values for _, values in lines])) for lines in (logged, achieved))
    unit = max(float(returns.max() if len(returns) else np.median(q_values)), 1e-9)
    if q_values.max() > _SPAN * unit:
        axes.set_yscale("symlog", linthresh=unit)
    style_axes(axes, "updates", "discounted return", has_steps=True)
    add_legend(axes)
    return figure


def _add_throughput(page: Page, groups: dict[str, list[Run]]) -> None:
    rates = _get_series(groups, UPDATES_PER_SEC)
    waiting = {label: group for label, group in groups.items() if len(data_wait_shares(group)[0])}
    if rates or waiting:
        page.add_section("Throughput")
    if rates:
        figure = draw_lines(rates, "updates per second")
        figure.axes[0].set_ylim(0, 1.2 * figure.axes[0].get_ylim()[1])
        page.add_figure("Speed", figure, caption="Without evaluations, checkpoints and other hooks.")
    if waiting:
        figure, axes = make_axes()
        draw_data_waits(axes, waiting)
        page.add_figure("Waiting for data", figure, caption="The share of the time spent waiting for batches.")


def _add_histograms(page: Page, groups: dict[str, list[Run]]) -> None:
    """Adds the histograms of the first run of each curve."""
    begins = True
    for label, (run, *_) in list(groups.items())[:_MAX_GROUPS]:
        for name, x_label, counts, steps in (
            ("Priorities", "priority (absolute TD error)", run.priorities, run.priority_steps),
            ("Importance weights", "importance weight", run.weights, run.weight_steps),
        ):
            if counts.any():
                if begins:
                    page.add_section("Priorities and importance weights", _HISTOGRAMS)
                begins = False
                figure, axes = make_axes()
                draw_histograms(axes, counts, steps, x_label)
                page.add_figure(f"{name}: {label}", figure)


def _add_films(page: Page, groups: dict[str, list[Run]]) -> None:
    """Adds a film of each curve's first run; reports which runs have no policy or environment yet."""
    from rlds2reverb.envs.film import record_film

    page.add_section("Films", "One episode in each environment, with a seed that the evaluations do not use.")
    with tempfile.TemporaryDirectory(prefix="rlds2reverb-") as folder:
        for label, (run, *_) in list(groups.items())[:_MAX_FILMS]:
            name = next((name for name in _POLICIES if find_policy(run.path / name)), None)
            environment, reason = None, f"{run.path} has no {'policy' if name is None else 'environment'}"
            try:
                environment = restore_environment(run)
            except ValueError as error:  # A function created it.
                reason = str(error)
            if name is None or environment is None:
                page.add_findings([("note", f"{label} has not been filmed, because {reason}")])
                continue
            policy = run.best_policy if name == BEST_POLICY_FOLDER else run.policy
            limit = run.configuration.get("eval_max_episode_steps")
            path = Path(folder) / "film.mp4"
            film = record_film(environment.make_env, policy, path, seed=_FILM_SEED, max_episode_steps=limit)
            caption = f"The {_POLICIES[name]} policy of {run.path.name}; return {film.returns[0]:,.1f}."
            page.add_film(f"{label} in {run.environment}", film, caption=caption)
