"""Runs that continue: phases of hooks, logs without gaps, replay data, warm starts, and running learners."""

import functools
import re
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from properties import mark_slow_except
from small_agents import ACTION_SPEC, TIME_STEP_SPEC, MeanAgent, batches, transitions
from tf_agents.agents import tf_agent
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step_spec

from rlds2reverb import ReplayServer, SampleInfo, TableConfig, sample_dataset
from rlds2reverb.errors import CheckpointError, ServerUnavailableError, SpecMismatchError
from rlds2reverb.learners import Checkpoints, Learner, load_run
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.checkpoints import open_checkpoint
from rlds2reverb.learners.hooks import EvaluateHook, LearnerHook, LoadCkptHook, LogReduceHook, LogShowHook, SaveCkptHook
from rlds2reverb.learners.warm_start import describe_specs, load_weights
from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig, BufferManager
from rlds2reverb.reverb.sampling import PriorityWriter
from rlds2reverb.types.evaluations import Evaluation
from rlds2reverb.types.tables import Selector


class CallHook(LearnerHook):
    """A hook that calls a function with the learner."""

    def __init__(self, function, position="after_iter", *, name="call", every=1, priority=50):
        super().__init__(name, priority, position=position, every=every)
        self.function = function

    def __call__(self, learner):
        self.function(learner)


class Killed(BaseException):
    """Stands for kill -9: nothing that runs on an `Exception` runs on it."""


def kill(learner):
    raise Killed


def steps_in(folder):
    return [int(path.name) for path in sorted((folder / "checkpoints").iterdir())]


def make_evaluation(mean):
    return Evaluation(np.array([mean]), np.array([1]), (0,))


# --- The order after a call


class Sink:
    """A priority sink that calls a function."""

    def __init__(self, function):
        self.update = lambda info, td_errors: function()


@functools.cache
def make_prioritized_batches():
    ones = tf.ones([4])
    info = SampleInfo(tf.constant([0, 1, 2, 3], tf.uint64), ones, ones, ones, ones, ones, ones)
    return batches().map(lambda batch: (batch, info))


def test_order_after_a_call_does_not_depend_on_priorities_or_registration(tmp_path):
    notes = []

    class Note(LearnerHook):
        def __call__(self, learner):
            notes.append(f"{self.name} {steps_in(tmp_path)}")
            learner.flush_priorities()

    def log(step, numbers):
        notes.append("best return" if "evaluation/mean_return" in numbers else "log")

    def evaluate(policy):
        notes.append("evaluation")
        return 1.0

    def reduce(numbers):
        notes.append(f"checkpoints {steps_in(tmp_path)}")
        return numbers

    worst_first = [
        LogShowHook(priority=0, every=2),
        LogReduceHook(priority=99, every=2, reduce=reduce),
        SaveCkptHook(priority=1, every=2),
        Note("hook", 2, position="after_iter", every=2),
        EvaluateHook(evaluate, priority=99, every=2),
    ]
    sink = Sink(lambda: notes.append("priorities"))
    with Learner(
        tmp_path,
        MeanAgent(),
        make_prioritized_batches(),
        priorities=sink,
        hooks=worst_first,
        steps_per_call=2,
        on_log=log,
    ) as learner:
        learner.start(2)
    notes.remove("priorities")  # The thread writes them at any moment until the hook that flushes them.
    assert notes == ["evaluation", "best return", "hook []", "checkpoints [2]", "log"]


def test_logs_contain_reduced_numbers(tmp_path):
    hooks = [LogReduceHook(every=5, reduce=lambda numbers: {**numbers, "reduced": 1.0}), LogShowHook(every=5)]
    logged = []
    with Learner(
        tmp_path, MeanAgent(), batches(), hooks=hooks, on_log=lambda step, numbers: logged.append((step, numbers))
    ) as learner:
        learner.start(20)
    assert [(step, numbers["reduced"]) for step, numbers in logged] == [(step, 1.0) for step in (5, 10, 15, 20)]


@pytest.mark.slow
def test_new_best_checkpoint_is_written_before_the_log(tmp_path):
    def log(step, numbers):
        if "loss" in numbers:
            assert steps_in(tmp_path) == [2] and learner.best_return == 1.0

    hooks = [LogShowHook(every=2), EvaluateHook(lambda policy: 1.0, every=2)]
    with Learner(tmp_path, MeanAgent(), batches(), hooks=hooks, on_log=log) as learner:
        learner.start(2)


