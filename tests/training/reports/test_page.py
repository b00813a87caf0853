"""The HTML page of reports: escaping, no network, and figures as images."""

import base64
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from rlds2reverb.envs.film import Film
from rlds2reverb.learners.figure_style import escape_label, make_figure
from rlds2reverb.training.reports.page import Page

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J\n"


def make_page():
    page = Page(HOSTILE, HOSTILE)
    page.add_section(HOSTILE, HOSTILE)
    page.add_facts([(HOSTILE, HOSTILE)])
    page.add_table([HOSTILE], [[HOSTILE]])
    page.add_findings([("error", HOSTILE), (HOSTILE, "note")])
    figure = make_figure(4, 2)
    figure.add_subplot().set_title(escape_label(HOSTILE))
    page.add_figure(HOSTILE, figure, caption=HOSTILE)
    page.add_film(HOSTILE, Film(Path(__file__), np.zeros(1), np.ones(1), 1, 1.0, (1, 1)), caption=HOSTILE)
    return page.build()


def test_page_escapes_all_texts():
    page = make_page().html
    assert re.findall("<img [a-z]+", page) == ["<img class"] and "<script" not in page
    assert "\x1b" not in page and r"\x1b[2J\n" in page
    assert escape_label("$x$\n") == r"\$x\$\n"


def test_page_follows_the_colour_scheme_of_its_reader(drawn):
    html = make_page().html
    assert "color-scheme: light dark;" in html and "@media (prefers-color-scheme: dark)" in html


def test_page_loads_nothing():
    page = make_page().html
    assert re.findall(r"https?://|//[a-z]+\.", page) == []
    assert "default-src 'none'" in page and "script-src" not in page


def test_figures_are_images_that_follow_the_colour_scheme(drawn):
    (content,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', make_page().html)
    image = ElementTree.fromstring(base64.b64decode(content))
    assert image.tag.endswith("}svg") and image.get("viewBox") == "0 0 288 144"
    style, *_ = (part for part in image if part.tag.endswith("}style"))
    assert "prefers-color-scheme:dark" in style.text and "fill:currentColor" in style.text
    shown = ElementTree.tostring(image, "unicode")
    assert "stroke: currentColor" in shown and "#000000" not in shown and "#ffffff" not in shown


def test_report_is_written_and_shown_in_notebooks(tmp_path):
    report = make_page()
    assert report.write(tmp_path / "a.html").read_text(encoding="utf-8") == report.html
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]
    assert report._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')
