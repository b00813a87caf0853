"""Discrete agents against those of TF-Agents and the reference implementations."""

import re

import agent_reference_impls as reference
import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, OBSERVATION, TIME_STEP_SPEC, make_columns, run_updates, to_trajectory, to_transition
from properties import mark_slow_except
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network
from tf_agents.policies import policy_saver
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.learners import Learner
from rlds2reverb.learners.agents import CategoricalActor, ConstrainedActor, EpsilonGreedyActor, make_agent
from rlds2reverb.learners.agents.networks import MLP
from rlds2reverb.learners.graph_errors import find_error

SIZE, HIDDEN, COUNT = 6, (4, 3), 4
NETWORK = (OBSERVATION, *HIDDEN, COUNT)
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.0, 1.5, 1.0])
NAMES = ["dqn", "double_dqn", "discrete_cql", "discrete_bc", "discrete_bcq", "discrete_iql"]
WITHOUT_PERIOD = ("discrete_bc", "discrete_iql")
SPEC = tensor_spec.BoundedTensorSpec([], tf.int64, 3, 3 + COUNT - 1, "action")
SPEC_FROM_0 = tensor_spec.BoundedTensorSpec([], tf.int32, 0, COUNT - 1, "action")


def make(name, spec=SPEC, **overrides):
    return make_agent(name, TIME_STEP_SPEC, spec, **{"hidden_sizes": HIDDEN, "seed": 3, **overrides})


def discrete_columns(size=SIZE, seed=0, spec=SPEC):
    data, rng = make_columns(size, seed), np.random.default_rng([seed, 1])
    for name in ("action", "next_action"):
        data[name] = (spec.minimum + rng.integers(0, COUNT, size)).astype(spec.dtype.as_numpy_dtype)
    data["reward"] *= 3  # Covers both branches of the Huber loss.
    return data


@pytest.mark.parametrize("name", mark_slow_except(["double_dqn"], ["dqn", "double_dqn"]))
def test_updates_match_tf_agents(name):
    agent = make(name, SPEC_FROM_0, learning_rate=1e-2, target_update_period=2)
    networks = [q_network.QNetwork(TIME_STEP_SPEC.observation, SPEC_FROM_0, fc_layer_params=HIDDEN) for _ in range(2)]
    baseline = (dqn_agent.DdqnAgent if name == "double_dqn" else dqn_agent.DqnAgent)(
        TIME_STEP_SPEC,
        SPEC_FROM_0,
        q_network=networks[0],
        target_q_network=networks[1],
        optimizer=tf.keras.optimizers.Adam(1e-2, epsilon=1.5e-4, jit_compile=False),
        gamma=0.99,
        target_update_period=2,
        train_step_counter=tf.Variable(0, dtype=tf.int64),
    )
    rng = np.random.default_rng(0)
    agent.target_critic.flat.assign_add(rng.normal(0, 0.5, agent.target_critic.flat.shape))
    for network, own in zip(networks, (agent.critic, agent.target_critic), strict=True):
        network.set_weights([part.numpy() for layer in own.layers()[0] for part in layer])
    for step in range(5):
        experience, weights = (
            to_transition(discrete_columns(seed=step, spec=SPEC_FROM_0)),
            tf.constant(WEIGHTS, tf.float32),
        )
        actual, expected = agent.train(experience, weights), baseline.train(experience, weights)
        np.testing.assert_allclose(actual.loss, expected.loss, rtol=1e-5)
        np.testing.assert_allclose(actual.extra["td_error"], np.abs(expected.extra.td_error), atol=2e-5)
    for network, own in zip(networks, (agent.critic, agent.target_critic), strict=True):
        flat = np.concatenate([array.ravel() for array in network.get_weights()])
        np.testing.assert_allclose(own.flat, flat, atol=2e-5)


