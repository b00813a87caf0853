"""AWAC against the reference implementation."""

import agent_reference_impls as reference
import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION, ACTION_SPEC, CENTRE, HALF_WIDTH, OBSERVATION, TIME_STEP_SPEC, make_columns, to_transition

from rlds2reverb.learners.agents import make_agent

SIZE, HIDDEN = 6, (4, 3)
ACTOR, CRITIC = (OBSERVATION, *HIDDEN, ACTION), (OBSERVATION + ACTION, *HIDDEN, 1)
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.0, 1.5, 1.0])


def make(**overrides):
    kwargs = {"hidden_sizes": HIDDEN, "actor_hidden_sizes": HIDDEN, "seed": 3, **overrides}
    return make_agent("awac", TIME_STEP_SPEC, ACTION_SPEC, **kwargs)


def bounded_log_std(actor):
    """Returns the log standard deviations between -6 and 0."""
    return -6 / (1 + np.exp(actor[-ACTION:]))


@pytest.mark.parametrize("is_normalized", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_updates_match_the_reference(is_normalized):
    agent = make(lambda_=0.4, normalize_weights=is_normalized, max_weight=1.0, actor_weight_decay=0.1)
    network, log_std = agent.actor.network.flat, agent.actor.log_std
    rng = np.random.default_rng(5)
    for flat in (network, agent.critic.flat, agent.target_critic.flat):
        flat.assign_add(rng.normal(0, 0.2, flat.shape))
    np.testing.assert_allclose(agent.actor.bounded_log_std(), -3.0)
    log_std.assign([2.5, 1.5])
    actor = np.concatenate([network.numpy(), log_std.numpy()]).astype(float)
    critic, target = agent.critic.flat.numpy().astype(float), agent.target_critic.flat.numpy().astype(float)
    actor_step, critic_step = reference.Adam(3e-4), reference.Adam(3e-4)
    train = tf.function(agent.train, autograph=False)
    for step in range(2):
        data = make_columns(SIZE, seed=step)
        s, end, action = (data[name].astype(float) for name in ("observation", "next_observation", "action"))
        action = (action - CENTRE) / HALF_WIDTH
        noise = [tf.random.stateless_normal([SIZE, ACTION], agent.noise_seed(i)).numpy().astype(float) for i in (0, 1)]
        info = train(to_transition(data), tf.constant(WEIGHTS, tf.float32))

        def act(observation, noise, actor=actor):
            mean = np.tanh(reference.mlp(actor[:-ACTION], ACTOR, observation))
            return mean + np.exp(bounded_log_std(actor)) * noise

        y = data["reward"] + 0.99 * data["discount"] * np.minimum(
            *reference.twin_values(target, CRITIC, end, act(end, noise[0]))
        )

        def critic_loss(w, s=s, action=action, y=y):
            return sum((WEIGHTS * (q - y) ** 2).mean() for q in reference.twin_values(w, CRITIC, s, action))

        q = reference.twin_values(critic, CRITIC, s, action)
        advantage = np.minimum(*q) - np.minimum(*reference.twin_values(critic, CRITIC, s, act(s, noise[1])))
        weight = np.exp(advantage / 0.4)
        if is_normalized:
            weight = weight / weight.mean()
        else:
            assert 0 < (weight > 1.0).sum() < SIZE, "some weights must reach the cap, and some must not"
            weight = np.minimum(weight, 1.0)

        def actor_loss(w, s=s, action=action, weight=weight):
            mean = np.tanh(reference.mlp(w[:-ACTION], ACTOR, s))
            return -(weight * reference.gaussian_log_prob(action, mean, bounded_log_std(w))).mean()

        np.testing.assert_allclose(info.extra["critic_loss"], critic_loss(critic), rtol=1e-5)
        np.testing.assert_allclose(info.extra["actor_loss"], actor_loss(actor), rtol=1e-4)
        np.testing.assert_allclose(info.extra["td_error"], np.abs(np.subtract(q, y)).mean(axis=0), atol=1e-5)
        actor = actor_step(actor, reference.gradient(actor_loss, actor) + 0.1 * actor)
        critic = critic_step(critic, reference.gradient(critic_loss, critic))
        target = 0.995 * target + 0.005 * critic
    np.testing.assert_allclose(agent.critic.flat, critic, atol=3e-6)
    np.testing.assert_allclose(agent.target_critic.flat, target, atol=3e-6)
    np.testing.assert_allclose(network, actor[:-ACTION], atol=3e-6)
    np.testing.assert_allclose(log_std, actor[-ACTION:], atol=3e-6)


def test_weights_are_normalized_and_finite_for_large_advantages():
    weights = make().advantage_weights(tf.constant([0.0, 500.0, 1000.0, 1000.0]))
    np.testing.assert_allclose(weights, [0, 0, 2, 2])
    weights = make(normalize_weights=False).advantage_weights(tf.constant([0.0, 500.0]))
    np.testing.assert_allclose(weights, [1, 100])