def test_best_evaluation_after_the_run_is_saved_as_the_best(tmp_path):
    hooks = [EvaluateHook(lambda policy: 1.0, position="after_run"), SaveCkptHook(every=3)]
    with Learner(tmp_path, MeanAgent(), batches(), hooks=hooks) as learner:
        learner.start(3)
        assert learner.best_return == 1.0
        last = learner.export_policy(tmp_path / "last")
        (last / "marked").touch()
        assert learner.export_best_policy(tmp_path / "best", current=last) == tmp_path / "best"
        assert {path.name for path in (tmp_path / "best").iterdir()} == {path.name for path in last.iterdir()}
    with Learner(tmp_path, MeanAgent(), batches()) as learner:
        assert learner.load_checkpoint() and (learner.best_return, learner.evaluated_at) == (1.0, 3)


@pytest.mark.slow
def test_hook_can_export_a_new_best_policy_before_its_checkpoint(tmp_path):
    hooks = [
        EvaluateHook(lambda policy: 1.0, every=2),
        CallHook(lambda learner: learner.export_best_policy(tmp_path / "best"), every=2),
    ]
    agent = MeanAgent(rate=0.1)  # Policies are exported with clipped actions.
    with Learner(tmp_path / "run", agent, batches(), hooks=hooks) as learner:
        learner.start(2)
    saved = tf.saved_model.load(str(tmp_path / "best"))
    assert saved.action(transitions([0.0]).time_step).action.numpy() == agent.estimate.numpy()


@pytest.mark.slow
def test_evaluation_that_is_not_the_best_is_saved_with_the_last_checkpoint(tmp_path):
    returns = iter([2.0, 1.0])
    hooks = [
        EvaluateHook(lambda policy: next(returns), every=2),
        EvaluateHook(lambda policy: next(returns), position="after_run"),
        SaveCkptHook(every=3),
        SaveCkptHook(position="after_run"),
    ]
    with Learner(tmp_path, MeanAgent(), batches(), hooks=hooks) as learner:
        learner.start(3)
    with Learner(tmp_path, MeanAgent(), batches(), hooks=hooks) as learner:
        learner.load_checkpoint()
        assert learner.latest["evaluation/mean_return"] == 1.0 and learner.best_return == 2.0
        learner.start(3)  # The policy is not evaluated again.


@pytest.mark.slow
def test_change_of_environment_forgets_the_best_evaluation(tmp_path):
    hooks = [EvaluateHook(lambda policy: 9.0, position="after_run"), SaveCkptHook(position="after_run")]
    with Learner(tmp_path, MeanAgent(), batches(), hooks=hooks, identity={"environment": "A", "seed": 1}) as learner:
        learner.start(2)
    with Learner(tmp_path, MeanAgent(), batches(), identity={"environment": "A", "seed": 2}) as learner:
        learner.load_checkpoint(allow_config_mismatch=True)
        assert learner.best_return == 9.0 and learner.export_best_policy(tmp_path / "best") is not None
    hooks = [EvaluateHook(lambda policy: 1.0, every=4), SaveCkptHook(every=3)]
    with Learner(tmp_path, MeanAgent(), batches(), hooks=hooks, identity={"environment": "B"}) as learner:
        with pytest.raises(CheckpointError, match="environment was A, is now B; .*allow_config_mismatch=True.$"):
            learner.load_checkpoint()
        learner.load_checkpoint(allow_config_mismatch=True)
        assert learner.best_return == -np.inf and learner.evaluated_at is None and "loss" in learner.latest
        assert not any(name.startswith("evaluation/") for name in learner.latest)
        assert learner.export_best_policy(tmp_path / "none") is None
        learner.start(3)
        assert learner.export_best_policy(tmp_path / "none") is None
        learner.start(4)
        assert learner.best_return == 1.0 and learner.export_best_policy(tmp_path / "new") is not None


# --- Logs of resumed runs


def read_log(folder):
    """Returns the columns of the log that do not depend on time, with the steps of evaluations and histograms."""
    run = load_run(folder)
    columns = {name: run.progress[name].tolist() for name in ("step", "loss", "estimate")}
    histograms = (run.priority_steps, run.priorities, run.weight_steps, run.weights)
    return columns, run.evaluations["step"].tolist(), *[histogram.tolist() for histogram in histograms]


def make_hooks(moment):
    """Returns hooks, with one that kills the process at step 6 at a moment after the call, or never."""
    hooks = [LogShowHook(every=3), SaveCkptHook(every=2), SaveCkptHook(position="after_run")]
    hooks.append(EvaluateHook(lambda policy: make_evaluation(1.0), every=3))
    if moment is not None:
        killer = CallHook(kill, every=6, priority=1000)
        killer.phase = moment
        hooks.append(killer)
    return hooks


