"""Pictures of episodes: which ones are shown, and their images, observations, actions and rewards over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.learners.figure_style import GREY, escape_label, get_line_style, make_figure, style_axes
from rlds2reverb.system.text import escape_controls
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import leaves, path_name

from .figures import FULL_WIDTH
from .source_statistics import SourceStatistics, is_image, name_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Maximum numbers of episodes, of those with problems, of cameras, and of curves and labels in a panel.
_MAX_EPISODES, _MAX_INVALID, _MAX_CAMERAS, _MAX_CURVES, _MAX_LABELS = 6, 2, 4, 32, 8
#: Number of images in a film strip, and pixels between them.
_NUM_IMAGES, _GAP = 10, 2
_PANEL_HEIGHT = 1.5
_MAX_CHARS = 300


def select_episodes(statistics: SourceStatistics) -> dict[int, str]:
    """Returns the positions of episodes worth looking at, each with the reason: by return, by length, or invalid."""
    returns, lengths = statistics.returns, statistics.lengths
    usable = np.flatnonzero(statistics.ends != "empty")
    invalid = [position for position in statistics.invalid if position in usable]
    reasons = dict.fromkeys(invalid[:_MAX_INVALID], "has problems")
    ranked = usable[np.isfinite(returns[usable])]
    ranked = ranked[np.argsort(returns[ranked], kind="stable")]
    if len(ranked):
        for rank, reason in ((-1, "best return"), ((len(ranked) - 1) // 2, "median return"), (0, "lowest return")):
            reasons.setdefault(int(ranked[rank]), reason)
    if len(usable):
        reasons.setdefault(int(usable[np.argmax(lengths[usable])]), "longest")
        reasons.setdefault(int(usable[np.argmin(lengths[usable])]), "shortest")
    return dict(list(reasons.items())[:_MAX_EPISODES])


def draw_episode(
    episode: Episode, *, first_step: int = 0, marked_step: int | None = None, extra_fields: Sequence[str] = ()
) -> Figure:
    """Draws a film strip of each camera, and below them the observations, actions and rewards over time.

    Args:
      episode: the episode, with at least one step.
      first_step: number of its first step, if it is a part of an episode.
      marked_step: number of a step that is marked by a vertical line, or None.
      extra_fields: further fields of the steps to draw.
    """
    num_steps = min(len(column) for _, column in episode.columns)
    cameras = [(path, column) for path, column in episode.columns if is_image(column.shape[1:], column.dtype)]
    strips = [
        (path_name(path[1:], path[0]), *_make_strip(column[:num_steps])) for path, column in cameras[:_MAX_CAMERAS]
    ]
    names = dict.fromkeys((fields.OBSERVATION, fields.ACTION, fields.REWARD, *extra_fields))
    panels = {name: list(_iterate_curves(episode, name)) for name in names}
    panels = {name: curves for name, curves in panels.items() if curves}
    width = FULL_WIDTH[0]
    heights = [0.9 * width * strip.shape[0] / strip.shape[1] + 0.4 for _, strip, _ in strips]
    heights += [_PANEL_HEIGHT] * len(panels)
    figure = make_figure(width, sum(heights) + 0.3)
    rows = figure.subplots(len(heights), height_ratios=heights, squeeze=False)[:, 0]
    for axes, (name, strip, steps) in zip(rows[: len(strips)], strips, strict=True):
        _draw_strip(axes, strip, steps + first_step, name)
    for axes, (name, curves) in zip(rows[len(strips) :], panels.items(), strict=True):
        is_step = name != fields.OBSERVATION
        _draw_curves(axes, curves, num_steps - is_step, first_step, is_step=is_step)
        if marked_step is not None:
            axes.axvline(marked_step, color=GREY, linestyle="--", linewidth=1.0)
        axes.set_xlim(first_step, first_step + max(num_steps - 1, 1))
        style_axes(axes, "step of the episode" if axes is rows[-1] else "", name)
    return figure


def describe_texts(episode: Episode) -> Iterator[str]:
    """Yields a sentence for each field of strings: its distinct values, in the order of the steps."""
    for path, column in episode.columns:
        if column.dtype.kind in "OSU":
            values = escape_controls(", ".join(dict.fromkeys(map(_format_text, column))))
            shown = values if len(values) <= _MAX_CHARS else f"{values[:_MAX_CHARS]}…"
            yield f"{path_name(path[1:], path[0])}: {shown}."


def _format_text(value: Any) -> str:
    return ", ".join(
        part.decode(errors="replace") if isinstance(part, bytes) else str(part) for part in np.ravel(value)
    )


def _make_strip(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns some of the images next to each other, uint8 [H, W, 3], and their steps."""
    steps = np.unique(np.linspace(0, len(images) - 1, _NUM_IMAGES).astype(int))
    shown = images[steps]
    if shown.ndim == 3:
        shown = shown[..., None]
    elif shown.shape[1] in (1, 3, 4) and shown.shape[-1] not in (1, 3, 4):
        shown = np.moveaxis(shown, 1, -1)
    shown = np.broadcast_to(shown[..., :3], (*shown.shape[:3], 3))
    # An episode with fewer steps leaves the rest of the strip white, so that its images have the same size.
    height, width = shown.shape[1:3]
    strip = np.full((height, _NUM_IMAGES * (width + _GAP), 3), 255, np.uint8)
    for number, image in enumerate(shown):
        strip[:, number * (width + _GAP) :][:, :width] = image
    return strip, steps


def _draw_strip(axes: Axes, strip: np.ndarray, steps: np.ndarray, name: str) -> None:
    axes.imshow(strip)
    width = strip.shape[1] / _NUM_IMAGES
    axes.set_xticks(width * (np.arange(len(steps)) + 0.5) - 0.5, [f"step {step}" for step in steps], fontsize="x-small")
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(escape_label(name), loc="left", fontsize="small")


def _iterate_curves(episode: Episode, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name and the numbers [T] of each column of a field that is neither an image nor a text."""
    for path, column in leaves(episode.steps[name]):
        if column.dtype.kind in "biuf" and not is_image(column.shape[1:], column.dtype):
            flat = column.reshape(len(column), int(np.prod(column.shape[1:])))
            for index in range(flat.shape[1]):
                yield name_column(name, path, index, flat.shape[1]), flat[:, index]


def _draw_curves(
    axes: Axes, curves: list[tuple[str, np.ndarray]], num_steps: int, first_step: int, *, is_step: bool
) -> None:
    """Draws curves; the meaningless action and reward of the last step are left out."""
    for number, (name, values) in enumerate(curves[:_MAX_CURVES]):
        shown = values[:num_steps].astype(np.float64)
        style = get_line_style(number, shown) | {"drawstyle": "steps-post" if is_step else "default", "linewidth": 1.0}
        axes.plot(first_step + np.arange(len(shown)), shown, label=escape_label(name), **style)
    if 1 < len(curves) <= _MAX_LABELS:
        axes.legend(frameon=False, fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    if len(curves) > _MAX_CURVES:
        axes.set_title(f"{len(curves) - _MAX_CURVES} more columns are not shown", loc="right", fontsize="x-small")
