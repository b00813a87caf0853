"""Plotly figures as plain dicts; colours are names such as '@0' or '@muted', which the page replaces by its theme's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .page import escape_label

#: Traces and layout of a figure.
Figure = tuple[list[dict[str, Any]], dict[str, Any]]

#: The scale of heat maps and of points coloured by a value: Viridis, for colour-blind readers and in greyscale.
COLOUR_SCALE = "@scale"
_MAX_BINS = 60
#: Maximum number of distinct values that are drawn as one bar each.
_MAX_BARS = 24


def count_values(values: np.ndarray, num_bins: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the centres and counts of a histogram of finite values; one bin per value if there are few.

    Args:
      values: numbers `[N]`; those that are not finite are ignored.
      num_bins: number of bins; None to choose it by the number of values.

    Returns:
      Centres, float64 `[B]`, in increasing order and equally spaced unless there is one bin per value; and counts,
      int64 `[B]`.
    """
    values = np.asarray(values, np.float64)
    values = values[np.isfinite(values)]
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= _MAX_BARS and num_bins is None and (len(distinct) < len(values) / 3 or len(distinct) <= 3):
        return distinct, counts
    num_bins = num_bins or int(np.clip(2 * len(values) ** (1 / 3), 10, _MAX_BINS))
    counts, edges = np.histogram(values, num_bins)
    return (edges[:-1] + edges[1:]) / 2, counts


def make_axis(title: str, **options: Any) -> dict[str, Any]:
    """Returns an axis with a title, which names the unit."""
    return {"title": {"text": escape_label(title), "standoff": 8}, **options}


def make_log_axis(title: str, low: float, high: float, **options: Any) -> dict[str, Any]:
    """Returns a logarithmic axis with at most about six ticks between two positive numbers."""
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    decades = np.log10(high / low)
    stride = max(1, -(-(last - first) // 6))
    factors = (1, 2, 5) if decades < 2 else (1,)
    ticks = [factor * 10.0**power for power in range(first, last + 1, stride) for factor in factors]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) < 2:
        ticks = [low, high] if decades > 0.02 else [float(np.sqrt(low * high))]
    texts = [f"{tick:.3g}".replace("e-0", "e-").replace("e+0", "e") for tick in ticks]
    return make_axis(title, type="log", tickvals=ticks, ticktext=texts, **options)


def draw_histogram(
    values: np.ndarray, x_title: str, y_title: str, *, lines: Mapping[str, float] | None = None
) -> Figure:
    """Draws a histogram.

    Args:
      values: numbers `[N]`.
      x_title: title of the x axis, with the unit.
      y_title: title of the y axis, such as 'steps'.
      lines: labelled values that are marked by vertical lines.
    """
    centres, counts = count_values(values)
    bars: dict[str, Any] = {"type": "bar", "x": centres, "y": counts, "name": y_title, "showlegend": False}
    bars |= {"marker": {"color": "@0"}, "hovertemplate": f"{escape_label(x_title)} %{{x}}<br>%{{y}} {y_title}"}
    bars["hovertemplate"] += "<extra></extra>"
    data = [bars]
    for number, (label, value) in enumerate((lines or {}).items()):
        line = {"color": ("@1", "@ink")[number % 2], "dash": ("dash", "dot", "dashdot")[number % 3], "width": 2.5}
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [value, value],
                "y": [0, int(counts.max(initial=1))],
                "name": f"{escape_label(label)} {value:,.4g}",
                "line": line,
                "hoverinfo": "name",
            }
        )
    layout = {"xaxis": make_axis(x_title), "yaxis": make_axis(y_title, rangemode="tozero")}
    if lines:  # Otherwise a line at the end of the axis is hardly visible.
        half = np.diff(centres).min() / 2 if len(centres) > 1 else 0.0
        low, high = min([*lines.values(), *(centres - half)]), max([*lines.values(), *(centres + half)])
        layout["xaxis"]["range"] = [low - 0.03 * (high - low), high + 0.03 * (high - low)]
    if len(centres) and np.array_equal(centres, np.round(centres)) and np.ptp(centres) <= 12:
        layout["xaxis"]["dtick"] = 1
    if len(centres) == 1:  # Otherwise the single bar fills the plot.
        layout["xaxis"]["range"] = [centres[0] - 1, centres[0] + 1]
        bars["width"] = [0.2]
    return data, layout


def draw_marginals(columns: np.ndarray, names: Sequence[str], x_title: str, share_of: str) -> Figure:
    """Draws the distribution of each column: as lines for a few, as a heat map for many.

    Args:
      columns: numbers `[N, D]`.
      names: names of the columns.
      x_title: title of the x axis, with the unit.
      share_of: name of what is counted, such as 'steps'.
    """
    low, high = _find_range(columns)
    edges = np.linspace(low, high, _MAX_BINS + 1)
    centres = (edges[:-1] + edges[1:]) / 2
    counts = np.stack([np.histogram(column[np.isfinite(column)], edges)[0] for column in columns.T])
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    if columns.shape[1] <= 4:
        data = [
            {
                "type": "scatter",
                "mode": "lines",
                "x": centres,
                "y": share,
                "name": escape_label(name),
                "line": {"color": f"@{number}", "shape": "hvh", "width": 1.8, "dash": _DASHES[number % 4]},
            }
            for number, (name, share) in enumerate(zip(names, shares, strict=True))
        ]
        y_axis = make_axis(f"share of the {share_of} (%)", rangemode="tozero")
        return data, {"xaxis": make_axis(x_title), "yaxis": y_axis, "showlegend": len(names) > 1}
    heat = {"type": "heatmap", "x": centres, "y": [escape_label(name) for name in names], "z": shares}
    heat |= {"colorscale": COLOUR_SCALE, "colorbar": make_colour_bar("%")}
    heat["hovertemplate"] = "%{y} near %{x:.3g}: %{z:.2f} %<extra></extra>"
    y_axis = make_axis("", type="category", autorange="reversed", showgrid=False, dtick=max(1, len(names) // 16))
    return [heat], {"xaxis": make_axis(x_title, showgrid=False), "yaxis": y_axis}


def draw_scatter(
    x: np.ndarray, y: np.ndarray, colours: np.ndarray, *, x_title: str, y_title: str, colour_title: str
) -> Figure:
    """Draws points coloured by a value.

    Args:
      x: float64 [N].
      y: float64 [N].
      colours: values [N]; NaN for unknown.
      x_title: title of the x axis.
      y_title: title of the y axis.
      colour_title: title of the colour bar, one word.
    """
    finite = colours[np.isfinite(colours)]
    marker: dict[str, Any] = {"size": 4, "opacity": 0.75, "color": "@0"}
    if len(finite):
        # A few extreme values must not use up the colours.
        low, high = np.quantile(finite, [0.01, 0.99])
        marker |= {"color": colours, "colorscale": COLOUR_SCALE, "cmin": low, "cmax": high if high > low else low + 1}
        marker["colorbar"] = make_colour_bar(colour_title)
    points = {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker}
    points["hovertemplate"] = f"{escape_label(colour_title)} %{{marker.color:.4g}}<extra></extra>"
    return [points], {"xaxis": make_axis(x_title), "yaxis": make_axis(y_title), "showlegend": False}


_DASHES = ("solid", "dash", "dot", "dashdot")


def make_colour_bar(title: str) -> dict[str, Any]:
    """Returns a narrow colour bar with a short title above it, such as the unit."""
    text = {"text": escape_label(title), "side": "top"}
    return {"title": text, "thickness": 10, "outlinewidth": 0, "xpad": 4, "tickcolor": "@muted", "len": 1}


def _find_range(values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