def run_until(folder, hooks, num_iterations):
    sink = Sink(lambda: None)
    data = iter(make_prioritized_batches())
    with Learner(
        folder, MeanAgent(), data, priorities=sink, hooks=hooks, steps_per_call=4, trackables={"data": data}
    ) as learner:
        learner.load_checkpoint()
        learner.start(num_iterations)


@pytest.mark.parametrize("moment", mark_slow_except({"LOG"}, ["EVALUATE", "OTHER", "SAVE", "REDUCE_LOG", "LOG"]))
@pytest.mark.drill("F6")
def test_log_has_neither_gaps_nor_duplicates_after_a_kill(tmp_path, moment):
    from rlds2reverb.learners.hooks import Phase

    run_until(tmp_path / "one", make_hooks(None), 11)
    with pytest.raises(Killed):
        run_until(tmp_path / "two", make_hooks(Phase[moment]), 11)
    run_until(tmp_path / "two", make_hooks(None), 11)
    expected = read_log(tmp_path / "one")
    assert expected[0]["step"] == [3, 6, 9, 11] and expected[1] == [3, 6, 9] and expected[2] == [3, 6, 9, 11]
    assert read_log(tmp_path / "two") == expected
    for path in (tmp_path / "one").glob("*.csv"):  # Loading a log drops repeated rows.
        num_rows = [len((tmp_path / name / path.name).read_text().splitlines()) for name in ("one", "two")]
        assert num_rows[0] == num_rows[1], path.name


@pytest.mark.slow
def test_log_starts_afresh_after_a_kill_before_the_first_checkpoint(tmp_path):
    for _ in range(2):
        with pytest.raises(Killed):
            hooks = [LogShowHook(every=1), CallHook(kill, every=3)]  # An evaluation would write a checkpoint.
            with Learner(tmp_path, MeanAgent(), batches(), hooks=hooks) as learner:
                assert not learner.load_checkpoint()
                learner.start(5)
    run = load_run(tmp_path)
    lines = (tmp_path / "progress.csv").read_text().splitlines()
    assert run.progress["step"].tolist() == [1, 2] and len(lines) == 3


def test_last_iterations_are_logged_at_the_end_of_the_run(tmp_path):
    with Learner(tmp_path, MeanAgent(rate=1.0), batches(), hooks=[LogShowHook(every=4)]) as learner:
        learner.start(6)
        assert learner.log_buffer == {}
        learner.start(6)
        learner.start(8)
    progress = load_run(tmp_path).progress
    assert progress["step"].tolist() == [4, 6, 8] and progress["estimate"].tolist() == [3.0, 6.0, 8.0]


@pytest.mark.slow
def test_completed_run_keeps_its_log_when_it_is_started_again(tmp_path):
    hooks = [LogShowHook(every=4), SaveCkptHook(position="after_run")]
    for _ in range(3):
        with Learner(tmp_path, MeanAgent(), batches(), hooks=[*hooks, LoadCkptHook()]) as learner:
            learner.start(6)
        assert load_run(tmp_path).progress["step"].tolist() == [4, 6]


# --- Running learners


@pytest.mark.slow
def test_collecting_and_learning_alternate_in_one_run(tmp_path):
    notes, hooks = [], [LogShowHook(every=4)]
    for position in ("before_run", "after_run"):
        hooks.append(CallHook(lambda learner, at=position: notes.append((at, learner.step)), position))
    with Learner(tmp_path, MeanAgent(), batches(), hooks=hooks, steps_per_call=3) as learner:
        with learner.running() as running:
            assert running is learner
            while learner.step < 6:
                notes.append("collect")
                learner.advance(learner.step + 2)
            learner.advance(6)
            with pytest.raises(RuntimeError, match=r"the learner is already running; leave the context of running\(\)"):
                learner.start(7)
        assert notes == [("before_run", 0), "collect", "collect", "collect", ("after_run", 6)]
        assert load_run(tmp_path).progress["step"].tolist() == [4, 6]
        with pytest.raises(RuntimeError, match=r"advance requires a running learner; use `with learner.running\(\):`"):
            learner.advance(7)
        with learner.running():
            learner.stop("enough")
            learner.advance(100)
        assert learner.step == 6 and learner.stop_reason == "enough"


