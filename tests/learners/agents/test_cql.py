"""CQL and Cal-QL against the reference implementation, and its penalty against that of TF-Agents."""

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
from tf_agents.agents.cql import cql_sac_agent
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb import SpecMismatchError
from rlds2reverb.learners.agents import SquashedGaussianActor, conservative_penalty, make_agent
from rlds2reverb.learners.agents.networks import MLP, critic_values
from rlds2reverb.learners.agents.squashed_gaussian import squash

SIZE, SAMPLES, HIDDEN = 6, 2, (4, 3)
ACTOR, CRITIC = (OBSERVATION, *HIDDEN, 2 * ACTION), (OBSERVATION + ACTION, *HIDDEN, 1)
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.0, 1.5, 1.0])


def make(name="cql", **overrides):
    kwargs = {"hidden_sizes": HIDDEN, "num_samples": SAMPLES, "seed": 3, **overrides}
    return make_agent(name, TIME_STEP_SPEC, ACTION_SPEC, **kwargs)


def perturb_weights(agent):
    """Enlarges the last layers so that standard deviations, values and gradients vary."""
    rng = np.random.default_rng(5)
    for flat in (agent.actor.network.flat, agent.critic.flat, agent.target_critic.flat):
        flat.assign_add(rng.normal(0, 0.2, flat.shape))


def gaussian(actor, observation):
    mean, log_std = np.split(reference.mlp(actor, ACTOR, observation), 2, axis=1)
    return reference.clip(mean, -9, 9), reference.clip(log_std, -5, 2)


