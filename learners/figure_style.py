"""The style that all figures share: colours, lines, axes and legends; and figures as PNG images."""

from __future__ import annotations

import io
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
GREY = "#666666"
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))


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


def render_png(figure: Figure) -> bytes:
    """Returns a figure as the content of a PNG file."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # Names may be in any script.
        figure.savefig(stream, format="png")
    return stream.getvalue()


def save_png(figure: Figure, path: str | Path) -> None:
    """Writes a figure atomically as a PNG file."""
    replace_bytes(expand_path(path, "path"), render_png(figure))


def escape_label(label: str) -> str:
    """Returns a label with control characters made visible, and with no formulas, which `$` starts."""
    return escape_controls(label).replace("$", r"\$")


def get_line_style(number: int, values: np.ndarray) -> dict[str, Any]:
    """Returns the style of a line, with a mark if it has a single point, which would otherwise be invisible."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": _DASHES[number // len(COLOURS) % len(_DASHES)],
        "marker": "o" if np.isfinite(values).sum() == 1 else None,
    }


def style_axes(axes: Axes, x_label: str, y_label: str, *, has_steps: bool = False) -> None:
    """Labels axes and removes superfluous lines; an x axis of training steps shows 20k for 20,000."""
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    if has_steps:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.margins(x=0.02)


def add_legend(axes: Axes) -> None:
    """Adds a legend, if there are labels: inside the plot for up to four labels, below it for more."""
    _, labels = axes.get_legend_handles_labels()
    if len(labels) > 4:
        columns = 2 if max(map(len, labels)) > 20 else 3
        axes.legend(frameon=False, fontsize="x-small", ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    elif labels:
        axes.legend(frameon=False, fontsize="small")
