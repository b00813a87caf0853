"""The rule: nothing that took minutes is lost to an error that was foreseeable, or that is not the learner's own.

After each kind of error, a checkpoint contains all complete updates, and the continued run ends like a whole one.
"""

import functools
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC
from counting import Counting
from properties import mark_slow_except
from small_agents import MeanAgent, items, transitions
from tf_agents.trajectories import restart, time_step_spec
from trained_runs import DATA, read_rows

import rlds2reverb
from rlds2reverb import load_policy
from rlds2reverb.cli import run
from rlds2reverb.errors import StorageFullError, TrainingDivergedError
from rlds2reverb.learners import Learner, learner as learner_module
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.checkpoints import Checkpoints
from rlds2reverb.learners.feeds import InMemoryDataset
from rlds2reverb.learners.hooks import EvaluateHook, LearnerHook, LoadCkptHook, LogReduceHook, LogShowHook
from rlds2reverb.learners.hooks.hook import Phase
from rlds2reverb.learners.policy_export import export_policy
from rlds2reverb.learners.policy_formats import write_policy
from rlds2reverb.learners.run_log import RunLog
from rlds2reverb.learners.train_loop import CallResult, TrainLoop
from rlds2reverb.types.nest_paths import make_ascii_names

NUM_UPDATES, FAILS_AT = 40, 15


class CallHook(LearnerHook):
    """A hook that calls a function with the learner."""

    def __init__(self, function, position="after_iter", every=FAILS_AT):
        super().__init__("call", position=position, every=every)
        self.function = function

    def __call__(self, learner):
        self.function(learner)


def raise_error(*_, error=ZeroDivisionError):
    raise error("not the learner's fault")


def raise_late(learner):
    if learner.step >= FAILS_AT:
        raise_error()


def raise_in_log(step, numbers):
    if step >= FAILS_AT:
        raise_error()


#: What fails, as arguments of `train`; the step that must be saved; and the error that is raised, or None.
FAULTS = {
    "hook": ({"faults": [CallHook(raise_error)]}, 15, ZeroDivisionError),
    "hook before an iteration": ({"faults": [CallHook(raise_late, "before_iter", 5)]}, 15, ZeroDivisionError),
    "hook after the run": ({"faults": [CallHook(raise_error, "after_run")]}, 40, ZeroDivisionError),
    "environment of an evaluation": ({"faults": [EvaluateHook(raise_error, every=15)]}, 15, ZeroDivisionError),
    "reduction of the log": ({"faults": [LogReduceHook(every=15, reduce=raise_error)]}, 15, ZeroDivisionError),
    "receiver of the log": ({"on_log": raise_in_log}, 18, ZeroDivisionError),
    "signal": ({"faults": [CallHook(lambda _: signal.raise_signal(signal.SIGINT))]}, 15, None),
    "Ctrl-C": ({"faults": [CallHook(functools.partial(raise_error, error=KeyboardInterrupt))]}, 15, KeyboardInterrupt),
    "exit": ({"faults": [CallHook(functools.partial(raise_error, error=SystemExit))]}, 15, SystemExit),
}


def make_learner(folder, faults=(), *, on_log=None, **options):
    feed = InMemoryDataset(items(np.arange(50)), 4, seed=1, to_experience=lambda data: transitions(data["reward"]))
    hooks = [LoadCkptHook(), LogShowHook(every=6), EvaluateHook(lambda policy: 1.0, every=10), *faults]
    return Learner(folder, MeanAgent(0.1), feed, hooks=hooks, on_log=on_log or (lambda *entry: None), **options)


def train(folder, faults=(), **options):
    """Trains, and continues if there is a checkpoint; returns what must not depend on interruptions."""
    with make_learner(folder, faults, **options) as learner:
        learner.start(NUM_UPDATES)
        return read_rows(folder), float(learner.agent.estimate), learner.latest["loss"], learner.recorded_at


def find_steps(folder):
    return [int(path.name) for path in sorted((folder / "checkpoints").iterdir())]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("fault", mark_slow_except({"hook", "receiver of the log", "signal"}, FAULTS))
