"""Replicas: an agent learns the same on two devices as on one."""

import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, TIME_STEP_SPEC, make_columns, to_trajectory
from faults import process, receive

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.learners import Learner
from rlds2reverb.learners.agents import make_agent

#: Agents whose losses are means over items, so that the mean gradient of two half batches is that of the whole one.
ITEMWISE_AGENTS = ["bc", "iql"]


def make(name):
    density = {"density_hidden_sizes": (8,), "num_density_updates": 1} if name == "spot" else {}
    return make_agent(name, TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(8, 8), seed=1, **density)


def make_batches():
    return [to_trajectory(make_columns(6, seed)) for seed in range(4)]


def make_dataset():
    batches = make_batches()
    return tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=tf.nest.map_structure(tf.TensorSpec.from_tensor, batches[0])
    )


def train_on_two_devices(channel, names, root):
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    # Created only once, because a second strategy in the process would reuse the first one's collective keys.
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for name in names:
        with strategy.scope():
            agent = make(name)
        with Learner(root / name, agent, make_dataset(), strategy=strategy) as learner:
            learner.start(3)
            learner.save_checkpoint()
            learner.train(make_batches()[3])
            assert learner.last_iter == 4
            copies = [[copy.numpy() for copy in variable.values] for variable in agent.variables]
            critic_loss = learner.learn_info.get("critic_loss")
        channel.send((name, copies, critic_loss))
    channel.send("done")


@pytest.mark.slow
@pytest.mark.parametrize("names", [["iql", "td3_bc"], ["bc", "rebrac", "cql", "awac"], ["fql", "spot", "xql"]])
def test_two_replicas_stay_equal_and_match_a_single_device(tmp_path, names):
    with process(train_on_two_devices, names, tmp_path) as (_, channel):
        results = {name: (copies, loss) for name, copies, loss in iter(lambda: receive(channel), "done")}
    assert list(results) == names
    for name in names:
        copies, loss = results[name]
        for one, two in copies:
            np.testing.assert_array_equal(one, two, err_msg=name)
        agent = make(name)
        for batch in make_batches():
            info = agent.train(batch)
        if name in ITEMWISE_AGENTS:
            for (one, _), variable in zip(copies, agent.variables, strict=True):
                np.testing.assert_allclose(one, variable.numpy(), atol=2e-6, err_msg=name)
        assert loss is None or loss == pytest.approx(float(info.extra["critic_loss"]), rel=0.5)


@pytest.mark.slow
def test_checkpoint_of_replicas_loads_on_a_single_device(tmp_path):
    with process(train_on_two_devices, ["iql"], tmp_path) as (_, channel):
        receive(channel)
        receive(channel)
    agent = make("iql")
    with Learner(tmp_path / "iql", agent, make_dataset()) as learner:
        assert learner.load_checkpoint() and learner.last_iter == 3


@pytest.mark.parametrize(
    ("strategy", "error", "message"),
    [
        (lambda: "two", TypeError, "strategy must be one of MirroredStrategy, .*, got a str"),
        (lambda: tf.distribute.OneDeviceStrategy("CPU:0"), ValueError, "outside the strategy's scope; use"),
    ],
)
def test_unsupported_strategy_raises(tmp_path, strategy, error, message):
    with pytest.raises(error, match=message):
        Learner(tmp_path, make("bc"), make_dataset(), strategy=strategy())


@pytest.mark.slow
def test_one_device_strategy_matches_training_without_a_strategy(tmp_path):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        agent = make("iql")
    with Learner(tmp_path, agent, make_dataset(), strategy=strategy) as learner:
        learner.start(4)
    expected = make("iql")
    for batch in make_batches():
        expected.train(batch)
    for one, two in zip(agent.variables, expected.variables, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


def make_invalid_learners(channel, root):
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        agent = make("bc")
    for size, jit_compile in ((5, False), (4, True)):
        batch = to_trajectory(make_columns(size))
        try:
            Learner(root, agent, tf.data.Dataset.from_tensors(batch), strategy=strategy, jit_compile=jit_compile)
        except (SpecMismatchError, ValueError) as error:
            channel.send((type(error).__name__, str(error)))
    four, five = (tf.data.Dataset.from_tensors(to_trajectory(make_columns(size))) for size in (4, 5))
    unknown = tf.data.Dataset.from_tensor_slices(to_trajectory(make_columns(5))).batch(5)
    with Learner(root / "run", agent, four, strategy=strategy) as learner:
        for attempt in (
            lambda: learner.replace_dataset(five),
            lambda: learner.train(to_trajectory(make_columns(5))),
            lambda: [learner.replace_dataset(unknown.repeat()), learner.start(1)],
        ):
            try:
                attempt()
            except Exception as error:
                channel.send((type(error).__name__, str(error)))


@pytest.mark.slow
def test_indivisible_batch_and_jit_compile_raise_with_two_replicas(tmp_path):
    with process(make_invalid_learners, tmp_path) as (_, channel):
        assert receive(channel) == (
            "SpecMismatchError",
            "batch_size must be a multiple of the 2 replicas, which share each batch equally, got 5",
        )
        assert receive(channel) == ("ValueError", "jit_compile requires a single replica, got 2")
        expected = "batch_size must be a multiple of the 2 replicas, which share each batch equally"
        assert [receive(channel) for _ in range(2)] == [("SpecMismatchError", f"{expected}, got 5")] * 2
        kind, message = receive(channel)
        assert kind == "SpecMismatchError" and message == f"training stopped after 0 iterations: {expected}, got 5"