def test_discrete_cql_updates_match_the_reference():
    agent = make("discrete_cql", conservative_weight=0.7, learning_rate=1e-2, adam_epsilon=1e-8)
    critic = agent.critic.flat.numpy().astype(float)
    target, adam = critic, reference.Adam(1e-2)
    for step in range(2):
        data = discrete_columns(seed=step)
        chosen = data["action"] - SPEC.minimum
        value = reference.mlp(target, NETWORK, data["next_observation"].astype(float)).max(axis=1)
        y = data["reward"] + 0.99 * data["discount"] * value

        def loss(w, data=data, chosen=chosen, y=y):
            values = reference.mlp(w, NETWORK, data["observation"].astype(float))
            q = values[np.arange(SIZE), chosen]
            return (WEIGHTS * (huber(q - y) + 0.7 * (np.log(np.exp(values).sum(axis=1)) - q))).mean()

        info = agent.train(to_transition(data), tf.constant(WEIGHTS, tf.float32))
        np.testing.assert_allclose(info.loss, loss(critic), rtol=1e-5)
        critic = adam(critic, reference.gradient(loss, critic))
    np.testing.assert_allclose(agent.critic.flat, critic, atol=2e-5)
    np.testing.assert_array_equal(agent.target_critic.flat, target.astype(np.float32))


def test_discrete_bc_updates_match_the_reference():
    agent = make("discrete_bc")
    actor, adam = agent.actor.network.flat.numpy().astype(float), reference.Adam(3e-4)
    for step in range(2):
        data = discrete_columns(seed=step)
        chosen = data["action"] - SPEC.minimum

        def loss(w, data=data, chosen=chosen):
            p = np.exp(reference.mlp(w, NETWORK, data["observation"].astype(float)))
            return -(WEIGHTS * np.log(p[np.arange(SIZE), chosen] / p.sum(axis=1))).mean()

        info = agent.train(to_transition(data), tf.constant(WEIGHTS, tf.float32))
        np.testing.assert_allclose(info.loss, loss(actor), rtol=1e-5)
        assert "td_error" not in info.extra
        actor = adam(actor, reference.gradient(loss, actor))
    np.testing.assert_allclose(agent.actor.network.flat, actor, atol=3e-6)


def huber(u):
    size = reference.absolute(u)
    return np.where(size.real <= 1, size**2 / 2, size - 0.5)


def test_discrete_bcq_updates_match_the_reference():
    options = {"learning_rate": 1e-2, "adam_epsilon": 1e-8, "threshold": 0.8, "logit_penalty": 0.1}
    agent = make("discrete_bcq", **options)
    critic, imitation = agent.critic.flat.numpy().astype(float), agent.imitation.flat.numpy().astype(float)
    target, critic_adam, imitation_adam, num_constrained = critic, reference.Adam(1e-2), reference.Adam(1e-2), 0
    rows = np.arange(SIZE)
    for step in range(2):
        data = discrete_columns(seed=step)
        chosen, following = data["action"] - SPEC.minimum, data["next_observation"].astype(float)
        likelihoods = np.exp(reference.mlp(imitation, NETWORK, following))
        is_likely = likelihoods / likelihoods.max(axis=1, keepdims=True) > 0.8
        values = reference.mlp(critic, NETWORK, following)
        best = np.where(is_likely, values, -np.inf).argmax(axis=1)
        num_constrained += (best != values.argmax(axis=1)).sum()
        y = data["reward"] + 0.99 * data["discount"] * reference.mlp(target, NETWORK, following)[rows, best]

        def critic_loss(w, data=data, chosen=chosen, y=y):
            q = reference.mlp(w, NETWORK, data["observation"].astype(float))[rows, chosen]
            return (WEIGHTS * huber(q - y)).mean()

        def imitation_loss(w, data=data, chosen=chosen):
            logits = reference.mlp(w, NETWORK, data["observation"].astype(float))
            log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            return (WEIGHTS * (0.1 * (logits**2).mean(axis=1) - log_probabilities[rows, chosen])).mean()

        info = agent.train(to_transition(data), tf.constant(WEIGHTS, tf.float32))
        np.testing.assert_allclose(info.loss, critic_loss(critic) + imitation_loss(imitation), rtol=1e-5)
        critic = critic_adam(critic, reference.gradient(critic_loss, critic))
        imitation = imitation_adam(imitation, reference.gradient(imitation_loss, imitation))
    assert num_constrained > 0
    np.testing.assert_allclose(agent.critic.flat, critic, atol=2e-5)
    np.testing.assert_allclose(agent.imitation.flat, imitation, atol=2e-5)


