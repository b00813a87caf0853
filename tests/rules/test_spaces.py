"""Discrete parts of observations and actions are categories, and action masks are obeyed, by all agents."""

import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb.errors import InvalidEpisodeError
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.agents.networks import ILLEGAL
from rlds2reverb.learners.agents.spaces import Observations
from rlds2reverb.sources import Source
from rlds2reverb.spaces import add_bounds
from rlds2reverb.specs import ArraySpec, map_structure, to_tensor_spec
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.dataset import open_dataset

DISCRETE = ["dqn", "double_dqn", "discrete_cql", "discrete_bcq", "discrete_iql", "discrete_bc"]
N = 4
LEGAL = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1]], bool)


def make_specs(space):
    spec = map_structure(lambda part: ArraySpec(part.shape, np.dtype(part.dtype)), to_specs(space))
    return to_tensor_spec(add_bounds(spec, space, of_categories=True))


def to_specs(space):
    if isinstance(space, Dict):
        return {key: to_specs(part) for key, part in space.items()}
    return ArraySpec(space.shape, np.dtype(space.dtype))


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (Discrete(3), np.array([2, 0]), [[0, 0, 1], [1, 0, 0]]),
        (Discrete(3, start=-1), np.array([-1, 1]), [[1, 0, 0], [0, 0, 1]]),
        (MultiDiscrete([2, 3]), np.array([[1, 2]]), [[0, 1, 0, 0, 1]]),
        (MultiBinary(2), np.int8([[1, 0]]), [[1, 0]]),
        (Box(0, 9, (2,), np.int64), np.array([[7, 3]]), [[7, 3]]),
        (
            Dict(a=Dict(b=Discrete(2)), c=Box(-1, 1, (1,))),
            {"a": {"b": np.array([1])}, "c": np.float32([[0.5]])},
            [[0, 1, 0.5]],
        ),
    ],
)
def test_discrete_spaces_are_one_hot_encoded(space, value, expected):
    spec = make_specs(space)
    mean, std = (
        tf.nest.map_structure(lambda leaf, fill=fill: np.full(leaf.shape, fill, np.float32), spec) for fill in (0, 1)
    )
    for options in ({}, {"mean": mean, "std": std}):
        observations = Observations(spec, **options)
        encoded = observations(tf.nest.map_structure(tf.constant, value))
        assert encoded.numpy().tolist() == expected and observations.size == len(expected[0])


def make_masked(algo):
    observation = {"action_mask": tf.TensorSpec([N], tf.bool), "state": tf.TensorSpec([2], tf.float32)}
    action = tensor_spec.BoundedTensorSpec([], tf.int64, 3, 3 + N - 1)
    return make_agent(algo, time_step.time_step_spec(observation), action, hidden_sizes=(8,))


@pytest.mark.parametrize("algo", DISCRETE)
def test_masks_restrict_policies_targets_and_losses(algo):
    agent = make_masked(algo)
    observation = {"action_mask": LEGAL, "state": np.ones((3, 2), np.float32)}
    step = time_step.restart(tf.nest.map_structure(tf.constant, observation), 3)
    for policy in (agent.policy, agent.collect_policy):
        for seed in range(8):
            action = policy.action(step, seed=(seed, 1)).action.numpy() - 3
            assert LEGAL[np.arange(3), action].all()
    inputs = agent._observations(step.observation)
    if hasattr(agent, "critic_targets"):
        end = {"action_mask": np.array([[0, 1, 0, 0], [0, 0, 0, 0]], bool), "state": np.ones((2, 2), np.float32)}
        vectors = agent._observations(tf.nest.map_structure(tf.constant, end))
        batch = type("B", (), {"next_observation": vectors, "reward": tf.ones(2), "discount": tf.constant([1.0, 0.0])})
        if algo != "discrete_iql":
            raw = agent._target_critic.network(vectors).numpy()
            expected = [1 + 0.99 * raw[0, 1], 1]
            np.testing.assert_allclose(agent.critic_targets(batch).numpy(), expected, rtol=1e-5)
    outputs = agent._actor.network(inputs).numpy()
    assert (outputs[~LEGAL] == np.float32(ILLEGAL)).all() and (np.abs(outputs[LEGAL]) < 1e3).all()


@pytest.mark.parametrize("algo", DISCRETE)
def test_losses_with_masks_are_small(algo):
    agent = make_masked(algo)
    observation = {"action_mask": tf.constant(LEGAL), "state": tf.ones((3, 2))}
    vectors = agent._observations(observation)
    from rlds2reverb.learners.agents.offline_agent import TransitionBatch

    batch = TransitionBatch(vectors, tf.constant([3, 1, 0]), tf.ones(3), tf.ones(3), vectors, tf.ones(3))
    loss, _ = agent._update(batch)
    assert abs(float(loss)) < 100


def open_data(observations, actions, space=None, algo="discrete_bc", terminated=True):
    log = {"observations": observations, "actions": actions, "rewards": np.ones(len(actions)), "terminated": terminated}
    from rlds2reverb import load

    source = load([log, log])
    return open_dataset(
        Source(**{**source.__dict__, "observation_space": space}) if space is not None else source,
        TrainingConfig(algo, env=None),
    )


def make_mask(*rows):
    return {"action_mask": np.array(rows, bool), "state": np.zeros((len(rows), 2), np.float32)}


def test_data_with_categories_and_masks_say_so():
    data = open_data(np.array([0, 2, 1]), np.array([0, 1]), Discrete(3))
    assert any("observation has 3 categories, which are one-hot encoded" in note for note in data.notes)
    assert data.time_step_spec.observation.maximum == 2
    data = open_data(np.array([0, 2, 1]), np.array([0, 1]))
    assert any("is an integer without a declared Discrete space" in note for note in data.notes)
    data = open_data(make_mask([1, 0], [1, 1], [0, 0]), np.array([0, 1]))
    assert any("tells which actions are legal" in note for note in data.notes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.array([0, 3, 1]), np.array([0, 1]), Discrete(3)), r"must be from 0 to 2 .* got 3.*episode 0, step 1"),
        ((make_mask([1, 1], [0, 0], [1, 1]), np.array([0, 1])), r"at least one legal action.*episode 0, step 1"),
        ((make_mask([1, 1], [1, 0], [1, 1]), np.array([0, 1])), r"action must be legal .* got 1.*episode 0, step 1"),
    ],
)
def test_illegal_values_in_data_raise(arguments, message):
    with pytest.raises(InvalidEpisodeError, match=message):
        open_data(*arguments)
