"""Images, nested observations and custom networks in every agent."""

import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, TIME_STEP_SPEC, make_columns, observe, to_experience
from properties import mark_slow_except
from tf_agents.networks import value_network
from tf_agents.policies import policy_saver
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb.learners.agents import (
    MLP,
    CustomNetwork,
    FullyConnected,
    ImageEncoder,
    ImageNetwork,
    NetworkInputs,
    Observations,
    make_agent,
    make_network,
)
from rlds2reverb.learners.algorithms import ALGORITHMS, get_algorithm

#: The algorithms whose networks users can replace.
WITH_NETWORKS = [name for name, algorithm in ALGORITHMS.items() if algorithm.items != "windows"]
DISCRETE_SPEC = tensor_spec.BoundedTensorSpec([], "int32", 0, 2)
#: A stack of two frames with three channels, a stack of four frames with one, and two fields that are not images.
CAMERA_SPEC = {
    "cameras": {"front": tf.TensorSpec([8, 10, 6], tf.uint8), "wrist": tf.TensorSpec([36, 36, 4], tf.uint8)},
    "state": {"v": tf.TensorSpec([2], tf.float32)},
    "states": tf.TensorSpec([2, 2], tf.uint8),
}
IMAGE_SPEC = {"image": tf.TensorSpec([8, 8, 3], tf.uint8), "state": {"v": tf.TensorSpec([2], tf.float32)}}
EXTRA_NETWORKS = {"iql": ["value_network"], "xql": ["value_network"], "fql": ["flow_network"]}


class Linear(tf.Module):
    """A network of a user, with an unused variable and one that is not trained."""

    def __init__(self, spec, output_size, seed):
        super().__init__()
        size = sum(int(np.prod(leaf.shape)) for leaf in tf.nest.flatten(spec))
        self.weights = tf.Variable(tf.random.stateless_normal([size, output_size], [seed, 0]))
        self.unused = tf.Variable([1.0])
        self.constant = tf.Variable([1.0], trainable=False)

    def __call__(self, nest):
        fields = [tf.reshape(leaf, [tf.shape(leaf)[0], -1]) for leaf in tf.nest.flatten(nest)]
        return tf.concat(fields, 1) @ self.weights * self.constant


def make_keras(spec, output_size, seed):
    initializer = tf.keras.initializers.GlorotUniform(seed)
    concatenate = [tf.keras.layers.Concatenate()] if isinstance(spec, tuple) else []
    return tf.keras.Sequential([*concatenate, tf.keras.layers.Dense(output_size, kernel_initializer=initializer)])


def list_networks(name):
    if get_algorithm(name).class_name == "DQNAgent":
        return ["q_network"]
    if name == "discrete_bcq":
        return ["q_network", "imitation_network"]
    if name in ("crl", "hiql"):
        return []
    if name == "gcivl":
        return ["actor_network", "value_network"]
    if name in ("bc", "discrete_bc", "gcbc"):
        return ["actor_network"]
    return ["actor_network", "critic_network", *EXTRA_NETWORKS.get(name, [])]


def make_batch(name, observations=None):
    data = make_columns(4)
    if get_algorithm(name).actions == "discrete":
        data |= {key: np.int32([0, 1, 2, 1]) for key in ("action", "next_action")}
    if observations is not None:
        data |= {"observation": observations, "next_observation": observations}
    return to_experience(name, data)


def make(name, spec=TIME_STEP_SPEC, **hyperparameters):
    action_spec = DISCRETE_SPEC if get_algorithm(name).actions == "discrete" else ACTION_SPEC
    spec = time_step.time_step_spec(observe(name, spec.observation))
    density = {"density_hidden_sizes": (4,), "num_density_updates": 0} if name == "spot" else {}
    return make_agent(name, spec, action_spec, **{"hidden_sizes": (4,), **density, **hyperparameters})


def make_images(size=4, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "image": rng.integers(0, 256, (size, 8, 8, 3), np.uint8),
        "state": {"v": rng.normal(size=(size, 2)).astype(np.float32)},
    }


def make_camera_columns():
    rng = np.random.default_rng(0)

    def fill(spec):
        high = 256 if spec.dtype == tf.uint8 and spec.shape.rank == 3 else 2
        return rng.integers(0, high, (4, *spec.shape)).astype(spec.dtype.name)

    return tf.nest.map_structure(fill, CAMERA_SPEC)


def test_inputs_restore_shapes_and_scale_images():
    inputs = NetworkInputs(IMAGE_SPEC, action_size=2)
    images = make_images()
    vectors = tf.concat([Observations(IMAGE_SPEC)(images), tf.fill([4, 2], 0.5)], 1)
    observation, action = inputs.nest(vectors)
    assert vectors.shape == [4, inputs.size] and inputs.spec[1].shape == [2]
    np.testing.assert_allclose(observation["image"], images["image"] / np.float32(255), rtol=1e-6)
    np.testing.assert_array_equal(observation["state"]["v"], images["state"]["v"])
    np.testing.assert_array_equal(action, np.full((4, 2), 0.5))


