"""SAC, SAC-N and EDAC against the reference implementation."""

import functools

import agent_reference_impls as reference
import numpy as np
import pytest
import tensorflow as tf
from agent_data import (
    ACTION,
    ACTION_SPEC,
    CENTRE,
    HALF_WIDTH,
    OBSERVATION,
    SMALL_SPECS,
    TIME_STEP_SPEC,
    make_columns,
    run_updates,
    to_transition,
)

from rlds2reverb.learners.agents import Temperature, gradient_similarity, make_agent, values_and_action_gradients
from rlds2reverb.learners.agents.networks import MLP

SIZE, HIDDEN = 6, (4, 3)
ACTOR, CRITIC = (OBSERVATION, *HIDDEN, 2 * ACTION), (OBSERVATION + ACTION, *HIDDEN, 1)
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.0, 1.5, 1.0])


def act(actor, observation, noise):
    """Returns actions and log densities (appendix C), with the unsimplified derivative of tanh."""
    mean, log_std = np.split(reference.mlp(actor, ACTOR, observation), 2, axis=1)
    log_std = reference.clip(log_std, -20, 2)
    before = mean + np.exp(log_std) * noise
    action = np.tanh(before)
    return action, reference.gaussian_log_prob(before, mean, log_std) - np.log(1 - action**2).sum(axis=1)


def minimum(values):
    return functools.reduce(reference.minimum, values)


def action_gradients(critics, observation, action, copies):
    x = np.concatenate([observation, action], axis=1)
    return [reference.input_gradient(flat, CRITIC, x)[:, OBSERVATION:] for flat in np.split(critics, copies)]


