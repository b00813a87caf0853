"""Off-policy estimators: numbers worked out by hand, bootstrap intervals, and fitted Q evaluation against NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, TIME_STEP_SPEC
from tf_agents.specs import tensor_spec

from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.agents.unit_conversions import BoundedActions, DiscreteActions, Observations
from rlds2reverb.learners.dynamics_model import DynamicsModel, can_model
from rlds2reverb.learners.ensemble_fit import FitOptions, PolicyTransitions
from rlds2reverb.learners.fitted_q import FittedQ
from rlds2reverb.learners.value_estimators import (
    ESTIMATORS,
    average,
    effective_sample_size,
    estimate_with_interval,
    estimator_terms,
    importance_weights,
    pad,
)

# Two episodes of two steps with gamma = 0.5, which end in terminal states.
LENGTHS = np.array([2, 2])
REWARDS, RATIOS = np.array([[1.0, 2], [3, 4]]), np.array([[2.0, 0.5], [0.5, 1]])
DISCOUNTS = np.array([[0.5, 0], [0.5, 0]])
Q_VALUES, VALUES = np.array([[1.0, 1], [2, 2]]), np.array([[1.5, 1, 10], [1.5, 2, 10]])


def estimate(method, discounts=DISCOUNTS, log_ratios=None):
    estimator = ESTIMATORS[method]
    weights = importance_weights(np.log(RATIOS) if log_ratios is None else log_ratios, estimator)
    terms = estimator_terms(REWARDS, discounts, *((Q_VALUES, VALUES) if estimator.uses_values else ()))
    return average(weights, terms, np.ones((1, 2)), is_self_normalized=estimator.is_self_normalized)[0]


def test_models_are_of_vectors_of_real_numbers():
    vector, number = tf.TensorSpec([3]), tf.TensorSpec([], tf.float64)
    assert can_model((vector, {"x": number}))
    for other in (tf.TensorSpec([2, 3]), tf.TensorSpec([3], tf.int32)):
        assert not can_model((vector, other))


def test_estimates_of_two_episodes_are_those_worked_out_by_hand():
    returns = [1 + 0.5 * 2, 3 + 0.5 * 4]
    assert estimate("is") == pytest.approx((1 * returns[0] + 0.5 * returns[1]) / 2)
    assert estimate("wis") == pytest.approx((1 * returns[0] + 0.5 * returns[1]) / 1.5)
    assert estimate("pdis") == pytest.approx(((2 * 1 + 0.5 * 1 * 2) + (0.5 * 3 + 0.5 * 0.5 * 4)) / 2)
    assert estimate("wpdis") == pytest.approx((2 * 1 + 0.5 * 3) / 2.5 + 0.5 * (1 * 2 + 0.5 * 4) / 1.5)
    # Jiang & Li (2016), eq. 10: V + rho * (r + gamma * next - Q), from the last step to the first.
    later = [1 + 0.5 * (2 - 1), 2 + 1 * (4 - 2)]
    first = [1.5 + 2 * (1 + 0.5 * later[0] - 1), 1.5 + 0.5 * (3 + 0.5 * later[1] - 2)]
    assert estimate("dr") == pytest.approx(np.mean(first))


def test_truncated_episodes_continue_with_the_value_of_the_last_observation():
    truncated = np.full((2, 2), 0.5)
    assert estimate("dr", truncated) - estimate("dr") == pytest.approx(0.25 * 10 * (1 + 0.5) / 2)
    for method in ("is", "pdis", "wis", "wpdis"):
        assert estimate(method, truncated) == estimate(method)


@pytest.mark.parametrize("method", [name for name in ESTIMATORS if name != "fqe"])
def test_estimates_of_the_behaviour_policy_are_mean_returns(method):
    weights = importance_weights(np.zeros((2, 2)), ESTIMATORS[method])
    terms = estimator_terms(REWARDS, DISCOUNTS)
    for options in ({"is_self_normalized": True}, {"is_self_normalized": False}):
        assert average(weights, terms, np.ones((1, 2)), **options)[0] == pytest.approx(3.5)


def test_impossible_actions_and_long_episodes_keep_estimates_finite():
    never = np.log(RATIOS) + np.array([[0, -np.inf], [0, -np.inf]])
    assert estimate("wpdis", log_ratios=never) == pytest.approx((2 * 1 + 0.5 * 3) / 2.5)
    assert estimate("is", log_ratios=never) == estimate("wis", log_ratios=never) == 0
    assert np.isfinite(estimate("wis", log_ratios=np.array([[900.0, 0], [901, 0]])))


def test_padding_and_effective_sample_size():
    np.testing.assert_array_equal(pad(np.array([10.0, 20, 21]), np.array([1, 2])), [[10, 0], [20, 21]])
    assert effective_sample_size(np.array([1.0, 1, 0, 0])) == pytest.approx(2)
    assert effective_sample_size(np.zeros(3)) == 0


def test_interval_contains_the_spread_of_episodes_and_of_the_ensemble():
    rng, weights = np.random.default_rng(0), np.ones((400, 1))
    returns = rng.normal(5, 2, (400, 1))
    value, (low, high) = estimate_with_interval(weights, returns[None], seed=3)
    assert value == pytest.approx(returns.mean())
    assert high - low == pytest.approx(2 * 1.645 * returns.std() / 20, rel=0.1)
    assert estimate_with_interval(weights, returns[None], seed=3) == (value, (low, high))
    members = np.stack([returns - 1, returns, returns + 1])  # Student's 95 % quantile of 2 degrees of freedom is 2.92.
    value, (low, high) = estimate_with_interval(weights, members, num_resamples=20_000)
    assert value == pytest.approx(returns.mean())
    assert high - low == pytest.approx(2 * 2.92 * np.sqrt(1 + 1 / 3), rel=0.1)


def make_batch(num_choices, seed=0):
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(2, 4, 3)).astype(np.float32)
    choices = rng.dirichlet(np.ones(num_choices), (2, 4)).astype(np.float32)
    return PolicyTransitions(
        observations[0],
        choices[0],
        rng.normal(size=4).astype(np.float32),
        np.float32([0.9, 0, 1, 1]),
        observations[1],
        choices[1],
        rng.integers(0, 3, (2, 4)).astype(np.float32),
    )


@pytest.mark.parametrize("is_discrete", [True, False])
def test_fitted_q_loss_and_targets_match_numpy(is_discrete):
    actions = (
        DiscreteActions(tensor_spec.BoundedTensorSpec([], tf.int64, 3, 4))
        if is_discrete
        else BoundedActions(ACTION_SPEC)
    )
    options = FitOptions(num_updates=3, ensemble_size=2, hidden_sizes=(), learning_rate=0.1, target_update_rate=0.5)
    fitted = FittedQ(
        Observations(TIME_STEP_SPEC.observation), actions, options, gamma=0.9, offset=2.0, scale=3.0, bounds=(-1.5, 2.5)
    )
    batch = make_batch(2)

    def values(weights, observation, choice):
        outputs = []
        for ((matrix, bias),) in weights:
            if is_discrete:
                outputs.append(((observation @ matrix + bias) * choice).sum(1))
            else:
                outputs.append((np.concatenate([observation, choice], 1) @ matrix + bias)[:, 0])
        return 2.0 + 3.0 * np.array(outputs)

    network, target = fitted.network, fitted.target
    weights = tf.nest.map_structure(np.array, network.layers())
    expected = batch.reward + 0.9 * batch.discount * values(weights, batch.next_observation, batch.next_choice)
    expected = np.clip(expected, -1.5, 2.5)
    np.testing.assert_allclose(fitted.targets(batch), expected, rtol=1e-5)
    errors = (values(weights, batch.observation, batch.choice) - expected) ** 2 / 9.0
    np.testing.assert_allclose(fitted.errors(batch), errors, rtol=1e-4)
    before = target.flat.numpy()
    inside = (batch.weights * errors).sum() / batch.weights.sum()
    outside = errors[batch.weights == 0]
    np.testing.assert_allclose(fitted.update(batch), [inside, outside.sum(), len(outside)], rtol=1e-4)
    np.testing.assert_allclose(target.flat, (before + network.flat) / 2, rtol=1e-5)


def test_model_errors_and_predictions_match_numpy():
    options = FitOptions(num_updates=3, ensemble_size=2, hidden_sizes=())
    scales = np.array([0.1, 0.2, 0.3, 0.4]), np.array([1.0, 2.0, 3.0, 4.0])
    bounds = np.full(4, -9.0), np.array([9.0, 9.0, 9.0, 0.25])
    model = DynamicsModel(
        Observations(TIME_STEP_SPEC.observation), BoundedActions(ACTION_SPEC), options, scales=scales, bounds=bounds
    )
    batch = make_batch(2)
    inputs = np.concatenate([batch.observation, batch.choice], axis=1)
    outputs = np.stack([inputs @ matrix.numpy() + bias.numpy() for ((matrix, bias),) in model.network.layers()])
    found = np.column_stack([batch.next_observation - batch.observation, batch.reward])
    squared = ((outputs[..., :4] - (found - scales[0]) / scales[1]) ** 2).mean(axis=-1)
    entropy = np.log1p(np.exp(outputs[..., 4])) - batch.discount * outputs[..., 4]
    np.testing.assert_allclose(model.errors(batch), squared + entropy, rtol=1e-4)
    changes, prediction = scales[0] + scales[1] * outputs[..., :4], model.predict(batch.observation, batch.choice)
    np.testing.assert_allclose(prediction.state, batch.observation + changes[..., :3], rtol=1e-4)
    np.testing.assert_allclose(prediction.reward, np.minimum(changes[..., 3], 0.25), rtol=1e-4)
    np.testing.assert_allclose(prediction.discount, 1 / (1 + np.exp(-outputs[..., 4])), rtol=1e-4)
    apart = np.linalg.norm(changes[0, :, :3] - changes[1, :, :3], axis=-1) / 2  # Both are as far from their mean.
    np.testing.assert_allclose(prediction.spread, apart, rtol=1e-4)


def test_invalid_options_raise():
    with pytest.raises(ValueError, match="ensemble_size must be an integer >= 1, got 0"):
        FitOptions(ensemble_size=0)
    with pytest.raises(ValueError, match="learning_rate must be a number"):
        FitOptions(learning_rate=2)


# --- probabilities of policies


def test_densities_integrate_to_one_in_the_units_of_the_environment():
    agent = make_agent("sac", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(4,))
    low, high = np.float64(ACTION_SPEC.minimum), np.float64(ACTION_SPEC.maximum)
    centres = (np.arange(100) + 0.5) / 100
    grid = np.stack(np.meshgrid(*[low[i] + centres * (high - low)[i] for i in range(2)]), -1).reshape(-1, 2)
    observations = np.tile(np.float32([[0.1, 0.2, -0.3]]), (len(grid), 1))
    densities = np.exp(agent.collect_policy.log_prob(observations, grid.astype(np.float32)))
    assert densities.mean() * np.prod(high - low) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", ["dqn", "discrete_bc"])
def test_probabilities_of_discrete_actions_match_sampled_ones(name):
    spec = tensor_spec.BoundedTensorSpec([], tf.int64, 3, 5)
    options = {"exploration_epsilon": 0.3} if name == "dqn" else {}
    agent = make_agent(name, TIME_STEP_SPEC, spec, hidden_sizes=(4,), **options)
    observations = np.tile(np.float32([[0.1, 0.2, -0.3]]), (3, 1))
    probabilities = np.exp(agent.collect_policy.log_prob(observations, np.array([3, 4, 5])))
    assert probabilities.sum() == pytest.approx(1, rel=1e-5)
    many = tf.constant(np.tile(observations[:1], (4000, 1)))
    sampled = agent.actor.sample(agent.observations(many), tf.constant([1, 2])).numpy()
    np.testing.assert_allclose(np.bincount(sampled, minlength=3) / 4000, probabilities, atol=0.03)
    greedy = np.exp(agent.policy.log_prob(observations, np.array([3, 4, 5])))
    assert sorted(greedy) == [0, 0, 1] and greedy.argmax() == probabilities.argmax()


@pytest.mark.parametrize(("name", "policy"), [("iql", "policy"), ("td3", "collect_policy")])
def test_log_prob_raises_without_a_density(name, policy):
    agent = make_agent(name, TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(4,))
    with pytest.raises(ValueError, match="requires a policy with a density"):
        getattr(agent, policy).log_prob(np.zeros((1, 3), np.float32), np.zeros((1, 2), np.float32))


@pytest.mark.parametrize("is_self_normalized", [False, True])
def test_infinite_weights_of_terms_that_are_zero_count_nothing(is_self_normalized):
    weights, terms = np.array([[np.inf, 1.0], [1.0, 1.0]]), np.array([[0.0, 2.0], [0.0, 4.0]])
    estimate = average(weights, terms, np.ones((1, 2)), is_self_normalized=is_self_normalized)
    assert estimate == pytest.approx([3.0])
