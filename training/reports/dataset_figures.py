"""Figures of the page on a dataset: distributions, the states, the ends of episodes, and episodes over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.datasets.step_sample import is_image, name_column
from rlds2reverb.datasets.summary import SummaryParts
from rlds2reverb.learners.figure_style import (
    COLOURS,
    FULL_WIDTH,
    GREY,
    add_legend,
    escape_label,
    get_line_style,
    make_axes,
    make_figure,
    style_axes,
)
from rlds2reverb.system.text import escape_controls
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import leaves, path_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Label, marker and colour of each kind of end; see `EpisodeSummary`.
END_STYLES = {
    "terminal": ("terminal", "o", COLOURS[1]),
    "truncated": ("truncated", "D", COLOURS[0]),
    "unterminated": ("open end (no flag)", "x", COLOURS[3]),
    "empty": ("empty", "+", COLOURS[4]),
}
#: Maximum numbers of bins, of values that are drawn as one bar each, and of names along an axis.
_MAX_BINS, _MAX_BARS, _MAX_NAMES = 60, 24, 16
#: Maximum numbers of points of a kind of end, of parts that ends are counted in, and of states.
_MAX_ENDS, _MAX_PARTS, _MAX_STATES = 3000, 40, 4000
#: Maximum numbers of cameras, of curves in a panel, and of curves that share an axis.
_MAX_CAMERAS, _MAX_CURVES, _MAX_SHARED = 4, 32, 6
#: Number of images in a film strip, and pixels between them.
_NUM_IMAGES, _GAP = 10, 2
_MAX_CHARS = 300


def count_values(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the centres and counts of a histogram of finite values; one bin per value if there are few.

    Args:
      values: numbers `[N]`; those that are not finite are ignored.

    Returns:
      Centres, float64 `[B]`, in increasing order and equally spaced unless there is one bin per value; and counts,
      int64 `[B]`.
    """
    values = np.asarray(values, np.float64)
    values = values[np.isfinite(values)]
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= _MAX_BARS and (len(distinct) < len(values) / 3 or len(distinct) <= 3):
        return distinct, counts
    counts, edges = np.histogram(values, int(np.clip(2 * len(values) ** (1 / 3), 10, _MAX_BINS)))
    return (edges[:-1] + edges[1:]) / 2, counts