def test_foreign_error_saves_all_updates_and_the_continued_run_ends_like_a_whole_one(tmp_path, fault, whole):
    options, step, error = FAULTS[fault]
    if error is None:
        train(tmp_path, **options)
    else:
        with pytest.raises(error):
            train(tmp_path, **options)
    assert find_steps(tmp_path)[-1] == step
    assert train(tmp_path) == whole


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
def test_error_tells_where_the_updates_are_saved_or_why_not(tmp_path, monkeypatch):
    def fail_to_save(*_, **__):
        raise OSError("the disk is gone")

    with make_learner(tmp_path, [CallHook(raise_late, every=5)]) as learner:
        with pytest.raises(ZeroDivisionError) as raised, learner.running():
            learner.advance(20)
        place = tmp_path / "checkpoints/0000000015"
        assert raised.value.__notes__ == [f"training stopped after 15 iterations, which are saved in {place}"]
        monkeypatch.setattr(Checkpoints, "save", fail_to_save)
        with pytest.raises(ZeroDivisionError, match="not the learner's fault") as raised, learner.running():
            learner.advance(20)
        assert raised.value.__notes__ == [
            "training stopped after 20 iterations, which could not be saved (the disk is gone)"
        ]


def test_weights_that_are_not_finite_are_not_saved_by_a_foreign_error(tmp_path):
    def destroy(learner):
        learner.agent.estimate.assign(np.nan)
        raise ValueError("mine")

    with (
        make_learner(tmp_path, [CallHook(destroy)]) as learner,
        pytest.raises(ValueError, match=r"which could not be saved \(.* estimate:0 is not finite\): mine"),
    ):
        learner.start(20)
    assert find_steps(tmp_path) == [10]  # That of the best evaluation.


@pytest.mark.parametrize("function", [lambda learner: raise_error(error=TrainingDivergedError), None])
def test_nothing_is_saved_by_divergence_or_before_the_first_update(tmp_path, function):
    hook = CallHook(raise_error, "before_iter") if function is None else CallHook(function)
    with pytest.raises((TrainingDivergedError, ZeroDivisionError)):
        train(tmp_path, [hook])
    assert find_steps(tmp_path) == ([] if function is None else [10])


class RecordSteps(LearnerHook):
    """A hook that saves, which records the iterations."""

    phase = Phase.SAVE

    def __init__(self):
        super().__init__("record_steps", position="after_iter", every=5)
        self.steps = []

    def __call__(self, learner):
        self.steps.append(learner.step)

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def test_hooks_that_save_are_called_after_an_error_of_another_one_and_the_checkpoint_contains_their_states(tmp_path):
    first, second = RecordSteps(), RecordSteps()
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, [CallHook(raise_error), first])
    train(tmp_path, [second])
    assert first.steps == [5, 10, 15] and second.steps == list(range(5, 41, 5))


# --- Time instead of updates


@pytest.mark.parametrize("steps_per_call", mark_slow_except({7}, [1, 7, 100]))
def test_neither_weights_nor_logs_depend_on_the_size_of_a_call(tmp_path, steps_per_call, whole):
    assert train(tmp_path, steps_per_call=steps_per_call) == whole


def test_logged_means_do_not_depend_on_the_split_of_iterations_into_calls():
    random = np.random.default_rng(0)
    values = (random.normal(size=500) * 10.0 ** random.uniform(-9, 9, 500)).astype(np.float32)

    def log(cuts):
        run_log = RunLog(None)
        for part in np.split(values, cuts):
            result = CallResult(len(part), {"loss": part}, {}, (), None, 0.0)
            run_log.add(0, result, None, has_priorities=False)
        return run_log.means, run_log.latest

    assert log([]) == log(range(1, 500)) == log([7, 300])


