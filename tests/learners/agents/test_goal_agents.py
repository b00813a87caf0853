"""Agents with goals against the reference implementations."""

import agent_reference_impls as reference
import numpy as np
import pytest
import tensorflow as tf
from agent_data import (
    ACTION_SPEC,
    CENTRE,
    GOAL_TIME_STEP_SPEC,
    HALF_WIDTH,
    OBSERVATION,
    TIME_STEP_SPEC,
    make_columns,
    to_goals,
    to_trajectory,
)
from properties import mark_slow_except

from rlds2reverb import SpecMismatchError
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.agents.goal_agent import require_goals

HIDDEN, LATENT = (4, 3), 4
MEAN, STD = np.array([0.1, 0.0, -0.3]), np.array([1.0, 2.0, 0.5])
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.0, 1.5])
SEEN = 2 * OBSERVATION
STATISTICS = {
    name: {"observation": value, "goal": value}
    for name, value in zip(("observation_mean", "observation_std"), (MEAN, STD), strict=True)
}


def make(name, **overrides):
    """Returns an agent all of whose weights are random, so that no two networks are equal."""
    agent = make_agent(name, GOAL_TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=HIDDEN, seed=3, **STATISTICS, **overrides)
    rng = np.random.default_rng(5)
    for variable in agent.variables:
        if variable.shape.rank == 1 and variable.shape[0] > SEEN and "/" not in variable.name:  # Moments have one.
            variable.assign(variable + rng.normal(0, 0.2, variable.shape))
    return agent


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def mlp(network, x, *, layer_norm=True):
    """Returns the outputs [copies, B, out] of an `MLP` in float64, layer by layer."""
    outputs = []
    for layers in network.layers():
        y = x
        for number, layer in enumerate(layers):
            weights, bias, *norm = (part.numpy().astype(float) for part in layer)
            assert bool(norm) == (layer_norm and number < len(layers) - 1)
            y = y @ weights + bias
            if number < len(layers) - 1:
                y = gelu(y)
            if norm:
                spread = ((y - y.mean(1, keepdims=True)) ** 2).mean(1, keepdims=True)
                y = (y - y.mean(1, keepdims=True)) / np.sqrt(spread + 1e-6) * norm[0] + norm[1]
        outputs.append(y)
    return np.array(outputs)


def actor_log_prob(network, x, action):
    (mean,) = mlp(network, x, layer_norm=False)
    return -0.5 * ((action - mean) ** 2 + np.log(2 * np.pi)).sum(1), np.clip(mean, -1, 1)


def make_data(seed=0):
    rewards = {"reward": np.float32([0, -1, 1, 1, -1]), "discount": np.float32([0, 1, 1, 1, 1])}
    return {**make_columns(len(WEIGHTS), seed), **rewards}


def make_batch(agent, seed=0):
    """Returns experience and its columns in float64: `see(state, goal)` is what the networks see of rows."""
    data = make_data(seed)
    state, next_state = ((data[name].astype(float) - MEAN) / STD for name in ("observation", "next_observation"))
    columns = {
        "action": (data["action"].astype(float) - CENTRE) / HALF_WIDTH,
        "state": state,
        "next_state": next_state,
        **{
            name: np.roll(state, n, 0) for name, n in (("goal", 1), ("actor_goal", 2), ("low_goal", 3), ("subgoal", -1))
        },
        "reward": data["reward"].astype(float),
        "discount": data["discount"].astype(float),
    }
    return agent.batch(to_goals(data), tf.constant(WEIGHTS, tf.float32)), columns


def see(columns, goal="goal", state="state"):
    return np.concatenate([columns[goal], columns[state]], axis=1)