@pytest.mark.drill("user code")
def test_error_in_the_body_of_running_calls_no_after_run_hooks(tmp_path):
    notes = []
    with Learner(tmp_path, MeanAgent(), batches(), hooks=[CallHook(notes.append, "after_run")]) as learner:
        with pytest.raises(ZeroDivisionError), learner.running():
            learner.advance(2)
            raise ZeroDivisionError
        assert notes == [] and (tmp_path / "exception.txt").read_text().startswith("after 2 iterations\n")
        learner.start(3)
        assert len(notes) == 1


# --- Replay data


class Numbers:
    """Replay data: a list of numbers."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def save_data(self, folder):
        folder.mkdir()
        (folder / "part").mkdir()
        (folder / "part" / "numbers").write_text(repr(self.numbers))

    def load_data(self, folder):
        self.numbers = eval((folder / "part" / "numbers").read_text())


@pytest.mark.slow
def test_replay_data_are_saved_verified_loaded_and_removed_with_the_checkpoint(tmp_path):
    replay = Numbers(0)
    add = CallHook(lambda learner: replay.numbers.append(learner.step))
    with Learner(
        tmp_path, MeanAgent(), batches(), replay=replay, hooks=[add, SaveCkptHook(every=2)], keep_checkpoints=2
    ) as learner:
        learner.start(7)
    assert steps_in(tmp_path) == [4, 6]
    loaded = Numbers()
    with Learner(tmp_path, MeanAgent(), batches(), replay=loaded) as learner:
        assert learner.load_checkpoint() and loaded.numbers == [0, 1, 2, 3, 4, 5, 6]
    (tmp_path / "checkpoints" / "0000000006" / "replay" / "part" / "numbers").write_text("[7]")
    with Learner(tmp_path, MeanAgent(), batches(), replay=loaded) as learner:
        assert learner.load_checkpoint() and learner.step == 4 and loaded.numbers == [0, 1, 2, 3, 4]
    with Learner(tmp_path / "other", MeanAgent(), batches(), hooks=[SaveCkptHook(every=1)]) as learner:
        learner.start(1)
    with Learner(tmp_path / "other", MeanAgent(), batches(), replay=loaded) as learner:
        with pytest.raises(CheckpointError, match="0000000001 was saved without replay data; start a new run, or omit"):
            learner.load_checkpoint()


def make_server():
    return ReplayServer([TableConfig(sampler=Selector.parse("prioritized:0.6"), max_size=20)], SIGNATURE)


SIGNATURE = {
    name: tf.TensorSpec(shape, tf.float32)
    for name, shape in {
        "observation": [2],
        "action": [1],
        "reward": [],
        "discount": [],
        "next_observation": [2],
    }.items()
}


def fill(server):
    with server.client.trajectory_writer(1) as writer:
        for n in range(10):
            step = {name: np.full(spec.shape, n, np.float32) for name, spec in SIGNATURE.items()}
            writer.append(step)
            writer.create_item("replay", 1.0, {name: column[-1] for name, column in writer.history.items()})
        writer.flush()


def find_priorities(server):
    """Returns the priority of each item by its key, found by sampling each of a few items many times."""
    samples = server.client.sample("replay", 2000, emit_timesteps=False)
    return {int(np.ravel(sample.info.key)[0]): float(np.ravel(sample.info.priority)[0]) for sample in samples}


@pytest.mark.slow
@pytest.mark.drill("F6")
def test_server_continues_with_the_items_and_priorities_of_the_checkpoint(tmp_path):
    with make_server() as server, PriorityWriter(server, "replay") as writer:
        fill(server)
        hooks = [SaveCkptHook(every=4), CallHook(kill, every=6)]
        data = sample_dataset(server, "replay", 4, timeout_secs=5)
        with Learner(tmp_path, MeanAgent(), data, priorities=writer, replay=server, hooks=hooks) as learner:
            learner.start(4)
            saved = find_priorities(server)
            with pytest.raises(Killed):
                learner.start(10)
            learner.flush_priorities()
            assert find_priorities(server) != saved
    with make_server() as server, PriorityWriter(server, "replay") as writer:
        data = sample_dataset(server, "replay", 4, timeout_secs=5)
        with Learner(tmp_path, MeanAgent(), data, priorities=writer, replay=server) as learner:
            port = server.port
            assert learner.load_checkpoint() and learner.step == 4 and server.port == port
            assert find_priorities(server) == saved and len(saved) == 10
            learner.start(8)
            assert learner.load_checkpoint() and find_priorities(server) == saved
            learner.start(6)  # The dataset reads from the restarted server.


@pytest.mark.slow
@pytest.mark.drill("moved")
def test_lost_server_is_reported_after_saving_the_iterations_before_it(tmp_path):
    with make_server() as server:
        fill(server)
        data = sample_dataset(server, "replay", 4, timeout_secs=1)
        hooks = [CallHook(lambda learner: server.stop(), every=4)]
        with Learner(tmp_path, MeanAgent(), data, hooks=hooks) as learner:
            message = (
                rf"training stopped after \d+ iterations, which are saved in {tmp_path}.*: .*localhost:{server.port}"
            )
            with pytest.raises(ServerUnavailableError, match=message):
                learner.start(100_000)
            assert learner.step >= 4 and steps_in(tmp_path) == [learner.step]


def make_buffers(kind):
    """Returns an empty prioritized buffer, or a manager with two of them, and the list of the buffers."""
    if kind == "buffer":
        buffer = AdvancedReplayBuffer("a", BufferConfig(max_size=20), spec=SIGNATURE)
        return buffer, [buffer]
    manager = BufferManager(
        {"a": BufferConfig(max_size=20), "b": BufferConfig(max_size=20)}, sample_ratio={"a": 1, "b": 1}
    )
    return manager, [manager["a"], manager["b"]]


def read_priorities(buffers):
    return [buffer.state_dict()["arrays"]["priorities"].tolist() for buffer in buffers]


@pytest.mark.parametrize("kind", mark_slow_except({"manager"}, ["buffer", "manager"]))
def test_in_process_buffers_train_a_prioritized_agent_and_resume(tmp_path, kind):
    columns = {name: np.ones((9, *spec.shape), np.float32) for name, spec in SIGNATURE.items()}
    columns["reward"] = np.arange(9, dtype=np.float32)
    replay, buffers = make_buffers(kind)
    with replay:
        for buffer in buffers:
            buffer.extend_columns(columns)
        hooks = [SaveCkptHook(position="after_run")]
        data = replay.dataset(8)
        with Learner(tmp_path, MeanAgent(), data, priorities=replay, replay=replay, hooks=hooks) as learner:
            learner.start(6)
        saved = read_priorities(buffers)
        assert all(len(set(priorities)) > 1 for priorities in saved)  # The TD errors differ from item to item.
    replay, buffers = make_buffers(kind)
    with replay:
        for buffer in buffers:
            buffer.extend_columns(columns)  # A manager's buffers take their specs from their first items.
        data = replay.dataset(8)
        with Learner(tmp_path, MeanAgent(), data, priorities=replay, replay=replay) as learner:
            assert learner.load_checkpoint() and learner.step == 6 and read_priorities(buffers) == saved
            learner.start(8)
            learner.flush_priorities()
            assert read_priorities(buffers) != saved


# --- Warm starts


class MomentumAgent(MeanAgent):
    """A `MeanAgent` that is trained by a Keras optimiser with momentum."""

    def __init__(self, time_step_spec=TIME_STEP_SPEC, action_spec=ACTION_SPEC):
        self.optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        self.scale = tf.Variable(2.0, trainable=False)
        super().__init__()
        self._time_step_spec, self._action_spec = time_step_spec, action_spec

    def _train(self, experience, weights):
        with tf.GradientTape() as tape:
            errors = experience.next_time_step.reward - self.estimate
            loss = tf.reduce_mean(errors**2)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.estimate), self.estimate)])
        self.train_step_counter.assign_add(1)
        return tf_agent.LossInfo(loss, {"estimate": self.estimate + 0.0})


def read_optimizer(agent):
    variables = agent.optimizer.variables
    return [variable.numpy() for variable in (variables() if callable(variables) else variables)]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Provides the directory, estimate and optimiser variables of a run of five iterations."""
    folder, agent = tmp_path_factory.mktemp("finished") / "source", MomentumAgent()
    agent.scale.assign(3.0)
    with Learner(folder, agent, batches(), hooks=[SaveCkptHook(every=5)]) as learner:
        learner.start(5)
    return folder, agent.estimate.numpy(), read_optimizer(agent)


