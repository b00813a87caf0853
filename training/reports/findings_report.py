"""The report on the findings of a dataset's checks, with images and curves around the first place of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlds2reverb.datasets import Finding, Source
from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import map_structure

from .episode_pictures import describe_texts, draw_episode
from .page import Page, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Maximum number of figures, of which findings of the same episode and step share one, and steps around the place.
MAX_FIGURES, _NUM_STEPS = 12, 10
_FLAGS = (*fields.FLAG_FIELDS, fields.DISCOUNT)


def report_findings(
    source: Source, findings: Sequence[Finding], path: str | Path | None = None, *, problems: Sequence[str] = ()
) -> Report:
    """Makes a report on the findings of `check_dataset`: one HTML page with the frames concerned.

    The dataset is read once more, up to the last episode that is shown.

    Args:
      source: the dataset.
      findings: its findings.
      path: HTML file to write; None for none.
      problems: violations of RLDS's rules, which are listed too.

    Raises:
      StorageFullError: If the disk is full.
    """
    page = Page(source.name, f"rlds2reverb report on the checks of a dataset of kind {source.kind}")
    page.add_section("Problems")
    valid = "No problems: flags, discounts, shapes and numbers of all episodes are valid."
    page.add_findings([("problem", problem) for problem in problems], valid)
    add_findings(page, source, findings)
    return page.build(path)


def add_findings(page: Page, source: Source, findings: Sequence[Finding]) -> None:
    """Adds a table of findings and figures of the steps concerned to a page."""
    page.add_section("Findings")
    if not findings:
        page.add_text("No findings: no check found a mistake.")
        return
    rows = [
        (part.severity, part.check, f"{part.count:,}", part.place, f"{part.field}: {part.message}", part.advice)
        for part in findings
    ]
    page.add_table(("severity", "check", "count", "first in", "what was found", "what to do"), rows)
    places: dict[tuple[int, int | None], list[Finding]] = {}
    for part in findings:
        places.setdefault((part.episode, part.step), []).append(part)
    shown = dict(list(places.items())[:MAX_FIGURES])
    for episode in _find_episodes(source, {index for index, _ in shown}):
        for (index, step), parts in shown.items():
            if index == episode.index:
                heading = ", ".join(dict.fromkeys(part.check for part in parts))
                caption = " ".join([f"First in {parts[0].place}.", *describe_texts(episode)])
                figure = draw_place(episode, step, [part.field.partition("[")[0] for part in parts])
                page.add_figure(heading, figure, caption=caption, is_wide=True)


def _find_episodes(source: Source, indices: set[int]) -> Iterator[Episode]:
    """Yields the episodes with these indices, as far as the source can be read."""
    remaining = set(indices)
    with suppress(SourceError):
        for episode in source.read():
            if episode.index in remaining:
                remaining.remove(episode.index)
                yield episode
            if not remaining:
                return


def draw_place(episode: Episode, step: int | None, field_names: Sequence[str] = ()) -> Figure:
    """Draws the images, observations, actions and rewards of the steps around one, or of a whole episode if it is None.

    Args:
      episode: the episode.
      step: the step, which is marked.
      field_names: names of fields of the steps that are drawn too, if they have numbers.
    """
    if step is None or episode.num_steps <= 2 * _NUM_STEPS:
        start, part = 0, episode
    else:
        start = min(max(step - _NUM_STEPS // 2, 0), episode.num_steps - _NUM_STEPS)
        rows = slice(start, start + _NUM_STEPS)
        part = Episode(map_structure(lambda column: column[rows], episode.steps), episode.index)
    drawn = [name for name in field_names if name in episode.steps and name not in _FLAGS]
    return draw_episode(part, first_step=start, marked_step=step, extra_fields=drawn)
