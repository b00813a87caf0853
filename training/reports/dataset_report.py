"""The page on a dataset: its summary, errors, findings, returns, lengths, ends, marginals, states and episodes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.datasets import Finding, Source, load
from rlds2reverb.datasets.dataset_statistics import DatasetStatistics
from rlds2reverb.datasets.summary import Summary, describe_unterminated, find_reference_returns
from rlds2reverb.datasets.valid_episodes import read_readable
from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import map_structure

from .dataset_figures import (
    END_STYLES,
    count_values,
    describe_texts,
    draw_ends,
    draw_episode,
    draw_histogram,
    draw_marginals,
    draw_states,
    find_principal_components,
    thin_out,
)
from .page import Page, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Maximum number of figures of findings, of which those of the same episode and step share one; number of steps shown
#: around the place; and maximum numbers of episodes shown, and of invalid ones among them.
MAX_FIGURES, _NUM_STEPS, _MAX_EPISODES, _MAX_INVALID = 12, 10, 6, 2
_VALID = "No errors, warnings or notes: flags, discounts, shapes and numbers of all episodes are valid."


def report_source(
    source: Any,
    path: str | Path | None = None,
    *,
    reference_returns: tuple[float, float] | None = None,
    is_d4rl: bool = False,
) -> Report:
    """Makes a report on a dataset: one HTML page with figures, which needs no network.

        report_source("hopper_medium-v2.hdf5", "hopper.html")

    The dataset is read twice: once to its end, and once more up to the last episode that is shown.

    Args:
      source: a `Source`, or any other source of `load`.
      path: HTML file to write; None for none.
      reference_returns: returns of a random policy and an expert, which are marked in the histogram of returns.
      is_d4rl: whether D4RL's reference returns apply; see `summarize`.

    Returns:
      The report. A dataset that cannot be read to its end gives a report on what was read, which begins with the error.

    Raises:
      SourceError: If no episode can be read.
      FileNotFoundError, TypeError, ValueError: As `load`.
      StorageFullError: If the disk is full.
    """
    source = load(source)
    find_reference_returns(source, reference_returns, is_d4rl=is_d4rl)  # Raises before the dataset is read.
    statistics = DatasetStatistics(source, has_sample=True)
    statistics.read(lambda stage, episode: None, "read")
    return report_statistics(statistics, path, reference_returns=reference_returns, is_d4rl=is_d4rl)


def report_statistics(
    statistics: DatasetStatistics,
    path: str | Path | None = None,
    *,
    reference_returns: tuple[float, float] | None = None,
    is_d4rl: bool = False,
) -> Report:
    """Makes the report of `report_source` from statistics with a sample of steps; see there for other arguments."""
    source, parts = statistics.source, statistics.parts
    if not parts.episodes:
        nothing = f"{source.name} has no episodes; there is nothing to report"
        raise statistics.error or SourceError(statistics.errors[0].message if statistics.errors else nothing)
    reasons = select_episodes(statistics)
    places: dict[tuple[int, int | None], list[Finding]] = {}
    for finding in statistics.findings:
        places.setdefault((finding.episode, finding.step), []).append(finding)
    places = dict(list(places.items())[:MAX_FIGURES])
    numbers = {position: parts.episodes[position].number for position in reasons}
    of_places, of_episodes = {}, {}
    for episode in _find_episodes(source, {*numbers.values(), *(index for index, _ in places)}):
        for (index, step), findings in places.items():
            if index == episode.index:
                caption = " ".join([f"First in {findings[0].place}.", *describe_texts(episode)])
                names = [finding.field.partition("[")[0] for finding in findings]
                of_places[index, step] = draw_place(episode, step, names), caption
        for position, index in numbers.items():
            if index == episode.index:
                facts = f"Return {episode.total_reward:,.4g}, {episode.num_transitions:,} transitions."
                of_episodes[position] = draw_episode(episode), " ".join([facts, *describe_texts(episode)])
    page = Page(source.name, f"rlds2reverb report on a dataset of kind {source.kind}")
    summary = parts.finish(source, reference_returns=reference_returns, is_d4rl=is_d4rl)
    reference, _ = find_reference_returns(source, reference_returns, is_d4rl=is_d4rl)
    _add_summary(page, summary)
    _add_validation(page, summary, statistics)
    _add_findings(page, statistics.findings, places, of_places)
    lines = {} if reference is None else {"random policy": reference[0], "expert": reference[1]}
    _add_episodes(page, statistics, lines)
    _add_marginals(page, statistics)
    if of_episodes:
        page.add_section("Episodes over time", f"{len(of_episodes):,} of {len(parts.episodes):,} episodes.")
    for position, reason in reasons.items():
        if position in of_episodes:
            label, *_ = END_STYLES[parts.episodes[position].end]
            figure, caption = of_episodes[position]
            heading = f"Episode {numbers[position]}: {reason}, {label.split()[0]}"
            page.add_figure(heading, figure, caption=caption, is_wide=True)
    return page.build(path)


def select_episodes(statistics: DatasetStatistics) -> dict[int, str]:
    """Returns the positions of episodes worth looking at, each with the reason: by return, by length, or invalid."""
    returns, lengths = statistics.parts.returns, statistics.parts.lengths
    usable = np.flatnonzero(statistics.parts.ends != "empty")
    invalid = [position for position in statistics.invalid if position in usable]
    reasons = dict.fromkeys(invalid[:_MAX_INVALID], "invalid")
    ranked = usable[np.isfinite(returns[usable])]
    ranked = ranked[np.argsort(returns[ranked], kind="stable")]
    if len(ranked):
        for rank, reason in ((-1, "best return"), ((len(ranked) - 1) // 2, "median return"), (0, "lowest return")):
            reasons.setdefault(int(ranked[rank]), reason)
    if len(usable):
        reasons.setdefault(int(usable[np.argmax(lengths[usable])]), "longest")
        reasons.setdefault(int(usable[np.argmin(lengths[usable])]), "shortest")
    return dict(list(reasons.items())[:_MAX_EPISODES])


def draw_place(episode: Episode, step: int | None, field_names: Iterable[str] = ()) -> Figure:
    """Draws the images, observations, actions and rewards of the steps around one, or of a whole episode if it is None.

    Args:
      episode: the episode.
      step: the step, which is marked.
      field_names: names of fields of the steps that are drawn too, if they have numbers.
    """
    start, part = 0, episode
    if step is not None and episode.num_steps > 2 * _NUM_STEPS:
        start = min(max(step - _NUM_STEPS // 2, 0), episode.num_steps - _NUM_STEPS)
        rows = slice(start, start + _NUM_STEPS)
        part = Episode(map_structure(lambda column: column[rows], episode.steps), episode.index)
    flags = (*fields.FLAG_FIELDS, fields.DISCOUNT)
    drawn = [name for name in field_names if name in episode.steps and name not in flags]
    return draw_episode(part, first_step=start, marked_step=step, extra_fields=drawn)


def _find_episodes(source: Source, indices: set[int]) -> Iterable[Episode]:
    """Yields the episodes with these indices, as far as the source can be read."""
    with suppress(SourceError):
        for episode in read_readable(source, lambda _: None) if indices else ():
            if episode.index in indices:
                indices.remove(episode.index)
                yield episode
            if not indices:
                return


def _add_summary(page: Page, summary: Summary) -> None:
    page.add_section("Summary")
    page.add_facts([(name, value) for name, value in summary.facts() if name != "warning"])
    page.add_text("")
    page.add_table(("field", "one step", "NaN or Inf"), summary.field_rows())


def _add_validation(page: Page, summary: Summary, statistics: DatasetStatistics) -> None:
    failure, errors = statistics.error, statistics.errors
    found = [("error", f"the dataset could not be read any further: {failure}")] if failure else []
    found += [("error", str(error)) for error in errors]
    if hidden := statistics.num_errors - len(errors):
        found.append(("error", f"and {hidden:,} more; rlds2reverb validate lists them"))
    found += [("warning", sentence) for sentence in summary.warnings]
    found += [("note", sentence) for sentence in describe_unterminated(summary.unterminated)]
    page.add_section("Validation")
    page.add_findings(found, _VALID)


def _add_findings(page: Page, findings: list[Finding], places: dict[Any, list[Finding]], figures: Any) -> None:
    page.add_section("Findings")
    if not findings:
        page.add_text("No findings: no check found a mistake.")
        return
    rows = [
        (part.severity, part.check, f"{part.count:,}", part.place, f"{part.field}: {part.message}", part.advice)
        for part in findings
    ]
    page.add_table(("severity", "check", "count", "first in", "what was found", "what to do"), rows)
    for place, parts in places.items():
        if place in figures:
            figure, caption = figures[place]
            heading = ", ".join(dict.fromkeys(part.check for part in parts))
            page.add_figure(heading, figure, caption=caption, is_wide=True)


def _add_episodes(page: Page, statistics: DatasetStatistics, lines: dict[str, float]) -> None:
    page.add_section("Episodes")
    parts = statistics.parts
    if np.isfinite(parts.returns).any():
        figure = draw_histogram(parts.returns, "return (sum of rewards)", "episodes", lines=lines)
        caption = "The undiscounted return of each episode" + (", and two reference policies." if lines else ".")
        page.add_figure("Returns", figure, caption=caption)
    figure = draw_histogram(parts.lengths, "length (transitions)", "episodes")
    page.add_figure("Lengths", figure, caption="The number of transitions of each episode.")
    caption = (
        "Top: the length of each episode and how it ends. Bottom: the same, counted in equal parts of the dataset. A "
        "terminal state has value 0; after a truncation or an open end, learners bootstrap."
    )
    page.add_figure("Ends of episodes across the dataset", draw_ends(parts), caption=caption, is_wide=True)


def _add_marginals(page: Page, statistics: DatasetStatistics) -> None:
    if (sampler := statistics.sampler) is None or not sampler.num_steps:
        return
    sample, (observation_names, action_names, reward_names) = sampler.finish(), sampler.names
    num, total = len(sample.rewards), sampler.num_steps
    scope = f"A random sample of {num:,} of {total:,} steps" if num < total else "All steps"
    sentence = f"{scope}; the last step of an episode has no action and no reward."
    page.add_section("Rewards, actions and states", sentence)
    for heading, columns, names, x_label in (
        ("Rewards", sample.rewards, reward_names, "reward per step"),
        ("Actions", sample.actions, action_names, "value of the action"),
    ):
        is_discrete = len(names) == 1 and len(count_values(columns)[0]) <= 24
        if (heading == "Rewards" and len(names) == 1) or (is_discrete and np.array_equal(columns, np.round(columns))):
            page.add_figure(heading, draw_histogram(columns[:, 0], x_label, "steps"))
        elif names:
            page.add_figure(heading, draw_marginals(columns, names, x_label))
    components, shares = find_principal_components(sample.observations)
    if len(shares) == 2:
        shown = thin_out(components)
        figure = draw_states(components[shown], shares, statistics.parts.returns[sample.episodes[shown]])
        of_columns = f"{len(observation_names)} standardised columns of the observations"
        what = "thinned-out images" if sampler.uses_images else of_columns
        caption = f"{len(shown):,} states, projected onto the first two principal components of {what}. "
        caption += "The colour is the return of the episode."
        page.add_figure("Coverage of the states", figure, caption=caption, is_wide=True)