@pytest.fixture
def momentum_run(finished_run, tmp_path):
    """Provides a copy of the run for one test."""
    folder, estimate, variables = finished_run
    return shutil.copytree(folder, tmp_path / "source"), estimate, variables


def test_checkpoint_restores_the_variables_of_a_keras_optimizer(momentum_run):
    folder, estimate, variables = momentum_run
    agent = MomentumAgent()
    with Learner(folder, agent, batches()) as learner:
        assert learner.load_checkpoint()
        assert agent.estimate.numpy() == estimate and read_optimizer(agent) == variables
        assert any(variable not in (0.0, np.float32(0.1)) for variable in variables)


@pytest.mark.parametrize("place", mark_slow_except({"run_dir"}, ["run_dir", "checkpoint"]))
def test_initialize_from_loads_weights_but_no_optimizer_and_no_step(momentum_run, tmp_path, place):
    folder, estimate, _ = momentum_run
    path = folder if place == "run_dir" else folder / "checkpoints" / "0000000005"
    agent, fresh = MomentumAgent(), MomentumAgent()
    with Learner(tmp_path / "new", agent, batches()) as learner, Learner(tmp_path / "fresh", fresh, batches()) as other:
        learner.initialize_from(path)
        assert not other.has_td_errors  # Which traces an iteration, so that its optimiser has variables.
        assert agent.estimate.numpy() == estimate and agent.scale.numpy() == 3.0
        assert learner.step == int(agent.train_step_counter) == 0 and read_optimizer(agent) == read_optimizer(fresh)
        learner.start(1)
        with pytest.raises(ValueError, match="requires a learner without completed iterations, got 1"):
            learner.initialize_from(path)