def test_encoder_has_the_layers_of_the_paper_from_36_pixels():
    assert ImageEncoder((84, 84, 4), seed=0, name="a").size == 7 * 7 * 64
    assert ImageEncoder((36, 36, 1), seed=0, name="a").size == 64
    assert ImageEncoder((35, 35, 1), seed=0, name="a").size == 9 * 9 * 64
    first, last = ImageEncoder((4, 40, 44), seed=0, name="a"), ImageEncoder((40, 44, 4), seed=0, name="a")
    images = np.random.default_rng(0).random((2, 40, 44, 4), np.float32)
    np.testing.assert_array_equal(first(images.transpose(0, 3, 1, 2)), last(images))


def test_encoder_computes_convolutions():
    encoder, layers = ImageEncoder((5, 5, 1), seed=3, name="a"), []
    images = tf.constant(np.random.default_rng(0).random((2, 5, 5, 1), np.float32))
    begin, channels, x = 0, 1, images
    for filters in (32, 64):
        layer = tf.keras.layers.Conv2D(filters, 3, 2, "same", activation="relu")
        layer.build([None, None, None, channels])
        ends = begin + 9 * channels * filters, begin + 9 * channels * filters + filters
        flat = encoder.flat.numpy()
        layer.set_weights([flat[begin : ends[0]].reshape(3, 3, channels, filters), flat[ends[0] : ends[1]]])
        layers.append(layer)
        begin, channels, x = ends[1], filters, layer(x)
    np.testing.assert_allclose(encoder(images), tf.reshape(x, [2, -1]), atol=1e-6)


def test_copies_of_an_image_network_are_independent_and_targets_track():
    inputs = NetworkInputs(IMAGE_SPEC, action_size=2)
    network = ImageNetwork(inputs, [4, 1], seed=0, copies=2, name="critic")
    vectors = tf.concat([Observations(IMAGE_SPEC)(make_images(3)), tf.zeros([3, 2])], 1)
    both = network(vectors)
    assert both.shape == [2, 3, 1] and not np.allclose(both[0], both[1])
    np.testing.assert_allclose(network(vectors, copy_index=1), both[1], atol=1e-6)
    several = network.call_with_actions(vectors[:, :-2], tf.zeros([5, 3, 2]))
    np.testing.assert_allclose(tf.reshape(several, [2, 5, 3, 1])[:, 4], both, atol=1e-6)
    target = network.copy()
    np.testing.assert_array_equal(target(vectors), both)
    assert not target.trainable_variables and len(network.trained_variables) == 3
    network.trained_variables[0].assign_add(tf.ones_like(network.trained_variables[0]))
    target.track(network, 0.25)
    np.testing.assert_allclose(target.trained_variables[0], network.trained_variables[0] - 0.75, atol=1e-6)


@pytest.mark.parametrize("name", mark_slow_except(["dqn", "bc", "rebrac"], WITH_NETWORKS))
def test_agents_learn_from_several_cameras_and_vectors(name):
    agent = make(name, time_step.time_step_spec(CAMERA_SPEC))
    check_agent(agent, make_batch(name, make_camera_columns()))
    network = agent.actor.network
    num_parts = 2 if name in ("crl", "gcbc", "gciql", "gcivl") else 1  # The goal has images as well.
    assert [encoder.size for encoder in network.encoders[0]] == [2 * 3 * 64, 64] * num_parts
    assert len(network.encoders) == 1


def test_features_of_each_camera_and_vectors_are_concatenated():
    """An encoder of one camera alone computes what the network of several cameras does."""
    columns = make_camera_columns()
    network = ImageNetwork(NetworkInputs(CAMERA_SPEC), [4], seed=0, name="a")
    parts = [
        ImageEncoder(spec.shape, seed=0, name=f"a_encoder_0_{index}")(columns["cameras"][name] / np.float32(255))
        for index, (name, spec) in enumerate(CAMERA_SPEC["cameras"].items())
    ]
    features = tf.concat([*parts, columns["state"]["v"], np.float32(columns["states"]).reshape(4, 4)], 1)
    np.testing.assert_allclose(network(Observations(CAMERA_SPEC)(columns)), network.mlp(features), atol=1e-5)


def check_agent(agent, batch):
    """Checks that training changes every trained variable of the networks, and that losses are finite."""
    before = [variable.numpy() for variable in agent.actor.network.trained_variables]
    for _ in range(2):  # TD3 updates its actor in every second step.
        info = agent.train(batch)
    assert np.isfinite(info.loss)
    for one, two in zip(before, agent.actor.network.trained_variables, strict=True):
        assert not np.array_equal(one, two)
    is_transition = hasattr(batch, "time_step")
    observation = (
        batch.time_step.observation if is_transition else tf.nest.map_structure(lambda x: x[:, 0], batch.observation)
    )
    action = agent.policy.action(time_step.restart(observation, 4)).action
    assert np.isfinite(action).all()


