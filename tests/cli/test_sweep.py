"""`rlds2reverb sweep`: the runs of a file, its errors, and other commands on the directory of several runs."""

import functools
import json
import pickle

import pytest

from rlds2reverb.cli import run
from rlds2reverb.cli.main import name_command_options
from rlds2reverb.errors import ArgumentError, Message
from rlds2reverb.training import TrainingConfig, training
from rlds2reverb.training.placement import run_here
from rlds2reverb.training.plans import plan_seeds

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
def options(data):
    return {"data": str(data / "d4rl" / "pendulum_mixed-v2.hdf5"), "algo": ["bc", "td3_bc"], "steps": 20,
            "batch_size": 8, "log_every": 10, "env": "Pendulum-v1", "eval_episodes": 1, "eval_every": 10,
            "hyperparameters": {"hidden_sizes": [[8, 8]]}, "max_episode_steps": 50, "track": ["tensorboard"]}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("no_policies")
def test_sweep_trains_the_runs_of_a_file_and_other_commands_read_them(call, options, tmp_path):
    (tmp_path / "sweep_parts.py").write_text(OWN)
    (tmp_path / "sweep.json").write_text(json.dumps({**options, "hooks": "sweep_parts:Stop"}))
    code, out, _ = call("sweep", "sweep.json", "--run-dir", "runs")
    heading, first, second, *rest = out.splitlines()
    assert (code, rest) == (0, ["", "wrote runs/summary.json"]) and heading.split()[:3] == ["agent", "seeds", "updates"]
    assert first.split()[:3] == ["bc", "1", "10"] and second.split()[:3] == ["td3_bc", "1", "10"]

    code, out, _ = call("plot", "runs", "--out", "curves.png")
    assert code == 0 and [line.split()[0] for line in out.splitlines()[1:3]] == ["bc", "td3_bc"]
    code, _, err = call("eval", "runs")
    assert (
        code == 1 and "runs contains several runs; pass the directory of one, such as runs/pendulum_mixed-v2/bc" in err
    )
    code, _, err = call("train", "--algo", "bc", "--data", options["data"], "--run-dir", "runs")
    assert code == 2 and "runs contains several runs; repeat the call that started them" in err
    code, out, _ = call("sweep", "sweep.json", "--run-dir", "runs", "--json")
    assert code == 0 and json.loads(out)["complete"]

    (tmp_path / "failing.json").write_text(json.dumps({**options, "algo": "dqn"}))
    code, out, _ = call("sweep", "failing.json", "--run-dir", "failing")
    assert code == 2 and "dqn requires discrete actions" in out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gama": 1}, "a sweep cannot contain 'gama'; did you mean 'gamma'"),
        ({"variants": {"v": {"gama": 1}}}, "variant 'v' cannot contain 'gama'; did you mean 'gamma'"),
        ({"variants": ["v"]}, "the 'variants' of a sweep must be a dict"),
        ({"hyperparameters": ["x"]}, "the 'hyperparameters' of a sweep must be a dict"),
        ({"hyperparameters": {"alhpa": 1}}, "has no hyperparameter 'alhpa'"),
        ({"deterministic": 1}, "deterministic must be True or False, got 1"),
        ({"track": "wandv"}, "unknown tracker 'wandv'; did you mean 'wandb'"),
        ({"hooks": "no_such_module:Hook"}, "there is no module 'no_such_module'"),
        ({"data": "missing.hdf5"}, "no file 'missing.hdf5'"),
    ],
)
def test_errors_in_a_file_are_one_sentence_and_nothing_is_written(call, options, tmp_path, changes, message):
    (tmp_path / "sweep.json").write_text(json.dumps({**options, **changes}))
    code, out, err = call("sweep", "sweep.json", "--run-dir", "runs")
    assert (code, out) == (1, "") and message in err and len(err.splitlines()) == 1
    assert not (tmp_path / "runs" / "plan.json").exists()


def test_custom_parts_that_cannot_be_used_are_one_sentence(call, options, tmp_path):
    for name, text in (("sweep_own", OWN), ("sweep_syntax", "def f(:"), ("sweep_import", "import no_such_package")):
        (tmp_path / f"{name}.py").write_text(text)
    command = ["train", "--data", options["data"], "--run-dir", "run", "--env", "none", "--steps", 5]
    for algo, message in (
        ("sweep_own:make_nothing", "sweep_own:make_nothing must return a TFAgent, got None"),
        ("sweep_syntax:f", "sweep_syntax cannot be imported: invalid syntax (sweep_syntax.py, line 1)"),
        ("sweep_import:f", "sweep_import cannot be imported: No module named 'no_such_package'"),
    ):
        code, _, err = call(*command, "--algo", algo)
        assert code == 1 and message in err.splitlines()[-1] and "Traceback" not in err
    code, _, err = call(*command, "--algo", "bc", "--set", "actor_network=sweep_own:make_nothing")
    assert code == 1 and "actor_network must be a function (input_spec, output_size, seed)" in err


@pytest.mark.parametrize(
    ("message", "described"),
    [
        (Message("must be at least 1", about="steps", value=0), "--steps 0 must be at least 1"),
        (Message("no evaluation", env="Hopper-v5"), "no evaluation (--env Hopper-v5)"),
        ("a path: " + Message("too large", cache_dir=...), "a path: too large (--cache-dir)"),
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
    describe = pickle.loads(pickle.dumps(functools.partial(name_command_options, "train")))  # As for other processes.
    run_here(plan, tmp_path, outcomes.__setitem__, quiet=False, describe=describe)
    assert capsys.readouterr().err.splitlines()[1:] == [described, f"warning: {described}"]
    assert [outcome.reason for outcome in outcomes.values()] == [described]
