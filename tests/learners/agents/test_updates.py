"""Updates of each agent against the reference implementations."""

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
    TIME_STEP_SPEC,
    make_columns,
    to_trajectory,
    to_transition,
)
from properties import mark_slow_except

from rlds2reverb.learners.agents import make_agent

MEAN, STD = np.array([0.1, 0.0, -0.3]), np.array([1.0, 2.0, 0.5])
HIDDEN = (5, 3)
ACTOR, CRITIC, VALUE = (OBSERVATION, *HIDDEN, ACTION), (OBSERVATION + ACTION, *HIDDEN, 1), (OBSERVATION, *HIDDEN, 1)
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.0, 1.5, 1.0])


def to_exact(data):
    """Converts columns to the networks' units: float64, normalised observations, actions in [-1, 1]."""
    data = {name: value.astype(float) for name, value in data.items()}
    for name in ("observation", "next_observation"):
        data[name] = (data[name] - MEAN) / STD
    for name in ("action", "next_action"):
        data[name] = (data[name] - CENTRE) / HALF_WIDTH
    return data


def make(name, **overrides):
    return make_agent(
        name,
        TIME_STEP_SPEC,
        ACTION_SPEC,
        hidden_sizes=HIDDEN,
        observation_mean=MEAN,
        observation_std=STD,
        **{"seed": 3, **overrides},
    )


def to_float64(variable):
    return variable.numpy().astype(float)


def run_updates(agent, to_experience, count=2):
    """Trains the agent, and yields exact columns, TD3's noise and the loss info of each update."""
    train = tf.function(agent.train, autograph=False)
    for step in range(count):
        data = make_columns(len(WEIGHTS), seed=step)
        noise = tf.random.stateless_normal([len(WEIGHTS), ACTION], agent.noise_seed(0)).numpy().astype(float)
        yield to_exact(data), noise, train(to_experience(data), tf.constant(WEIGHTS, tf.float32))


def assert_close(variable, expected):
    np.testing.assert_allclose(variable.numpy(), expected, atol=5e-6)


#: With this noise some target actions are clipped, and some are not.
NOISE = {"policy_noise": 0.6, "noise_clip": 0.5}


def td3_targets(agent, data, noise, actor, critic, layer_norm=False, penalty=0.0):
    assert 0 < (np.abs(0.6 * noise) > 0.5).sum() < noise.size, "some noise must be clipped, and some must not"
    clipped_noise = np.clip(0.6 * noise, -0.5, 0.5)
    action = np.clip(np.tanh(reference.mlp(actor, agent[0], data["next_observation"])) + clipped_noise, -1, 1)
    q = np.minimum(*reference.twin_values(critic, agent[1], data["next_observation"], action, layer_norm))
    distance = ((action - data["next_action"]) ** 2).sum(axis=1)
    return data["reward"] + 0.99 * data["discount"] * (q - penalty * distance)


