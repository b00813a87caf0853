"""Drill: training commands whose hook, environment or data raise or hang; the same command continues without the fault."""

import os
import sys
from pathlib import Path

import pytest
from faults import process, receive, within
from trained_runs import make_arguments, read_rows, require_equal_runs

pytestmark = [pytest.mark.slow, pytest.mark.drill("user code")]

#: The code of a user, in a module that commands import. A file `fault` says what to do wrong.
MODULE = """
import time
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from rlds2reverb.learners.hooks import LearnerHook

FAULT = Path(__file__).with_name("fault")


def has(fault):
    return FAULT.exists() and FAULT.read_text() == fault


class Hook(LearnerHook):
    def __init__(self):
        super().__init__("mine", position="after_iter", every=250)

    def __call__(self, learner):
        if has("hook raises"):
            raise ZeroDivisionError("my hook failed")


class Env(PendulumEnv):
    def reset(self, **options):
        if has("reset raises"):
            raise ZeroDivisionError("my reset failed")
        return super().reset(**options)

    def step(self, action):
        if has("step raises"):
            raise ZeroDivisionError("my step failed")
        while has("step hangs"):
            time.sleep(0.1)
        return super().step(action)


gymnasium.register("Mine-v0", Env, max_episode_steps=50)
"""
TIMEOUT_SECS = 5.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes the module of a user into a directory, and trains a run there that nothing disturbs."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "user_module.py").write_text(MODULE)
    assert run_command(folder, folder / "whole") == 0
    return folder


def command(channel, folder, run_dir):
    """Runs a training command with the module; sends its exit code."""
    from rlds2reverb.cli import run
    from rlds2reverb.envs.evaluation import Evaluator

    Evaluator.__init__.__kwdefaults__["timeout_secs"] = TIMEOUT_SECS
    sys.path.insert(0, str(folder))
    options = ["--hook", "user_module:Hook", "--env", "user_module:Mine-v0", "--deterministic"]
    os.dup2(os.open(f"{run_dir}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.stdout = sys.stderr = os.fdopen(os.dup(2), "w")
    code = run(make_arguments(run_dir, *options))
    sys.stderr.flush()
    channel.send(code)


def run_command(folder, run_dir):
    with process(command, folder, run_dir) as (_, channel):
        return receive(channel)


@pytest.mark.parametrize("fault", ["hook raises", "reset raises", "step raises"])
def test_exception_of_a_user_is_raised_as_it_is_and_the_run_continues(folder, tmp_path, fault):
    run_dir = tmp_path / "run"
    (folder / "fault").write_text(fault)
    with pytest.raises(ZeroDivisionError, match=f"my {fault.split()[0]} failed"):
        run_command(folder, run_dir)
    report = (run_dir / "exception.txt").read_text()
    assert f"my {fault.split()[0]} failed" in report and "user_module.py" in report
    (folder / "fault").unlink()
    assert run_command(folder, run_dir) == 0
    assert not (run_dir / "exception.txt").exists()
    require_equal_runs(folder / "whole", run_dir)


def test_environment_that_hangs_is_an_error_with_its_place_and_the_run_continues(folder, tmp_path):
    run_dir = tmp_path / "run"
    (folder / "fault").write_text("step hangs")
    with within(TIMEOUT_SECS + 30):
        assert run_command(folder, run_dir) == 1
    printed = Path(f"{run_dir}.err").read_text()
    assert f"environments of user_module:Mine-v0 did not answer within {TIMEOUT_SECS:g} s" in printed
    assert "user_module.py" in printed and "time.sleep(0.1)" in printed
    (folder / "fault").unlink()
    assert run_command(folder, run_dir) == 0
    require_equal_runs(folder / "whole", run_dir)


class Episodes:
    """Episodes of a user; iterating raises at the tenth while there is a file `fault`."""

    def __init__(self, episodes, fault):
        self.episodes, self.fault = episodes, fault

    def __iter__(self):
        for number, episode in enumerate(self.episodes):
            if number == 10 and self.fault.exists():
                raise ZeroDivisionError("my dataset failed")
            yield episode


def train_episodes(channel, folder, run_dir):
    from reference_impls import episode

    from rlds2reverb import train

    episodes = Episodes([episode(20, terminal=True, start=10.0 * n) for n in range(30)], folder / "fault")
    train(episodes, "bc", run_dir, steps=100, env=None, checkpoint_every=50, log_every=50, deterministic=True,
          progress=False, hyperparameters={"hidden_sizes": (8,)})  # fmt: skip
    channel.send(0)


def train_in_python(folder, run_dir):
    with process(train_episodes, folder, run_dir) as (_, channel):
        return receive(channel)


def test_dataset_that_raises_while_it_is_read_leaves_nothing_and_the_same_call_trains(folder, tmp_path):
    assert train_in_python(folder, tmp_path / "whole") == 0
    (folder / "fault").write_text("")
    with pytest.raises(ZeroDivisionError, match="my dataset failed"):
        train_in_python(folder, tmp_path / "run")
    assert not (tmp_path / "run/progress.csv").exists()
    (folder / "fault").unlink()
    assert train_in_python(folder, tmp_path / "run") == 0
    assert read_rows(tmp_path / "run") == read_rows(tmp_path / "whole")
