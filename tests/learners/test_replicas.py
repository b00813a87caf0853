"""Replicas: an agent on two devices learns what it learns on one."""

import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, TIME_STEP_SPEC, columns, two_steps
from faults import hear, process
from rlds2reverb.learners import Learner
from rlds2reverb.learners.agents import make_agent

from rlds2reverb.errors import SpecMismatchError

#: Those whose losses are sums over items: on two halves of a batch their gradients are those on the whole.
BY_ITEM = ["bc", "iql"]


def make(name):
    return make_agent(name, TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(8, 8), seed=1)


def batches():
    return [two_steps(columns(6, seed)) for seed in range(4)]


def dataset():
    parts = batches()
    return tf.data.Dataset.from_generator(
        lambda: iter(parts), output_signature=tf.nest.map_structure(tf.TensorSpec.from_tensor, parts[0])
    )


def train_on_two_devices(channel, names, root):
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # a second one would take the first one's numbers
    for name in names:
        with strategy.scope():
            agent = make(name)
        with Learner(root / name, agent, dataset(), strategy=strategy) as learner:
            learner.start(3)
            learner.save_checkpoint()
            learner.train(batches()[3])
            assert learner.last_iter == 4
            copies = [[copy.numpy() for copy in variable.values] for variable in agent.variables]
            td_error = learner.learn_info.get("critic_loss")
        channel.send((name, copies, td_error))
    channel.send("done")


@pytest.mark.parametrize(
    "names", [["iql", "td3_bc"], pytest.param(["bc", "rebrac", "cql", "awac"], marks=pytest.mark.slow)]
)
def test_two_replicas_learn_what_one_device_learns_and_stay_equal(tmp_path, names):
    with process(train_on_two_devices, names, tmp_path) as (_, channel):
        found = {name: (copies, loss) for name, copies, loss in iter(lambda: hear(channel), "done")}
    assert list(found) == names
    for name in names:
        copies, loss = found[name]
        for one, two in copies:
            np.testing.assert_array_equal(one, two, err_msg=name)
        agent = make(name)
        for batch in batches():
            info = agent.train(batch)
        if name in BY_ITEM:
            for (one, _), variable in zip(copies, agent.variables, strict=True):
                np.testing.assert_allclose(one, variable.numpy(), atol=2e-6, err_msg=name)
        assert loss is None or loss == pytest.approx(float(info.extra["critic_loss"]), rel=0.5)


@pytest.mark.slow
def test_a_checkpoint_of_replicas_is_one_of_a_single_device(tmp_path):
    with process(train_on_two_devices, ["iql"], tmp_path) as (_, channel):
        hear(channel)
        hear(channel)
    agent = make("iql")
    with Learner(tmp_path / "iql", agent, dataset()) as learner:
        assert learner.load_checkpoint() and learner.last_iter == 3


@pytest.mark.parametrize(
    ("strategy", "error", "message"),
    [
        (lambda: "two", TypeError, "strategy is a str, expected a MirroredStrategy or a OneDeviceStrategy"),
        (lambda: tf.distribute.OneDeviceStrategy("CPU:0"), ValueError, "outside of the strategy's scope; make it"),
    ],
)
def test_a_strategy_that_does_not_fit_is_refused(tmp_path, strategy, error, message):
    with pytest.raises(error, match=message):
        Learner(tmp_path, make("bc"), dataset(), strategy=strategy())


def test_one_device_of_a_strategy_trains_as_without(tmp_path):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        agent = make("iql")
    with Learner(tmp_path, agent, dataset(), strategy=strategy) as learner:
        learner.start(4)
    alone = make("iql")
    for batch in batches():
        alone.train(batch)
    for one, two in zip(agent.variables, alone.variables, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


def share_five_items(channel, root):
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        agent = make("bc")
    for size, jit_compile in ((5, False), (4, True)):
        batch = two_steps(columns(size))
        try:
            Learner(root, agent, tf.data.Dataset.from_tensors(batch), strategy=strategy, jit_compile=jit_compile)
        except (SpecMismatchError, ValueError) as error:
            channel.send((type(error).__name__, str(error)))


def test_a_batch_that_cannot_be_shared_and_a_compiled_one_are_refused(tmp_path):
    with process(share_five_items, tmp_path) as (_, channel):
        assert hear(channel) == (
            "SpecMismatchError",
            "a batch has 5 items for 2 replicas, which share it equally; expected a batch_size that 2 divides",
        )
        assert hear(channel) == ("ValueError", "jit_compile is for one replica, the strategy has 2")