def test_weights_and_targets_of_an_agent_are_loaded_without_its_optimizers(tmp_path):
    def read(agent):
        parts = tf.train.TrackableView(agent).descendants()
        return [(part.name, part.numpy()) for part in parts if isinstance(part, tf.Variable)]

    source, target = (make_agent("td3_bc", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(4,)) for _ in range(2))
    for number, agent in enumerate((source, target)):
        for part in tf.train.TrackableView(agent).descendants():
            if isinstance(part, tf.Variable):
                part.assign(tf.cast(tf.fill(part.shape, number), part.dtype))
    checkpoint = Checkpoints(tmp_path, {"agent": source}).save(1, {"specs": describe_specs(source)})
    load_weights(checkpoint, target)
    for name, value in read(target):
        assert set(np.unique(value)) == {int(bool(re.fullmatch(r"(m/\d|v/\d|step|train_step):0", name)))}, name


def test_initialize_from_requires_equal_specs_and_an_existing_checkpoint(momentum_run, tmp_path):
    folder, _, _ = momentum_run
    wide = tensor_spec.BoundedTensorSpec([1], tf.float32, -2, 2)
    with Learner(tmp_path / "a", MomentumAgent(action_spec=wide), batches()) as learner:
        message = r"action is float32 \[1\] in \[-2.0, 2.0\], but float32 \[1\] in \[-1.0, 1.0\] in .*0000000005; use"
        with pytest.raises(SpecMismatchError, match=message):
            learner.initialize_from(folder)
    checkpoint, spec = open_checkpoint(folder), {"dtype": "int64", "shape": [3]}
    known = checkpoint.manifest["specs"]
    for specs, message in (
        ({**known, "observation/goal": spec}, r"observation/goal is missing, but int64 \[3\] in"),
        ({"action": known["action"]}, r"observation is float32 \[2\], but missing in"),
    ):
        with pytest.raises(SpecMismatchError, match=message):
            load_weights(replace(checkpoint, manifest={**checkpoint.manifest, "specs": specs}), MomentumAgent())
    with Learner(tmp_path / "c", MomentumAgent(), batches()) as learner:
        with pytest.raises(CheckpointError, match="nowhere is not a valid checkpoint"):
            learner.initialize_from(tmp_path / "nowhere")
        with pytest.raises(CheckpointError, match="c has no checkpoint; pass a run_dir with one"):
            learner.initialize_from(tmp_path / "c")
        assert time_step_spec(tf.TensorSpec([2])).observation.shape == [2]


# --- Quiet


def test_refused_checkpoint_of_a_different_agent_is_followed_by_no_warnings(momentum_run, caplog):
    folder, _, _ = momentum_run
    with Learner(folder, MeanAgent(), batches()) as learner, warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.load_checkpoint(allow_config_mismatch=True)  # It contains all that this agent needs.

    class WiderAgent(MeanAgent):
        def __init__(self):
            self.more = tf.Variable(0.0)
            super().__init__()

    with Learner(folder, WiderAgent(), batches()) as learner:
        with pytest.raises(CheckpointError, match="belongs to a different agent"):
            learner.load_checkpoint(allow_config_mismatch=True)
    assert "checkpoint" not in caplog.text
