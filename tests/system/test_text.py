"""Tests of the formatting of reports as tables that fit in 80 columns."""

from reference_impls import episode

from rlds2reverb import ingest, load, summarize
from rlds2reverb.system.text import format_bytes, format_columns, format_facts, format_number


def test_facts_are_aligned_and_wrapped():
    text = format_facts("title", [("a", "1"), ("name", "word " * 40), ("empty", "")])
    lines = text.splitlines()
    assert lines[:2] == ["title", "  a      1"] and lines[-1] == "  empty  "
    assert len(lines) == 6 and max(map(len, lines)) <= 80 and lines[3].startswith("         word")


def test_bytes_numbers_and_columns_are_formatted():
    assert [format_bytes(x) for x in (2.1e9, 4_560_000)] == ["2.1 GB", "4.6 MB"]
    assert [format_number(x) for x in (12345.6, 2.0, 0.12345, float("nan"))] == ["12,346", "2", "0.1235", "-"]
    assert format_columns(("a", "bc"), [("long", "d")]) == "a     bc\nlong  d"


def test_reports_fit_in_80_columns(tmp_path):
    source = load([episode(4, terminal=True), episode(3, terminal=False)])
    for report in (ingest(source, tmp_path / "out"), summarize(source)):
        lines = str(report).splitlines()
        assert len(lines) < 22 and max(map(len, lines)) <= 80
    assert "items          5 in each table" in str(ingest(source, tmp_path / "out"))
    assert "return     " in str(summarize(source)) and "(quartiles " in str(summarize(source))
