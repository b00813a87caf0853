"""`rlds2reverb inspect --report` for datasets and runs, and `--film`."""

import json

import pytest
from written_runs import write_run

from rlds2reverb.cli import run


def call(capsys, *arguments):
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
def test_inspect_writes_a_report_on_a_dataset(data, tmp_path, capsys, figures):
    path = tmp_path / "a.html"
    arguments = (data / "d4rl/pendulum_mixed-v2.hdf5", "--report", path, "--reference-returns", "-1200,-150")
    code, out, err = call(capsys, "inspect", *arguments)
    assert (code, err) == (0, "") and out.startswith(f"wrote {path} (") and out.endswith("B)\n")
    assert len(figures["Returns"].axes[0].get_lines()) == 2 and path.read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_inspect_describes_runs_and_writes_reports_on_them(tmp_path, capsys, figures):
    paths = [write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1)]
    code, out, _ = call(capsys, "inspect", *paths)
    assert code == 0 and out.splitlines()[0] == f"run in {paths[0]}: 3,000 updates, last return 15.0, best 20.0"
    code, out, _ = call(capsys, "inspect", *paths, "--json")
    assert [description["updates"] for description in json.loads(out)["runs"]] == [3000, 3000]
    code, _, err = call(capsys, "inspect", *paths, "--report", tmp_path / "a.html")
    assert (code, err) == (0, "") and (tmp_path / "a.html").is_file()
    legend = figures["Evaluations in Pendulum-v1"].axes[0].get_legend()
    assert legend.get_texts()[0].get_text() == "iql (2 runs)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data.hdf5", "--report", "a.pdf"], "the file must end with .html or .htm, got 'a.pdf'"),
        (["data.hdf5", "--report", "no/a.html"], "the directory 'no' does not exist"),
        (["data.hdf5", "--report", "a.html", "--film"], "--film requires training runs and --report"),
        (["run", "--film"], "--film requires training runs and --report"),
        (["run", "."], "several SRC must all be directories of training runs, got '.'"),
        (["run", "missing"], "there is no file or directory 'missing'; check the path"),
        (["run", "--reference-returns", "0,1"], "--reference-returns requires a dataset"),
        (["localhost:1", "--report", "a.html"], "--report requires a dataset or training runs"),
        (["missing.hdf5", "--report", "a.html"], "there is no file 'missing.hdf5'"),
    ],
)
def test_inspect_rejects_invalid_arguments(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    code, _, err = call(capsys, "inspect", *arguments)
    assert code == 1 and message in err and not (tmp_path / "a.html").exists()


def test_record_requires_a_dataset_or_a_film(tmp_path, capsys):
    code, _, err = call(capsys, "record", "Pendulum-v1")
    assert code == 1 and "pass --out for a dataset, --film for a film, or both" in err
    code, _, err = call(capsys, "record", "Pendulum-v1", "--film", tmp_path / "a.avi")
    assert code == 1 and "must end with .mp4 or .gif" in err
    code, _, err = call(capsys, "record", "Pendulum-v1", "--film", tmp_path / "a.gif", "--epsilon", 0.5)
    assert code == 1 and "--epsilon requires --out" in err


@pytest.mark.slow
def test_record_films_and_writes_a_dataset(tmp_path, capsys):
    film, out_file = tmp_path / "a.gif", tmp_path / "a.hdf5"
    options = ("--film", film, "--max-episode-steps", 5, "--json")
    code, out, _ = call(capsys, "record", "Pendulum-v1", "--episodes", 2, *options)
    assert code == 0 and json.loads(out)["film"]["lengths"] == [5, 5]
    code, out, _ = call(capsys, "record", "Pendulum-v1", "--out", out_file, "--episodes", 2, *options)
    assert code == 0 and json.loads(out)["film"]["lengths"] == [5] and out_file.is_file()


@pytest.mark.slow
def test_eval_films_the_best_policy(data, tmp_path, capsys):
    from rlds2reverb import train

    options = {"steps": 20, "eval_every": 10, "eval_episodes": 1, "hyperparameters": {"hidden_sizes": (8,)}}
    train(data / "d4rl/pendulum_mixed-v2.hdf5", "bc", tmp_path / "run", progress=False, **options)
    options = ("--episodes", 1, "--max-episode-steps", 5, "--film", tmp_path / "a.mp4")
    code, out, _ = call(capsys, "eval", tmp_path / "run", *options)
    assert code == 0 and f"film: {tmp_path / 'a.mp4'}: 0.2 s, 500x500 pixels, return " in out
    code, out, _ = call(capsys, "eval", tmp_path / "run", *options, "--json")
    assert json.loads(out)["film"]["lengths"] == [5] and (tmp_path / "a.mp4").is_file()
