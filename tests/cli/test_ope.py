"""`ope` of one and of several policies: output, files and errors."""

import itertools
import json

import pytest

from rlds2reverb import train
from rlds2reverb.cli import run
from rlds2reverb.training.policy_estimates import PolicyEstimate

FAST = ["--updates", "2", "--ensemble", "2"]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Provides the dataset, and the directory of a run that holds out a tenth of it."""
    dataset, folder = str(data / "d4rl/pendulum_mixed-v2.hdf5"), tmp_path_factory.mktemp("runs") / "td3_bc"
    options = {"steps": 2, "env": None, "validation": 0.1, "hyperparameters": {"hidden_sizes": (4,)}}
    train(dataset, "td3_bc", folder, progress=False, **options)
    return dataset, folder


def test_estimates_are_printed_one_by_one_or_as_a_table(data, tmp_path, capsys, monkeypatch):
    def estimate(policies, source, methods, progress, **options):
        assert (options["held_out"], options["gamma"], options["fit"].num_updates) == (None, 0.9, 2)
        return [
            PolicyEstimate(path.name, method, value, (value - 1, value + 1), 0.9, 0.9, source.name, 4, False, 2.0, 3.0)
            for value, (path, method) in enumerate(itertools.product(policies, methods or ["model"]))
        ]

    monkeypatch.setattr("rlds2reverb.training.off_policy_evaluation.evaluate_policies", estimate)
    (tmp_path / "low").mkdir()
    (tmp_path / "high").mkdir()
    options = ["--data", str(data / "d4rl/pendulum_mixed-v2.hdf5"), "--gamma", "0.9", *FAST]
    assert run(["ope", str(tmp_path / "low"), "--method", "fqe", "--method", "dr", *options]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith("low: fitted Q evaluation 0,") and second.startswith("low: doubly robust 1,")
    both = ["ope", str(tmp_path / "low"), str(tmp_path / "high"), *options]
    assert run([*both, "--out", str(tmp_path / "ope.json")]) == 0
    header, *rows, order = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["policy", "method", "estimate"]
    assert [row.split()[0] for row in rows if row.strip("- ")] == ["high", "low"]
    assert order == "no order is certain, because the intervals overlap"
    assert [saved["policy"] for saved in json.loads((tmp_path / "ope.json").read_text())] == ["high", "low"]
    assert run([*both, "--json"]) == 0
    assert [shown["estimate"] for shown in json.loads(capsys.readouterr().out)["estimates"]] == [1, 0]


@pytest.mark.slow
def test_ope_prints_an_estimate_and_writes_it(trained, tmp_path, capsys):
    dataset, folder = trained
    assert run(["ope", str(folder), "--data", dataset, "--out", str(tmp_path / "ope.json"), *FAST]) == 0
    printed = capsys.readouterr().out
    assert "rollouts in models" in printed and "can't tell: the models may not have converged" in printed
    assert "from 8 held-out episodes of pendulum_mixed-v2.hdf5" in printed
    document = json.loads((tmp_path / "ope.json").read_text())
    assert (document["method"], document["verdict"]) == ("model", "can't tell")
    assert document["interval"][0] <= document["estimate"] <= document["interval"][1]


@pytest.mark.slow
def test_several_policies_are_ordered_in_a_table_and_a_figure(trained, tmp_path, capsys):
    dataset, folder = trained
    arguments = ["ope", str(folder), str(folder / "policy"), "--data", dataset, *FAST]
    assert run([*arguments, "--out", str(tmp_path / "rank.png"), "--json"]) == 0
    estimates = json.loads(capsys.readouterr().out)["estimates"]
    assert len(estimates) == 2 and estimates[0]["interval"][0] >= estimates[1]["interval"][0]
    assert (tmp_path / "rank.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_method_that_requires_probabilities_is_reported(trained, capsys):
    dataset, folder = trained
    assert run(["ope", str(folder), "--data", dataset, "--method", "wis"]) == 1
    assert "must be 'model' or 'fqe'" in capsys.readouterr().err


def test_invalid_arguments_are_reported(data, tmp_path, capsys):
    dataset = str(data / "d4rl/pendulum_mixed-v2.hdf5")
    assert run(["ope", str(tmp_path), "--data", dataset, "--out", str(tmp_path / "rank.jpg")]) == 1
    assert "must end with .json or .png" in capsys.readouterr().err
    assert run(["ope", str(tmp_path), "--data", "missing.hdf5", "--out", str(tmp_path / "new/out.png")]) == 1
    assert f"--out: the directory '{tmp_path}/new' does not exist; create it" in capsys.readouterr().err
    methods = ["--method", "fqe", "--method", "wis"]
    assert run(["ope", str(tmp_path), "--data", dataset, *methods, "--out", str(tmp_path / "ope.PNG")]) == 1
    assert "a figure shows the estimates of one --method, got fqe, wis" in capsys.readouterr().err
    assert run(["ope", str(tmp_path), str(data), "--data", dataset, *methods]) == 1
    assert "several policies are compared by one --method, got fqe, wis" in capsys.readouterr().err
    for share in ("100%", "x%"):
        assert run(["train", "--algo", "bc", "--data", dataset, "--run-dir", "x", "--validation", share]) == 1
        assert "--validation must be a share >= 0 and < 1, such as 0.1 or 10%" in capsys.readouterr().err


def test_shares_may_be_percentages():
    from rlds2reverb.cli.checks import share

    assert share.convert("12.5%", None, None) == 0.125 == share.convert("0.125", None, None)
