import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, OBSERVATION, TIME_STEP_SPEC, observe, small_networks
from properties import mark_slow_except
from tf_agents.policies import policy_saver
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb import SpecMismatchError, load_policy
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.algorithms import ALGORITHMS
from rlds2reverb.learners.policy_export import export_policy

STEPS = time_step.restart(tf.random.stateless_normal([5, OBSERVATION], [0, 1]), 5)


def make(name="td3_bc", **overrides):
    return make_agent(name, TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(8, 8), **overrides)


def test_saved_policy_includes_normalisation_and_action_scale(tmp_path):
    agent = make(observation_mean=[1.0, 2, 3], observation_std=[4.0, 5, 6])
    policy_saver.PolicySaver(agent.policy, batch_size=None).save(str(tmp_path / "policy"))
    loaded = tf.saved_model.load(str(tmp_path / "policy"))
    action = loaded.action(STEPS).action
    # Fused operations of the saved graph round differently on some processors.
    np.testing.assert_allclose(action, agent.policy.action(STEPS).action, rtol=1e-6)
    observation = (STEPS.observation - [1.0, 2, 3]) / [4.0, 5, 6]
    unit = agent.actor.mode(observation)
    np.testing.assert_allclose(action, unit * [2, 0.5] + [0, 0.5], atol=1e-6)


@pytest.mark.parametrize("name", ["td3", "iql", "cql"])
def test_collect_policy_adds_noise_within_the_bounds(name):
    agent = make(name)
    greedy, noisy = (policy.action(STEPS, seed=1).action for policy in (agent.policy, agent.collect_policy))
    assert not np.allclose(greedy, noisy)
    assert np.all(noisy >= ACTION_SPEC.minimum) and np.all(noisy <= ACTION_SPEC.maximum)
    assert noisy.dtype == ACTION_SPEC.dtype
    assert {v.ref() for v in agent.collect_policy.variables()} == {v.ref() for v in agent.actor.variables}


def test_distribution_raises():
    with pytest.raises(NotImplementedError, match=r"do not support distribution\(\); use action\(\)"):
        make().policy.distribution(STEPS)


#: The algorithms with policies that act on a single observation.
STATELESS = [name for name, algorithm in ALGORITHMS.items() if algorithm.items != "windows"]
DISCRETE_SPEC = tensor_spec.BoundedTensorSpec([], tf.int64, 3, 6, "action")


def make_normalised(name):
    spec = DISCRETE_SPEC if ALGORITHMS[name].actions == "discrete" else ACTION_SPEC
    statistics = {"observation_mean": observe(name, [1.0, 2, 3]), "observation_std": observe(name, [4.0, 5, 6])}
    time_steps = time_step.time_step_spec(observe(name, TIME_STEP_SPEC.observation))
    return make_agent(name, time_steps, spec, **small_networks(name), **statistics)


@pytest.mark.parametrize(
    "name", mark_slow_except(["bc", "td3_bc", "iql", "dqn", "discrete_iql", "gciql", "hiql"], ALGORITHMS)
)
def test_estimates_are_those_of_the_critics(name):
    agent, observations = make_normalised(name), STEPS.observation.numpy()
    inputs = np.float32((observations - [1, 2, 3]) / [4, 5, 6])
    if ALGORITHMS[name].actions == "discrete":
        actions = np.array([3, 6, 4, 5, 3])
    else:
        actions = np.linspace([-2, 0], [2, 1], 5, dtype=np.float32)
    values = agent.estimate_values(observe(name, tf.constant(observations)), tf.constant(actions))
    inputs = np.concatenate([inputs, inputs], 1) if ALGORITHMS[name].items == "goals" else inputs
    if name in ("bc", "crl", "decision_transformer", "discrete_bc", "gcbc", "gcivl", "hiql"):
        expected = {}
    elif name == "discrete_iql":
        expected = {"q": agent.critic(tf.constant(inputs)).numpy().min(0)[np.arange(5), actions - 3]}
        expected |= {"v": agent.value(inputs).numpy()[:, 0]}
    elif actions.ndim == 1:
        table = agent.critic(inputs).numpy()
        expected = {"q": table[np.arange(5), actions - 3], "v": table.max(1)}
    else:
        unit = np.float32((actions - [0, 0.5]) / [2, 0.5])
        expected = {"q": agent.critic(tf.concat([inputs, unit], 1)).numpy()[..., 0].min(0)}
        expected |= {"v": agent.value(inputs).numpy()[:, 0]} if getattr(agent, "value", None) else {}
    assert values.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(values[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", mark_slow_except(["iql"], STATELESS))
def test_predictions_and_values_of_saved_policies_match_the_agent(name, tmp_path):
    agent, observations = make_normalised(name), STEPS.observation.numpy()
    steps = STEPS._replace(observation=observe(name, STEPS.observation))
    policy = load_policy(export_policy(agent.policy, tmp_path / "policy", estimate_values=agent.estimate_values))
    actions = policy.predict(observe(name, observations.astype(np.float64)))
    expected = agent.policy.action(steps).action.numpy()
    np.testing.assert_allclose(actions, expected, rtol=1e-5)
    assert actions.dtype == expected.dtype and repr(policy.action_spec) == repr(agent.action_spec)
    np.testing.assert_allclose(policy.predict(observe(name, observations[2].tolist())), actions[2], rtol=1e-5)
    expected = agent.estimate_values(steps.observation, tf.constant(actions))
    if not expected:
        with pytest.raises(ValueError, match="values requires a policy that was saved with its agent's critics"):
            policy.values(observe(name, observations), actions)
        return
    values, single = (
        policy.values(observe(name, states), some)
        for states, some in ((observations, actions), (observations[1], actions[1]))
    )
    assert values.keys() == expected.keys() == single.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(values[key], value, rtol=1e-4, atol=1e-6)
        assert single[key].shape == () and single[key] == pytest.approx(values[key][1], rel=1e-4)


def test_values_check_the_actions(tmp_path):
    agent = make_agent("dqn", TIME_STEP_SPEC, DISCRETE_SPEC, hidden_sizes=(4,))
    policy = load_policy(export_policy(agent.policy, tmp_path / "policy", estimate_values=agent.estimate_values))
    action = policy.predict([0, 0, 0])
    assert isinstance(action, np.int64) and 3 <= action <= 6
    with pytest.raises(ValueError, match=r"action must be from 3 to 6, got 7 \(row 1\)"):
        policy.values(np.zeros((2, 3)), [3, 7])
    with pytest.raises(SpecMismatchError, match=r"action must be int64 \[\], or a batch of these, got float64 \[\]"):
        policy.values(np.zeros(3), 3.0)
    with pytest.raises(SpecMismatchError, match="as many actions as observations, got 2 rows and a single"):
        policy.values(np.zeros((2, 3)), 3)