def test_constrained_actor_takes_the_best_of_the_likely_actions():
    """Probabilities of 0.6, 0.3, 0.09 and 0.01: with threshold 0.1 the last one, whose value is highest, is left out."""
    q, imitation = MLP([1, COUNT], seed=0), MLP([1, COUNT], seed=1)
    q.flat.assign([*[0.0] * COUNT, 1.0, 2.0, 3.0, 4.0])
    imitation.flat.assign([*[0.0] * COUNT, *np.log([0.6, 0.3, 0.09, 0.01])])
    for threshold, action in ((0.0, 3), (0.1, 2), (0.4, 1), (0.6, 0)):
        actor = ConstrainedActor(q, imitation, threshold=threshold, epsilon=0.0)
        assert actor.mode(tf.ones([1, 1]))[0] == action


def test_discrete_iql_updates_match_the_reference():
    rates = {"actor_learning_rate": 1e-2, "critic_learning_rate": 2e-2, "value_learning_rate": 3e-2}
    options = {"expectile": 0.8, "temperature": 5.0, "max_weight": 1.2, "num_updates": None}
    agent = make("discrete_iql", **options, **rates, target_update_rate=0.3)
    critics = agent.critic.flat.numpy().astype(float).reshape(2, -1)
    actor, value = agent.actor.network.flat.numpy().astype(float), agent.value.flat.numpy().astype(float)
    targets, rows, value_network = critics, np.arange(SIZE), (*NETWORK[:-1], 1)
    actor_adam, value_adam, *critic_adams = (reference.Adam(rate) for rate in (1e-2, 3e-2, 2e-2, 2e-2))
    for step in range(2):
        data = discrete_columns(seed=step)
        chosen, observation = data["action"] - SPEC.minimum, data["observation"].astype(float)
        q = np.min([reference.mlp(w, NETWORK, observation)[rows, chosen] for w in targets], axis=0)

        def value_loss(w, q=q, observation=observation):
            u = q - reference.mlp(w, value_network, observation)[:, 0]
            return (WEIGHTS * np.where(u.real < 0, 0.2, 0.8) * u**2).mean()

        losses = [value_loss(value)]
        value = value_adam(value, reference.gradient(value_loss, value))
        v = reference.mlp(value, value_network, observation)[:, 0]
        weight = np.minimum(np.exp(5 * (q - v)), 1.2)

        def actor_loss(w, weight=weight, chosen=chosen, observation=observation):
            logits = reference.mlp(w, NETWORK, observation)
            return -(weight * (logits[rows, chosen] - np.log(np.exp(logits).sum(axis=1)))).mean()

        following = reference.mlp(value, value_network, data["next_observation"].astype(float))[:, 0]
        y = data["reward"] + 0.99 * data["discount"] * following

        def critic_loss(w, y=y, chosen=chosen, observation=observation):
            return (WEIGHTS * (reference.mlp(w, NETWORK, observation)[rows, chosen] - y) ** 2).mean()

        losses += [actor_loss(actor), *(critic_loss(w) for w in critics)]
        actor = actor_adam(actor, reference.gradient(actor_loss, actor))
        critics = np.array(
            [adam(w, reference.gradient(critic_loss, w)) for adam, w in zip(critic_adams, critics, strict=True)]
        )
        targets = targets + 0.3 * (critics - targets)
        info = agent.train(to_transition(data), tf.constant(WEIGHTS, tf.float32))
        np.testing.assert_allclose(info.loss, sum(losses), rtol=1e-5)
    for network, expected in ((agent.critic, critics), (agent.target_critic, targets)):
        np.testing.assert_allclose(network.flat, expected.ravel(), atol=5e-5)
    np.testing.assert_allclose(agent.actor.network.flat, actor, atol=2e-5)
    np.testing.assert_allclose(agent.value.flat, value, atol=5e-5)


def test_n_step_discount_is_applied_once():
    """The target is r + gamma * (product of discounts) * max Q, here with gamma 0.5 and values of 1 and 2."""
    agent = make("dqn", discount=0.5)
    flat, target = agent.critic.flat, agent.target_critic.flat
    flat.assign(tf.zeros_like(flat))
    target.assign([*[0.0] * (target.shape[0] - COUNT), 1.0, 2.0, 1.0, 1.0])
    data = {**discrete_columns(3), "reward": np.float32([10, 11, 12]), "discount": np.float32([0, 1, 0.81])}
    info = agent.train(to_transition(data))
    np.testing.assert_allclose(info.extra["td_error"], [10, 11 + 0.5 * 2, 12 + 0.5 * 0.81 * 2], rtol=1e-6)


