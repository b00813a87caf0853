"""The report on a dataset: returns, lengths, marginals, coverage, ends of episodes, some episodes, and problems."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.datasets import Source, Summary, load
from rlds2reverb.datasets.checks import DatasetChecks
from rlds2reverb.datasets.summary import find_reference_returns
from rlds2reverb.errors import SourceError
from rlds2reverb.learners.figure_style import COLOURS, add_legend, make_figure, style_axes
from rlds2reverb.types.episode_batches import batch_episodes
from rlds2reverb.types.episodes import Episode, read_until_error, show_progress
from rlds2reverb.types.ownership import isolate

from .episode_pictures import describe_texts, draw_episode, select_episodes
from .figures import FULL_WIDTH, count_values, draw_histogram, draw_marginals, draw_scatter
from .findings_report import add_findings
from .page import Page, Report
from .source_statistics import SourceStatistics, StepSample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_POINTS = 3000
_MAX_PARTS = 40
#: Label, marker and colour of each kind of end; see `EpisodeSummary`.
_END_STYLES = {
    "terminals": ("terminal", "o", COLOURS[1]),
    "timeouts": ("timeout (truncated)", "D", COLOURS[0]),
    "unterminated": ("open end (no flag)", "x", COLOURS[3]),
    "empty": ("empty", "+", COLOURS[4]),
}


def report_source(
    source: Any,
    path: str | Path | None = None,
    *,
    reference_returns: tuple[float, float] | None = None,
    is_d4rl: bool = False,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> Report:
    """Makes a report on a dataset: one HTML page with figures, which needs no network.

        report_source("hopper_medium-v2.hdf5", "hopper.html")

    The dataset is read twice: once to its end, and once more up to the last episode that is shown.

    Args:
      source: a `Source`, or any other source of `load`.
      path: HTML file to write; None for none.
      reference_returns: returns of a random policy and an expert, which are marked in the histogram of returns.
      is_d4rl: whether D4RL's reference returns apply; see `summarize`.
      on_episode: function called with each episode during the first pass, to show progress.

    Returns:
      The report. A dataset that cannot be read to its end gives a report on what was read, which begins with the error.

    Raises:
      SourceError: If no episode can be read.
      FileNotFoundError, TypeError, ValueError: As `load`.
      StorageFullError: If the disk is full.
    """
    source = load(source)
    reference, _ = find_reference_returns(source, reference_returns, is_d4rl=is_d4rl)
    statistics, checks, show = SourceStatistics(), DatasetChecks(source), isolate(on_episode)
    errors: list[SourceError] = []
    episodes = show_progress(read_until_error(source.read(), errors), lambda _, episode: show(episode), "read")
    for batch in batch_episodes(episodes):
        statistics.add_batch(batch)
        checks.add_batch(batch)
    if not statistics.parts.episodes:
        raise SourceError(str(errors[0]) if errors else f"{source.name} has no episodes; there is nothing to report")
    summary = statistics.parts.finish(source, reference_returns=reference_returns, is_d4rl=is_d4rl)
    page = Page(source.name, f"rlds2reverb report on a dataset of kind {source.kind}")
    _add_summary(page, summary)
    _add_validation(page, summary, statistics, errors)
    add_findings(page, source, checks.finish())
    _add_episodes(page, statistics, reference)
    _add_marginals(page, statistics)
    _add_pictures(page, source, statistics)
    return page.build(path)


def _add_summary(page: Page, summary: Summary) -> None:
    page.add_section("Summary")
    page.add_facts([(name, value) for name, value in summary.facts() if name != "warning"])
    rows = [
        (field.name, field.spec, f"{field.non_finite:,}" if field.non_finite else "none") for field in summary.fields
    ]
    page.add_text("")
    page.add_table(("field", "one step", "NaN or Inf"), rows)


def _add_validation(page: Page, summary: Summary, statistics: SourceStatistics, errors: list[SourceError]) -> None:
    findings = [("problem", f"the dataset could not be read any further: {error}") for error in errors]
    findings += [("problem", str(problem)) for problem in statistics.problems]
    if hidden := statistics.num_problems - len(statistics.problems):
        findings.append(("problem", f"and {hidden:,} more; rlds2reverb validate lists them"))
    findings += [("warning", sentence) for sentence in summary.warnings]
    if summary.unterminated:
        ends = "episode ends" if summary.unterminated == 1 else "episodes end"
        sentence = f"{summary.unterminated:,} {ends} without a terminal or a timeout; treated as truncated"
        findings.append(("note", sentence))
    page.add_section("Validation")
    valid = "No problems, warnings or notes: flags, discounts, shapes and numbers of all episodes are valid."
    page.add_findings(findings, valid)


def _add_episodes(page: Page, statistics: SourceStatistics, reference: tuple[float, float] | None) -> None:
    page.add_section("Episodes")
    lines = {} if reference is None else {"random policy": reference[0], "expert": reference[1]}
    returns, lengths = statistics.returns, statistics.lengths
    if np.isfinite(returns).any():
        figure = draw_histogram(returns, "return (sum of rewards)", "episodes", lines=lines)
        caption = "The undiscounted return of each episode" + (", and two reference policies." if lines else ".")
        page.add_figure("Returns", figure, caption=caption)
    figure = draw_histogram(lengths, "length (transitions)", "episodes")
    page.add_figure("Lengths", figure, caption="The number of transitions of each episode.")
    page.add_figure(
        "Ends of episodes across the dataset",
        _draw_ends(statistics),
        caption="Top: the length of each episode and how it ends. Bottom: the same, counted in equal parts of the "
        "dataset. A terminal state has value 0; after a timeout or an open end, learners bootstrap.",
        is_wide=True,
    )


def _draw_ends(statistics: SourceStatistics) -> Figure:
    ends, lengths = statistics.ends, statistics.lengths
    number = np.arange(len(ends))
    edges = np.linspace(0, len(ends), min(_MAX_PARTS, -(-len(ends) // 4)) + 1)
    figure = make_figure(*FULL_WIDTH)
    upper, lower = figure.subplots(2, sharex=True, height_ratios=[1.4, 1])
    below = np.zeros(len(edges) - 1)
    for end, (label, marker, colour) in _END_STYLES.items():
        chosen = number[ends == end]
        if len(chosen):
            shown = chosen[:: -(-len(chosen) // _MAX_POINTS)]
            upper.plot(shown, lengths[shown], marker, color=colour, markersize=4, label=label)
            counts = np.histogram(chosen, edges)[0]
            lower.bar(edges[:-1], counts, np.diff(edges), below, align="edge", color=colour, edgecolor="white")
            below += counts
    upper.set_ylim(0, 1.25 * max(lengths.max(), 1))  # Leaves room for the legend above the marks.
    style_axes(upper, "", "length (transitions)")
    style_axes(lower, "number of the episode in the dataset", "episodes")
    add_legend(upper)
    return figure


def _add_marginals(page: Page, statistics: SourceStatistics) -> None:
    sample = statistics.sample
    observation_names, action_names, reward_names = statistics.column_names
    if not len(sample.rewards):
        return
    num, total = len(sample.rewards), statistics.num_steps
    scope = f"A random sample of {num:,} of {total:,} steps" if num < total else "All steps"
    sentence = f"{scope}; the last step of an episode has no action and no reward."
    page.add_section("Rewards, actions and states", sentence)
    if len(reward_names) == 1:
        page.add_figure("Rewards", draw_histogram(sample.rewards[:, 0], "reward per step", "steps"))
    elif reward_names:
        page.add_figure("Rewards", draw_marginals(sample.rewards, reward_names, "reward per step", "steps"))
    if action_names:
        page.add_figure("Actions", _draw_actions(sample, action_names))
    if sample.observations.shape[1] > 1:
        _add_coverage(page, statistics, sample, len(observation_names))


def _draw_actions(sample: StepSample, names: list[str]) -> Figure:
    actions = sample.actions
    is_discrete = actions.shape[1] == 1 and len(count_values(actions[:, 0])[0]) <= 24
    if is_discrete and np.array_equal(actions, np.round(actions)):
        return draw_histogram(actions[:, 0], "action", "steps")
    return draw_marginals(actions, names, "value of the action", "steps")


def _add_coverage(page: Page, statistics: SourceStatistics, sample: StepSample, num_columns: int) -> None:
    components, shares = find_principal_components(sample.observations)
    if len(shares) < 2:
        return
    shown = np.linspace(0, len(components) - 1, min(len(components), 4000)).astype(int)
    returns = statistics.returns[sample.episodes[shown]]
    titles = [f"component {number + 1} ({100 * share:.0f} % of variance)" for number, share in enumerate(shares[:2])]
    x, y = components[shown].T
    figure = draw_scatter(x, y, returns, x_label=titles[0], y_label=titles[1], colour_label="return")
    what = "thinned-out images" if statistics.uses_images else f"{num_columns} standardised columns of the observations"
    caption = f"{len(shown):,} states, projected onto the first two principal components of {what}. "
    caption += "The colour is the return of the episode."
    page.add_figure("Coverage of the states", figure, caption=caption, is_wide=True)


def find_principal_components(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Projects observations onto their first two principal components, with each column scaled to variance 1.

    Args:
      observations: numbers [N, D]; constant columns are ignored.

    Returns:
      The projections, float64 [N, 2], NaN for rows with values that are not finite; and the shares of the variance of
      the two components. Both are empty along the second axis if fewer than two columns vary.
    """
    values = np.asarray(observations, np.float64)
    is_finite = np.isfinite(values).all(1)
    finite = values[is_finite]
    deviation = finite.std(0) if len(finite) else np.zeros(values.shape[1])
    varying = deviation > 1e-9
    if varying.sum() < 2:
        return np.zeros((len(values), 0)), np.zeros(0)
    scaled = (finite[:, varying] - finite[:, varying].mean(0)) / deviation[varying]
    variances, directions = np.linalg.eigh(scaled.T @ scaled / len(scaled))
    directions = directions[:, ::-1][:, :2]
    directions = directions * np.where(directions.sum(0) < 0, -1, 1)  # Otherwise the signs are arbitrary.
    projected = np.full((len(values), 2), np.nan)
    projected[is_finite] = scaled @ directions
    return projected, variances[::-1][:2] / variances.sum()


def _add_pictures(page: Page, source: Source, statistics: SourceStatistics) -> None:
    """Adds a picture of each selected episode, in the order of their selection."""
    reasons = select_episodes(statistics)
    found: dict[int, Episode] = {}
    for position, episode in enumerate(read_until_error(source.read(), [])):
        if position in reasons:
            found[position] = episode
        if len(found) == len(reasons):
            break
    if not found:
        return
    page.add_section("Episodes over time", f"{len(found):,} of {len(statistics.parts.episodes):,} episodes.")
    for position, reason in reasons.items():
        if position in found:
            episode = found[position]
            label, *_ = _END_STYLES[statistics.parts.episodes[position].end]
            heading = f"Episode {episode.index}: {reason}, {label.split()[0]}"
            facts = f"Return {episode.total_reward:,.4g}, {episode.num_transitions:,} transitions."
            caption = " ".join([facts, *describe_texts(episode)])
            page.add_figure(heading, draw_episode(episode), caption=caption, is_wide=True)
