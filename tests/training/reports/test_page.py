"""The HTML page of reports: escaping, no network, and the numbers in its figures."""

import re

import numpy as np
import pytest
from report_pages import read_figures, read_payload
from rlds2reverb.training.reports import page as page_module
from rlds2reverb.training.reports.page import Page, escape_label

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J\n"


def make_page():
    page = Page(HOSTILE, HOSTILE)
    page.add_section(HOSTILE, HOSTILE)
    page.add_facts([(HOSTILE, HOSTILE)])
    page.add_table([HOSTILE], [[HOSTILE]])
    page.add_findings([("problem", HOSTILE), (HOSTILE, "note")])
    data = [{"type": "scatter", "x": np.arange(3), "y": np.array([1.234567, np.nan, np.inf]), "name": HOSTILE}]
    page.add_figure(HOSTILE, data, {"height": 200}, caption=HOSTILE)
    return page.build()


def test_page_escapes_all_texts():
    report = make_page()
    assert "<img" not in report.html.partition("<main>")[2].partition("</main>")[0].replace('<img class="frame"', "")
    assert "\x1b" not in report.html and r"\x1b[2J\n" in report.html
    assert report.html.count("<script") == report.html.count("</script>") == 3
    assert escape_label("<b>&") == "&lt;b&gt;&amp;"


def test_page_loads_nothing():
    page = make_page().html
    assert re.findall(r"https?://|//[a-z]+\.", page) == []
    assert "default-src 'none'" in page and "connect-src" not in page
    assert read_payload(page, "plotly").startswith(b"/**\n* plotly.js v")


def test_numbers_in_figures_are_rounded_and_finite():
    (figure,) = read_figures(make_page().html).values()
    assert figure["data"][0]["x"] == [0, 1, 2] and figure["data"][0]["y"] == [1.2346, None, None]
    assert figure["layout"]["height"] == 200


def test_report_is_written_and_shown_in_notebooks(tmp_path):
    report = make_page()
    assert report.write(tmp_path / "a.html").read_text(encoding="utf-8") == report.html
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]
    assert report._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')


def test_missing_plotly_raises_import_error_with_advice(monkeypatch):
    def raise_error(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    page_module._compress_plotly.cache_clear()
    monkeypatch.setattr(page_module.resources, "files", raise_error)
    with pytest.raises(ImportError, match=r"reports require plotly .*pip install '.\[report\]'"):
        page_module.require_plotly()
