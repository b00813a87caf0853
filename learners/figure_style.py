"""The style that all figures share: colours, lines, axes and legends; and figures as PNG or SVG images."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.system.sealed_files import replace_bytes
from rlds2reverb.system.text import escape_controls
from rlds2reverb.types.locations import expand_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which colour-blind readers can distinguish, without black and yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
#: A grey that is readable on white and on black.
GREY = "#808080"
#: Sizes in inches of figures that take half of a page's width, and all of it.
HALF_WIDTH, FULL_WIDTH = (5.6, 3.1), (11.2, 4.4)
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
#: Maximum number of points of a line that are marked, and of points that an SVG file contains one by one.
_MAX_MARKS, _MAX_POINTS = 30, 200
#: What is black in a figure has the colour of the text of an SVG file, which depends on the reader's colour scheme.
_BLACK = "#000000"
_SVG_STYLE = "<style>svg{color:#1c2026;fill:currentColor}@media(prefers-color-scheme:dark){svg{color:#e3e6ea}}</style>"


def make_figure(width: float, height: float) -> Figure:
    """Returns an empty figure that notebooks display without pyplot; its size is in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class DisplayedFigure(Figure):
        def _repr_png_(self) -> bytes:
            return render_png(self)

    figure = DisplayedFigure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def make_axes(size: tuple[float, float] = HALF_WIDTH) -> tuple[Figure, Axes]:
    """Returns an empty figure and its axes."""
    figure = make_figure(*size)
    return figure, figure.add_subplot()


def render_png(figure: Figure) -> bytes:
    """Returns a figure as the content of a PNG file with a white background."""
    return _render(figure, "png")


def render_svg(figure: Figure) -> bytes:
    """Returns a figure as the content of an SVG file, readable on light and on dark pages.

    Lines and clouds of many points are images in it, so that the file is small.
    """
    for axes in figure.axes:
        for line in axes.lines:
            line.set_rasterized(len(np.atleast_1d(line.get_xdata())) > _MAX_POINTS)
        for cloud in axes.collections:
            sizes = [np.asarray(points).size for points in (cloud.get_array(), cloud.get_offsets())]
            cloud.set_rasterized(max(sizes) > _MAX_POINTS)
    content = _render(figure, "svg", transparent=True, metadata={"Date": None}).decode()
    content = content[content.index("<svg") :].replace(_BLACK, "currentColor")
    return re.sub("(<svg[^>]*>)", rf"\1{_SVG_STYLE}", content, count=1).encode()


def _render(figure: Figure, format: str, **options: Any) -> bytes:
    from matplotlib import rc_context

    stream = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "rlds2reverb"}):
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # Names may be in any script.
        figure.savefig(stream, format=format, **options)
    return stream.getvalue()


def save_figure(figure: Figure, path: str | Path) -> None:
    """Writes a figure atomically, as an SVG file if the path ends so, and otherwise as a PNG file."""
    path = expand_path(path, "path")
    replace_bytes(path, render_svg(figure) if path.suffix.lower() == ".svg" else render_png(figure))


def escape_label(label: str) -> str:
    """Returns a label with control characters made visible, and with no formulas, which `$` starts."""
    return escape_controls(label).replace("$", r"\$")


def get_line_style(number: int, values: np.ndarray) -> dict[str, Any]:
    """Returns the style of a line, whose points are marked unless there are many."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": _DASHES[number // len(COLOURS) % len(_DASHES)],
        "marker": "o" if np.isfinite(values).sum() <= _MAX_MARKS else None,
        "markersize": 4,
    }


def style_axes(axes: Axes, x_label: str, y_label: str, *, has_steps: bool = False) -> None:
    """Labels axes and removes superfluous lines; an x axis of updates begins at 0 and shows 20k for 20,000."""
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.7)
    axes.set_axisbelow(True)
    if has_steps:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.margins(x=0.02)
        axes.set_xlim(left=-0.02 * axes.dataLim.x1)


def add_legend(axes: Axes) -> None:
    """Adds a legend, if there are labels: inside the plot for up to four labels, below it for more."""
    _, labels = axes.get_legend_handles_labels()
    if len(labels) > 4:
        columns = 2 if max(map(len, labels)) > 20 else 3
        axes.legend(frameon=False, fontsize="x-small", ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    elif labels:
        axes.legend(frameon=False, fontsize="small")
