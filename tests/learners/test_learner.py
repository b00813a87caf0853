"""The learner: hooks at their iterations, priorities, errors, signals and evaluations."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import reverb
import tensorflow as tf
from properties import mark_slow_except
from small_agents import ACTION_SPEC, TIME_STEP_SPEC, MeanAgent, batches, items, transitions
from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
from tf_agents.agents.ddpg.actor_network import ActorNetwork
from tf_agents.trajectories import Trajectory

from rlds2reverb import SampleInfo
from rlds2reverb.errors import CheckpointError, ResourceInUseError, ServerUnavailableError, SpecMismatchError
from rlds2reverb.learners import InMemoryDataset, Learner, TrainingDivergedError, learner as learner_module
from rlds2reverb.learners.hooks import EvaluateHook, LearnerHook, LogShowHook, SaveCkptHook
from rlds2reverb.learners.policy_export import restore_policy
from rlds2reverb.system.signals import defer_signals, stop_on_signal


class RecordingHook(LearnerHook):
    """A hook that appends its name and `last_iter` to a list."""

    def __init__(self, notes, position, *, name="note", priority=50, every=1):
        super().__init__(name, priority, position=position, every=every)
        self.notes = notes

    def __call__(self, learner):
        self.notes.append((self.name, learner.last_iter))


def make_info(keys):
    """Returns the info of a batch of `sample_dataset`, with weights of 0.5."""
    keys = tf.cast(keys, tf.uint64)
    ones = tf.ones([keys.shape[0]])
    int_ones = tf.cast(ones, tf.int32)
    float64_ones, int64_ones = tf.cast(ones, tf.float64), tf.cast(ones, tf.int64)
    return SampleInfo(keys, float64_ones, int64_ones, ones, int_ones, 0.5 * ones, 0 * int_ones)


class RecordingSink:
    """A priority sink that records its calls."""

    def __init__(self):
        self.calls = []

    def update(self, info, td_errors):
        self.calls.append((np.asarray(info.key).tolist(), np.asarray(td_errors).tolist()))


# --- A single iteration


def test_train_runs_one_iteration_with_hooks_before_and_after_it(tmp_path):
    agent, notes = MeanAgent(), []
    with Learner(tmp_path, agent, batches(), hooks=[RecordingHook(notes, at, name=at) for at in
                 ("after_run", "after_iter", "before_iter", "before_run")]) as learner:  # fmt: skip
        learner.register_hook(RecordingHook(notes, "before_iter", name="late", priority=60))
        learned = learner.train(transitions([2.0, 4.0]))
        assert learned == learner.learn_info == {"loss": 10.0, "estimate": 1.5}
        assert notes == [("before_iter", 0), ("late", 0), ("after_iter", 0)] and learner.last_iter == 1
        learner.train((transitions([2.0, 4.0]), ()))
        assert notes[3:] == [("before_iter", 1), ("late", 1), ("after_iter", 1)] and learner.last_iter == 2
    assert agent.estimate.numpy() == 2.25 and int(agent.train_step_counter) == 2


def test_after_iter_hooks_see_the_update_and_its_priority_info(tmp_path):
    agent, records = MeanAgent(), []

    class Record(LearnerHook):
        def __init__(self, position):
            super().__init__("record", position=position)

        def __call__(self, learner):
            error = learner.priority_info.get("priority")
            records.append((float(agent.estimate), None if error is None else error.tolist()))

    with Learner(tmp_path, agent, batches(), hooks=[Record("before_iter"), Record("after_iter")]) as learner:
        learner.train(reverb.ReplaySample(make_info([7, 8]), transitions([2.0, 4.0])))
        assert records == [(0.0, None), (0.75, [2.0, 4.0])]  # The update uses the weights of 0.5, the errors do not.
        assert learner.priority_info["replay_unique_id"].tolist() == [7, 8]
        learner.train(transitions([2.0, 4.0]))
        assert learner.priority_info == {}
        learner.train(transitions([2.0, 4.0]), weights=tf.zeros([2]))
        assert agent.estimate.numpy() == np.float32(0.75 + 0.5 * 2.25)


# --- A run


@pytest.mark.parametrize("steps_per_call", mark_slow_except({7}, [1, 7, 100]))
def test_hooks_are_called_at_their_exact_iterations_without_retracing(tmp_path, steps_per_call):
    notes, agent = [], MeanAgent()
    hooks = [
        RecordingHook(notes, "after_iter", name="b", priority=20, every=6),
        RecordingHook(notes, "after_iter", name="a", priority=10, every=4),
        RecordingHook(notes, "after_iter", name="c", priority=20, every=4),
        RecordingHook(notes, "before_iter", name="before", every=5),
        RecordingHook(notes, "before_run", name="first"),
        RecordingHook(notes, "after_run", name="last"),
    ]
    with Learner(tmp_path, agent, batches(), hooks=hooks, steps_per_call=steps_per_call) as learner:
        learner.start(13)
        expected = [("first", 0), ("before", 0), ("a", 3), ("c", 3), ("before", 5), ("b", 5), ("a", 7), ("c", 7)]
        expected += [("before", 10), ("a", 11), ("b", 11), ("c", 11), ("last", 13)]
        assert notes == expected and learner.last_iter == 13
        assert learner.learn_info["estimate"] == agent.estimate.numpy() and int(agent.train_step_counter) == 13
        learner.start(14)
        assert notes[len(expected) :] == [("first", 13), ("last", 14)]
        assert agent.num_traces == 1


def test_each_iteration_reads_the_next_batch(tmp_path):
    agent = MeanAgent(rate=1.0)
    with Learner(tmp_path, agent, batches(), steps_per_call=3) as learner:
        for done in (1, 2, 5):
            learner.start(done)
            assert agent.estimate.numpy() == done - 1 + 1.5  # This is the mean of the last rewards n .. n + 3.


def test_logged_numbers_are_means_since_the_last_log(tmp_path):
    logged = []
    hooks = [LogShowHook(every=4)]
    with Learner(
        tmp_path, MeanAgent(rate=1.0), batches(), hooks=hooks, steps_per_call=3, on_log=lambda at, numbers: logged.append((at, numbers))
    ) as learner:  # fmt: skip
        learner.start(8)
        assert learner.log_buffer == {} and learner.name == "learner" and learner.policy is learner.agent.policy
    assert [at for at, _ in logged] == [4, 8]
    assert [numbers["estimate"] for _, numbers in logged] == [3.0, 7.0]  # The means of 1.5 .. 4.5 and 5.5 .. 8.5.
    assert all(numbers["train_secs"] >= 0 and numbers["data_wait_secs"] >= 0 for _, numbers in logged)
    assert 0 <= logged[1][1]["data_wait_share"] <= 1 and logged[1][1]["updates_per_sec"] > 0


def test_custom_hook_stops_the_run(tmp_path):
    class StopAt(LearnerHook):
        def __init__(self):
            super().__init__("stop_at", position="after_iter", every=3)

        def __call__(self, learner):
            learner.stop("enough")

    with Learner(tmp_path, MeanAgent(), batches(), hooks=[StopAt()]) as learner:
        learner.start(100)
        assert learner.last_iter == 3 and learner.stop_reason == "enough" and not learner.is_stopped_by_signal


def test_stop_in_a_before_iter_hook_prevents_the_iteration(tmp_path):
    class Stop(RecordingHook):
        def __call__(self, learner):
            learner.stop("now")

    with Learner(tmp_path, MeanAgent(), batches(), hooks=[Stop([], "before_iter", every=2)]) as learner:
        learner.start(10)
        assert learner.last_iter == 0


@pytest.mark.drill("user code")
def test_exception_in_a_hook_is_written_to_a_file_and_raised(tmp_path):
    class Fail(RecordingHook):
        is_broken = True

        def __call__(self, learner):
            if self.is_broken:
                raise RuntimeError("hook failed")

    with Learner(tmp_path, MeanAgent(), batches(), hooks=[Fail([], "after_iter", every=2)]) as learner:
        with pytest.raises(RuntimeError, match="hook failed"):
            learner.start(10)
        report = (tmp_path / "exception.txt").read_text()
        assert report.startswith("after 2 iterations\nTraceback") and "hook failed" in report
        assert learner.last_iter == 2
        Fail.is_broken = False
        learner.start(4)
        assert not (tmp_path / "exception.txt").exists()


# --- Priorities


def test_absolute_td_errors_of_every_iteration_are_written_once(tmp_path):
    writer, agent = RecordingSink(), MeanAgent(rate=0.0)
    numbered = batches(size=2, first=-1.0)
    pairs = tf.data.Dataset.zip((numbered, tf.data.Dataset.range(1000).map(lambda n: make_info([2 * n, 2 * n + 1]))))
    with Learner(tmp_path, agent, pairs, priorities=writer, steps_per_call=2) as learner:
        learner.start(3)
        assert writer.calls == [
            ([0, 1, 2, 3], [1.0, 0.0, 0.0, 1.0]),
            ([4, 5], [1.0, 2.0]),
        ]
        learner.train(transitions([1.0, 2.0]))  # This batch has no keys.
        learner.flush_priorities()
        assert len(writer.calls) == 2


def test_agent_without_td_errors_is_refused_before_the_first_iteration(tmp_path):
    sink, agent = RecordingSink(), MeanAgent(has_td_errors=False)
    pairs = batches(size=2).map(lambda batch: (batch, make_info([1, 2])))
    with Learner(tmp_path, agent, pairs, priorities=sink) as learner:
        message = "requires an agent that computes a TD error for each item, unlike MeanAgent; omit priorities="
        with pytest.raises(ValueError, match=message):
            learner.start(2)
        with pytest.raises(ValueError, match=message):
            learner.train((transitions([1.0, 2.0]), make_info([1, 2])))
        assert sink.calls == [] and learner.step == 0 and int(agent.train_step_counter) == 0


@pytest.mark.slow
def test_error_of_the_priority_sink_is_raised(tmp_path):
    class Broken:
        def __init__(self):
            self.num_calls = 0

        def update(self, info, td_errors):
            self.num_calls += 1
            if self.num_calls == 1:
                raise ConnectionError("server gone")

    pairs = batches(size=2).map(lambda batch: (batch, make_info([1, 2])))
    with Learner(tmp_path, MeanAgent(), pairs, priorities=Broken(), steps_per_call=1) as learner:
        with pytest.raises(ConnectionError, match="server gone"):
            learner.start(2)


# --- Invalid arguments


@pytest.mark.drill("F27")
def test_directory_of_a_running_learner_is_locked_until_it_closes(tmp_path):
    with Learner(tmp_path, MeanAgent(), batches()) as learner:
        with pytest.raises(ResourceInUseError, match=f"in use by process {os.getpid()}"):
            Learner(tmp_path, MeanAgent(), batches())
        with pytest.raises(RuntimeError, match="advance requires a running learner"):
            learner.advance(1)
        with learner.running(), pytest.raises(RuntimeError, match="the learner is already running"):
            learner.start(1)
    Learner(tmp_path, MeanAgent(), batches()).close()


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dataset": [1]}, TypeError, "dataset must be a feed, .*, got a list"),
        ({"steps_per_call": 0}, ValueError, "steps_per_call must be an integer >= 1, got 0"),
        ({"checkpoint_every_secs": -1}, ValueError, r"checkpoint_every_secs must be a number in \[0, inf\], got -1"),
        ({"keep_checkpoints": 0}, ValueError, "keep_checkpoints must be an integer >= 1, got 0"),
        ({"hooks": [print]}, TypeError, "hook must be a LearnerHook"),
        ({"priorities": RecordingSink()}, SpecMismatchError, "requires batches with keys"),
        (
            {"priorities": print},
            TypeError,
            r"priorities must have a method update\(info, td_errors\), .* got a builtin",
        ),
        ({"replay": "server"}, TypeError, r"replay must have the methods save_data\(folder\) and .*, got a str"),
        ({"agent": object()}, TypeError, "agent must be a TFAgent, such as make_agent returns, got <object"),
        ({"identity": {"seed": object()}}, TypeError, "identity must contain only numbers, strings"),
    ],
)
def test_invalid_arguments_raise_before_the_directory_is_created(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        Learner(tmp_path / "run", **{"agent": MeanAgent(), "dataset": batches(), **arguments})
    assert not (tmp_path / "run").exists()


def test_hook_without_a_name_raises(tmp_path):
    class Nameless(LearnerHook):
        def __init__(self):
            pass

        def __call__(self, learner):
            pass

    with pytest.raises(TypeError, match=r"hook of class Nameless has no name and position; call super\(\).__init__"):
        Learner(tmp_path / "run", MeanAgent(), batches(), hooks=[Nameless()])
    assert not (tmp_path / "run").exists()


def test_observations_of_text_raise_before_the_directory_is_created(tmp_path):
    def replace(batch):
        text = tf.constant([["a", "b"]] * 4)
        return batch._replace(time_step=batch.time_step._replace(observation=text))

    with pytest.raises(SpecMismatchError, match=r"\['observation'\] is text, but agents are trained"):
        Learner(tmp_path / "run", MeanAgent(), batches().map(replace))
    assert not (tmp_path / "run").exists()


def test_failed_construction_releases_the_directory(tmp_path, monkeypatch):
    agent = MeanAgent()

    def fail(*arguments, **options):
        raise ValueError("construction failed")

    with monkeypatch.context() as patch:
        patch.setattr(learner_module, "Checkpoints", fail)
        with pytest.raises(ValueError, match="construction failed"):
            Learner(tmp_path, agent, batches())
    Learner(tmp_path, agent, batches()).close()


def test_invalid_positions_and_iterations_raise(tmp_path):
    class Never(RecordingHook):
        def next_due(self, done):
            return done

    with Learner(tmp_path, MeanAgent(), batches(), hooks=[Never([], "after_iter", name="odd")]) as learner:
        with pytest.raises(ValueError, match="position must be one of .*, got 'between'"):
            learner.call_hook("between")
        with pytest.raises(ValueError, match="num_iterations must be an integer >= 1, got 0"):
            learner.start(0)
        with pytest.raises(ValueError, match="next_due of hook 'odd' must return more than 0, got 0; fix the hook"):
            learner.start(1)


# --- Errors of the dataset


def find_steps(folder):
    """Returns the steps of the checkpoints, and of the rows of the log."""
    rows = (folder / "progress.csv").read_text().splitlines()[1:]
    steps = [int(path.name) for path in sorted((folder / "checkpoints").iterdir())]
    return steps, [int(row.split(",")[0]) for row in rows]


def make_failing_batches(fail_at, message="row is damaged"):
    """Returns a dataset whose batch number `fail_at` raises an error in TensorFlow."""

    def batch(n):
        with tf.control_dependencies([tf.debugging.Assert(n < fail_at, [message])]):
            return transitions(tf.zeros([4]) + tf.cast(n, tf.float32))

    return tf.data.Dataset.range(1000).map(batch)


class NumpyBatches:
    """A stream of arrays that raises an error once, in place of batch number `fail_at`."""

    def __init__(self, fail_at):
        self.element_spec, self.fail_at, self.number = batches().element_spec, fail_at, -1

    def __iter__(self):
        return self

    def __next__(self):
        self.number += 1
        if self.number == self.fail_at:
            raise ServerUnavailableError("no samples")
        return tf.nest.map_structure(np.asarray, transitions(np.arange(self.number, self.number + 4.0)))


@pytest.mark.parametrize(
    ("make_dataset", "error", "message"),
    [
        (
            lambda: batches().take(25),
            ValueError,
            r"the dataset ended; use an endless dataset, such as dataset.repeat\(\)",
        ),
        pytest.param(
            lambda: make_failing_batches(25), tf.errors.InvalidArgumentError, "row is damaged", marks=pytest.mark.slow
        ),
        pytest.param(lambda: NumpyBatches(fail_at=25), ServerUnavailableError, "no samples", marks=pytest.mark.slow),
    ],
)
@pytest.mark.drill("user code")
def test_iterations_before_an_error_of_the_dataset_are_counted_saved_and_logged(tmp_path, make_dataset, error, message):
    agent = MeanAgent()
    with Learner(tmp_path, agent, make_dataset(), hooks=[LogShowHook(every=10)]) as learner:
        saved = "training stopped after 25 iterations, which are saved in .*0000000025"
        with pytest.raises(error, match=message) as raised:
            learner.start(100)
        raised.match(saved)  # In the message of own errors, and in a note of others.
        assert saved[:40] in (tmp_path / "exception.txt").read_text()
        assert learner.step == learner.last_iter == int(agent.train_step_counter) == 25
        assert find_steps(tmp_path) == ([25], [10, 20])
        assert (tmp_path / "exception.txt").read_text().startswith("after 25 iterations\n")
    with Learner(tmp_path, MeanAgent(), batches(), hooks=[LogShowHook(every=10)]) as learner:
        assert learner.load_checkpoint() and learner.step == 25
        learner.start(40)
        assert find_steps(tmp_path) == ([25], [10, 20, 30, 40])


def test_batches_after_the_last_iteration_are_not_read(tmp_path):
    stream = NumpyBatches(fail_at=1000)
    with Learner(tmp_path, MeanAgent(), stream, hooks=[SaveCkptHook(every=3)], steps_per_call=4) as learner:
        learner.start(7)
        assert stream.number == 6
        learner.start(8)
    assert stream.number == 7


def test_error_of_the_dataset_without_new_iterations_saves_no_checkpoint(tmp_path):
    with Learner(tmp_path, MeanAgent(), make_failing_batches(0)) as learner:
        with pytest.raises(tf.errors.InvalidArgumentError, match="training stopped after 0 iterations$"):
            learner.start(5)
    hooks = [SaveCkptHook(every=3), LogShowHook(every=3)]
    with Learner(tmp_path, MeanAgent(), make_failing_batches(3), hooks=hooks) as learner:
        with pytest.raises(tf.errors.InvalidArgumentError, match="stopped after 3 iterations, which are saved$"):
            learner.start(5)
        assert find_steps(tmp_path) == ([3], [3])


def test_error_of_the_dataset_is_raised_when_the_iterations_cannot_be_saved(tmp_path):
    class Broken:
        def save_data(self, folder):
            raise ConnectionError("server gone")

        def load_data(self, folder):
            pass

    with Learner(tmp_path, MeanAgent(), make_failing_batches(3), replay=Broken()) as learner:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"after 3 iterations, which could not be saved \(server gone\)"
        ):
            learner.start(5)


class UnfinishedAgent(MeanAgent):
    """An agent whose update fails in the middle, at a reward of 30 and more."""

    def _train(self, experience, weights):
        loss = super()._train(experience, weights)
        reward = experience.next_time_step.reward
        with tf.control_dependencies([self.estimate, tf.debugging.Assert(tf.reduce_max(reward) < 30, ["too high"])]):
            return tf.nest.map_structure(tf.identity, loss)


@pytest.mark.drill("user code")
def test_error_within_an_update_saves_no_part_of_it(tmp_path):
    hooks = [SaveCkptHook(every=10), LogShowHook(every=10)]
    with Learner(tmp_path, UnfinishedAgent(), batches(), hooks=hooks) as learner:
        with pytest.raises(tf.errors.InvalidArgumentError, match="after 27 iterations, during an update.*not saved"):
            learner.start(100)
        assert learner.step == 27 and find_steps(tmp_path) == ([10, 20], [10, 20])
        assert learner.load_checkpoint() and learner.step == 20


class UnusualError(ValueError):
    """An error that cannot be created from a message."""

    def __init__(self, row, path):
        super().__init__(row, path)
        self.row = row


def test_unusual_errors_of_an_agent_keep_their_attributes_and_traceback(tmp_path):
    class BrokenAgent(MeanAgent):
        def _train(self, experience, weights):
            raise UnusualError(7, "data.hdf5")

    with Learner(tmp_path, BrokenAgent(), batches()) as learner:
        with pytest.raises(UnusualError) as raised:
            learner.start(5)
        assert raised.value.row == 7 and raised.traceback[-1].name == "_train"
        assert "training stopped after 0 iterations" in (tmp_path / "exception.txt").read_text()


# --- Non-finite numbers


@pytest.mark.drill("F20")
def test_nan_loss_raises_at_its_iteration_and_names_the_keys_of_the_batch(tmp_path):
    def batch(n):
        bad = tf.where(n == 4, np.nan, 1.0)
        return transitions(tf.stack([1.0, tf.cast(bad, tf.float32)])), make_info([10 * n, 10 * n + 1])

    writer, data = RecordingSink(), tf.data.Dataset.range(100).map(batch)
    with Learner(tmp_path, MeanAgent(), data, priorities=writer, hooks=[SaveCkptHook(every=1)]) as learner:
        with pytest.raises(
            TrainingDivergedError,
            match=r"diverged at iteration 4: the loss is nan; lower the learning .* \(keys of the batch: 40, 41\)",
        ):
            learner.start(100)
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1] == f"{4:010d}"
        with pytest.raises(
            CheckpointError, match="the checkpoint at iteration 5 was not written: estimate:0 is not finite"
        ):
            learner.save_checkpoint()
        with pytest.raises(TrainingDivergedError):
            learner.train(transitions([1.0, 1.0]))  # The weight is already NaN.


@pytest.mark.parametrize("batch_size", [2, 12])
@pytest.mark.drill("F20")
def test_nan_in_memory_raises_and_names_up_to_ten_items_of_the_batch(tmp_path, batch_size):
    dataset = InMemoryDataset(
        items([1.0, np.nan]), batch_size, to_experience=lambda batch: transitions(batch["reward"])
    )
    indices = dataset.sample_indices(0, 9).tolist()
    bad = next(n for n, batch in enumerate(indices) if 1 in batch)
    listed = ", ".join(map(str, indices[bad][:10])) + (" and 2 more" if batch_size == 12 else "")
    with Learner(tmp_path, MeanAgent(), dataset) as learner:
        with pytest.raises(TrainingDivergedError, match=rf"iteration {bad}: .* \(items of the batch: {listed}\)"):
            learner.start(10)


def make_cloning_agent():
    network = ActorNetwork(TIME_STEP_SPEC.observation, ACTION_SPEC, fc_layer_params=(4,))
    agent = BehavioralCloningAgent(
        TIME_STEP_SPEC, ACTION_SPEC, cloning_network=network, optimizer=tf.keras.optimizers.Adam(1e-2)
    )
    agent.initialize()
    return agent


def make_cloning_batches(*, bad_at=-1):
    def batch(n):
        action = tf.fill([4, 1], tf.where(n == bad_at, np.float32(np.nan), tf.cast(n % 3, tf.float32) / 3))
        types, ones = tf.ones([4], tf.int32), tf.ones([4])
        return Trajectory(types, tf.zeros([4, 2]), action, (), types, ones, ones)

    return tf.data.Dataset.range(100).map(batch)


@pytest.mark.slow
def test_cloning_agent_of_tf_agents_stops_at_nan_and_resumes_bit_for_bit(tmp_path):
    with Learner(tmp_path / "bad", make_cloning_agent(), make_cloning_batches(bad_at=2)) as learner:
        with pytest.raises(TrainingDivergedError, match="diverged at iteration 2"):
            learner.start(10)
    uninterrupted = make_cloning_agent()
    initial = [variable.numpy() for variable in uninterrupted.variables]
    with Learner(tmp_path / "uninterrupted", uninterrupted, make_cloning_batches()) as learner:
        learner.start(6)
    interrupted = make_cloning_agent()
    for variable, value in zip(interrupted.variables, initial, strict=True):
        variable.assign(value)
    data, hooks = iter(make_cloning_batches()), [SaveCkptHook(position="after_run")]
    with Learner(tmp_path / "resumed", interrupted, data, trackables={"data": data}, hooks=hooks) as learner:
        learner.start(3)
    resumed, data = make_cloning_agent(), iter(make_cloning_batches())
    with Learner(tmp_path / "resumed", resumed, data, trackables={"data": data}) as learner:
        assert learner.load_checkpoint()
        learner.start(6)
    for one, other in zip(uninterrupted.variables, resumed.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


# --- Signals


def test_deferred_signal_counts_once():
    """Simulates SIGTERM while a checkpoint of the server defers it; a second signal would end the process."""
    reasons = []
    with stop_on_signal(reasons.append), defer_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        assert reasons == []
    assert reasons == ["SIGTERM"]


SIGNAL_SCRIPT = textwrap.dedent(
    """
    import os, signal, sys, threading
    import tensorflow as tf
    from rlds2reverb.learners import Learner
    from rlds2reverb.learners.hooks import LearnerHook, SaveCkptHook
    from small_agents import MeanAgent, batches, transitions

    class Send(LearnerHook):
        def __init__(self):
            super().__init__("send", position="after_iter", every=5)
        def __call__(self, learner):
            os.kill(os.getpid(), signal.SIGTERM)

    def twice(n):
        if n == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait()
        return n

    data = batches()
    if sys.argv[2] == "twice":  # The signals arrive while the graph runs, which then never returns.
        data = tf.data.Dataset.range(100).map(lambda n: tf.ensure_shape(tf.numpy_function(twice, [n], tf.int64), []))
        data = data.map(lambda n: transitions(tf.zeros([4]) + tf.cast(n, tf.float32)))
    hooks = [SaveCkptHook(position="after_run"), *([Send()] if sys.argv[2] == "once" else [])]
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Learner(sys.argv[1], MeanAgent(), data, hooks=hooks) as learner:
        learner.start(1000)
        after = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        print(learner.last_iter, learner.stop_reason, before == after, learner.is_stopped_by_signal)
    """
)


def run_signal_script(folder, mode):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support"), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", SIGNAL_SCRIPT, str(folder), mode]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
@pytest.mark.drill("F5")
def test_signal_ends_the_run_after_the_call_and_saves_a_checkpoint(tmp_path):
    done = run_signal_script(tmp_path, "once")
    assert done.stdout.split() == ["5", "SIGTERM", "True", "True"], done.stderr
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"{5:010d}"]


@pytest.mark.slow
@pytest.mark.drill("F5")
def test_second_signal_ends_the_process_while_the_graph_waits(tmp_path):
    done = run_signal_script(tmp_path, "twice")
    assert done.returncode == 128 + signal.SIGINT and done.stdout == ""
    assert list((tmp_path / "checkpoints").iterdir()) == []


# --- Evaluations


def test_policy_that_was_being_replaced_is_restored(tmp_path):
    path, previous = tmp_path / "policy", tmp_path / "policy.previous"
    previous.mkdir()
    (previous / "saved_model.pb").write_text("old")
    restore_policy(path)
    assert (path / "saved_model.pb").read_text() == "old" and not previous.exists()
    with Learner(tmp_path / "run", MeanAgent(), batches()) as learner:
        learner.export_policy(path)
    assert len((path / "saved_model.pb").read_bytes()) > 10
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["policy", "run"]


@pytest.mark.slow
def test_best_checkpoint_is_saved_with_hook_states_and_exported(tmp_path):
    returns = iter([1.0, 5.0, 3.0, 4.0])
    agent = MeanAgent(rate=1.0)
    data = tf.data.Dataset.range(100).map(lambda n: transitions([tf.cast(n, tf.float32) / 8]))
    hooks = [
        EvaluateHook(lambda _: next(returns), every=2),
        EvaluateHook(lambda _: next(returns), position="after_run"),
    ]
    with Learner(
        tmp_path, agent, data, hooks=[*hooks, SaveCkptHook(position="after_run")], keep_checkpoints=1
    ) as learner:
        learner.start(7)
        assert learner.best_return == 5.0 and learner.latest["evaluation/mean_return"] == 4.0
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [f"{4:010d}", f"{7:010d}"]
        learner.export_policy(tmp_path / "policy")
        learner.export_best_policy(tmp_path / "best_policy", current=tmp_path / "policy")
        assert agent.estimate.numpy() == 6 / 8 and next(returns, None) is None
    time_step = transitions([0.0]).time_step
    for name, estimate in (("policy", 6 / 8), ("best_policy", 3 / 8)):
        saved = tf.saved_model.load(str(tmp_path / name))
        assert saved.action(time_step).action.numpy() == estimate
    with Learner(tmp_path, MeanAgent(), batches(), hooks=hooks) as learner:
        assert learner.load_checkpoint() and learner.best_return == 5.0 and learner.evaluated_at == 7
        learner.start(7)  # The run is complete, so no policy is evaluated again.


def test_export_best_policy_returns_none_without_evaluations(tmp_path):
    with Learner(tmp_path, MeanAgent(), batches()) as learner:
        assert learner.export_best_policy(tmp_path / "best") is None and not (tmp_path / "best").exists()
