"""The figures and findings of report pages."""

import html
import re

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