@pytest.mark.parametrize(
    "name",
    mark_slow_except(["double_dqn", "discrete_bc"], NAMES[:-1]),  # The actor of discrete_iql is not weighted.
)
def test_item_with_weight_zero_does_not_affect_the_update(name):
    data = discrete_columns()
    other = {**data, "reward": data["reward"] + np.float32([0, 0, 0, 5, 0, 0])}
    other["action"] = data["action"].copy()
    other["action"][3] = SPEC.minimum if data["action"][3] > SPEC.minimum else SPEC.maximum
    results = []
    for columns in (data, other):
        agent = make(name)
        agent.train(to_trajectory(columns), tf.constant(WEIGHTS, tf.float32))
        results.append([variable.numpy() for variable in agent.variables])
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", mark_slow_except(["dqn", "discrete_iql"], NAMES))
def test_restored_agent_continues_bit_for_bit(name, tmp_path):
    overrides = {} if name in WITHOUT_PERIOD else {"target_update_period": 3}
    agent, restored = make(name, **overrides), make(name, **overrides)
    experience = to_transition(discrete_columns())
    for _ in range(2):
        agent.train(experience)
    path = tf.train.Checkpoint(agent=agent).write(str(tmp_path / "half"))
    agent.train(experience)
    tf.train.Checkpoint(agent=restored).read(path).assert_consumed()
    restored.train(experience)
    for one, two in zip(agent.variables, restored.variables, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", mark_slow_except(["double_dqn"], ["double_dqn", "discrete_bc"]))
def test_train_step_compiles_with_xla(name):
    experience = to_transition(discrete_columns())
    plain, compiled = make(name), make(name)
    expected = plain.train(experience)
    actual = tf.function(compiled.train, jit_compile=True)(experience)
    np.testing.assert_allclose(actual.loss, expected.loss, rtol=1e-5)
    assert actual.extra.keys() == expected.extra.keys()


@pytest.mark.parametrize("name", mark_slow_except(["double_dqn"], NAMES))
def test_agents_learn_the_best_action(name):
    """In one-step episodes the reward is 1 for one action, which depends on the observation's sign, and else 0."""
    rng, size = np.random.default_rng(0), 512
    observation = rng.uniform(-1, 1, (size, OBSERVATION)).astype(np.float32)
    best = np.where(observation[:, 0] > 0, 4, 6)
    action = np.where(rng.uniform(size=size) < 0.4, best, rng.integers(3, 3 + COUNT, size))
    data = {**discrete_columns(size), "observation": observation, "action": action.astype(np.int64)}
    data |= {"reward": (action == best).astype(np.float32), "discount": np.zeros(size, np.float32)}
    rates = {"learning_rate": 1e-2}
    if name == "discrete_iql":
        rates = {f"{network}_learning_rate": 1e-2 for network in ("actor", "critic", "value")}
    agent = make(name, hidden_sizes=(32,), **rates)
    run_updates(agent, to_transition(data), 150, num_batches=1)
    step = time_step.restart(tf.constant(observation), size)
    chosen = agent.policy.action(step).action
    assert chosen.dtype == tf.int64
    assert np.mean(chosen.numpy() == best) > 0.9 > 0.6 > np.mean(action == best)


@pytest.mark.parametrize("name", ["dqn", pytest.param("discrete_bc", marks=pytest.mark.slow)])
def test_saved_collect_policy_returns_valid_actions(name, tmp_path):
    agent = make(name, **({"exploration_epsilon": 1.0} if name == "dqn" else {}))
    policy_saver.PolicySaver(agent.collect_policy).save(str(tmp_path))
    policy = tf.saved_model.load(str(tmp_path))
    step = time_step.restart(tf.random.stateless_normal([400, OBSERVATION], [1, 2]), 400)
    assert sorted(set(policy.action(step).action.numpy())) == [3, 4, 5, 6]


def test_epsilon_is_the_probability_of_random_actions():
    network = MLP([1, 4, COUNT], seed=0)
    observation = tf.ones([4000, 1])
    best = EpsilonGreedyActor(network, epsilon=0.0)
    np.testing.assert_array_equal(best.sample(observation, [1, 2]), best.mode(observation))
    actions = EpsilonGreedyActor(network, epsilon=0.2).sample(observation, [1, 2])
    np.testing.assert_allclose(np.mean(actions != best.mode(observation)), 0.2 * (COUNT - 1) / COUNT, atol=0.02)


def test_categorical_actor_samples_by_its_probabilities():
    actor = CategoricalActor(MLP([1, 4, COUNT], seed=0))
    observation = tf.ones([4000, 1])
    shares = np.bincount(actor.sample(observation, [1, 2]), minlength=COUNT) / 4000
    probabilities = [float(tf.exp(actor.log_prob(observation[:1], tf.constant([n])))[0]) for n in range(COUNT)]
    np.testing.assert_allclose(shares, probabilities, atol=0.03)
    assert actor.mode(observation)[0] == np.argmax(probabilities)


def test_continuous_action_raises():
    with pytest.raises(ValueError, match="actions must be integers"):
        make("dqn", ACTION_SPEC)


@pytest.mark.parametrize("name", mark_slow_except(["dqn", "discrete_bc"], NAMES))
@pytest.mark.parametrize("action", [pytest.param(SPEC.minimum - 1, marks=pytest.mark.slow), SPEC.maximum + 1])
def test_action_out_of_bounds_raises_instead_of_training(name, action):
    data, agent = discrete_columns(), make(name)
    data["action"][2] = action
    before = [variable.numpy() for variable in agent.trainable_variables]
    message = r"^discrete actions must be from 3 to 6, as in the action spec, but the data contain others; fix"
    with pytest.raises(SpecMismatchError, match=message):
        agent.train(to_transition(data))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.function(agent.train, autograph=False)(to_transition(data))
    translated = find_error(caught.value)
    assert isinstance(translated, SpecMismatchError) and re.match(message, str(translated))
    for one, two in zip(before, agent.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, two)


def test_learner_raises_for_an_action_out_of_bounds(tmp_path):
    data = [discrete_columns(seed=seed) for seed in range(3)]
    data[2]["action"][1] = 7
    dataset = tf.data.Dataset.from_generator(
        lambda: map(to_transition, data),
        output_signature=tf.nest.map_structure(tf.TensorSpec.from_tensor, to_transition(data[0])),
    )
    message = (
        "after 2 iterations.*discrete actions must be from 3 to 6, as in the action spec, but the data contain others"
    )
    with Learner(tmp_path, make("dqn"), dataset) as learner, pytest.raises(SpecMismatchError, match=message):
        learner.start(5)


@pytest.mark.parametrize("name", mark_slow_except(["dqn"], ["dqn", "discrete_bc"]))
def test_loss_is_not_finite_if_xla_compiles_an_action_out_of_bounds(name):
    data = discrete_columns()
    data["action"][2] = 7
    loss = tf.function(make(name).train, jit_compile=True)(to_transition(data)).loss
    assert np.isnan(loss)


@pytest.mark.parametrize("name", mark_slow_except(["dqn", "discrete_bcq"], NAMES))
def test_updates_do_not_depend_on_the_first_action(name):
    """The same data with actions from 0, from -2 and from 2**40 give the same weights, and policies return each's own."""
    data, weights, actions = discrete_columns(spec=SPEC_FROM_0), [], []
    step = time_step.restart(tf.constant(data["observation"]), SIZE)
    for first in (0, -2, 2**40):
        spec = tensor_spec.BoundedTensorSpec([], tf.int64, first, first + COUNT - 1, "action")
        agent = make(name, spec)
        agent.train(to_transition({**data, "action": data["action"].astype(np.int64) + first}))
        weights.append([variable.numpy() for variable in agent.variables])
        actions.append(agent.policy.action(step).action.numpy() - first)
    for other, chosen in zip(weights[1:], actions[1:], strict=True):
        np.testing.assert_array_equal(chosen, actions[0])
        for one, two in zip(weights[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_meaningless_action_after_an_episode_is_accepted():
    data = discrete_columns()
    data["next_action"][data["discount"] == 0] = 0
    assert np.isfinite(make("dqn").train(to_trajectory(data)).loss)
