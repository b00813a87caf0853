"""`rlds2reverb plot`: learning curves of several runs, as a PNG file and a table."""

import json

import numpy as np
import pytest

from rlds2reverb.cli import run
from rlds2reverb.learners.curves import SPREAD
from rlds2reverb.learners.run_directory import RunDirectory
from rlds2reverb.types.evaluations import Evaluation


def call(capsys, *arguments):
    code = run(["plot", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of iql with two seeds, and of bc with one."""
    folder = tmp_path_factory.mktemp("runs")
    for algo, seed, scale in (("iql", 0, 10), ("iql", 1, 20), ("bc", 0, 5)):
        with RunDirectory(folder / f"{algo}_{seed}") as directory:
            directory.write_config({"identity": {"algo": algo, "seed": seed}, "environment": "Pendulum-v1"})
            for step in (1000, 2000):
                returns = np.array([0.0, 2 * scale * step / 1000])
                directory.log_evaluation(step, Evaluation(returns, np.array([7, 7]), (0, 1)))
    return sorted(folder.iterdir())


def test_plot_writes_a_png_and_prints_a_table(runs, tmp_path, capsys, drawn):
    code, out, err = call(capsys, *runs, runs[0], "--out", tmp_path / "a.png")
    heading, *rows = out.splitlines()
    assert (code, err) == (0, "") and heading.split() == ["curve", "runs", "updates", "last", "five", "returns", "best"]
    assert rows[0].split() == ["bc", "1", "2,000", "7.5", "10.0"]
    # Means and standard deviations of the means of the runs, 15 and 30, and of their best, 20 and 40.
    assert rows[1].split() == ["iql", "2", "2,000", "22.5", "±", "7.5", "30.0", "±", "10.0"]
    assert rows[2] == SPREAD
    assert rows[-1] == f"wrote {tmp_path / 'a.png'}" and (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_plot_of_single_runs_explains_no_deviation_and_writes_svg(runs, tmp_path, capsys, drawn):
    code, out, _ = call(capsys, runs[0], "--out", tmp_path / "a.svg")
    assert code == 0 and "±" not in out and (tmp_path / "a.svg").read_text().startswith("<svg")


def test_plot_prints_json(runs, tmp_path, capsys):
    code, out, _ = call(capsys, *runs, "--out", tmp_path / "a.PNG", "--json", "--metric", "return")
    bc, iql = json.loads(out)["curves"]
    assert code == 0 and bc["curve"] == "bc" and bc["runs"] == [str(runs[0])] and bc["data_return"] is None
    assert iql["updates"] == [1000, 2000] and iql["mean"] == [15, 30] and iql["std"] == [5, 10]
    assert iql["best"] == {"mean": 30, "std": 10} and iql["last_five"] == {"mean": 22.5, "std": 7.5}


def test_invalid_arguments_are_rejected(runs, tmp_path, capsys):
    code, _, err = call(capsys, runs[0], "--out", tmp_path / "a.pdf")
    assert code == 1 and "must end with .png or .svg" in err
    code, _, err = call(capsys, runs[0], "--out", tmp_path / "x/a.png")
    assert code == 1 and "does not exist" in err
    code, _, err = call(capsys, runs[0], "--out", tmp_path / "a.png", "--metric", "score")
    assert code == 1 and "has no scores" in err
    code, _, err = call(capsys, tmp_path, "--out", tmp_path / "a.png")
    assert code == 1 and "must be the directory of a training run" in err
    assert list(tmp_path.iterdir()) == []
