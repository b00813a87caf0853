"""FQL's policies: what their noise depends on, and which agents represent several modes."""

import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, SMALL_SPECS, TIME_STEP_SPEC, make_columns, run_updates, to_transition

from rlds2reverb.learners.agents import OneStepFlowActor, critic_values, make_agent

MODE = 0.6


@pytest.fixture(scope="module")
def noise():
    """Provides the noise of 2,000 observations: that of an actor whose action is a small multiple of it."""
    actor = OneStepFlowActor(lambda x: 0.1 * x[:, 2:], 3)
    observation = tf.random.stateless_normal([2000, 2], [0, 1])
    return actor, observation, actor.mode(observation).numpy() * 10


def test_greedy_noise_is_a_function_of_the_observation(noise):
    actor, observation, expected = noise
    np.testing.assert_allclose(actor.mode(observation[7:8]) * 10, expected[7:8], rtol=0, atol=1e-5)
    assert len(np.unique(expected[:, 0])) == 2000


def test_greedy_noise_is_standard_normal(noise):
    _, _, values = noise
    np.testing.assert_allclose(values.mean(axis=0), 0, atol=0.08)
    np.testing.assert_allclose(np.cov(values.T), np.eye(3), atol=0.12)


def test_constant_velocity_carries_noise_along_a_line():
    agent = make_agent("fql", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(4,), flow_steps=3)
    agent.flow.flat.assign([*[0.0] * (agent.flow.flat.shape[0] - 2), 0.25, -3.0])
    actions = agent.integrate(tf.zeros([2, 3]), tf.constant([[0.5, 0.5], [-0.5, 1.5]]))
    np.testing.assert_allclose(actions, [[0.75, -1], [-0.25, -1]], atol=1e-6)


def test_best_of_samples_has_the_highest_value():
    agent = make_agent("fql", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(4,), flow_steps=2, num_samples=5, q_agg="min")
    observation = tf.random.stateless_normal([3, 3], [0, 1])
    noise = tf.reshape(tf.random.stateless_normal([3, 10], [2, 3]), [3, 5, 2])
    found = agent.actor.sample(observation, [2, 3])
    for row, action in enumerate(found):
        rows = tf.repeat(observation[row : row + 1], 5, axis=0)
        actions = agent.integrate(rows, noise[row])
        values = tf.reduce_min(critic_values(agent.critic, rows, actions), axis=0)
        np.testing.assert_allclose(action, actions[np.argmax(values)], atol=1e-6)
        np.testing.assert_allclose(  # The greedy policy acts alike in equal observations, whatever else is in the batch.
            agent.actor.mode(observation[row : row + 1])[0], agent.actor.mode(observation)[row], atol=1e-5
        )


@pytest.mark.slow
def test_train_step_compiles_with_xla():
    """With discounts of 0 the critics' loss does not depend on the noise, which is different in XLA."""
    batch = to_transition({**make_columns(4), "discount": np.zeros(4, np.float32)})
    plain, compiled = (
        make_agent("fql", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(8,), flow_steps=2) for _ in range(2)
    )
    expected, actual = plain.train(batch), tf.function(compiled.train, jit_compile=True)(batch)
    np.testing.assert_allclose(actual.extra["critic_loss"], expected.extra["critic_loss"], rtol=1e-4)
    assert actual.extra.keys() == expected.extra.keys() and np.isfinite(actual.loss)


@pytest.mark.slow
def test_fql_and_spot_act_like_one_of_several_modes_of_the_data():
    """In one-step episodes, the data's actions are near -0.6 or 0.6 and have a reward of 1; others have none."""
    size, rng = 2000, np.random.default_rng(0)
    observation = rng.uniform(-1, 1, (size, 2)).astype(np.float32)
    action = (MODE * rng.choice([-1, 1], (size, 1)) + 0.05 * rng.normal(size=(size, 1))).astype(np.float32)
    data = {"observation": observation, "action": action, "reward": np.ones(size, np.float32)}
    data |= {"discount": np.zeros(size, np.float32), "next_observation": observation}

    def learn(name, **hyperparameters):
        """Returns the greedy actions after 600 updates, and the share of them that is near a mode."""
        agent = make_agent(name, *SMALL_SPECS, hidden_sizes=(32, 32), **hyperparameters)
        run_updates(agent, to_transition(data), 600)
        actions = agent.actor.mode(observation).numpy()
        return actions, (np.abs(np.abs(actions) - MODE) < 0.3).mean()

    fast = {"actor_learning_rate": 1e-2, "critic_learning_rate": 1e-2}
    actions, share = learn("fql", flow_steps=5, **fast)
    assert share > 0.7 and 0.4 < (actions > 0).mean() < 0.6
    density = {"num_density_updates": 300, "density_hidden_sizes": (64, 64), "support_weight": 1.0}
    assert learn("spot", **density, **fast)[1] > 0.7
    assert learn("td3_bc", **fast)[1] < 0.1
    assert learn("bc", learning_rate=1e-2, distribution="gaussian")[1] < 0.1
