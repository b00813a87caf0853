"""The learner: hooks when they ask for it, exactly; it stops, goes on and fails as it says."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import reverb
import tensorflow as tf
from rlds2reverb.learners import InMemoryDataset, Learner, TrainingDivergedError
from rlds2reverb.learners import learner as learner_module
from rlds2reverb.learners.hooks import EvaluateHook, LearnerHook, LogShowHook, SaveCkptHook
from rlds2reverb.learners.stop_signals import stopped_by_signals
from small_agents import ACTION_SPEC, TIME_STEP_SPEC, MeanAgent, batches, items, transitions
from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
from tf_agents.agents.ddpg.actor_network import ActorNetwork
from tf_agents.trajectories import Trajectory

from rlds2reverb import SampleInfo
from rlds2reverb._server.signals import signals_deferred
from rlds2reverb.errors import CheckpointError, ResourceInUseError, SpecMismatchError


class Note(LearnerHook):
    """Adds its name and `last_iter` to a list."""

    def __init__(self, notes, position, *, name="note", priority=50, every=1):
        super().__init__(name, priority, position=position, every=every)
        self.notes = notes

    def __call__(self, learner):
        self.notes.append((self.name, learner.last_iter))


def info_of(keys):
    """What `sample_dataset` knows of a batch, with weights of 0.5."""
    keys = tf.cast(keys, tf.uint64)
    ones = tf.ones([keys.shape[0]])
    whole = tf.cast(ones, tf.int32)
    return SampleInfo(keys, tf.cast(ones, tf.float64), tf.cast(ones, tf.int64), ones, whole, 0.5 * ones, whole * 0)


class Written:
    """A writer of priorities that keeps them."""

    def __init__(self):
        self.calls = []

    def write(self, info, priorities):
        self.calls.append((np.asarray(info.key).tolist(), np.asarray(priorities).tolist()))


# --- One iteration


def test_train_is_one_iteration_with_hooks_before_and_after_it(tmp_path):
    agent, notes = MeanAgent(), []
    with Learner(tmp_path, agent, batches(), hooks=[Note(notes, at, name=at) for at in
                 ("after_run", "after_iter", "before_iter", "before_run")]) as learner:  # fmt: skip
        learner.register_hook(Note(notes, "before_iter", name="late", priority=60))
        learned = learner.train(transitions([2.0, 4.0]))
        assert learned == learner.learn_info == {"loss": 10.0, "estimate": 1.5}
        assert notes == [("before_iter", 0), ("late", 0), ("after_iter", 0)] and learner.last_iter == 1
        learner.train((transitions([2.0, 4.0]), ()))
        assert notes[3:] == [("before_iter", 1), ("late", 1), ("after_iter", 1)] and learner.last_iter == 2
    assert agent.estimate.numpy() == 2.25 and int(agent.train_step_counter) == 2


def test_after_iter_hooks_see_the_update_and_its_priority_info(tmp_path):
    agent, seen = MeanAgent(), []

    class See(LearnerHook):
        def __init__(self, position):
            super().__init__("see", position=position)

        def __call__(self, learner):
            error = learner.priority_info.get("td_error")
            seen.append((float(agent.estimate), None if error is None else error.tolist()))

    with Learner(tmp_path, agent, batches(), hooks=[See("before_iter"), See("after_iter")]) as learner:
        learner.train(reverb.ReplaySample(info_of([7, 8]), transitions([2.0, 4.0])))
        assert seen == [(0.0, None), (0.75, [2.0, 4.0])]  # weights 0.5 in the update, errors raw
        assert learner.priority_info["info"].key.tolist() == [7, 8]
        learner.train(transitions([2.0, 4.0]))
        assert learner.priority_info == {}
        learner.train(transitions([2.0, 4.0]), weights=tf.zeros([2]))
        assert agent.estimate.numpy() == np.float32(0.75 + 0.5 * 2.25)


# --- A run


@pytest.mark.parametrize("steps_per_call", [1, 7, 100])
def test_hooks_are_called_at_exactly_their_iterations_without_tracing_again(tmp_path, steps_per_call):
    notes, agent = [], MeanAgent()
    hooks = [
        Note(notes, "after_iter", name="b", priority=20, every=6),
        Note(notes, "after_iter", name="a", priority=10, every=4),
        Note(notes, "after_iter", name="c", priority=20, every=4),
        Note(notes, "before_iter", name="before", every=5),
        Note(notes, "before_run", name="first"),
        Note(notes, "after_run", name="last"),
    ]
    with Learner(tmp_path, agent, batches(), hooks=hooks, steps_per_call=steps_per_call) as learner:
        learner.start(13)
        expected = [("first", 0), ("before", 0), ("a", 3), ("c", 3), ("before", 5), ("b", 5), ("a", 7), ("c", 7)]
        expected += [("before", 10), ("a", 11), ("b", 11), ("c", 11), ("last", 13)]
        assert notes == expected and learner.last_iter == 13
        assert learner.learn_info["estimate"] == agent.estimate.numpy() and int(agent.train_step_counter) == 13
        learner.start(14)
        assert notes[len(expected) :] == [("first", 13), ("last", 14)]
        assert learner._loop.num_traces == 1 and agent.num_traces == 2  # once to know what an iteration gives


def test_batches_are_read_in_order_one_an_iteration(tmp_path):
    agent = MeanAgent(rate=1.0)
    with Learner(tmp_path, agent, batches(), steps_per_call=3) as learner:
        for done in (1, 2, 5):
            learner.start(done)
            assert agent.estimate.numpy() == done - 1 + 1.5  # the mean of the rewards n .. n + 3


def test_logged_numbers_are_means_over_the_iterations_since_the_last_log(tmp_path):
    logged = []
    hooks = [LogShowHook(every=4)]
    with Learner(
        tmp_path, MeanAgent(rate=1.0), batches(), hooks=hooks, steps_per_call=3, on_log=lambda at, numbers: logged.append((at, numbers))
    ) as learner:  # fmt: skip
        learner.start(8)
        assert learner.log_buffer == {} and learner.name == "learner" and learner.policy is learner.agent.policy
    assert [at for at, _ in logged] == [4, 8]
    assert [numbers["estimate"] for _, numbers in logged] == [3.0, 7.0]  # of 1.5 .. 4.5, and of 5.5 .. 8.5
    assert all(numbers["train_secs"] >= 0 and numbers["data_wait_secs"] >= 0 for _, numbers in logged)
    assert 0 <= logged[1][1]["data_wait_share"] <= 1 and logged[1][1]["steps_per_sec"] > 0


def test_a_hook_of_ones_own_is_five_lines_and_may_stop_the_run(tmp_path):
    class StopAt(LearnerHook):
        def __init__(self):
            super().__init__("stop_at", position="after_iter", every=3)

        def __call__(self, learner):
            learner.stop("enough")

    with Learner(tmp_path, MeanAgent(), batches(), hooks=[StopAt()]) as learner:
        learner.start(100)
        assert learner.last_iter == 3 and learner.stop_reason == "enough" and not learner.is_stopped_by_signal


def test_a_stop_before_an_iteration_does_not_do_it(tmp_path):
    class Stop(Note):
        def __call__(self, learner):
            learner.stop("now")

    with Learner(tmp_path, MeanAgent(), batches(), hooks=[Stop([], "before_iter", every=2)]) as learner:
        learner.start(10)
        assert learner.last_iter == 0


def test_an_exception_in_a_hook_is_written_down_and_raised_again(tmp_path):
    class Fail(Note):
        def __call__(self, learner):
            raise RuntimeError("the hook's own")

    with Learner(tmp_path, MeanAgent(), batches(), hooks=[Fail([], "after_iter", every=2)]) as learner:
        with pytest.raises(RuntimeError, match="the hook's own"):
            learner.start(10)
        text = (tmp_path / "exception.txt").read_text()
        assert text.startswith("2 iterations were done\nTraceback") and "the hook's own" in text
        assert learner.last_iter == 2
        learner._hooks.clear()
        learner.start(4)
        assert not (tmp_path / "exception.txt").exists()


# --- Priorities


def test_priorities_are_the_absolute_errors_of_every_iteration_and_nothing_is_sent_twice(tmp_path):
    written, agent = Written(), MeanAgent(rate=0.0)
    numbered = batches(size=2, first=-1.0)
    pairs = tf.data.Dataset.zip((numbered, tf.data.Dataset.range(1000).map(lambda n: info_of([2 * n, 2 * n + 1]))))
    with Learner(tmp_path, agent, pairs, priorities=written, steps_per_call=2) as learner:
        learner.start(3)
        assert written.calls == [
            ([0, 1, 2, 3], pytest.approx([1.01, 0.01, 0.01, 1.01])),
            ([4, 5], pytest.approx([1.01, 2.01])),
        ]
        learner.train(transitions([1.0, 2.0]))  # has no keys
        learner.flush_priorities()
        assert len(written.calls) == 2


def test_an_agent_without_td_errors_sends_no_priorities(tmp_path):
    written = Written()
    pairs = batches(size=2).map(lambda batch: (batch, info_of([1, 2])))
    with Learner(tmp_path, MeanAgent(has_errors=False), pairs, priorities=written) as learner:
        learner.start(2)
        assert written.calls == [] and learner.priority_info == {}


def test_an_error_of_the_writer_reaches_the_caller(tmp_path):
    class Broken:
        def write(self, info, priorities):
            raise ConnectionError("gone")

    pairs = batches(size=2).map(lambda batch: (batch, info_of([1, 2])))
    with Learner(tmp_path, MeanAgent(), pairs, priorities=Broken()) as learner:
        with pytest.raises(ConnectionError, match="gone"):
            learner.start(2)


# --- What it refuses


def test_the_directory_of_another_learner_is_refused_and_given_back(tmp_path):
    with Learner(tmp_path, MeanAgent(), batches()):
        with pytest.raises(ResourceInUseError, match=f"in use by process {os.getpid()}"):
            Learner(tmp_path, MeanAgent(), batches())
    Learner(tmp_path, MeanAgent(), batches()).close()


@pytest.mark.parametrize(
    "arguments, error, sentence",
    [
        ({"dataset": [1]}, TypeError, "dataset is a list, expected a tf.data.Dataset"),
        ({"steps_per_call": 0}, ValueError, "steps_per_call is 0"),
        ({"rank": -1}, ValueError, "rank is -1"),
        ({"keep_checkpoints": 0}, ValueError, "keep_checkpoints is 0"),
        ({"hooks": [print]}, TypeError, "expected a LearnerHook"),
        ({"priorities": Written()}, SpecMismatchError, "the batches have no keys"),
    ],
)
def test_arguments_are_checked_before_the_directory_is_taken(tmp_path, arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        Learner(tmp_path / "run", MeanAgent(), **{"dataset": batches(), **arguments})
    assert not (tmp_path / "run").exists()


def test_a_learner_that_cannot_be_made_gives_its_directory_back(tmp_path, monkeypatch):
    agent = MeanAgent()

    def fails(*arguments, **options):
        raise ValueError("cannot be made")

    with monkeypatch.context() as patch:
        patch.setattr(learner_module, "Checkpoints", fails)
        with pytest.raises(ValueError, match="cannot be made"):
            Learner(tmp_path, agent, batches())
    Learner(tmp_path, agent, batches()).close()


def test_positions_and_iterations_are_checked(tmp_path):
    class Never(Note):
        def next_due(self, done):
            return done

    with Learner(tmp_path, MeanAgent(), batches(), hooks=[Never([], "after_iter", name="odd")]) as learner:
        with pytest.raises(ValueError, match="position is 'between'"):
            learner.call_hook("between")
        with pytest.raises(ValueError, match="num_iterations is 0"):
            learner.start(0)
        with pytest.raises(ValueError, match="hook 'odd' is due at iteration 0 next, expected one after 0"):
            learner.start(1)


def test_a_data_set_that_ends_is_an_error_that_says_what_to_do(tmp_path):
    with Learner(tmp_path, MeanAgent(), batches().take(3)) as learner:
        with pytest.raises(ValueError, match=r"the data set ended after iteration 0.* dataset.repeat\(\)"):
            learner.start(5)


# --- Numbers that are not finite


def test_nan_stops_at_its_iteration_and_names_the_keys_of_the_batch(tmp_path):
    def batch(n):
        bad = tf.where(n == 4, np.nan, 1.0)
        return transitions(tf.stack([1.0, tf.cast(bad, tf.float32)])), info_of([10 * n, 10 * n + 1])

    written, data = Written(), tf.data.Dataset.range(100).map(batch)
    with Learner(tmp_path, MeanAgent(), data, priorities=written, hooks=[SaveCkptHook(every=1)]) as learner:
        with pytest.raises(
            TrainingDivergedError, match="diverged at iteration 4: the loss is nan; its batch has the keys 40, 41"
        ):
            learner.start(100)
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1] == f"{4:010d}"
        with pytest.raises(CheckpointError, match="no checkpoint at iteration 5: estimate:0 is not finite"):
            learner.save_checkpoint()
        with pytest.raises(TrainingDivergedError):
            learner.train(transitions([1.0, 1.0]))  # the weight is spoilt


def test_nan_among_resident_items_names_the_items_of_the_batch(tmp_path):
    resident = InMemoryDataset(items([1.0, np.nan]), 2, to_experience=lambda batch: transitions(batch["reward"]))
    drawn = [resident.drawn(tf.constant(n, tf.int64)).numpy().tolist() for n in range(9)]
    at = next(n for n, each in enumerate(drawn) if 1 in each)
    with Learner(tmp_path, MeanAgent(), resident) as learner:
        with pytest.raises(
            TrainingDivergedError, match=f"iteration {at}: .* has the items {drawn[at][0]}, {drawn[at][1]}; look"
        ):
            learner.start(10)


def behavioural_cloning():
    network = ActorNetwork(TIME_STEP_SPEC.observation, ACTION_SPEC, fc_layer_params=(4,))
    agent = BehavioralCloningAgent(
        TIME_STEP_SPEC, ACTION_SPEC, cloning_network=network, optimizer=tf.keras.optimizers.Adam(1e-2)
    )
    agent.initialize()
    return agent


def cloning_batches(*, bad_at=-1):
    def batch(n):
        action = tf.fill([4, 1], tf.where(n == bad_at, np.float32(np.nan), tf.cast(n % 3, tf.float32) / 3))
        types, ones = tf.ones([4], tf.int32), tf.ones([4])
        return Trajectory(types, tf.zeros([4, 2]), action, (), types, ones, ones)

    return tf.data.Dataset.range(100).map(batch)


@pytest.mark.slow
def test_an_agent_of_tf_agents_that_checks_nothing_is_stopped_too_and_goes_on_bit_for_bit(tmp_path):
    with Learner(tmp_path / "bad", behavioural_cloning(), cloning_batches(bad_at=2)) as learner:
        with pytest.raises(TrainingDivergedError, match="diverged at iteration 2"):
            learner.start(10)
    straight = behavioural_cloning()
    first = [variable.numpy() for variable in straight.variables]
    with Learner(tmp_path / "straight", straight, cloning_batches()) as learner:
        learner.start(6)
    halves = behavioural_cloning()
    for variable, value in zip(halves.variables, first, strict=True):
        variable.assign(value)
    data = iter(cloning_batches())
    with Learner(tmp_path / "halves", halves, data, trackables={"data": data}, hooks=[SaveCkptHook(position="after_run")]) as learner:  # fmt: skip
        learner.start(3)
    again, data = behavioural_cloning(), iter(cloning_batches())
    with Learner(tmp_path / "halves", again, data, trackables={"data": data}) as learner:
        assert learner.load_checkpoint()
        learner.start(6)
    for one, other in zip(straight.variables, again.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


# --- Signals


def test_a_signal_that_is_held_back_counts_once():
    """As SIGTERM during a checkpoint of the server, which holds it back: a second one would end the process."""
    reasons = []
    with stopped_by_signals(reasons.append), signals_deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        assert reasons == []
    assert reasons == ["SIGTERM"]


SIGNALLED = textwrap.dedent(
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
    if sys.argv[2] == "twice":  # while the graph runs, which then never ends by itself
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


def signalled(folder, how):
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(__file__)), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", SIGNALLED, str(folder), how]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_a_signal_ends_the_run_at_the_boundary_and_it_is_saved(tmp_path):
    done = signalled(tmp_path, "once")
    assert done.stdout.split() == ["5", "SIGTERM", "True", "True"], done.stderr
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"{5:010d}"]


@pytest.mark.slow
def test_a_second_signal_ends_the_process_also_while_the_graph_waits(tmp_path):
    done = signalled(tmp_path, "twice")
    assert done.returncode == 128 + signal.SIGINT and done.stdout == ""
    assert list((tmp_path / "checkpoints").iterdir()) == []


# --- Evaluations


def test_the_best_is_saved_with_the_state_of_all_hooks_and_exported(tmp_path):
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
        learner.export_best_policy(tmp_path / "best_policy")
        assert agent.estimate.numpy() == 6 / 8 and next(returns, None) is None
    time_step = transitions([0.0]).time_step
    for name, estimate in (("policy", 6 / 8), ("best_policy", 3 / 8)):
        saved = tf.saved_model.load(str(tmp_path / name))
        assert saved.action(time_step).action.numpy() == estimate
    with Learner(tmp_path, MeanAgent(), batches(), hooks=hooks) as learner:
        assert learner.load_checkpoint() and learner.best_return == 5.0 and learner.evaluated_at == 7
        learner.start(7)  # nothing to do, and nothing is evaluated again


def test_without_an_evaluation_there_is_no_best_policy(tmp_path):
    with Learner(tmp_path, MeanAgent(), batches()) as learner:
        assert learner.export_best_policy(tmp_path / "best") is None and not (tmp_path / "best").exists()
