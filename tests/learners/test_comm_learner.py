"""Tasks as plain dicts, and the learner that trains one after another."""

import json

import numpy as np
import pytest
import tensorflow as tf
from small_agents import ACTION_SPEC, TIME_STEP_SPEC, MeanAgent, batches
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step_spec

from rlds2reverb.learners import register_agent
from rlds2reverb.learners.comm_learner import BaseCommLearner
from rlds2reverb.learners.tasks import make_task, read_policy


def make_mean_agent(time_step_spec, action_spec, rate=0.5):
    return MeanAgent(rate)


class RecordingLearner(BaseCommLearner):
    """A learner on fixed data that records what it sends."""

    def __init__(self):
        super().__init__()
        self.batch_sizes, self.policies, self.infos = [], [], []

    def get_data(self, batch_size):
        self.batch_sizes.append(batch_size)
        return batches(size=batch_size)

    def send_policy(self, state):
        self.policies.append((state["step"], [np.copy(variable) for variable in state["variables"]]))

    def send_learn_info(self, info):
        self.infos.append(info)


@pytest.fixture(scope="module", autouse=True)
def mean_agent():
    register_agent("mean", make_mean_agent)


def make_small_task(run_dir, num_iterations=250, **options):
    return make_task(
        "small", "mean", TIME_STEP_SPEC, ACTION_SPEC, run_dir=str(run_dir), num_iterations=num_iterations,
        batch_size=4, **options
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Provides a learner that has trained two tasks."""
    folder = tmp_path_factory.mktemp("comm")
    learner = RecordingLearner()
    learner.start()
    steps = [learner.run(make_small_task(folder / "first")), learner.run(make_small_task(folder / "second", 30))]
    return learner, steps, folder


# --- The learner


@pytest.mark.slow
def test_tasks_are_trained_one_after_another_without_a_restart(trained):
    learner, steps, _ = trained
    assert steps == [250, 30] and learner.batch_sizes == [4, 4] and learner.learner is None


def test_policy_is_sent_before_the_run_every_100_iterations_and_after_it(trained):
    learner, _, _ = trained
    assert [step for step, _ in learner.policies] == [0, 100, 200, 250, 0, 30]


def test_sent_variables_are_those_of_the_policy(trained):
    learner, _, _ = trained
    estimates = [float(variables[0]) for _, variables in learner.policies]
    assert estimates[0] == 0
    assert np.all(np.diff(estimates[:4]) > 0)  # The rewards of the batches increase.


def test_progress_is_sent_every_10_iterations_and_after_the_run(trained):
    learner, _, _ = trained
    first = [info["step"] for info in learner.infos[:26]]
    assert first == [*range(10, 251, 10), 250]
    assert [info["is_finished"] for info in learner.infos[:26]] == [False] * 25 + [True]
    assert all(np.isfinite(info["loss"]) for info in learner.infos)


def test_finished_task_has_checkpoint_and_policy(trained):
    _, _, folder = trained
    assert (folder / "first" / "policy" / "saved_model.pb").is_file()
    assert any((folder / "first" / "checkpoints").iterdir())


@pytest.mark.slow
def test_interrupted_task_continues_from_its_checkpoint(tmp_path):
    first = RecordingLearner()
    first.start()
    first.run(make_small_task(tmp_path, 100))
    second = RecordingLearner()
    second.start()
    assert second.run(make_small_task(tmp_path, 120)) == 120
    assert second.infos[0]["step"] == 110


def test_closed_learner_trains_no_task(tmp_path):
    learner = RecordingLearner()
    with pytest.raises(RuntimeError, match="call start before run"):
        learner.run(make_small_task(tmp_path))
    learner.start()
    learner.close()
    with pytest.raises(RuntimeError, match="call start before run"):
        learner.run(make_small_task(tmp_path))


@pytest.mark.slow
def test_close_ends_the_running_task(tmp_path):
    class Impatient(RecordingLearner):
        def send_learn_info(self, info):
            super().send_learn_info(info)
            if info["step"] == 20:
                self.close()

    learner = Impatient()
    learner.start()
    assert learner.run(make_small_task(tmp_path)) == 20
    assert learner.policies[-1][0] == 20


def test_close_during_the_setup_of_a_task_ends_it(tmp_path, monkeypatch):
    learner = RecordingLearner()
    original = learner.get_data

    def call(*arguments):
        result = original(*arguments)
        learner.close()
        return result

    monkeypatch.setattr(learner, "get_data", call)
    learner.start()
    assert learner.run(make_small_task(tmp_path)) == 0


def test_random_shifts_of_a_task_require_images(tmp_path):
    learner = RecordingLearner()
    learner.start()
    with pytest.raises(ValueError, match=r"random_shift=4 requires an observation that is an image, .* float32 \[2\]"):
        learner.run(make_small_task(tmp_path, random_shift=4, seed=1))


# --- Tasks


def test_task_survives_json():
    specs = time_step_spec({"a": tf.TensorSpec([3], tf.float32), "b": tf.TensorSpec([2, 2], tf.uint8)})
    action = tensor_spec.BoundedTensorSpec([2], tf.float32, [-1, -2], [1, 2], name="action")
    hyperparameters = {"hidden_sizes": (32,), "observation_mean": {"a": np.ones(3), "b": np.zeros((2, 2))}}
    task = make_task(
        "t", "td3_bc", specs, action, hyperparameters=hyperparameters, run_dir="r", num_iterations=5, batch_size=2
    )
    policy = read_policy(json.loads(json.dumps(task))["policy"])
    assert policy.time_step_spec == specs and policy.action_spec == action and policy.algo == "td3_bc"
    assert policy.hyperparameters["observation_mean"]["a"].tolist() == [1, 1, 1]
    assert policy.hyperparameters["observation_mean"]["b"].dtype == np.float64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learner": {"run_dir": "r"}}, "the learner config of a task must contain num_iterations, batch_size"),
        ({"policy": {"algo": "bc"}}, "the policy config of a task must contain specs"),
    ],
)
def test_incomplete_task_raises(tmp_path, change, message):
    learner = RecordingLearner()
    learner.start()
    with pytest.raises(ValueError, match=message):
        learner.run({**make_small_task(tmp_path), **change})


def test_unknown_option_of_a_task_raises(tmp_path):
    with pytest.raises(ValueError, match="contains iterations; use run_dir, num_iterations"):
        make_small_task(tmp_path, iterations=3)