def check(agent, expected):
    batch, _ = make_batch(agent)
    losses = agent.losses(batch)
    assert losses.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(losses[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def expectile(advantage, difference, share):
    return np.abs(share - (advantage < 0)) * difference**2


def implicit_value_loss(columns, values, old, old_next, share):
    q = columns["reward"] + 0.99 * columns["discount"] * old_next
    advantage = q.min(0) - old.mean(0)
    assert 0 < (advantage < 0).sum() < len(advantage), "some advantages must be negative, and some must not"
    return sum((WEIGHTS * expectile(advantage, q[copy] - values[copy], share)).mean() for copy in (0, 1))


def awr(advantage, log_prob, alpha):
    return -(np.minimum(np.exp(alpha * advantage), 100) * log_prob).mean()


def test_gcbc_loss_matches_the_reference():
    agent = make("gcbc")
    _, columns = make_batch(agent)
    log_prob, _ = actor_log_prob(agent.actor.network, see(columns), columns["action"])
    check(agent, {"actor_loss": -(WEIGHTS * log_prob).mean()})
    assert make_batch(agent)[0].goals == {}


def test_gcivl_losses_match_the_reference():
    agent = make("gcivl", alpha=20.0)
    _, columns = make_batch(agent)

    def value(network, *names):
        return mlp(network, see(columns, *names))[..., 0]

    old, old_next = value(agent.target_values), value(agent.target_values, "goal", "next_state")
    assert np.abs(old - value(agent.values)).max() > 0.1
    advantage = (value(agent.values, "actor_goal", "next_state") - value(agent.values, "actor_goal")).mean(0)
    assert (np.exp(20 * advantage) > 100).any(), "some weights must reach the maximum"
    log_prob, _ = actor_log_prob(agent.actor.network, see(columns, "actor_goal"), columns["action"])
    expected = implicit_value_loss(columns, value(agent.values), old, old_next, 0.9)
    check(agent, {"value_loss": expected, "actor_loss": awr(advantage, log_prob, 20.0)})


@pytest.mark.parametrize("actor_loss", ["ddpgbc", "awr"])
def test_gciql_losses_match_the_reference(actor_loss):
    agent = make("gciql", actor_loss=actor_loss)
    _, columns = make_batch(agent)

    def critic(network, action, goal="goal"):
        return mlp(network, np.concatenate([see(columns, goal), action], 1))[..., 0]

    def value(*names):
        return mlp(agent.value, see(columns, *names))[0, :, 0]

    u = critic(agent.target_critic, columns["action"]).min(0) - value()
    y = columns["reward"] + 0.99 * columns["discount"] * value("goal", "next_state")
    q = critic(agent.critic, columns["action"])
    log_prob, mode = actor_log_prob(agent.actor.network, see(columns, "actor_goal"), columns["action"])
    if actor_loss == "awr":
        advantage = critic(agent.critic, columns["action"], "actor_goal").min(0) - value("actor_goal")
        expected = awr(advantage, log_prob, 0.3)
    else:
        own = critic(agent.critic, mode, "actor_goal").min(0)
        expected = -own.mean() / np.abs(own).mean() - 0.3 * log_prob.mean()
    check(
        agent,
        {
            "value_loss": (WEIGHTS * expectile(u, u, 0.9)).mean(),
            "critic_loss": sum((WEIGHTS * (one - y) ** 2).mean() for one in q),
            "actor_loss": expected,
        },
    )


def test_crl_losses_match_the_reference():
    agent = make("crl", latent_size=LATENT)
    _, columns = make_batch(agent)

    def log_q(action, goal):
        phi = mlp(agent.phi, np.concatenate([columns["state"], action], 1))
        return np.einsum("eil,ejl->eij", phi, mlp(agent.psi, columns[goal])) / LATENT**0.5

    logits, labels = log_q(columns["action"], "goal"), np.eye(len(WEIGHTS))
    entropies = np.log(1 + np.exp(logits)) - labels * logits
    log_prob, mode = actor_log_prob(agent.actor.network, see(columns, "actor_goal"), columns["action"])
    q = np.diagonal(log_q(mode, "actor_goal"), axis1=1, axis2=2).min(0)
    check(
        agent,
        {
            "critic_loss": (WEIGHTS * entropies.mean((0, 2))).mean(),
            "actor_loss": -q.mean() / np.abs(q).mean() - 0.1 * log_prob.mean(),
        },
    )


def test_hiql_losses_and_policy_match_the_reference():
    agent = make("hiql", representation_size=LATENT, high_alpha=2.0, low_alpha=4.0)
    batch, columns = make_batch(agent)

    def represent(goal, state="state"):
        (vectors,) = mlp(agent.phi, see(columns, goal, state))
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) * LATENT**0.5

    def value(goal, state="state", network=None):
        return mlp(network or agent.values, np.concatenate([columns[state], represent(goal, state)], 1))[..., 0]

    old, old_next = (value("goal", state, agent.target_values) for state in ("state", "next_state"))
    high = (value("actor_goal", "subgoal") - value("actor_goal")).mean(0)
    low = (value("low_goal", "next_state") - value("low_goal")).mean(0)
    high_log_prob, _ = actor_log_prob(agent.actor.high.network, see(columns, "actor_goal"), represent("subgoal"))
    low_inputs = np.concatenate([columns["state"], represent("low_goal")], 1)
    low_log_prob, _ = actor_log_prob(agent.actor.network, low_inputs, columns["action"])
    check(
        agent,
        {
            "value_loss": implicit_value_loss(columns, value("goal"), old, old_next, 0.7),
            "high_actor_loss": awr(high, high_log_prob, 2.0),
            "low_actor_loss": awr(low, low_log_prob, 4.0),
        },
    )
    (subgoal,) = mlp(agent.actor.high.network, see(columns), layer_norm=False)
    subgoal *= LATENT**0.5 / np.linalg.norm(subgoal, axis=1, keepdims=True)
    (mode,) = mlp(agent.actor.network, np.concatenate([columns["state"], subgoal], 1), layer_norm=False)
    np.testing.assert_allclose(agent.actor.mode(batch.observation), mode, rtol=1e-5, atol=1e-6)
    actions = [agent.actor.sample(batch.observation, tf.constant([1, seed])) for seed in range(2)]
    assert np.abs(actions).max() <= 1 and not np.array_equal(*actions)


#: Networks that each loss trains, by the attribute of the agent.
TRAINED = {
    "gcbc": {"actor_loss": ["actor.network"]},
    "gcivl": {"value_loss": ["values"], "actor_loss": ["actor.network"]},
    "gciql": {"value_loss": ["value"], "critic_loss": ["critic"], "actor_loss": ["actor.network"]},
    "crl": {"critic_loss": ["phi", "psi"], "actor_loss": ["actor.network"]},
    "hiql": {
        "value_loss": ["phi", "values"],
        "high_actor_loss": ["actor.high.network"],
        "low_actor_loss": ["actor.network"],
    },
}


def find(agent, path):
    for name in path.split("."):
        agent = getattr(agent, name)
    return agent


@pytest.mark.parametrize("name", mark_slow_except(["gciql", "hiql"], TRAINED))
def test_update_follows_the_gradient_of_each_loss_at_the_old_weights(name):
    agent, probe = make(name), make(name)
    batch, _ = make_batch(agent)
    with tf.GradientTape(persistent=True) as tape:
        losses = probe.losses(batch)
    before = [(target.flat.numpy(), online.flat.numpy()) for target, online in agent.targets]
    assert all(np.abs(target - online).max() > 0.1 for target, online in before)
    agent.train(to_goals(make_data()), tf.constant(WEIGHTS, tf.float32))
    num_trained = 0
    for loss, paths in TRAINED[name].items():
        for path in paths:
            old, new = find(probe, path).flat, find(agent, path).flat
            gradient = tape.gradient(losses[loss], old).numpy().astype(float)
            np.testing.assert_allclose(new, reference.Adam(3e-4)(old.numpy(), gradient), atol=2e-6)
            num_trained += 1
    assert num_trained == sum(len(optimizer.trained_variables) for optimizer in agent.optimizers.values())
    for (target, _), (old, online) in zip(agent.targets, before, strict=True):
        np.testing.assert_allclose(target.flat, 0.995 * old + 0.005 * online, atol=1e-6)


def test_actor_s_means_are_clipped_by_the_policy_only():
    agent = make("gcbc")
    agent.actor.network.flat.assign(5.0 * agent.actor.network.flat)
    batch, _ = make_batch(agent)
    mode = agent.actor.mode(batch.observation)
    assert np.abs(mode).max() > 1
    np.testing.assert_allclose(
        agent.actions.to_unit(agent.actions.to_environment(mode)), np.clip(mode, -1, 1), atol=1e-6
    )


def test_hyperparameters_determine_the_goals():
    sampling = make("hiql", value_goals=(0.1, 0.6, 0.3), actor_goals=[0, 0.5, 0.5], subgoal_steps=7).goal_sampling
    observed, actor = sampling.observed, sampling.actor
    assert (observed.current, observed.future, observed.random, observed.geometric) == (0.1, 0.6, 0.3, True)
    assert (actor.random, actor.geometric, sampling.subgoal_steps, sampling.is_negative) == (0.5, False, 7, True)
    assert make("gcbc").goal_sampling.actor is None and make("crl").goal_sampling.observed.geometric
    with pytest.raises(ValueError, match=r"value_goals must be three numbers in \[0, 1\], got \(0.5, 0.5\)"):
        make("gcivl", value_goals=(0.5, 0.5))
    with pytest.raises(ValueError, match=r"must add up to 1, got \(0.5, 0.5, 0.5\)"):
        make("gcivl", value_goals=(0.5, 0.5, 0.5))


def test_observations_without_goals_raise():
    with pytest.raises(SpecMismatchError, match=r"require observations that are dicts of 'observation' and 'goal'"):
        make_agent("gcbc", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(4,))
    for names in (["observation"], ["observation", "goal", "more"]):
        with pytest.raises(SpecMismatchError, match="wrap the environment in GoalTasks"):
            require_goals(dict.fromkeys(names, TIME_STEP_SPEC.observation))
    require_goals(GOAL_TIME_STEP_SPEC.observation)
    with pytest.raises(
        SpecMismatchError, match=r"learn from transitions with the goals of GoalSampling, got Trajectory"
    ):
        make("gcivl").train(to_trajectory(make_columns(4)))
