"""Figures of distributions: histograms, marginals of several columns, and points coloured by a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlds2reverb.learners.figure_style import (
    COLOURS,
    GREY,
    add_legend,
    escape_label,
    get_line_style,
    make_figure,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Sizes in inches of figures that take half of the page's width, and all of it.
HALF_WIDTH, FULL_WIDTH = (5.6, 3.1), (11.2, 4.4)
_MAX_BINS = 60
#: Maximum number of distinct values that are drawn as one bar each, and of names along an axis.
_MAX_BARS, _MAX_NAMES = 24, 16


def make_axes(size: tuple[float, float] = HALF_WIDTH) -> tuple[Figure, Axes]:
    """Returns an empty figure and its axes."""
    figure = make_figure(*size)
    return figure, figure.add_subplot()


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
    """Draws a histogram.

    Args:
      values: numbers `[N]`.
      x_label: label of the x axis, with the unit.
      y_label: label of the y axis, such as 'steps'.
      lines: labelled values that are marked by vertical lines.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axes = make_axes()
    centres, counts = count_values(values)
    axes.bar(centres, counts, np.diff(centres).min() if len(centres) > 1 else 0.2, color=COLOURS[0], edgecolor="white")
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


def draw_marginals(columns: np.ndarray, names: Sequence[str], x_label: str, share_of: str) -> Figure:
    """Draws the distribution of each column: as lines for a few, as a heat map for many.

    Args:
      columns: numbers `[N, D]`.
      names: names of the columns.
      x_label: label of the x axis, with the unit.
      share_of: name of what is counted, such as 'steps'.
    """
    figure, axes = make_axes()
    finite = columns[np.isfinite(columns)]
    edges = np.histogram_bin_edges(finite, _MAX_BINS)
    counts = np.stack([np.histogram(column[np.isfinite(column)], edges)[0] for column in columns.T])
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    labels = list(map(escape_label, names))
    if len(labels) <= 4:
        for number, (label, share) in enumerate(zip(labels, shares, strict=True)):
            axes.stairs(share, edges, label=label if len(labels) > 1 else None, color=COLOURS[number], linewidth=1.6)
        style_axes(axes, x_label, f"% of the {share_of}")
        add_legend(axes)
        return figure
    heat = axes.pcolormesh(edges, np.arange(len(labels) + 1) - 0.5, shares)
    figure.colorbar(heat, label=f"% of the {share_of}")
    shown = range(0, len(labels), -(-len(labels) // _MAX_NAMES))
    axes.set_yticks(shown, [labels[number] for number in shown], fontsize="x-small")
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    return figure


def draw_scatter(
    x: np.ndarray, y: np.ndarray, colours: np.ndarray, *, x_label: str, y_label: str, colour_label: str
) -> Figure:
    """Draws points coloured by a value.

    Args:
      x: float64 [N].
      y: float64 [N].
      colours: values [N]; NaN for unknown.
      x_label: label of the x axis.
      y_label: label of the y axis.
      colour_label: label of the colour bar.
    """
    figure, axes = make_axes(FULL_WIDTH)
    is_known = np.isfinite(colours)
    axes.scatter(x[~is_known], y[~is_known], 6, color=GREY, linewidths=0)
    if is_known.any():
        # A few extreme values must not use up the colours.
        low, high = np.quantile(colours[is_known], [0.01, 0.99])
        points = axes.scatter(x[is_known], y[is_known], 6, colours[is_known], vmin=low, vmax=high, linewidths=0)
        figure.colorbar(points, label=colour_label)
    style_axes(axes, x_label, y_label)
    return figure


def draw_lines(series: Sequence[tuple[str, np.ndarray, np.ndarray]], y_label: str) -> Figure:
    """Draws values over training steps, in a colour for each label.

    Args:
      series: label, steps `[N]` and values `[N]` of each line; several lines may have the same label.
      y_label: label of the y axis.
    """
    figure, axes = make_axes()
    all_labels = [label for label, _, _ in series]
    labels = list(dict.fromkeys(all_labels))
    for number, (label, steps, values) in enumerate(series):
        is_named = len(labels) > 1 and all_labels.index(label) == number
        style = get_line_style(labels.index(label), values)
        axes.plot(steps, values, label=escape_label(label) if is_named else None, linewidth=1.2, **style)
    style_axes(axes, "training steps", y_label, has_steps=True)
    add_legend(axes)
    return figure