@pytest.mark.parametrize(("name", "alpha"), mark_slow_except([("td3_bc", 2.5)], [("td3_bc", 2.5), ("td3", None)]))
def test_td3_bc_updates_match_the_reference(name, alpha):
    agent = make(name, **NOISE)
    actor, critic = to_float64(agent.actor.network.flat), to_float64(agent.critic.flat)
    target_actor, target_critic = actor, critic
    actor_step, critic_step = reference.Adam(3e-4), reference.Adam(3e-4)
    for step, (data, noise, info) in enumerate(run_updates(agent, to_transition, count=4)):
        y = td3_targets((ACTOR, CRITIC), data, noise, target_actor, target_critic)

        def critic_loss(w, data=data, y=y):
            q = reference.twin_values(w, CRITIC, data["observation"], data["action"])
            return sum((WEIGHTS * (estimate - y) ** 2).mean() for estimate in q)

        td = [estimate - y for estimate in reference.twin_values(critic, CRITIC, data["observation"], data["action"])]
        np.testing.assert_allclose(info.extra["td_error"], np.abs(td).mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(info.extra["critic_loss"], critic_loss(critic), rtol=1e-5)
        critic = critic_step(critic, reference.gradient(critic_loss, critic))
        if step % 2 == 0:
            continue

        def actor_loss(w, data=data, critic=critic):
            action = np.tanh(reference.mlp(w, ACTOR, data["observation"]))
            q = reference.twin_values(critic, CRITIC, data["observation"], action)[0]
            if alpha is None:
                return -q.mean()
            scale = alpha / np.abs(reference.stop_gradient(q)).mean()
            return -scale * q.mean() + ((action - data["action"]) ** 2).mean()

        np.testing.assert_allclose(info.extra["actor_loss"], actor_loss(actor), rtol=1e-4, atol=1e-5)
        actor = actor_step(actor, reference.gradient(actor_loss, actor))
        target_actor = 0.995 * target_actor + 0.005 * actor
        target_critic = 0.995 * target_critic + 0.005 * critic
    assert_close(agent.critic.flat, critic)
    assert_close(agent.actor.network.flat, actor)
    assert_close(agent.target_actor.network.flat, target_actor)
    assert_close(agent.target_critic.flat, target_critic)
    np.testing.assert_allclose(agent.critic_optimizer.moments[0][0], critic_step.m, atol=1e-5)


def test_spot_updates_match_the_reference():
    """The first two updates train the density, and the other two the critics and the actor."""
    options = {"support_weight": 0.3, "kl_weight": 0.4, "num_density_updates": 2, "density_hidden_sizes": (5,)}
    agent = make("spot", policy_delay=1, dropout=0.0, **options, **NOISE)
    latent = 2 * ACTION
    encoder, decoder = (OBSERVATION + ACTION, 5, 2 * latent), (OBSERVATION + latent, 5, ACTION)
    density = np.concatenate([to_float64(agent.encoder.flat), to_float64(agent.decoder.flat)])
    split = agent.encoder.flat.shape[0]
    actor, critic = to_float64(agent.actor.network.flat), to_float64(agent.critic.flat)
    target_actor, target_critic = actor, critic
    density_step, actor_step, critic_step = reference.Adam(1e-3), reference.Adam(3e-4), reference.Adam(3e-4)

    def negative_log_density(w, observation, action, noise):
        encoded = reference.mlp(w[:split], encoder, np.concatenate([observation, action], axis=1))
        mean, log_std = encoded[:, :latent], encoded[:, latent:]
        sample = np.concatenate([observation, mean + np.exp(log_std) * noise], axis=1)
        decoded = np.tanh(reference.mlp(w[split:], decoder, sample))
        divergence = 0.5 * (mean**2 + np.exp(2 * log_std) - 2 * log_std - 1).mean(axis=1)
        return ((decoded - action) ** 2).mean(axis=1) + 0.4 * divergence

    for step, (data, target_noise, info) in enumerate(run_updates(agent, to_transition, count=4)):
        shape, seeds = [len(WEIGHTS), latent], [tf.constant([3 * 1024 + draw, step], tf.int64) for draw in (1, 2)]
        noises = [tf.random.stateless_normal(shape, seed).numpy().astype(float) for seed in seeds]

        def density_loss(w, data=data, noise=noises[0]):
            return (WEIGHTS * negative_log_density(w, data["observation"], data["action"], noise)).mean()

        if step < 2:
            np.testing.assert_allclose(info.extra["density_loss"], density_loss(density), rtol=1e-5)
            assert info.extra["td_error"].numpy().tolist() == [1] * len(WEIGHTS)
            assert info.extra["critic_loss"] == info.extra["actor_loss"] == 0
            density = density_step(density, reference.gradient(density_loss, density))
            continue
        y = td3_targets((ACTOR, CRITIC), data, target_noise, target_actor, target_critic)

        def critic_loss(w, data=data, y=y):
            q = reference.twin_values(w, CRITIC, data["observation"], data["action"])
            return sum((WEIGHTS * (estimate - y) ** 2).mean() for estimate in q)

        np.testing.assert_allclose(info.extra["critic_loss"], critic_loss(critic), rtol=1e-5)
        critic = critic_step(critic, reference.gradient(critic_loss, critic))

        def actor_loss(w, data=data, critic=critic, noise=noises[1], density=density):
            action = np.tanh(reference.mlp(w, ACTOR, data["observation"]))
            q = reference.twin_values(critic, CRITIC, data["observation"], action)[0]
            distance = negative_log_density(density, data["observation"], action, noise).mean()
            return 0.3 * distance - q.mean() / np.abs(reference.stop_gradient(q)).mean()

        np.testing.assert_allclose(info.extra["actor_loss"], actor_loss(actor), rtol=1e-4, atol=1e-5)
        actor = actor_step(actor, reference.gradient(actor_loss, actor))
        target_actor = 0.995 * target_actor + 0.005 * actor
        target_critic = 0.995 * target_critic + 0.005 * critic
    assert_close(agent.encoder.flat, density[:split])
    assert_close(agent.decoder.flat, density[split:])
    assert_close(agent.critic.flat, critic)
    assert_close(agent.actor.network.flat, actor)
    assert_close(agent.target_actor.network.flat, target_actor)


@pytest.mark.parametrize("name", ["td3_bc", "rebrac"])
def test_actor_is_scaled_by_the_mean_magnitude_of_values_of_both_signs(name):
    agent = make(name)
    layer_norm = name == "rebrac"
    agent.critic.flat.assign_add(np.random.default_rng(3).normal(0, 0.5, agent.critic.flat.shape))
    batch = agent.batch((to_trajectory if layer_norm else to_transition)(make_columns(64)))
    action = agent.actor.mode(batch.observation).numpy().astype(float)
    observation = batch.observation.numpy().astype(float)
    q = reference.twin_values(to_float64(agent.critic.flat), CRITIC, observation, action, layer_norm)
    q = np.minimum(*q) if layer_norm else q[0]
    assert q.min() < 0 < q.max() and abs(q.mean()) < 0.95 * np.abs(q).mean()
    errors = (action - batch.action.numpy()) ** 2
    penalty = 0.1 * errors.sum(axis=1).mean() if layer_norm else errors.mean()
    scale = (1.0 if layer_norm else 2.5) / np.abs(q).mean()
    np.testing.assert_allclose(agent.actor_loss(batch), penalty - scale * q.mean(), rtol=1e-4)


@pytest.mark.slow
def test_rebrac_updates_match_the_reference():
    agent = make("rebrac", critic_penalty=0.5, **NOISE)
    actor, critic = to_float64(agent.actor.network.flat), to_float64(agent.critic.flat)
    target_actor, target_critic = actor, critic
    actor_step, critic_step = reference.Adam(1e-3), reference.Adam(1e-3)
    for step, (data, noise, info) in enumerate(run_updates(agent, to_trajectory, count=3)):
        y = td3_targets((ACTOR, CRITIC), data, noise, target_actor, target_critic, layer_norm=True, penalty=0.5)

        def critic_loss(w, data=data, y=y):
            q = reference.twin_values(w, CRITIC, data["observation"], data["action"], layer_norm=True)
            return sum((WEIGHTS * (estimate - y) ** 2).mean() for estimate in q)

        np.testing.assert_allclose(info.extra["critic_loss"], critic_loss(critic), rtol=1e-5)
        critic = critic_step(critic, reference.gradient(critic_loss, critic))
        if step % 2 == 1:
            continue

        def actor_loss(w, data=data, critic=critic):
            action = np.tanh(reference.mlp(w, ACTOR, data["observation"]))
            q = reference.minimum(*reference.twin_values(critic, CRITIC, data["observation"], action, layer_norm=True))
            distance = ((action - data["action"]) ** 2).sum(axis=1)
            return (0.1 * distance - q / np.abs(reference.stop_gradient(q)).mean()).mean()

        np.testing.assert_allclose(info.extra["actor_loss"], actor_loss(actor), rtol=1e-4, atol=1e-5)
        target_actor = 0.995 * target_actor + 0.005 * actor
        actor = actor_step(actor, reference.gradient(actor_loss, actor))
        target_critic = 0.995 * target_critic + 0.005 * critic
    np.testing.assert_allclose(agent.critic_optimizer.moments[0][0], critic_step.m, atol=1e-5)
    np.testing.assert_allclose(agent.actor_optimizer.moments[0][0], actor_step.m, atol=1e-5)
    np.testing.assert_allclose(agent.target_critic.flat, target_critic, atol=1e-5)
    np.testing.assert_allclose(agent.target_actor.network.flat, target_actor, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iql", "xql"])
def test_iql_updates_match_the_reference(name):
    is_xql = name == "xql"
    agent = make(
        name,
        num_updates=4,
        max_weight=0.02,
        **({"loss_temperature": 0.4, "max_clip": 0.05, "seed": 15} if is_xql else {}),
    )
    network, log_std = agent.actor.network.flat, agent.actor.log_std
    actor = np.concatenate([to_float64(network), to_float64(log_std)])
    critic, value = to_float64(agent.critic.flat), to_float64(agent.value.flat)
    target_critic = critic
    actor_step, critic_step, value_step = reference.Adam(3e-4), reference.Adam(3e-4), reference.Adam(3e-4)
    for step, (data, _, info) in enumerate(run_updates(agent, to_transition, count=3)):
        q = np.minimum(*reference.twin_values(target_critic, CRITIC, data["observation"], data["action"]))

        def value_loss(w, data=data, q=q):
            u = q - reference.mlp(w, VALUE, data["observation"], is_xql, norm_first=is_xql)[:, 0]
            if is_xql:
                assert 0 < (u.real / 0.4 > 0.05).sum() < len(WEIGHTS), "some must be clipped, and some must not"
                z = reference.minimum(u / 0.4, 0.05)
                largest = max(z.real.max(), -1)
                return (WEIGHTS * (np.exp(z - largest) - (z + 1) * np.exp(-largest))).mean()
            return (WEIGHTS * np.abs(0.7 - (u.real < 0)) * u**2).mean()

        np.testing.assert_allclose(info.extra["value_loss"], value_loss(value), rtol=1e-5)
        value = value_step(value, reference.gradient(value_loss, value))
        advantage = q - reference.mlp(value, VALUE, data["observation"], is_xql, norm_first=is_xql)[:, 0]
        assert 0 < (np.exp(3 * advantage) > 0.02).sum() < len(WEIGHTS), (
            "some weights must reach the cap, and some must not"
        )

        def actor_loss(w, data=data, advantage=advantage):
            mean = np.tanh(reference.mlp(w[:-ACTION], ACTOR, data["observation"]))
            return -(
                np.minimum(np.exp(3 * advantage), 0.02) * reference.gaussian_log_prob(data["action"], mean, w[-ACTION:])
            ).mean()

        np.testing.assert_allclose(info.extra["actor_loss"], actor_loss(actor), rtol=1e-4)
        rate = 3e-4 * (1 + np.cos(np.pi * step / 4)) / 2
        actor = actor_step(actor, reference.gradient(actor_loss, actor), rate)
        y = (
            data["reward"]
            + 0.99
            * data["discount"]
            * reference.mlp(value, VALUE, data["next_observation"], is_xql, norm_first=is_xql)[:, 0]
        )

        def critic_loss(w, data=data, y=y):
            both = reference.twin_values(w, CRITIC, data["observation"], data["action"])
            return sum((WEIGHTS * (estimate - y) ** 2).mean() for estimate in both) * (0.5 if is_xql else 1)

        td = [estimate - y for estimate in reference.twin_values(critic, CRITIC, data["observation"], data["action"])]
        np.testing.assert_allclose(info.extra["td_error"], np.abs(td).mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(info.extra["critic_loss"], critic_loss(critic), rtol=1e-5)
        critic = critic_step(critic, reference.gradient(critic_loss, critic))
        target_critic = 0.995 * target_critic + 0.005 * critic
    assert_close(agent.value.flat, value)
    assert_close(agent.critic.flat, critic)
    assert_close(agent.target_critic.flat, target_critic)
    assert_close(network, actor[:-ACTION])
    assert_close(log_std, actor[-ACTION:])


@pytest.mark.parametrize("distribution", ["deterministic", "gaussian"])
def test_bc_updates_match_the_reference(distribution):
    agent = make("bc", distribution=distribution)
    variables = agent.optimizer.trained_variables
    sizes = np.cumsum([variable.shape.num_elements() for variable in variables])
    actor = np.concatenate([to_float64(variable) for variable in variables])
    adam = reference.Adam(3e-4)
    for data, _, info in run_updates(agent, to_transition):

        def loss(w, data=data):
            mean = np.tanh(
                reference.mlp(w[: sizes[0]] if distribution == "gaussian" else w, ACTOR, data["observation"])
            )
            if distribution == "gaussian":
                return -(WEIGHTS * reference.gaussian_log_prob(data["action"], mean, w[sizes[0] :])).mean()
            return (WEIGHTS[:, None] * (mean - data["action"]) ** 2).mean()

        np.testing.assert_allclose(info.loss, loss(actor), rtol=1e-5)
        assert "td_error" not in info.extra
        actor = adam(actor, reference.gradient(loss, actor))
    assert_close(variables[0], actor[: sizes[0]])


@pytest.mark.slow  # `test_authors_updates` is fast.
@pytest.mark.parametrize(("q_agg", "normalize"), [("mean", True), ("min", False)])
def test_fql_updates_match_the_reference(q_agg, normalize):
    agent = make("fql", q_agg=q_agg, normalize_q_loss=normalize, alpha=0.7, flow_steps=3)
    actor, flow, critic = (to_float64(network.flat) for network in (agent.actor.network, agent.flow, agent.critic))
    one_step, field = (OBSERVATION + ACTION, *HIDDEN, ACTION), (OBSERVATION + ACTION + 1, *HIDDEN, ACTION)
    target, actor_step, critic_step = critic, reference.Adam(3e-4), reference.Adam(3e-4)

    def act(w, observation, noise):
        return reference.mlp(w, one_step, np.concatenate([observation, noise], 1), activation=reference.gelu)

    def velocity(w, observation, point, time):
        x = np.concatenate([observation, point, np.broadcast_to(time, (len(point), 1))], 1)
        return reference.mlp(w, field, x, activation=reference.gelu)

    def twin_values(w, observation, action):
        action = reference.clip(action, -1, 1)
        return np.array(reference.twin_values(w, CRITIC, observation, action, True, reference.gelu))

    for step, (data, next_noise, info) in enumerate(run_updates(agent, to_transition)):
        seeds = [tf.constant([3 * 1024 + draw, step], tf.int64) for draw in range(4)]
        start, noise = (tf.random.stateless_normal([len(WEIGHTS), ACTION], seeds[draw]).numpy() for draw in (1, 3))
        time = tf.random.stateless_uniform([len(WEIGHTS), 1], seeds[2]).numpy().astype(float)
        observation, action = data["observation"], data["action"]
        q = twin_values(target, data["next_observation"], act(actor, data["next_observation"], next_noise))
        y = data["reward"] + 0.99 * data["discount"] * (q.mean(axis=0) if q_agg == "mean" else q.min(axis=0))
        cloned = noise.astype(float)
        for euler_step in range(3):
            cloned = cloned + velocity(flow, observation, cloned, euler_step / 3) / 3
        cloned = np.clip(cloned, -1, 1)

        def flow_loss(w, observation=observation, action=action, start=start, time=time):
            point = (1 - time) * start + time * action
            return ((velocity(w, observation, point, time) - (action - start)) ** 2).mean()

        def actor_loss(w, observation=observation, noise=noise, cloned=cloned, critic=critic):
            chosen = act(w, observation, noise)
            q = twin_values(critic, observation, chosen).mean(axis=0)
            scale = 1 / np.abs(q.real).mean() if normalize else 1
            return 0.7 * ((chosen - cloned) ** 2).mean() - scale * q.mean()

        def critic_loss(w, observation=observation, action=action, y=y):
            return sum((WEIGHTS * (estimate - y) ** 2).mean() for estimate in twin_values(w, observation, action))

        np.testing.assert_allclose(info.extra["flow_loss"], flow_loss(flow), rtol=1e-5)
        np.testing.assert_allclose(info.extra["actor_loss"], actor_loss(actor), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(info.extra["critic_loss"], critic_loss(critic), rtol=1e-5)
        gradients = reference.gradient(actor_loss, actor), reference.gradient(flow_loss, flow)
        both = actor_step(np.concatenate([actor, flow]), np.concatenate(gradients))
        actor, flow = np.split(both, [len(actor)])
        critic = critic_step(critic, reference.gradient(critic_loss, critic))
        target = 0.995 * target + 0.005 * critic
    assert_close(agent.actor.network.flat, actor)
    assert_close(agent.flow.flat, flow)
    assert_close(agent.critic.flat, critic)
    assert_close(agent.target_critic.flat, target)