def test_calls_take_about_five_seconds_and_checkpoints_are_saved_by_time(tmp_path, monkeypatch, whole):
    class Time:
        secs = 0.0
        perf_counter = monotonic = lambda _: Time.secs

    ends = []
    with make_learner(tmp_path, checkpoint_every_secs=30) as learner:
        run, call_hook = TrainLoop.__call__, learner.call_hook

        def run_slowly(*arguments):
            result = run(*arguments)
            Time.secs += 1.5 * result.num_iterations
            return result

        def call_and_record(position):
            call_hook(position)
            ends.extend([learner.step] * (position == "after_iter"))

        monkeypatch.setattr(learner_module, "time", Time())
        monkeypatch.setattr(TrainLoop, "__call__", run_slowly)
        monkeypatch.setattr(learner, "call_hook", call_and_record)
        learner.start(NUM_UPDATES)
        assert (float(learner.agent.estimate), learner.latest["loss"]) == whole[1:3]
    # Three iterations take 4.5 s. Calls end at entries of the log, every 6 iterations, and at evaluations, every 10.
    assert ends == [1, 4, 6, 9, 10, 12, 15, 18, 20, 23, 24, 27, 30, 33, 36, 39, 40]
    assert find_steps(tmp_path) == [10, 30]


# --- Names of fields

NAMES = [
    {"wrist cam": 1},
    {"é": 1, "位置": 2, "😀": 3},
    {"Pos": 1, "pos": 2, "ſ": 1, "s": 2},
    {"a.b": 1, "a_b": 2, "a/b": 3, "a": {"b": 1}, "_a": 1, "__a": 1},
    {"": 1, "0": 2, "x:0": 1, "a'b": 1},
    {"camera 1": ({"Wrist Cam": 1, "wrist cam": 2}, 2)},
]


@pytest.mark.parametrize("number", mark_slow_except({2}, range(len(NAMES))))
def test_policy_is_saved_with_any_names_of_fields_and_loads_with_them(tmp_path, number):
    spec = tf.nest.map_structure(lambda size: tf.TensorSpec([size], tf.float32), NAMES[number])
    observation = tf.nest.map_structure(lambda leaf: np.full((3, *leaf.shape), leaf.shape[0], np.float32), spec)
    agent = make_agent("td3_bc", time_step_spec(spec), ACTION_SPEC, hidden_sizes=(4,))
    export_policy(agent.policy, tmp_path / "policy", estimate_values=agent.estimate_values)
    policy = load_policy(tmp_path / "policy")
    actions = policy.predict(observation)
    compute = tf.function(agent.policy.action)  # Outside of graphs, some processors round differently.
    time_step = tf.nest.map_structure(tf.convert_to_tensor, restart(observation, 3))
    np.testing.assert_array_equal(actions, compute(time_step).action)
    assert policy.values(observation, actions)["q"].shape == (3,)
    inputs = tf.lite.Interpreter(str(write_policy(tmp_path / "policy", tmp_path / "p.tflite"))).get_signature_runner()
    assert len(inputs.get_input_details()) == len(tf.nest.flatten(spec))
    if number == 1:
        onnx = load_policy(write_policy(tmp_path / "policy", tmp_path / "p.onnx"))
        np.testing.assert_allclose(onnx.predict(observation), actions, atol=1e-5)


@pytest.mark.parametrize(
    "names", [["State", "x-1", "joint.pos"], ["Pos", "pos"], ["a.b", "a_b"], ["z", "Z"], ["", "z"]]
)
def test_ascii_names_are_distinct_and_unchanged_if_they_were(names):
    found = make_ascii_names([("observation", name) for name in names])
    assert len({name.lower() for name in found}) == len(names) and all(name.isascii() for name in found)
    assert (found == [f"observation/{name}" for name in names]) == (names[0] == "State")


# --- What would fail at the end


def clone(folder, **options):
    small = {"steps": 3, "env": None, "progress": False, "hyperparameters": {"hidden_sizes": (4,)}}
    return rlds2reverb.train(str(DATA), "bc", folder, **{**small, **options})


def test_disk_without_space_for_checkpoints_is_reported_before_the_first_update(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 100, 100))
    with pytest.raises(StorageFullError, match=f"no space left for {tmp_path}"):
        clone(tmp_path)
    assert not (tmp_path / "progress.csv").exists() and not find_steps(tmp_path)


