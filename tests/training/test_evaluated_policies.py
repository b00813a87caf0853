"""What policies choose in states, and the probabilities of actions, for off-policy evaluation."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from policies import CountingPolicy, FunctionPolicy
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import PolicyStep, time_step_spec

from rlds2reverb import SpecMismatchError
from rlds2reverb.training.evaluated_policies import EvaluatedPolicy

OBSERVATION = tf.TensorSpec([2], tf.float32)
STATES = np.float32([[1, 0], [0, 1], [1, 1]])
#: Actions 3 to 5.
DISCRETE = tensor_spec.BoundedTensorSpec([], tf.int64, 3, 5)
CONTINUOUS = tensor_spec.BoundedTensorSpec([2], tf.float32, [-2, 0], [2, 1])


class DistributionPolicy(tf_policy.TFPolicy):
    """A policy with a distribution that is a function of the observation."""

    def __init__(self, spec, make):
        super().__init__(time_step_spec(OBSERVATION), spec)
        self.make = make

    def _distribution(self, time_step, policy_state):
        return PolicyStep(self.make(time_step.observation), policy_state)


class SamplingPolicy(FunctionPolicy):
    """A policy without probabilities that takes each discrete action at random."""

    def __init__(self):
        super().__init__(OBSERVATION, DISCRETE, None)
        self.random = tf.random.Generator.from_seed(1)
        self.function = lambda observation: self.random.uniform(tf.shape(observation)[:1], 3, 6, tf.int64)

    def _distribution(self, time_step, policy_state):
        raise NotImplementedError


def make_categorical(observation):
    """Returns a distribution over the numbers 0 to 2 that are added to 3."""
    probs = tf.concat([observation / 2, 1 - tf.reduce_sum(observation, -1, keepdims=True) / 2], -1)
    categorical = tfp.distributions.Categorical(probs=probs, dtype=tf.int64)
    return tfp.distributions.TransformedDistribution(categorical, tfp.bijectors.Shift(tf.constant(3, tf.int64)))


def test_policy_without_probabilities_is_certain_of_its_discrete_actions_if_it_repeats_them():
    policy = FunctionPolicy(OBSERVATION, DISCRETE, lambda x: tf.cast(3 + x[:, 0] + x[:, 1], tf.int64))
    evaluated = EvaluatedPolicy(policy)
    assert evaluated.is_discrete and not evaluated.has_state and not evaluated.has_goals
    assert evaluated.folder is None and evaluated.fingerprint() == [] and evaluated.run is None
    np.testing.assert_array_equal(evaluated.choose(STATES, 7), [[[0, 1, 0]], [[0, 1, 0]], [[0, 0, 1]]])
    np.testing.assert_array_equal(evaluated.log_prob(STATES, np.array([4, 5, 5])), [0, -np.inf, 0])


def test_random_policy_without_probabilities_is_sampled():
    evaluated = EvaluatedPolicy(SamplingPolicy())
    choices = evaluated.choose(np.tile(STATES, (200, 1)), 0)
    assert choices.shape[0] == 600 and choices.shape[1] > 3 and (choices.sum(axis=2) == 1).all()
    np.testing.assert_allclose(choices.mean(axis=(0, 1)), 1 / 3, atol=0.05)
    with pytest.raises(ValueError, match="method must be 'model' or 'fqe' for .*, whose actions have no probabilities"):
        evaluated.log_prob(STATES, np.array([3, 4, 5]))


def test_probabilities_of_discrete_actions_are_those_of_the_policy():
    evaluated = EvaluatedPolicy(DistributionPolicy(DISCRETE, make_categorical))
    expected = [[0.5, 0, 0.5], [0, 0.5, 0.5], [0.5, 0.5, 0]]
    np.testing.assert_allclose(evaluated.choose(STATES, 0)[:, 0], expected, atol=1e-6)
    np.testing.assert_allclose(evaluated.log_prob(STATES, np.array([3, 5, 4])), np.log([0.5] * 3), rtol=1e-6)


def test_continuous_actions_are_in_units_of_their_bounds_and_densities_in_those_of_the_environment():
    def make_normal(observation):
        return tfp.distributions.Normal(observation, tf.ones_like(observation))

    evaluated = EvaluatedPolicy(FunctionPolicy(OBSERVATION, CONTINUOUS, lambda x: x))
    np.testing.assert_allclose(evaluated.choose(STATES, 0)[:, 0], [[0.5, -1], [0, 1], [0.5, 1]])
    for policy in (evaluated, EvaluatedPolicy(DistributionPolicy(CONTINUOUS, tfp.distributions.Deterministic))):
        with pytest.raises(ValueError, match="or 'fqe'.*or takes a single continuous action in each state"):
            policy.log_prob(STATES, STATES)
    stochastic = EvaluatedPolicy(DistributionPolicy(CONTINUOUS, make_normal))
    found = stochastic.log_prob(STATES, STATES + np.float32([[0, 0], [1, 0], [1, 2]]))
    np.testing.assert_allclose(found, -np.log(2 * np.pi) - np.array([0, 0.5, 2.5]), rtol=1e-6)
    assert stochastic.choose(STATES, 0).shape[1] > 3


def test_policy_with_a_state_has_no_probabilities():
    evaluated = EvaluatedPolicy(CountingPolicy())
    assert evaluated.has_state
    with pytest.raises(ValueError, match="must be 'model' or 'fqe'"):
        evaluated.log_prob(STATES[:, :1], STATES[:, :1])


def test_data_must_have_the_fields_of_the_policy():
    policy = FunctionPolicy({"a": OBSERVATION, "b": tf.TensorSpec([], tf.int32)}, DISCRETE, lambda x: x["b"])
    policy.function = lambda x: tf.cast(3 + x["b"], tf.int64)
    evaluated = EvaluatedPolicy(policy)
    spec = {"a": OBSERVATION, "b": tf.TensorSpec([], tf.int32), "more": OBSERVATION}
    evaluated.require_match(spec)
    for name, other, got in (("b", tf.TensorSpec([], tf.int64), "int64"), ("a", tf.TensorSpec([3]), r"float32 \[3\]")):
        with pytest.raises(SpecMismatchError, match=rf"observation\['{name}'\] must be .* but the data contain {got}"):
            evaluated.require_match({**spec, name: other})
    with pytest.raises(SpecMismatchError, match="but the data contain no such field"):
        evaluated.require_match({"a": OBSERVATION})