def test_vectors_have_the_same_networks_as_ever():
    network = make_network(None, Observations(TIME_STEP_SPEC.observation), [5, 2], seed=1, copies=2, name="critic")
    assert isinstance(network, MLP)
    np.testing.assert_array_equal(network.flat, MLP([3, 5, 2], seed=1, copies=2, name="critic").flat)


@pytest.mark.parametrize("name", ["td3_bc", pytest.param("iql", marks=pytest.mark.slow), "dqn"])
def test_agents_train_and_restore_networks_of_the_user(name, tmp_path):
    networks = dict.fromkeys(list_networks(name), Linear)
    agent, restored, batch = make(name, **networks), make(name, **networks), make_batch(name)
    for _ in range(2):
        agent.train(batch)
    tf.train.Checkpoint(agent=restored).read(
        tf.train.Checkpoint(agent=agent).write(str(tmp_path / "a"))
    ).assert_consumed()
    agent.train(batch)
    restored.train(batch)
    for one, two in zip(agent.variables, restored.variables, strict=True):
        np.testing.assert_array_equal(one, two)
    last = agent.critic.trained_variables[-1]
    assert not np.array_equal(last, make(name, **networks).critic.trained_variables[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_NETWORKS)
def test_every_agent_accepts_networks_of_the_user(name, tmp_path):
    first = FullyConnected((4,)) if get_algorithm(name).items == "goals" else make_keras  # That reads no dicts.
    factories = dict(zip(list_networks(name), (first, FullyConnected((4,), layer_norm=True), Linear), strict=False))
    agent, batch = make(name, **factories), make_batch(name)
    loss = tf.function(agent.train, jit_compile=True)(batch).loss
    assert np.isfinite(loss)
    policy_saver.PolicySaver(agent.policy, batch_size=None).save(str(tmp_path / "policy"))
    step = time_step.restart(observe(name, np.zeros((4, 3), np.float32)), 4)
    policy = tf.saved_model.load(str(tmp_path / "policy"))
    np.testing.assert_allclose(policy.action(step).action, agent.policy.action(step).action, atol=1e-6)


def test_networks_of_tf_agents_are_accepted():
    def make_value(spec, output_size, seed):
        return value_network.ValueNetwork(spec, fc_layer_params=(4,))

    inputs = NetworkInputs(TIME_STEP_SPEC.observation)
    assert CustomNetwork(make_value, inputs, 1, seed=0, name="value")(tf.zeros([4, 3])).shape == [4, 1]


def test_copies_and_seeds_of_the_user_s_networks_differ():
    inputs = NetworkInputs(TIME_STEP_SPEC.observation)
    one, two = (CustomNetwork(Linear, inputs, 1, seed=seed, copies=2, name="critic") for seed in (0, 0))
    np.testing.assert_array_equal(one(tf.ones([2, 3])), two(tf.ones([2, 3])))
    values = one(tf.ones([2, 3]))
    assert values.shape == [2, 2, 1] and not np.allclose(values[0], values[1])


def test_unsuitable_networks_raise():
    shared, inputs = Linear(TIME_STEP_SPEC.observation, 1, 0), NetworkInputs(TIME_STEP_SPEC.observation)
    for factory, error, message in (
        (lambda spec, size, seed: Linear(spec, 2, seed), ValueError, r"must return float32 \[B, 1\], got \(1, 2\)"),
        (lambda spec, size, seed: shared, ValueError, "must create a new network in each call"),
        (lambda spec, size, seed: tf.identity, TypeError, "must return a Keras layer or model or a callable tf.Module"),
        (lambda spec, size, seed: tf.keras.layers.Lambda(lambda x: x[:, :1]), ValueError, "has no variables"),
    ):
        with pytest.raises(error, match=message):
            CustomNetwork(factory, inputs, 1, seed=0, copies=2, name="critic")
    with pytest.raises(ValueError, match="must create a new network in each call"):
        CustomNetwork(lambda *_: shared, inputs, 1, seed=0, name="value").copy()
    message = (
        r"actor_network must be a function \(input_spec, output_size, seed\) that creates a network \(my_module:name\)"
    )
    for network in (shared, lambda spec: Linear(spec, 1, 0)):
        with pytest.raises(ValueError, match=message):
            make("bc", actor_network=network)
    with pytest.raises(ValueError, match="actor_network is 'no_such:x', but there is no module 'no_such'"):
        make("bc", actor_network="no_such:x")


def test_critic_that_takes_only_observations_names_its_input():
    def make(input_spec, output_size, seed):
        return tf.keras.Sequential([tf.keras.layers.Dense(output_size)])

    with pytest.raises(ValueError, match=r"must accept the pair \(observation, action\) as its only argument"):
        make_agent("iql", TIME_STEP_SPEC, ACTION_SPEC, critic_network=make)
