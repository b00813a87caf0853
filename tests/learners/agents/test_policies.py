import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, OBSERVATION, TIME_STEP_SPEC
from rlds2reverb.learners.agents import make_agent
from tf_agents.policies import policy_saver
from tf_agents.trajectories import time_step

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
    unit = agent._actor.mode(observation)
    np.testing.assert_allclose(action, unit * [2, 0.5] + [0, 0.5], atol=1e-6)


@pytest.mark.parametrize("name", ["td3", "iql", "cql"])
def test_collect_policy_adds_noise_within_the_bounds(name):
    agent = make(name)
    greedy, noisy = (policy.action(STEPS, seed=1).action for policy in (agent.policy, agent.collect_policy))
    assert not np.allclose(greedy, noisy)
    assert np.all(noisy >= ACTION_SPEC.minimum) and np.all(noisy <= ACTION_SPEC.maximum)
    assert noisy.dtype == ACTION_SPEC.dtype
    assert {v.ref() for v in agent.collect_policy.variables()} == {v.ref() for v in agent._actor.variables}


def test_distribution_raises():
    with pytest.raises(NotImplementedError, match=r"do not support distribution\(\); use action\(\)"):
        make().policy.distribution(STEPS)