@pytest.mark.parametrize(("name", "hidden_bias", "last_bound"), [("sac", 0.0, (6 / 11) ** 0.5), ("sac_n", 0.1, 1e-3)])
def test_initial_weights_match_the_authors_code(name, hidden_bias, last_bound):
    agent = make_agent(name, TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(200, 7))
    ((_, bias), _, (weights, _)) = agent.actor.network.layers()[0]
    np.testing.assert_allclose(bias, hidden_bias)
    assert 0.8 * last_bound < np.abs(weights).max() <= last_bound


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        pytest.param({"target_entropy": -1.0, "initial_temperature": 0.2}, marks=pytest.mark.slow),
        {"num_critics": 3, "diversity_weight": 0.7},
    ],
    ids=["published", "temperature", "edac"],
)
def test_updates_match_the_reference(overrides):
    copies, eta = overrides.get("num_critics", 2), overrides.get("diversity_weight", 0)
    twin_values = functools.partial(reference.twin_values, copies=copies)
    agent = make_agent("sac", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=HIDDEN, seed=3, **overrides)
    rng = np.random.default_rng(5)
    for flat in (
        agent.actor.network.flat,
        agent.critic.flat,
    ):  # The initial gradients of critics have no clear direction.
        flat.assign_add(rng.normal(0, 0.2, flat.shape))
    agent.target_critic.flat.assign(agent.critic.flat)
    actor, critic = (network.flat.numpy().astype(float) for network in (agent.actor.network, agent.critic))
    target, log_temperature = critic, np.log(overrides.get("initial_temperature", 1.0))
    actor_step, critic_step, temperature_step = (reference.Adam(3e-4) for _ in range(3))
    train = tf.function(agent.train, autograph=False)
    for step in range(3):
        data = make_columns(SIZE, seed=step)
        s, end, action = (data[name].astype(float) for name in ("observation", "next_observation", "action"))
        action = (action - CENTRE) / HALF_WIDTH
        noise = tf.random.stateless_normal([2, SIZE, ACTION], agent.noise_seed(0)).numpy().astype(float)
        info = train(to_transition(data), tf.constant(WEIGHTS, tf.float32))

        temperature = np.exp(log_temperature)
        next_action, next_log_prob = act(actor, end, noise[0])
        value = minimum(twin_values(target, CRITIC, end, next_action)) - temperature * next_log_prob
        y = data["reward"] + 0.99 * data["discount"] * value

        def critic_loss(w, s=s, action=action, y=y):
            loss = sum((WEIGHTS * (q - y) ** 2).mean() for q in twin_values(w, CRITIC, s, action))
            if not eta:
                return loss
            gradients = action_gradients(w, s, action, copies)
            return loss + eta * (WEIGHTS * reference.gradient_similarity(gradients)).mean()

        td = [q - y for q in twin_values(critic, CRITIC, s, action)]
        np.testing.assert_allclose(info.extra["td_error"], np.abs(td).mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(info.extra["critic_loss"], critic_loss(critic), rtol=2e-5)
        critic = critic_step(critic, reference.gradient(critic_loss, critic))

        def actor_loss(w, s=s, noise=noise, critic=critic, temperature=temperature):
            sampled, log_prob = act(w, s, noise[1])
            return (temperature * log_prob - minimum(twin_values(critic, CRITIC, s, sampled))).mean()

        np.testing.assert_allclose(info.extra["actor_loss"], actor_loss(actor), rtol=2e-5)
        _, log_prob = act(actor, s, noise[1])
        actor = actor_step(actor, reference.gradient(actor_loss, actor))
        excess = log_prob.mean() + overrides.get("target_entropy", -ACTION)
        log_temperature = temperature_step(log_temperature, -excess)
        np.testing.assert_allclose(info.extra["temperature"], np.exp(log_temperature), rtol=1e-6)
        np.testing.assert_allclose(info.extra["entropy"], -log_prob.mean(), rtol=1e-5)
        target = 0.995 * target + 0.005 * critic
    for name, variable, expected in [
        ("actor", agent.actor_optimizer.moments[0][0], actor_step.m),
        ("critic", agent.critic_optimizer.moments[0][0], critic_step.m),
        ("weights of the actor", agent.actor.network.flat, actor),
        ("weights of the critics", agent.critic.flat, critic),
        ("target", agent.target_critic.flat, target),
    ]:
        np.testing.assert_allclose(variable, expected, atol=2e-5, err_msg=name)


def test_temperature_rises_while_the_entropy_is_below_its_target():
    temperature = Temperature(-2.0, 0.1)
    assert temperature() == 1
    temperature.update(tf.constant([3.0, 5.0]))  # The entropy is -4.
    np.testing.assert_allclose(temperature(), np.exp(0.1), rtol=1e-6)  # Adam's first step is the learning rate.
    temperature.update(tf.constant([-9.0]))
    assert temperature() < np.exp(0.1)


def test_gradient_similarity_equals_the_sum_over_pairs():
    gradients = np.random.default_rng(0).normal(size=(5, 7, 3))
    expected = reference.gradient_similarity(list(gradients))
    np.testing.assert_allclose(gradient_similarity(tf.constant(gradients, tf.float32)), expected, rtol=1e-5, atol=1e-6)


def test_gradient_similarity_matches_hand_computed_values():
    """Three equal directions have 6 pairs of cosine 1, over 2; the others have cosines -1, 0 and 0, each twice."""
    gradients = tf.constant([[[3.0, 0.0], [1.0, 0.0]], [[0.5, 0.0], [-2.0, 0.0]], [[9.0, 0.0], [0.0, 4.0]]])
    np.testing.assert_allclose(gradient_similarity(gradients), [3, -1], atol=1e-6)


def test_similarity_of_a_vanishing_gradient_is_differentiable():
    gradients = tf.Variable([[[0.0, 0.0]], [[1.0, 0.0]]])
    with tf.GradientTape() as tape:
        similarity = gradient_similarity(gradients)
    assert similarity == 0 and np.isfinite(tape.gradient(similarity, gradients)).all()


@pytest.mark.slow
def test_diversity_weight_makes_the_gradients_of_the_critics_diverge():
    def train(weight):
        agent = make_agent("edac", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(16,), diversity_weight=weight, seed=1)
        batch, update = to_transition(make_columns(32)), tf.function(agent.train, autograph=False)
        for _ in range(40):
            update(batch)
        columns = agent.batch(batch)
        actions = tf.tile(columns.action[tf.newaxis], [10, 1, 1])
        gradients = values_and_action_gradients(agent.critic, columns.observation, actions)[1]
        return tf.reduce_mean(gradient_similarity(gradients))

    assert train(20.0) < train(0.0) - 0.5


def test_diversity_of_a_single_critic_raises():
    with pytest.raises(ValueError, match="num_critics must be at least 2 for EDAC's diversity_weight.* got 1"):
        make_agent("edac", TIME_STEP_SPEC, ACTION_SPEC, num_critics=1)
    assert make_agent("sac", TIME_STEP_SPEC, ACTION_SPEC, num_critics=1).critic.flat.shape


@pytest.mark.slow
def test_ensembles_stay_near_the_data_which_two_critics_leave():
    """In one-step episodes, rewards are noisy and fall with the distance from an action that all of the data are near.

    An et al. (2021), section 3: the minimum over more critics is lower where there are no data. The critics' last layers
    begin as large as PyTorch's, because those of EDAC's authors hardly differ after so few updates.
    """
    rng, size = np.random.default_rng(0), 2000
    observation = rng.uniform(-1, 1, (size, 2)).astype(np.float32)
    best = 0.5 * observation[:, 0]
    action = np.clip(best + 0.1 * rng.normal(size=size), -1, 1).astype(np.float32)
    data = {"observation": observation, "action": action[:, np.newaxis], "discount": np.zeros(size, np.float32)}
    data |= {"reward": (1 - np.abs(action - best) / 0.3 + 0.5 * rng.normal(size=size)).astype(np.float32)}
    rates = {"actor_learning_rate": 3e-3, "critic_learning_rate": 3e-3}
    distances = {}
    for name in ("sac", "sac_n", "edac"):
        agent = make_agent(name, *SMALL_SPECS, hidden_sizes=(32, 32), **rates)
        agent.critic.flat.assign(MLP([3, 32, 32, 1], seed=0, copies=agent.num_critics, name="critic").flat)
        agent.target_critic.flat.assign(agent.critic.flat)
        run_updates(agent, to_transition({**data, "next_observation": observation}), 600)
        distances[name] = np.abs(agent.actor.mode(observation)[:, 0] - best).mean()
    in_data = np.abs(action - best).mean()
    assert max(distances["sac_n"], distances["edac"]) < 0.75 * in_data < 1.25 * in_data < distances["sac"]
