"""`rlds2reverb train --seeds`: its results and errors, and other commands on the directory of several runs."""

import functools
import json
import pickle
from types import SimpleNamespace

import pytest

from rlds2reverb.cli import run
from rlds2reverb.cli.main import name_command_options
from rlds2reverb.errors import ArgumentError, Message
from rlds2reverb.training import TrainingConfig, experiments, training
from rlds2reverb.training.placement import run_here
from rlds2reverb.training.plans import plan_seeds
from rlds2reverb.training.progress import Progress

OWN = """
from rlds2reverb.learners.hooks import LearnerHook

class Stop(LearnerHook):
    def __init__(self):
        super().__init__("stop", position="after_iter", every=10)

    def __call__(self, learner):
        learner.stop("enough")

def make_nothing(time_step_spec, action_spec):
    return None
"""


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Returns a function that runs a command in an empty directory, and returns its code and what it prints."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = run([*map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def command(data):
    return [
        *("train", "--algo", "bc", "--data", data / "d4rl" / "pendulum_mixed-v2.hdf5"),
        *("--env", "Pendulum-v1", "--steps", 20, "--batch-size", 8, "--log-every", 10, "--eval-every", 10),
        *("--eval-episodes", 1, "--set", "hidden_sizes=(8,8)", "--load", "max_episode_steps=50"),
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("no_policies")
def test_seeds_are_trained_and_other_commands_read_them(call, command, tmp_path):
    (tmp_path / "seeds_own.py").write_text(OWN)
    seeds = [*command, "--run-dir", "runs", "--seeds", 2, "--hook", "seeds_own:Stop"]
    code, out, _ = call(*seeds)
    heading, row, *rest = out.splitlines()
    assert (code, rest[1:]) == (0, ["", "wrote runs/summary.json"]) and heading.split()[:3] == [
        "agent",
        "seeds",
        "updates",
    ]
    assert row.split()[:3] == ["bc", "2", "10"]

    code, out, _ = call("plot", "runs", "--out", "curves.png")
    assert code == 0 and [line.split()[0] for line in out.splitlines()[1:2]] == ["bc"]
    code, _, err = call("eval", "runs")
    assert code == 1 and "runs contains several runs; pass the directory of one, such as runs/seed_0" in err
    code, _, err = call(*command, "--run-dir", "runs")
    assert code == 2 and "runs contains several runs; repeat the call that started them" in err
    code, out, err = call(*command, "--gamma", 0.5, "--seeds", 1, "--json", "--run-dir", "notes")
    assert code == 0 and json.loads(out)["complete"]
    assert "seed_0 (1 of 1)" in err and "--gamma has no effect on bc" in err
    code, out, _ = call(*seeds, "--json")
    assert code == 0 and json.loads(out)["complete"]

    (tmp_path / "seeds_fail.py").write_text(OWN.replace('learner.stop("enough")', 'raise OSError("enough")'))
    code, out, _ = call(*command, "--seeds", 1, "--hook", "seeds_fail:Stop", "--run-dir", "failing")
    assert code == 2 and "seed_0 failed: " in out and "enough" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "alhpa=1"], "has no hyperparameter 'alhpa'"),
        (["--hook", "no_such_module:Hook"], "there is no module 'no_such_module'"),
    ],
)
def test_errors_of_several_runs_are_one_sentence_and_nothing_is_written(call, command, tmp_path, arguments, message):
    code, out, err = call(*command, *arguments, "--run-dir", "runs", "--seeds", 2)
    assert (code, out) == (1, "") and message in err and len(err.splitlines()) == 1
    assert not (tmp_path / "runs" / "plan.json").exists()


@pytest.mark.parametrize(
    ("reason", "is_complete", "failures", "code", "shown"),
    [
        ("SIGTERM", False, {}, 75, "stopped by SIGTERM; run the same command to continue"),
        ("SIGTERM", True, {}, 0, "stopped by SIGTERM; all runs are complete"),
        ("", True, {"seed_0": "broken"}, 2, "wrote runs/summary.json"),
        ("", True, {}, 0, "wrote runs/summary.json"),
    ],
)
def test_end_of_several_runs_has_a_code_and_advice(
    call, command, monkeypatch, reason, is_complete, failures, code, shown
):
    attributes = {"stop_reason": reason, "is_complete": is_complete, "failures": failures}
    experiment = SimpleNamespace(**attributes, as_dict=lambda: attributes)
    monkeypatch.setattr(experiments, "run_plan", lambda plan, run_dir, place: experiment)
    got, out, _ = call(*command, "--run-dir", "runs", "--seeds", 2)
    assert got == code and out.splitlines()[-1] == shown and out.startswith(str(experiment))
    got, out, _ = call(*command, "--run-dir", "runs", "--seeds", 2, "--json")
    assert got == code and json.loads(out) == attributes


def test_custom_parts_that_cannot_be_used_are_one_sentence(call, data, tmp_path):
    for name, text in (("seeds_own", OWN), ("seeds_syntax", "def f(:"), ("seeds_import", "import no_such_package")):
        (tmp_path / f"{name}.py").write_text(text)
    source = data / "d4rl" / "pendulum_mixed-v2.hdf5"
    command = ["train", "--data", source, "--run-dir", "run", "--env", "none", "--steps", 5]
    for algo, message in (
        ("seeds_own:make_nothing", "seeds_own:make_nothing must return a TFAgent, got None"),
        ("seeds_syntax:f", "seeds_syntax cannot be imported: invalid syntax (seeds_syntax.py, line 1)"),
        ("seeds_import:f", "seeds_import cannot be imported: No module named 'no_such_package'"),
    ):
        code, _, err = call(*command, "--algo", algo)
        assert code == 1 and message in err.splitlines()[-1] and "Traceback" not in err
    code, _, err = call(*command, "--algo", "bc", "--set", "actor_network=seeds_own:make_nothing")
    assert code == 1 and "actor_network must be a function (input_spec, output_size, seed)" in err


@pytest.mark.parametrize(
    ("message", "described"),
    [
        (Message("must be at least 1", about="steps", value=0), "--steps 0 must be at least 1"),
        (Message("no evaluation", env="Hopper-v5"), "no evaluation (--env Hopper-v5)"),
        ("a path: " + Message("too large", store_dir=...), "a path: too large (--store-dir)"),
    ],
)
def test_notes_and_errors_of_several_runs_name_options(message, described, monkeypatch, capsys, tmp_path):
    def fail(source, config, run_dir, *, progress):
        progress.note(message)
        progress.warn(message)
        raise ArgumentError(message)

    monkeypatch.setattr(training, "Training", fail)
    outcomes = {}
    plan = plan_seeds("unopened.hdf5", TrainingConfig("bc"), 1)
    make_progress = functools.partial(Progress, describe=functools.partial(name_command_options, "train"))
    make_progress = pickle.loads(pickle.dumps(make_progress))  # As for other processes.
    run_here(plan, tmp_path, outcomes.__setitem__, make_progress=make_progress)
    assert capsys.readouterr().err.splitlines()[1:] == [described, f"warning: {described}"]
    assert [outcome.reason for outcome in outcomes.values()] == [described]