def draw_histogram(
    values: np.ndarray, x_label: str, y_label: str, *, lines: Mapping[str, float] | None = None
) -> Figure:
    """Draws a histogram of numbers `[N]`, with labelled values marked by vertical lines."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = make_axes()
    centres, counts = count_values(values)
    axes.bar(centres, counts, 0.94 * np.diff(centres).min() if len(centres) > 1 else 0.2, color=COLOURS[0])
    for number, (label, value) in enumerate((lines or {}).items()):
        style = (":", "--")[number % 2]
        axes.axvline(value, color=COLOURS[1], linestyle=style, label=f"{escape_label(label)} {value:,.4g}")
    if len(centres) == 1:  # Otherwise the single bar fills the plot.
        axes.set_xlim(centres[0] - 1, centres[0] + 1)
    if len(centres) and np.array_equal(centres, np.round(centres)) and np.ptp(centres) <= 12:
        axes.set_xticks(centres)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    style_axes(axes, x_label, y_label)
    add_legend(axes)
    return figure


def draw_marginals(columns: np.ndarray, names: Sequence[str], x_label: str) -> Figure:
    """Draws the distribution of each of some columns `[N, D]`: as lines for a few, as a heat map for many."""
    figure, axes = make_axes()
    edges = np.histogram_bin_edges(columns[np.isfinite(columns)], _MAX_BINS)
    counts = np.stack([np.histogram(column[np.isfinite(column)], edges)[0] for column in columns.T])
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    labels = list(map(escape_label, names))
    if len(labels) <= 4:
        for number, (label, share) in enumerate(zip(labels, shares, strict=True)):
            axes.stairs(share, edges, label=label if len(labels) > 1 else None, color=COLOURS[number], linewidth=1.6)
        style_axes(axes, x_label, "% of the steps")
        add_legend(axes)
        return figure
    heat = axes.pcolormesh(edges, np.arange(len(labels) + 1) - 0.5, shares)
    figure.colorbar(heat, label="% of the steps")
    shown = range(0, len(labels), -(-len(labels) // _MAX_NAMES))
    axes.set_yticks(shown, [labels[number] for number in shown], fontsize="x-small")
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    return figure


def draw_states(components: np.ndarray, shares: np.ndarray, returns: np.ndarray) -> Figure:
    """Draws states as points coloured by the return of their episode.

    Args:
      components: float64 `[N, 2]`; see `find_principal_components`.
      shares: shares of the variance of the two components.
      returns: float64 `[N]`; NaN for unknown.
    """
    from matplotlib.colors import LinearSegmentedColormap

    figure, axes = make_axes(FULL_WIDTH)
    x, y = components.T
    is_known = np.isfinite(returns)
    axes.scatter(x[~is_known], y[~is_known], 6, color=GREY, linewidths=0)
    if is_known.any():
        # A few extreme values must not use up the colours, all of which are visible on white and on black.
        low, high = np.quantile(returns[is_known], [0.01, 0.99])
        colours = LinearSegmentedColormap.from_list("returns", [COLOURS[0], COLOURS[3], COLOURS[4]])
        options: Any = {"vmin": low, "vmax": high, "linewidths": 0, "cmap": colours}
        points = axes.scatter(x[is_known], y[is_known], 6, returns[is_known], **options)
        figure.colorbar(points, label="return")
    labels = [f"component {number} ({100 * share:.0f} % of variance)" for number, share in enumerate(shares, 1)]
    style_axes(axes, *labels)
    return figure


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


def thin_out(components: np.ndarray) -> np.ndarray:
    """Returns the rows of the states that are drawn."""
    return np.linspace(0, len(components) - 1, min(len(components), _MAX_STATES)).astype(int)


def draw_ends(parts: SummaryParts) -> Figure:
    """Draws the length and the end of each episode, and below them the ends in equal parts of the dataset."""
    ends, lengths = parts.ends, parts.lengths
    number = np.arange(len(ends))
    edges = np.linspace(0, len(ends), min(_MAX_PARTS, -(-len(ends) // 4)) + 1)
    figure = make_figure(*FULL_WIDTH)
    upper, lower = figure.subplots(2, sharex=True, height_ratios=[1.4, 1])
    below = np.zeros(len(edges) - 1)
    for end, (label, marker, colour) in END_STYLES.items():
        chosen = number[ends == end]
        if len(chosen):
            shown = chosen[:: -(-len(chosen) // _MAX_ENDS)]
            upper.plot(shown, lengths[shown], marker, color=colour, markersize=4, label=label)
            counts = np.histogram(chosen, edges)[0]
            lower.bar(edges[:-1], counts, 0.94 * np.diff(edges), below, align="edge", color=colour)
            below += counts
    upper.set_ylim(0, 1.25 * max(lengths.max(), 1))  # Leaves room for the legend above the marks.
    style_axes(upper, "", "length (transitions)")
    style_axes(lower, "number of the episode in the dataset", "episodes")
    add_legend(upper)
    return figure


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
    heights += [max(1.5, 0.24 * min(len(curves), _MAX_CURVES)) for curves in panels.values()]
    figure = make_figure(width, sum(heights) + 0.3)
    rows = figure.subplots(len(heights), height_ratios=heights, squeeze=False)[:, 0]
    for axes, (name, strip, steps) in zip(rows[: len(strips)], strips, strict=True):
        _draw_strip(axes, strip, steps + first_step, name)
    for axes, (name, curves) in zip(rows[len(strips) :], panels.items(), strict=True):
        is_step = name != fields.OBSERVATION
        style_axes(axes, "step of the episode" if axes is rows[-1] else "", name)
        # The meaningless action and reward of the last step are left out.
        shown = [(label, values[: num_steps - is_step].astype(np.float64)) for label, values in curves[:_MAX_CURVES]]
        _draw_curves(axes, shown, first_step, drawstyle="steps-post" if is_step else "default")
        if len(curves) > _MAX_CURVES:
            axes.set_title(f"{len(curves) - _MAX_CURVES} more columns are not shown", loc="right", fontsize="x-small")
        if marked_step is not None:
            axes.axvline(marked_step, color=GREY, linestyle="--", linewidth=1.0)
        axes.set_xlim(first_step, first_step + max(num_steps - 1, 1))
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
    """Returns some of the images next to each other, uint8 [H, W, 4], and their steps."""
    steps = np.unique(np.linspace(0, len(images) - 1, _NUM_IMAGES).astype(int))
    shown = images[steps]
    if shown.ndim == 3:
        shown = shown[..., None]
    elif shown.shape[1] in (1, 3, 4) and shown.shape[-1] not in (1, 3, 4):
        shown = np.moveaxis(shown, 1, -1)
    # An episode with fewer steps leaves the rest of the strip transparent, so that its images have the same size.
    height, width = shown.shape[1:3]
    strip = np.zeros((height, _NUM_IMAGES * (width + _GAP), 4), np.uint8)
    for number, image in enumerate(shown):
        part = strip[:, number * (width + _GAP) :][:, :width]
        part[..., :3], part[..., 3] = image[..., :3], 255
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


def _draw_curves(axes: Axes, curves: list[tuple[str, np.ndarray]], first_step: int, *, drawstyle: str) -> None:
    """Draws curves with a legend, or many of them one below the other, each with its name and its range."""
    is_shared = len(curves) <= _MAX_SHARED
    ranges = []
    for number, (name, values) in enumerate(curves):
        steps, style = first_step + np.arange(len(values)), get_line_style(number if is_shared else 0, values)
        finite = values[np.isfinite(values)]
        low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
        ranges.append(f"{low:.3g} to {high:.3g}" if high > low else f"{low:.3g}")
        shown = values if is_shared else 0.8 * ((values - low) / (high - low or 1) - 0.5) - number
        axes.plot(steps, shown, label=escape_label(name), **style | {"linewidth": 1.0, "drawstyle": drawstyle})
    if not is_shared:
        axes.set_ylim(0.4 - len(curves), 0.6)
        axes.set_yticks(-np.arange(len(curves)), [escape_label(name) for name, _ in curves], fontsize="x-small")
        right = axes.secondary_yaxis("right")
        right.set_yticks(-np.arange(len(curves)), ranges, fontsize="x-small")
        right.spines[:].set_visible(False)
        right.tick_params(length=0)
    elif len(curves) > 1:
        axes.legend(frameon=False, fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
