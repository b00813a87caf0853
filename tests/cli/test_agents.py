"""`rlds2reverb agents`."""

import json
import subprocess
import sys

import pytest

from rlds2reverb.cli.main import USER_ERROR, run
from rlds2reverb.learners.algorithms import ALGORITHMS


def test_all_algorithms_are_listed_on_one_line_each(capsys):
    assert run(["agents"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["name", "(preset", "of)", "actions", "suitable", "data"]
    assert [line.split()[0] for line in lines] == list(ALGORITHMS)
    assert all(
        algorithm.data and line.endswith(algorithm.data)
        for line, algorithm in zip(lines, ALGORITHMS.values(), strict=True)
    )
    assert max(map(len, lines)) <= 80


def test_list_needs_no_tensorflow():
    code = "import sys; from rlds2reverb.cli.main import run; run(['agents']); sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_hyperparameters_are_printed_with_default_range_and_text(capsys):
    assert run(["agents", "iql"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("iql: implicit Q-learning\n  source ")
    assert "Kostrikov, Nair & Levine 2021, arXiv:2110.06169" in out
    assert "\n  expectile = 0.7  (a number in (0, 1))\n      expectile of the values" in out
    assert "\n  hidden_sizes = (256, 256)  (a sequence of integers >= 1, such as (256, 256))\n" in out
    assert "\n  discount = 0.99  (a number in [0, 1]; set by --gamma)\n" in out


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_described_as_json(name, capsys):
    assert run(["agents", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["name"] == name and document["batch_size"] == ALGORITHMS[name].batch_size
    described = {hyperparameter["name"]: hyperparameter for hyperparameter in document["hyperparameters"]}
    assert described["seed"]["default"] == 0 and described["seed"]["range"] == "in [0, 4294967295]"
    if name == "td3":
        assert described["alpha"] == {
            "name": "alpha",
            "default": None,
            "type": "number",
            "range": ">= 0",
            "is_optional": True,
            "text": "weight of the critic relative to behavioural cloning; None for TD3.",
        }


def test_list_is_printed_as_json(capsys):
    assert run(["agents", "--json"]) == 0
    algorithms = json.loads(capsys.readouterr().out)["algorithms"]
    assert [algorithm["name"] for algorithm in algorithms] == list(ALGORITHMS)
    presets = {algorithm["name"]: algorithm["preset_of"] for algorithm in algorithms if algorithm["preset_of"]}
    assert presets == {"discrete_cql": "dqn", "double_dqn": "dqn", "edac": "sac", "sac_n": "sac", "td3": "td3_bc"}
    assert algorithms[0]["agent"] == "AWACAgent" and algorithms[0]["source"].endswith("arXiv:2006.09359")


def test_unknown_algorithm_fails_with_the_nearest_name(capsys):
    assert run(["agents", "iqll"]) == USER_ERROR
    assert "got 'iqll'; did you mean 'iql'?" in capsys.readouterr().err
