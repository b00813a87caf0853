import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from rlds2reverb.learners.agents import BoundedActions, DiscreteActions, Observations
from rlds2reverb.learners.agents.unit_conversions import count_categories

NEST = {"b": tf.TensorSpec([2, 2], tf.float32, "b"), "a": tf.TensorSpec([], tf.int32, "a")}


def test_observations_are_flattened_in_nest_order():
    flat = Observations(NEST)({"b": tf.constant([[[1.0, 2], [3, 4]]]), "a": tf.constant([7]), "extra": tf.zeros([1])})
    np.testing.assert_array_equal(flat, [[7, 1, 2, 3, 4]])
    assert flat.dtype == tf.float32


def test_vectors_of_bounded_integers_are_categories():
    for shape, expected in (([], 7), ([2], 14), ([2, 1], 2)):
        spec = tensor_spec.BoundedTensorSpec(shape, tf.int64, -1, 5)
        assert Observations(spec)(tf.zeros([1, *shape], tf.int64)).shape == (1, expected)
    for highest, expected in ((65_535, [65_536]), (65_536, None)):
        assert count_categories(tensor_spec.BoundedTensorSpec([], tf.int64, 0, highest)) == expected


def test_observations_are_normalised_field_by_field():
    observations = Observations(NEST, {"a": 1.0, "b": np.ones((2, 2))}, {"a": 2.0, "b": np.full((2, 2), 4.0)})
    normalised = observations({"b": tf.constant([[[1.0, 5], [9, 1]]]), "a": tf.constant([7])})
    np.testing.assert_array_equal(normalised, [[3, 0, 1, 2, 0]])


def test_invalid_statistics_raise():
    spec = tf.TensorSpec([2], tf.float32, "observation")
    with pytest.raises(ValueError, match=r"observation_mean and observation_std must be set together"):
        Observations(spec, [0.0, 0.0])
    with pytest.raises(ValueError, match=r"observation_mean must be a nest like the observation spec"):
        Observations(NEST, {"a": np.zeros(1)}, {"a": np.zeros(1)})
    with pytest.raises(ValueError, match=r"observation_mean of 'observation' must have the shape \(2,\), got \(3,\)"):
        Observations(spec, np.zeros(3), np.ones(3))
    with pytest.raises(ValueError, match=r"observation_std must be positive, got 0\.0; add"):
        Observations(spec, np.zeros(2), np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match=r"observation_mean must be finite, got NaN or infinite means"):
        Observations(spec, np.array([1.0, np.nan]), np.ones(2))


def test_features_with_an_infinite_divisor_become_zero():
    observations = Observations(tf.TensorSpec([2], tf.float32), np.array([3.0, 7.0]), np.array([2.0, np.inf]))
    np.testing.assert_array_equal(observations(tf.constant([[5.0, 7.0], [3.0, 9.0]])), [[1, 0], [0, 0]])


def bounded_spec(low, high, shape=(2,), dtype=tf.float32):
    return tensor_spec.BoundedTensorSpec(shape, dtype, low, high, "action")


def test_bounded_actions_convert_to_the_unit_interval_and_back():
    actions = BoundedActions(bounded_spec([-2.0, 0.0], [2.0, 1.0], dtype=tf.float64))
    np.testing.assert_array_equal(
        actions.to_unit(tf.constant([[-2.0, 1.0], [0.0, 0.5]], tf.float64)), [[-1, 1], [0, 0]]
    )
    back = actions.to_environment(tf.constant([[-1.0, 1.0], [0.0, 3.0]]))
    np.testing.assert_array_equal(back, [[-2, 1], [0, 1]])
    assert back.dtype == tf.float64


def test_unsupported_continuous_action_specs_raise():
    for bounds in ((-np.inf, np.inf), (0.0, np.inf), (-np.inf, 0.0)):
        with pytest.raises(ValueError, match=r"action spec must have finite bounds, got .* use a BoundedTensorSpec"):
            BoundedActions(bounded_spec(*bounds))
    with pytest.raises(ValueError, match=r"action spec must be a BoundedTensorSpec .*, got TensorSpec"):
        BoundedActions(tf.TensorSpec([2], tf.float32))
    discrete = (
        r"an algorithm for discrete actions \(discrete_bc, discrete_bcq, discrete_cql, discrete_iql, double_dqn, dqn\)"
    )
    with pytest.raises(ValueError, match=rf"actions must be floats of shape \[A\], got int32 \[\]; use {discrete}"):
        BoundedActions(bounded_spec(0, 3, (), tf.int32))
    with pytest.raises(ValueError, match=r"actions must be floats of shape \[A\], got float32 \[2, 2\]; reshape them"):
        BoundedActions(bounded_spec(-1, 1, (2, 2)))


@pytest.mark.parametrize("space", [BoundedActions, DiscreteActions])
def test_action_specs_that_no_agent_supports_raise(space):
    for shape in ((2,), (1,)):
        with pytest.raises(
            ValueError, match=r"\(MultiDiscrete\) are not supported, got int64 \[\d\]; encode each comb"
        ):
            space(bounded_spec(0, 3, shape, tf.int64))
    with pytest.raises(ValueError, match=r"action must be a single array, got a nest of 2; concatenate its arrays"):
        space({"a": bounded_spec(-1, 1), "b": bounded_spec(-1, 1)})
    with pytest.raises(ValueError, match=r"actions must be floats or integers, got string \[\]; convert them"):
        space(tf.TensorSpec([], tf.string))


def test_unsupported_observation_specs_raise():
    with pytest.raises(
        ValueError, match=r"observation\['mission'\] must contain numbers, got string \[\]; .* drop the"
    ):
        Observations({"mission": tf.TensorSpec([], tf.string), "position": tf.TensorSpec([2], tf.float32)})
    with pytest.raises(ValueError, match=r"^observation must have a known shape, got float32 \[\?, 2\]; pad it"):
        Observations(tf.TensorSpec([None, 2], tf.float32))


def test_images_integers_and_booleans_are_seen_as_numbers():
    spec = {
        "door": tf.TensorSpec([], tf.bool),
        "image": tf.TensorSpec([2, 1, 3], tf.uint8),
        "room": tf.TensorSpec([], tf.int64),
    }
    image = tf.reshape(tf.constant([0, 1, 2, 253, 254, 255], tf.uint8), [1, 2, 1, 3])
    flat = Observations(spec)({"door": tf.constant([True]), "image": image, "room": tf.constant([7], tf.int64)})
    np.testing.assert_array_equal(flat, [[1, 0, 1, 2, 253, 254, 255, 7]])


def test_discrete_actions_convert_to_zero_based_and_back():
    actions = DiscreteActions(bounded_spec(2, 4, (), tf.int64))
    assert actions.num_actions == 3
    np.testing.assert_array_equal(actions.to_unit(tf.constant([2, 4], tf.int64)), [0, 2])
    back = actions.to_environment(tf.constant([0, 2]))
    np.testing.assert_array_equal(back, [2, 4])
    assert back.dtype == tf.int64
    continuous = r"an algorithm for continuous actions \(awac, bc, .*td3_bc, xql\)"
    with pytest.raises(
        ValueError,
        match=rf"actions must be integers of shape \[\], got float32 \[2\]; cast whole numbers to integers, or use {continuous}",
    ):
        DiscreteActions(bounded_spec(-1, 1))
    with pytest.raises(ValueError, match=r"number of discrete actions must be from 2 to 2\*\*20, got 0 to 0"):
        DiscreteActions(bounded_spec(0, 0, (), tf.int32))
