import numpy as np
import pytest
import tensorflow as tf
from rlds2reverb.learners.agents import BoundedActions, DiscreteActions, Observations
from tf_agents.specs import tensor_spec

NEST = {"b": tf.TensorSpec([2, 2], tf.float32, "b"), "a": tf.TensorSpec([], tf.int32, "a")}


def test_observations_are_flat_in_the_order_of_the_nest():
    found = Observations(NEST)({"b": tf.constant([[[1.0, 2], [3, 4]]]), "a": tf.constant([7]), "extra": tf.zeros([1])})
    np.testing.assert_array_equal(found, [[7, 1, 2, 3, 4]])
    assert found.dtype == tf.float32


def test_observations_are_normalised_field_by_field():
    observations = Observations(NEST, {"a": 1.0, "b": np.ones((2, 2))}, {"a": 2.0, "b": np.full((2, 2), 4.0)})
    found = observations({"b": tf.constant([[[1.0, 5], [9, 1]]]), "a": tf.constant([7])})
    np.testing.assert_array_equal(found, [[3, 0, 1, 2, 0]])


def test_statistics_that_do_not_fit_are_refused():
    spec = tf.TensorSpec([2], tf.float32, "observation")
    with pytest.raises(ValueError, match=r"observation_mean and observation_std together, got only one"):
        Observations(spec, [0.0, 0.0])
    with pytest.raises(ValueError, match=r"expected observation_mean to be a nest like the observation spec"):
        Observations(NEST, {"a": np.zeros(1)}, {"a": np.zeros(1)})
    with pytest.raises(ValueError, match=r"expected observation_mean of shape \(2,\) for 'observation', got \(3,\)"):
        Observations(spec, np.zeros(3), np.ones(3))
    with pytest.raises(ValueError, match=r"expected observation_std to be positive, got 0\.0; add"):
        Observations(spec, np.zeros(2), np.array([1.0, 0.0]))


def bounded(low, high, shape=(2,), dtype=tf.float32):
    return tensor_spec.BoundedTensorSpec(shape, dtype, low, high, "action")


def test_bounds_become_minus_one_and_one_and_back():
    actions = BoundedActions(bounded([-2.0, 0.0], [2.0, 1.0], dtype=tf.float64))
    np.testing.assert_array_equal(
        actions.to_unit(tf.constant([[-2.0, 1.0], [0.0, 0.5]], tf.float64)), [[-1, 1], [0, 0]]
    )
    back = actions.to_environment(tf.constant([[-1.0, 1.0], [0.0, 3.0]]))
    np.testing.assert_array_equal(back, [[-2, 1], [0, 1]])
    assert back.dtype == tf.float64


def test_actions_without_bounds_or_of_another_kind_are_refused():
    infinite = bounded(-np.inf, np.inf)
    with pytest.raises(
        ValueError, match=r"expected an action spec with finite bounds, got .* give a BoundedTensorSpec"
    ):
        BoundedActions(infinite)
    with pytest.raises(ValueError, match=r"expected an action spec with bounds, got TensorSpec"):
        BoundedActions(tf.TensorSpec([2], tf.float32))
    with pytest.raises(
        ValueError, match=r"expected a float action of shape \[A\], got int32 \(\); use a discrete agent"
    ):
        BoundedActions(bounded(0, 3, (), tf.int32))
    with pytest.raises(ValueError, match=r"expected one action, got a nest of 2; join them"):
        BoundedActions([bounded(-1, 1), bounded(-1, 1)])


def test_discrete_actions_start_at_zero():
    actions = DiscreteActions(bounded(2, 4, (), tf.int64))
    assert actions.count == 3
    np.testing.assert_array_equal(actions.to_unit(tf.constant([2, 4], tf.int64)), [0, 2])
    back = actions.to_environment(tf.constant([0, 2]))
    np.testing.assert_array_equal(back, [2, 4])
    assert back.dtype == tf.int64
    with pytest.raises(ValueError, match=r"expected an integer action of shape \[\], got float32 .* continuous agent"):
        DiscreteActions(bounded(-1, 1))
    with pytest.raises(ValueError, match=r"expected 2 to 2\*\*20 discrete actions, got 0 to 0"):
        DiscreteActions(bounded(0, 0, (), tf.int32))
