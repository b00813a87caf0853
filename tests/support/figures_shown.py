"""The figures and findings of report pages."""

import html
import re
import zlib

import numpy as np
import pytest

from rlds2reverb.training.reports.page import Page


@pytest.fixture
def figures(monkeypatch):
    """Provides the figures that pages have shown, by heading; of several with the same heading the first one."""
    figures, add_figure = {}, Page.add_figure

    def add_and_keep(page, heading, figure, **options):
        figures.setdefault(heading, figure)
        add_figure(page, heading, figure, **options)

    monkeypatch.setattr(Page, "add_figure", add_and_keep)
    return figures


def read_findings(page: str) -> list[tuple[str, str]]:
    """Returns the findings as (kind, sentence)."""
    found = re.findall(r'<li class="[a-z]*"><b>([^<]*)</b>([^<]*)</li>', page)
    return [(kind, html.unescape(sentence)) for kind, sentence in found]


def read_bars(axes):
    """Returns the centres and the heights of bars."""
    return [bar.get_center()[0] for bar in axes.patches], [bar.get_height() for bar in axes.patches]


def read_lines(axes):
    """Returns the x and the y values of each line."""
    return [(line.get_xdata(), line.get_ydata()) for line in axes.get_lines()]


def read_legend(axes):
    """Returns the texts of the legend."""
    return [text.get_text() for text in axes.get_legend().get_texts()]


def describe_figure(figure):
    """Yields a line on each of the axes of a figure: its texts, and a checksum of limits and of artists' data and styles."""
    yield _describe(figure.get_size_inches())
    for axes in figure.axes:
        titles = [axes.get_title(loc=place) for place in ("left", "center", "right")]
        legend = read_legend(axes) if axes.get_legend() else []
        ticks = [label.get_text() for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels()]
        artists = [*axes.lines, *axes.patches, *axes.collections, *axes.images]
        values = [
            _describe([*axes.get_xlim(), *axes.get_ylim()]),
            axes.get_yscale(),
            *ticks,
            *map(_describe_artist, artists),
        ]
        names = [text for text in (axes.get_xlabel(), axes.get_ylabel(), *titles, *legend) if text]
        yield f"{len(artists)} artists, {zlib.crc32(repr(values).encode()):08x}: {', '.join(names)}"


def _describe_artist(artist):
    names = ("xydata", "path", "xy", "width", "height", "data", "offsets", "array", "sizes", "paths", "alpha", "color")
    names += ("facecolor", "linestyle", "linewidth", "marker", "markersize", "drawstyle", "zorder")
    return [f"{name}={_describe(getattr(artist, f'get_{name}')())}" for name in names if hasattr(artist, f"get_{name}")]


def _describe(value):
    """Returns a text, or a number that depends on each number of a nest of arrays and its place."""
    if value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, (list, tuple)) and any(part is None or isinstance(part, str) for part in value):
        return ",".join(map(_describe, value))
    numbers = np.nan_to_num(_flatten(value), posinf=0, neginf=0)
    return f"{round(float(numbers @ np.linspace(1, 2, len(numbers))), 6) + 0.0:.5g}"


def _flatten(value):
    value = getattr(value, "vertices", value)
    if isinstance(value, (list, tuple)):
        return np.concatenate([np.zeros(0), *map(_flatten, value)])
    return np.ma.filled(np.ma.asarray(value, float), 0).ravel()
