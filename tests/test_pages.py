"""The tables, values and figures of the README and the docs are those of docs/speed.csv and docs/results/."""

import importlib
import re
from argparse import ArgumentParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Pages on which every table of numbers is made from the data; the other pages contain further ones.
MEASURED = [ROOT / name for name in ("README.md", "docs/index.md", "docs/results.md", "docs/speed.md")]

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks/pages.py").is_file(),
    reason="benchmarks are not available when an installed wheel is tested",
)


class Answer:
    """The result of a command."""

    def __init__(self, stdout):
        self.stdout = stdout


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("pages")


@pytest.fixture
def records(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("records")


def find_rows(text):
    """Yields the cells of each row of each table of a page, by heading."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        headings, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        yield from (dict(zip(headings, row, strict=True)) for row in rows)


def test_pages_show_the_recorded_data(pages):
    outdated = [path.name for path in pages.find_pages() if pages.update_page(path.read_text()) != path.read_text()]
    assert not outdated, "run 'python benchmarks/pages.py'"


def test_figures_show_the_recorded_data(pages):
    for name, shown in pages.FIGURES.items():
        assert pages.read_hash(ROOT / "docs" / name) == pages.hash_data(*shown), "run 'python benchmarks/pages.py'"


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.name)
def test_measured_numbers_are_between_marks(path):
    text = re.sub(r"<!-- (?:table|value): .*?<!-- end -->", "", path.read_text(), flags=re.S)
    assert not re.findall(r".*\d ± \d.*", text)
    if path.name in ("README.md", "index.md"):
        assert not re.findall(r".*\d(?:x| times)\b.*", text)
    else:
        assert not list(find_rows(text))


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.name)
def test_means_name_their_seeds(path):
    for row in find_rows(path.read_text()):
        if "±" in "".join(row.values()):
            assert len(row["seeds"].split(", ")) > 1, row


def test_every_seed_has_all_evaluations_of_its_agent(pages):
    for path in sorted(set(pages.RESULTS.glob("*.csv")) - {pages.RESULTS / "datasets.csv"}):
        for agent, runs in pages.read_returns(path.stem).items():
            assert len({len(returns) for returns in runs.values()}) == 1, f"{path.name}: {agent}"
        assert pages.describe(path.stem)["episodes"]


def test_highest_mean_is_bold_only_if_its_interval_overlaps_no_other(pages, monkeypatch, tmp_path):
    rows = [f"d,{agent},{seed},1,{value}" for agent, values in RETURNS.items() for seed, value in enumerate(values)]
    (tmp_path / "d.csv").write_text("dataset,agent,seed,updates,mean_return\n" + "\n".join(rows) + "\n")
    (tmp_path / "datasets.csv").write_text("dataset,episodes,mean_return,best_return\nd,3,10,20\n")
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "SUMMARY", (("d",), ("bc", "iql")))
    assert pages.make_summary().splitlines()[-1] == "| d | 1 | 0, 1 | 10 | 10 ± 1 | **13 ± 1** |"
    monkeypatch.setattr(pages, "SUMMARY", (("d",), ("bc", "rebrac")))
    assert pages.make_summary().splitlines()[-1] == "| d | 1 | 0, 1 | 10 | 10 ± 1 | 13 ± 3 |"


#: Returns of two seeds of each agent; the third seed of IQL is not compared, since cloning has none.
RETURNS = {"bc": (9, 11), "iql": (12, 14, 99), "rebrac": (10, 16)}


@pytest.fixture
def speed_csv(records, monkeypatch, tmp_path):
    """Provides a file with two rows, to which `record` writes on a machine that does nothing else."""
    path = tmp_path / "speed.csv"
    row = {"section": "s", "task": "t", "column": "", "name": "n", "rate": "1", "date": "2026-01-02"}
    other = {"section": "s", "task": "u", "column": "", "name": "", "rate": "2"}
    records.replace_rows(path, records.SPEED_COLUMNS, 3, [row, other])
    monkeypatch.setattr("sys.argv", ["benchmarks/bench.py", "--runs", "3", "--record", str(path)])
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    return path


@pytest.fixture
def parser():
    parser = ArgumentParser()
    parser.add_argument("--runs", type=int)
    return parser


def test_record_replaces_a_row_and_keeps_its_name(records, speed_csv, parser):
    assert records.parse_arguments(parser).runs == 3
    records.record("s", "t", 1234.5, "steps/s", [2.0, 4.0, 3.0], baseline="b")
    first, second = records.read(speed_csv)
    assert {name: first[name] for name in ("name", "rate", "ratio", "low", "high", "rounds", "baseline")} == {
        **{"name": "n", "rate": "1234", "ratio": "3", "low": "2", "high": "4", "rounds": "3", "baseline": "b"}
    }
    assert first["command"] == "python benchmarks/bench.py --runs 3" and first["date"] > "2026-01-02"
    assert second["rate"] == "2"


def test_record_keeps_the_rows_of_a_quiet_machine_when_it_is_busy(records, speed_csv, parser, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 0.0, 0.0))
    records.parse_arguments(parser)
    records.record("s", "t", 5, "steps/s")
    assert [(row["section"], row["rate"]) for row in records.read(speed_csv)] == [("s", "1"), ("s", "2"), ("busy", "5")]
    assert "load average 1000" in records.read(speed_csv)[-1]["machine"]


def test_replace_rows_replaces_all_rows_of_a_run(records, tmp_path):
    path, row = tmp_path / "d.csv", {"dataset": "d", "agent": "a", "seed": "0"}
    records.replace_rows(path, records.RESULT_COLUMNS, 3, [{**row, "updates": "1"}, {**row, "updates": "2"}])
    records.replace_rows(path, records.RESULT_COLUMNS, 3, [{**row, "updates": "3"}])
    assert [found["updates"] for found in records.read(path)] == ["3"]


def test_results_name_their_commit_and_command(records, pages, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["benchmarks/learning.py", "DATA", "--record", "x", "--seeds", "3"])
    monkeypatch.setattr(records.subprocess, "run", lambda command, **_: Answer("01234567\n" * ("rev-parse" in command)))
    records.record_results(tmp_path / "d.csv", [{"dataset": "d", "agent": "a", "seed": "0", "updates": "1"}])
    (row,) = records.read(tmp_path / "d.csv")
    assert (row["commit"], row["command"]) == ("01234567", "python benchmarks/learning.py DATA --seeds 3")
    for path in sorted(set(pages.RESULTS.glob("*.csv")) - {pages.RESULTS / "datasets.csv"}):
        assert all(re.fullmatch(r"[0-9a-f]{8}\+?", row["commit"]) for row in pages.read(path)), path.name


def test_code_of_an_agent_includes_what_it_imports(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    files = {path.name for path in importlib.import_module("stale_results").find_modules("xql")}
    assert {"xql.py", "iql.py", "networks.py"} < files and "fql.py" not in files


def test_estimates_are_compared_with_returns(pages, monkeypatch, tmp_path):
    rows = ["d,0,fqe,a,1,0,2,can't tell,1.5", "d,0,fqe,b,2,1,3,yes,2.5", "d,0,fqe,c,3,2,4,yes,9"]
    rows += ["e,0,model,a,2,1,3,yes,0", "e,0,model,b,1,0,2,yes,9"]
    columns = "dataset,seed,method,policy,estimate,low,high,verdict,discounted_return"
    (tmp_path / "ranking.csv").write_text("\n".join([columns, *rows]) + "\n")
    (tmp_path / "tried.csv").write_text("rule,dataset,correlation,covered\nx,d,0.5,9 of 10\ny,e,0.25,\n")
    monkeypatch.setattr(pages, "ESTIMATES", tmp_path)
    table = pages.make_estimates_table("ranking").splitlines()[2:4]
    assert table == [
        "| d | `fqe` | 0 | 3 | 1.00 | 2 of 3 | 1 | 1 of 2 |",
        "| e | `model` | 0 | 2 | -1.00 | 0 of 2 | 0 | 0 of 2 |",
    ]
    table = pages.make_estimates_table("tried").splitlines()[:4]
    assert table[::2] + table[3:] == ["| order | d | e |", "| x | 0.5 (9 of 10) |  |", "| y |  | 0.25 |"]
