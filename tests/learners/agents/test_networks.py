import agent_reference_impls as reference
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.learners.agents import MLP, Adam, GaussianActor, TanhActor

SIZES = (3, 5, 4, 2)


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_copies_are_independent_networks(layer_norm, copies):
    network = MLP(SIZES, seed=0, copies=copies, layer_norm=layer_norm)
    network.flat.assign_add(0.1 * tf.random.stateless_normal(network.flat.shape, [0, 0]))
    x = np.random.default_rng(0).normal(size=(copies, 6, 3)).astype(np.float32)
    parts = np.split(network.flat.numpy().astype(float), copies)
    assert not np.array_equal(*parts[:2])
    expected = [reference.mlp(part, SIZES, inputs, layer_norm) for part, inputs in zip(parts, x, strict=True)]
    x = tf.constant(x)
    np.testing.assert_allclose(network(x), expected, atol=1e-5)
    np.testing.assert_allclose(network(x[0])[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(network(x[1], copy_index=1), expected[1], atol=1e-5)


def test_initial_weights_follow_the_options():
    weights, bias = MLP((100, 7, 2), seed=0).layers()[0][0]
    assert (
        np.abs(weights).max() <= 0.1 and np.abs(bias).max() <= 0.1 and np.std(weights) == pytest.approx(0.058, rel=0.1)
    )
    (weights, bias), last = MLP((100, 7, 2), seed=0, init="orthogonal", final_scale=0.01).layers()[0]
    np.testing.assert_allclose(tf.transpose(weights) @ weights, 2 * np.eye(7), atol=1e-5)
    np.testing.assert_allclose(tf.transpose(last[0]) @ last[0], 1e-4 * np.eye(2), atol=1e-8)
    np.testing.assert_array_equal(bias, np.zeros(7))
    (weights, bias), last = MLP((100, 8, 4), seed=0, init="glorot", final_scale=0.1).layers()[0]
    assert not bias.numpy().any() and np.std(weights) == pytest.approx((2 / 108) ** 0.5, rel=0.1)
    assert 0.8 < np.abs(weights).max() / (6 / 108) ** 0.5 <= 1 and np.abs(last[0]).max() <= 0.1 * 0.5**0.5
    (_, bias), last = MLP((100, 7, 2), seed=0, hidden_bias=0.1, final_scale=1e-3).layers()[0]
    np.testing.assert_array_equal(bias, np.full(7, np.float32(0.1)))
    assert max(np.abs(array).max() for array in last) <= 1e-3
    (weights, bias), last = MLP((7, 100, 2), seed=0, init="fan_out", final_scale=1e-3).layers()[0]
    assert (
        0.09 < np.abs(weights).max() <= 0.1
        and np.abs(last[0]).max() <= 1e-3
        and not (bias.numpy().any() or any(last[1]))
    )
    with pytest.raises(
        ValueError, match=r"init must be one of 'fan_in', 'fan_out', 'orthogonal', 'glorot', got 'zeros'"
    ):
        MLP((1, 1), seed=0, init="zeros")


def test_seed_and_name_determine_the_weights():
    def weights(**arguments):
        return MLP(SIZES, **{"seed": 0, "name": "actor", **arguments}).flat.numpy()

    np.testing.assert_array_equal(weights(), weights())
    assert not np.array_equal(weights(), weights(seed=1))
    assert not np.array_equal(weights(), weights(name="critic"))


def test_target_starts_equal_and_tracks_at_its_rate():
    network = MLP(SIZES, seed=0)
    target = network.copy()
    start = network.flat.numpy()
    np.testing.assert_array_equal(target.flat, start)
    network.flat.assign_add(tf.ones_like(network.flat))
    np.testing.assert_array_equal(target.flat, start)
    target.track(network, 0.25)
    np.testing.assert_allclose(target.flat, start + 0.25, atol=1e-6)
    assert not target.trainable_variables


def test_adam_decays_the_learning_rate_along_half_a_cosine():
    variable = tf.Variable([1.0, -2.0])
    adam, expected, reference_adam = Adam([variable], 0.1, decay_steps=4), np.array([1.0, -2.0]), reference.Adam(0.1)
    for step in range(6):
        gradient = np.array([1.0, step - 3.0])
        adam.apply([tf.constant(gradient, tf.float32)])
        expected = reference_adam(expected, gradient, 0.1 * (1 + np.cos(np.pi * min(step / 4, 1))) / 2)
        np.testing.assert_allclose(variable, expected, atol=1e-6)


@pytest.mark.parametrize(("epsilon_hat", "divisor"), [(False, 1.0 + 0.5), (True, 1.0 + 0.5 / 0.001**0.5)])
def test_adam_adds_epsilon_after_or_before_the_correction_of_the_bias(epsilon_hat, divisor):
    variable = tf.Variable([0.0])
    Adam([variable], 0.1, epsilon=0.5, epsilon_hat=epsilon_hat).apply([tf.constant([1.0])])
    np.testing.assert_allclose(variable, [-0.1 / divisor], rtol=1e-4)


def test_target_actions_have_clipped_noise():
    actor = TanhActor(MLP((3, 2), seed=0, final_scale=1e-3), exploration_noise=0.0)
    observation = tf.zeros([1000, 3])
    noise = actor.sample_smoothed(observation, tf.constant([1, 2]), noise=0.2, clip=0.3) - actor.mode(observation)
    assert np.abs(noise).max() <= 0.3 + 1e-6 and 0.15 < np.std(noise) < 0.2
    np.testing.assert_array_equal(actor.sample(observation, tf.constant([1, 2])), actor.mode(observation))


def test_actors_sample_actions_within_the_bounds():
    network, observation, seed = MLP((3, 2), seed=0), tf.zeros([1000, 3]), tf.constant([1, 2])
    network.flat.assign([0.0] * 6 + [5.0, -5.0])  # The modes are close to 1 and -1.
    actor = TanhActor(network, exploration_noise=0.5)
    for actions in (
        actor.sample(observation, seed),
        actor.sample_smoothed(observation, seed, noise=0.5, clip=1.0),
        GaussianActor(network, 2).sample(observation, seed),
    ):
        assert np.abs(actions).max() == 1 and 0.3 < np.mean(np.abs(actions) == 1) < 0.7


def test_gaussian_actor_clips_its_log_std():
    actor = GaussianActor(MLP((3, 2), seed=0, final_scale=1e-3), 2, log_std_bounds=(-5.0, -1.0))
    observation = tf.zeros([2000, 3])
    noise = actor.sample(observation, tf.constant([1, 2])) - actor.mode(observation)
    assert np.std(noise) == pytest.approx(np.exp(-1), rel=0.1)
    action = np.full((4, 2), 0.3, np.float32)
    expected = reference.gaussian_log_prob(action, actor.mode(tf.zeros([4, 3])).numpy(), np.full(2, -1.0))
    np.testing.assert_allclose(actor.log_prob(tf.zeros([4, 3]), action), expected, rtol=1e-5)