class UntrackedNetwork(tf.Module):
    """A network that TensorFlow cannot save, because it does not know one of its variables."""

    def __init__(self, num_inputs, num_outputs):
        super().__init__()
        self.kernel, hidden = tf.Variable(tf.zeros([num_inputs, num_outputs])), tf.Variable(1.0)
        self._find = lambda: hidden

    def __call__(self, inputs):
        return inputs @ self.kernel * self._find()


def make_untracked_network(input_spec, output_size, seed):
    return UntrackedNetwork(input_spec.shape[0], output_size)


@pytest.mark.slow
def test_policy_that_cannot_be_saved_is_reported_before_the_first_update(tmp_path):
    with pytest.raises(ValueError, match="the policy of bc must be savable: Tried to export .*'untracked'"):
        clone(tmp_path, hyperparameters={"actor_network": make_untracked_network})
    assert not (tmp_path / "progress.csv").exists() and not find_steps(tmp_path)


@pytest.mark.parametrize(("command", "out"), [("ope", "--out"), ("eval", "--film")])
def test_directory_without_permission_is_reported_before_anything_is_read(tmp_path, command, out, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    data = [] if command == "eval" else ["--data", "missing.hdf5"]
    assert run([command, str(tmp_path), *data, out, str(tmp_path / ("a.gif" if data == [] else "a.png"))]) == 1
    assert f"{out}: the directory '{tmp_path}' is not writable" in capsys.readouterr().err


# --- Processes that are killed


def start(*arguments):
    command = [sys.executable, "-m", "rlds2reverb.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_command(*arguments):
    process = start(*arguments)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


@pytest.mark.slow
def test_ranking_that_is_killed_after_the_first_policy_continues_with_the_others(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        run_command("train", "--algo", "td3_bc", "--data", DATA, "--run-dir", folder, "--steps", 2, "--env", "none")
    arguments = ["ope", *folders, "--data", DATA, "--ensemble", 2, "--updates"]
    whole, _ = run_command(*arguments, 300)
    shutil.rmtree(folders[1] / "estimates")
    process = start(*arguments, 300)
    for line in process.stderr:
        if "using the estimate" in line:
            process.kill()
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    out, err = run_command(*arguments, 300)
    assert out == whole and err.count("using the estimate that was saved in") == 1


@pytest.mark.slow
def test_run_that_is_killed_loses_no_more_than_the_seconds_between_checkpoints(tmp_path):
    arguments = ["train", "--algo", "td3_bc", "--data", DATA, "--run-dir", tmp_path, "--env", "none", "--deterministic"]
    process = start(*arguments, "--steps", 10**7, "--checkpoint-every", 10**7, "--checkpoint-every-secs", 1)
    for _ in range(600):
        time.sleep(0.1)
        if list(tmp_path.glob("checkpoints/*[1-9]*[0-9]/manifest.json")):
            break
    process.kill()
    process.communicate()
    assert [step for step in find_steps(tmp_path) if step > 0]


@pytest.mark.parametrize("signal_at", mark_slow_except({25}, [25, None]))
def test_signal_while_steps_are_collected_stops_at_once_and_the_run_continues_as_before(tmp_path, signal_at):
    calls = []

    class Signalled(Counting):
        def step(self, action):
            calls.append(action)
            if len(calls) == signal_at:
                signal.raise_signal(signal.SIGTERM)
            return super().step(action)

    options = {"steps": 0, "online_steps": 60, "update_every": 20, "warmup_steps": 20, "batch_size": 4, "log_every": 1}
    options |= {
        "deterministic": True,
        "eval_every": 1_000,
        "eval_episodes": 1,
        "hyperparameters": {"hidden_sizes": (4,)},
    }

    def collect():
        return rlds2reverb.train(None, "dqn", tmp_path, env=make_signalled, progress=False, **options)

    def make_signalled():
        return Signalled(5)

    run = collect()
    if signal_at:
        assert len(calls) < 30 and len(run.progress.get("step", ())) == 0
        run = collect()
    assert run.progress["collected_steps"][-1] == 60 and run.progress["step"][-1] == 40
    RESULTS.append(run.progress["loss"].tolist())
    assert RESULTS[0] == RESULTS[-1]


RESULTS: list = []
