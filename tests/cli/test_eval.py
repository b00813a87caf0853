"""`rlds2reverb eval`: output for the policies of a run."""

import json
import subprocess
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from policies import PENDULUM, LinearPolicy, save_policy

from rlds2reverb.cli import run
from rlds2reverb.learners.run_directory import RunDirectory
from rlds2reverb.system.sealed_files import save_json
from rlds2reverb.training.environment_spec import describe_env


def call(capsys, *arguments):
    code = run(["eval", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Provides a run with a last and a best policy for Pendulum-v1; only the last exceeds the action bounds."""
    folder = tmp_path_factory.mktemp("runs") / "iql"
    with RunDirectory(folder) as directory:
        directory.write_config(
            {
                "data": {"data_return": -514.7},
                "environment": "Pendulum-v1",
                "environment_spec": describe_env("Pendulum-v1"),
                "reference_returns": (-1226.85, -151.27),
            }
        )
    save_policy(PENDULUM, folder / "policy", step=20_000)
    save_policy(LinearPolicy(np.zeros((3, 1))), folder / "best_policy", step=15_000)
    return folder


def test_policies_are_reported_with_updates_return_and_score(trained, capsys):
    code, out, err = call(capsys, trained, "--episodes", 2, "--max-episode-steps", 20)
    title, headings, last, best, data = out.splitlines()
    assert headings.split() == ["policy", "updates", "return", "score", "length"]
    for row in (last, best):
        _, _, mean, sign, _, score, length = row.split()
        assert float(score) == pytest.approx(100 * (float(mean) + 1226.85) / (1226.85 - 151.27), abs=0.1)
        assert (sign, length) == ("±", "20.0")
    assert code == 0 and title == f"{trained}: Pendulum-v1, 2 episodes, seeds 1000 to 1001"
    assert last.split()[:2] == ["last", "20,000"] and best.split()[:2] == ["best", "15,000"]
    assert data.split() == ["(data)", "-", "-514.7", "66.2", "-"]
    assert "of 40 actions of the policy 'last' were clipped to the" in err and "'best'" not in err
    assert max(map(len, out.splitlines()[1:])) <= 80


def test_one_policy_is_printed_as_json(trained, capsys):
    arguments = (trained, "--policy", "best", "--json", "--episodes", 1, "--seed", 3, "--max-episode-steps", 10)
    code, out, err = call(capsys, *arguments)
    document = json.loads(out)
    (best,) = document["policies"]
    assert (code, err) == (0, "") and document["environment"] == "Pendulum-v1"
    assert document["data_return"] == -514.7 and best["policy"] == "best" and best["updates"] == 15_000
    assert best["lengths"] == [10] and best["seeds"] == [3] and best["num_clipped"] == 0
    assert best["reference_returns"] == [-1226.85, -151.27] and best["returns"] == [best["mean"]]
    assert out == call(capsys, *arguments)[1]


def test_a_saved_policy_without_a_run_requires_env(trained, capsys):
    code, _, err = call(capsys, trained / "policy")
    assert code == 1 and "names no environment; pass --env" in err
    code, out, _ = call(capsys, trained / "policy", "--env", "Pendulum-v1", "--episodes", 1, "--max-episode-steps", 5)
    assert out.splitlines()[1].split()[:3] == ["policy", "updates", "return"]
    assert code == 0 and "1 episode, seed 1000\n" in out and out.splitlines()[2].split()[:2] == ["policy", "20,000"]


def reference_returns(capsys, *arguments):
    code, out, err = call(capsys, *arguments, "--policy", "last", "--json", "--episodes", 1, "--max-episode-steps", 5)
    assert code == 0, err
    return json.loads(out)["policies"][0]["reference_returns"]


def test_reference_returns_come_from_the_command_a_file_or_d4rl(trained, capsys, tmp_path, monkeypatch):
    references = tmp_path / "references.json"
    references.write_text('{"measured": {"Pendulum-v1": {"ref_min": -1000, "ref_max": -100}}}')
    assert reference_returns(capsys, trained, "--reference-returns", "-5,5") == [-5, 5]
    monkeypatch.setitem(gymnasium.registry, "Other-v0", replace(gymnasium.spec("Pendulum-v1"), id="Other-v0"))
    assert reference_returns(capsys, trained, "--env", "Other-v0") is None
    assert reference_returns(capsys, trained, "--reference-returns", references) == [-1000, -100]
    code, _, err = call(capsys, trained, "--reference-returns", "d4")
    assert code == 1 and "must be d4rl, a JSON file, or two numbers such as -1200,-150, got 'd4'" in err
    code, _, err = call(capsys, trained, "--reference-returns", "d4rl")
    advice = "pass two numbers or a JSON file (--reference-returns)"
    assert code == 1 and f"D4RL has no reference returns for Pendulum-v1; {advice}" in err
    code, _, err = call(capsys, trained, "--reference-returns", "1,1")
    assert code == 1 and "reference returns must be finite and differ" in err


def test_eval_rejects_an_environment_with_different_observations(trained, capsys):
    pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install '.[eval]'")
    code, _, err = call(capsys, trained, "--env", "Hopper-v5", "--reference-returns", "d4rl")
    assert code == 1 and "the policy expects observation as float32 [3], but Hopper-v5 returns float32 [11]" in err


def test_invalid_runs_are_rejected(trained, tmp_path, capsys):
    code, _, err = call(capsys, tmp_path)
    assert code == 1 and "must be the directory of a training run" in err
    save_json(tmp_path / "config.json", {"environment": None})
    code, _, err = call(capsys, tmp_path)
    assert code == 1 and f"there is no {tmp_path}/policy/ or {tmp_path}/best_policy/ yet" in err
    code, _, err = call(capsys, tmp_path, "--policy", "best")
    assert code == 1 and f"there is no {tmp_path}/best_policy/ yet" in err
    code, _, err = call(capsys, trained, "--env", "Pendulumm-v1")
    assert code == 1 and "Gymnasium has no environment 'Pendulumm-v1'" in err
    (tmp_path / "config.json").write_text("{")
    assert call(capsys, tmp_path)[0] == 2


@pytest.mark.slow
def test_wrong_usage_fails_before_tensorflow_is_loaded(trained, tmp_path):
    save_json(tmp_path / "config.json", {"environment": None})
    program = (
        "import sys; from rlds2reverb.cli import run\n"
        "codes = [run(arguments.split('|')) for arguments in sys.argv[1:]]\n"
        "print(codes, 'tensorflow' in sys.modules)"
    )
    calls = [f"eval|{trained}|--episodes|0", f"eval|{tmp_path}", f"plot|{trained}", f"plot|{trained}|--out|a.jpg"]
    out = subprocess.run([sys.executable, "-c", program, *calls], capture_output=True, text=True, check=True)
    assert out.stdout == "[1, 1, 1, 1] False\n"