def act(actor, observation, noise):
    """Returns actions and log densities as in SAC's eq. 21, with the unsimplified derivative of tanh."""
    mean, log_std = gaussian(actor, observation)
    before = mean + np.exp(log_std) * noise
    action = np.tanh(before)
    return action, reference.gaussian_log_prob(before, mean, log_std) - np.log(1 - action**2).sum(axis=1)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"lagrange_threshold": 2.0, "min_q_weight": 3.0, "deterministic_backup": False},
        pytest.param({"num_bc_updates": 1}, marks=pytest.mark.slow),
        pytest.param({"max_q_backup": True}, marks=pytest.mark.slow),
    ],
    ids=["published", "lagrange", "warm start", "max backup"],
)
def test_updates_match_the_reference(overrides):
    agent = make(**overrides)
    perturb_weights(agent)
    alpha, threshold = overrides.get("min_q_weight", 5.0), overrides.get("lagrange_threshold", 0.0)
    actor, critic, target = (
        network.flat.numpy().astype(float) for network in (agent.actor.network, agent.critic, agent.target_critic)
    )
    log_temperature = log_weight = 0.0
    actor_step, temperature_step, critic_step, weight_step = (reference.Adam(rate) for rate in (1e-4, 1e-4, 3e-4, 3e-4))
    train = tf.function(agent.train, autograph=False)
    for step in range(2):
        data = make_columns(SIZE, seed=step)
        s, end, action = (data[name].astype(float) for name in ("observation", "next_observation", "action"))
        action = (action - CENTRE) / HALF_WIDTH
        noise = tf.random.stateless_normal([2, 1 + SAMPLES, SIZE, ACTION], agent.noise_seed(0)).numpy().astype(float)
        uniform = tf.random.stateless_uniform([SAMPLES, SIZE, ACTION], agent.noise_seed(1), -1, 1).numpy().astype(float)
        info = train(to_transition(data), tf.constant(WEIGHTS, tf.float32))

        _, log_prob = act(actor, s, noise[0, 0])
        log_temperature = temperature_step(log_temperature, -(log_prob.mean() - ACTION))
        temperature = np.exp(log_temperature)

        def actor_loss(w, step=step, s=s, action=action, noise=noise, critic=critic, temperature=temperature):
            sampled, log_prob = act(w, s, noise[0, 0])
            if step < overrides.get("num_bc_updates", 0):
                mean, log_std = gaussian(w, s)
                likelihood = reference.gaussian_log_prob(np.arctanh(action), mean, log_std) - np.log(1 - action**2).sum(
                    axis=1
                )
                return (temperature * log_prob - likelihood).mean()
            return (
                temperature * log_prob - reference.minimum(*reference.twin_values(critic, CRITIC, s, sampled))
            ).mean()

        next_action, next_log_prob = act(actor, end, noise[1, 0])
        value = np.minimum(*reference.twin_values(target, CRITIC, end, next_action))
        if overrides.get("max_q_backup"):
            pairs = [reference.twin_values(target, CRITIC, end, act(actor, end, one)[0]) for one in noise[1, 1:]]
            value = np.minimum(*(np.max([pair[i] for pair in pairs], axis=0) for i in (0, 1)))
        if not overrides.get("deterministic_backup", True):
            value = value - temperature * next_log_prob
        y = data["reward"] + 0.99 * data["discount"] * value
        samples = [(candidate, np.full(SIZE, -ACTION * np.log(2))) for candidate in uniform]
        samples += [act(actor, end, sample_noise) for sample_noise in noise[1, 1:]] + [
            act(actor, s, sample_noise) for sample_noise in noise[0, 1:]
        ]

        def penalties(w, s=s, action=action, samples=samples):
            total = [0, 0]
            for candidate, density in samples:
                for i, q in enumerate(reference.twin_values(w, CRITIC, s, candidate)):
                    total[i] = total[i] + np.exp(q) / np.exp(density)
            return [np.log(one) - q for one, q in zip(total, reference.twin_values(w, CRITIC, s, action), strict=True)]

        weight = np.exp(log_weight)

        def critic_loss(w, s=s, action=action, y=y, penalties=penalties, weight=weight):
            q = reference.twin_values(w, CRITIC, s, action)
            return sum(
                (WEIGHTS * ((one - y) ** 2 + weight * (alpha * penalty - threshold))).mean()
                for one, penalty in zip(q, penalties(w), strict=True)
            )

        np.testing.assert_allclose(info.extra["actor_loss"], actor_loss(actor), rtol=2e-5)
        np.testing.assert_allclose(info.extra["critic_loss"], critic_loss(critic), rtol=2e-5)
        np.testing.assert_allclose(info.extra["temperature"], temperature, rtol=1e-6)
        td = [estimate - y for estimate in reference.twin_values(critic, CRITIC, s, action)]
        np.testing.assert_allclose(info.extra["td_error"], np.abs(td).mean(axis=0), rtol=1e-4)
        if "lagrange_threshold" in overrides:
            gap = np.mean(penalties(critic)) * alpha - threshold
            log_weight = weight_step(log_weight, -np.exp(log_weight) * gap)
        actor = actor_step(actor, reference.gradient(actor_loss, actor))
        critic = critic_step(critic, reference.gradient(critic_loss, critic))
        target = 0.995 * target + 0.005 * critic
    for name, variable, expected in [
        ("actor", agent.actor_optimizer.moments[0][0], actor_step.m),
        ("critic", agent.critic_optimizer.moments[0][0], critic_step.m),
        ("weights of the actor", agent.actor.network.flat, actor),
        ("weights of the critics", agent.critic.flat, critic),
        ("target", agent.target_critic.flat, target),
    ]:
        np.testing.assert_allclose(variable, expected, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(agent.log_penalty_weight, log_weight, atol=1e-6)


@pytest.mark.parametrize(("overrides", "num_actions"), [({}, 1), ({"max_q_backup": True}, SAMPLES)])
def test_max_q_backup_uses_several_actions(monkeypatch, overrides, num_actions):
    agent = make(**overrides)
    calls = []
    compute = agent.critic_targets
    monkeypatch.setattr(agent, "critic_targets", lambda *args: calls.append(args) or compute(*args))
    agent.train(to_transition(make_columns(SIZE)))
    ((_, next_actions, next_log_probs),) = calls
    assert next_actions.shape == (num_actions, SIZE, ACTION)
    assert next_log_probs.shape == (num_actions, SIZE)


def test_actor_is_cloned_in_the_first_updates_only():
    agent, plain = make(num_bc_updates=2), make()
    batch = agent.batch(to_transition(make_columns(SIZE)))
    action, log_prob = tf.zeros([SIZE, ACTION]), tf.zeros([SIZE])
    is_cloned = []
    for step in range(4):
        agent.train_step_counter.assign(step)
        loss, usual_loss = (one.actor_loss(batch, action, log_prob) for one in (agent, plain))
        is_cloned.append(abs(loss - usual_loss) > 0.01)
    assert is_cloned == [True, True, False, False]


def test_calibration_without_returns_raises():
    data = make_columns(SIZE)
    del data["return_to_go"]
    with pytest.raises(SpecMismatchError, match="cal_ql requires .* train it on a dataset, or 'cql'"):
        make("cal_ql").train(to_transition(data))


@pytest.mark.slow
def test_cal_ql_keeps_values_above_the_returns_that_cql_underestimates():
    """Nakamoto et al. (2023), definition 4.1; actions are random, rewards depend on them, and episodes do not end."""
    rng, size, gamma = np.random.default_rng(0), 2000, 0.9
    observation, action = (rng.uniform(-1, 1, (size, width)).astype(np.float32) for width in (2, 1))
    reward = np.exp(-np.square((action[:, 0] - 0.5) / 0.3))
    data = {"observation": observation, "action": action, "reward": reward, "discount": np.ones(size, np.float32)}
    data |= {"next_observation": np.roll(observation, 1, axis=0)}
    data |= {"return_to_go": (reward + gamma / (1 - gamma) * reward.mean()).astype(np.float32)}
    values = []
    for name in ("cql", "cal_ql"):
        agent = make_agent(
            name,
            *SMALL_SPECS,
            hidden_sizes=(32, 32),
            discount=gamma,
            critic_learning_rate=3e-3,
            target_update_rate=0.05,
            num_samples=4,
            max_q_backup=False,
        )
        run_updates(agent, to_transition(data), 400)
        actions = agent.actor.mode(observation)
        values.append(np.mean(critic_values(agent.critic, tf.constant(observation), actions)))
    assert values[0] < 0.9 * data["return_to_go"].mean() < data["return_to_go"].mean() < values[1]


def test_learned_weight_grows_while_the_weighted_penalty_exceeds_the_threshold():
    """The gap is 3 * 1.5 - 4 = 0.5, although the penalty itself is below the threshold."""
    agent = make(lagrange_threshold=4.0, min_q_weight=3.0)
    agent.update_penalty_weight(tf.constant([[1.0, 2.0], [1.0, 2.0]]))
    assert agent.penalty_optimizer.moments[0][0].numpy() == pytest.approx(0.1 * -0.5)
    assert agent.log_penalty_weight.numpy() == pytest.approx(3e-4)


def test_failures_require_discounting():
    with pytest.raises(ValueError, match="failure_reward must be None without discounting"):
        make("cal_ql", failure_reward=-1.0, discount=1.0)


def test_learned_weight_of_the_penalty_is_bounded():
    agent = make(lagrange_threshold=2.0)
    agent.log_penalty_weight.assign(2.0)
    np.testing.assert_allclose(agent.penalty_weight(), np.exp(2.0), rtol=1e-6)
    agent.log_penalty_weight.assign(80.0)
    np.testing.assert_allclose(agent.penalty_weight(), 1e6)
    assert make().penalty_weight() == 1


def test_penalty_matches_tf_agents(monkeypatch):
    """TF-Agents samples only uniform actions and those of pi(s), and averages over both critics and the batch.

    The bounds are scalars because with bounds per action its uniform density counts the actions twice.
    """
    rng = np.random.default_rng(0)
    q_policy, q_uniform = rng.normal(size=(2, 2, SAMPLES, SIZE)).astype(np.float32)
    q_data = rng.normal(size=(2, SIZE)).astype(np.float32)
    log_pi = rng.normal(size=(SAMPLES, SIZE)).astype(np.float32)
    agent = object.__new__(cql_sac_agent.CqlSacAgent)
    spec = tensor_spec.BoundedTensorSpec([ACTION], tf.float32, -1.0, 1.0)
    attributes = {"num_cql_samples": SAMPLES, "softmax_temperature": 1.0, "debug_summaries": False}
    attributes |= {"action_spec": spec, "time_step_spec": TIME_STEP_SPEC, "action_seed_stream": lambda: 0}
    for name, value in attributes.items():
        object.__setattr__(agent, f"_{name}", value)
    sampled = tf.zeros([SIZE, SAMPLES, ACTION]), tf.constant(log_pi.T)
    monkeypatch.setattr(
        cql_sac_agent.CqlSacAgent, "_sample_and_transpose_actions_and_log_probs", lambda *_, **__: sampled
    )
    values = iter([q_policy.transpose(0, 2, 1)[..., None], q_uniform.transpose(0, 2, 1)[..., None], q_data[..., None]])
    monkeypatch.setattr(
        cql_sac_agent.CqlSacAgent, "_get_q_values", lambda *_, **__: [tf.constant(q) for q in next(values)]
    )
    steps = time_step.restart(tf.zeros([SIZE, OBSERVATION]), SIZE)
    expected = agent._cql_loss(steps, tf.zeros([SIZE, ACTION]))

    log_densities = np.concatenate([np.full((SAMPLES, SIZE), -ACTION * np.log(2), np.float32), log_pi])
    penalty = conservative_penalty(np.concatenate([q_uniform, q_policy], axis=1), log_densities, q_data)
    assert penalty.shape == (2, SIZE)
    np.testing.assert_allclose(tf.reduce_mean(penalty), expected, rtol=1e-5)


def test_penalty_matches_a_hand_computed_value():
    """For two actions with density 1/2 and values 0 and log 3, the penalty is log(2 + 6) - 1."""
    penalty = conservative_penalty(
        tf.constant([[0.0], [float(np.log(3))]]), tf.fill([2, 1], -np.float32(np.log(2))), tf.constant([1.0])
    )
    np.testing.assert_allclose(penalty, [np.log(8) - 1], rtol=1e-6)


def test_squashed_density_integrates_to_one_and_is_finite_at_the_bounds():
    actor = SquashedGaussianActor(MLP([1, 4, 2], seed=0), log_std_bounds=(-1.0, -1.0))
    edges = np.linspace(-1, 1, 20001, dtype=np.float32)[:, None]
    middles = (edges[1:] + edges[:-1]) / 2
    density = tf.exp(actor.log_prob(tf.ones_like(middles), middles))
    np.testing.assert_allclose(tf.reduce_sum(density) * 1e-4, 1, rtol=1e-3)
    assert np.isfinite(actor.log_prob(tf.ones([2, 1]), tf.constant([[-1.0], [1.0]]))).all()
    action, log_prob = squash(tf.constant([[9.0]]), tf.constant([[2.0]]), tf.constant([[3.0]]))
    assert action.numpy() == 1 and np.isfinite(log_prob).all()


def test_samples_have_the_mode_as_median_and_stay_within_the_bounds():
    actor = SquashedGaussianActor(MLP([1, 4, 2], seed=0))
    samples = actor.sample(tf.ones([2000, 1]), tf.constant([1, 2])).numpy()
    assert np.abs(samples).max() <= 1
    np.testing.assert_allclose(np.median(samples), actor.mode(tf.ones([1, 1]))[0, 0], atol=0.05)
