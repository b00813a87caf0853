"""Discrete parts of observations and actions are categories, and action masks are obeyed, by all agents."""

import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf
from agent_data import to_transition
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from masked_corridor import NUM_CELLS, MaskedCorridor, record_corridor
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb import (
    ReplayServer,
    TableConfig,
    evaluate_offline,
    ingest,
    load,
    load_policy,
    train,
)
from rlds2reverb.adders import NStep
from rlds2reverb.datasets import Source
from rlds2reverb.errors import ArgumentError, InvalidEpisodeError, SpecMismatchError
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.agents.networks import ILLEGAL
from rlds2reverb.learners.agents.unit_conversions import Observations
from rlds2reverb.learners.ensemble_fit import FitOptions
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.dataset import open_dataset
from rlds2reverb.training.sources import open_data as open_training_data
from rlds2reverb.types.spaces import add_bounds, dump_space, load_space
from rlds2reverb.types.specs import ArraySpec, map_structure, to_tensor_spec

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
    inputs = agent.observations(step.observation)
    if hasattr(agent, "critic_targets"):
        end = {"action_mask": np.array([[0, 1, 0, 0], [0, 0, 0, 0]], bool), "state": np.ones((2, 2), np.float32)}
        vectors = agent.observations(tf.nest.map_structure(tf.constant, end))
        batch = type("B", (), {"next_observation": vectors, "reward": tf.ones(2), "discount": tf.constant([1.0, 0.0])})
        if algo != "discrete_iql":
            raw = agent.target_critic.network(vectors).numpy()
            expected = [1 + 0.99 * raw[0, 1], 1]
            np.testing.assert_allclose(agent.critic_targets(batch).numpy(), expected, rtol=1e-5)
    outputs = agent.actor.network(inputs).numpy()
    assert (outputs[~LEGAL] == np.float32(ILLEGAL)).all() and (np.abs(outputs[LEGAL]) < 1e3).all()


def test_masks_with_bounds_restrict_agents():
    observation = {"action_mask": tensor_spec.BoundedTensorSpec([N], tf.int8, 0, 1)}
    agent = make_agent(
        "dqn", time_step.time_step_spec(observation), tensor_spec.BoundedTensorSpec([], tf.int64, 0, N - 1)
    )
    action = agent.policy.action(time_step.restart({"action_mask": tf.constant(LEGAL, tf.int8)}, 3)).action.numpy()
    assert LEGAL[np.arange(3), action].all() and agent.observations.size == N


@pytest.mark.parametrize("algo", DISCRETE)
def test_losses_with_masks_are_small(algo):
    agent = make_masked(algo)
    observation, ones = {"action_mask": LEGAL, "state": np.ones((3, 2), np.float32)}, np.ones(3, np.float32)
    data = {"observation": observation, "action": 3 + np.array([3, 1, 0]), "next_observation": observation}
    assert abs(float(agent.train(to_transition({**data, "reward": ones, "discount": ones})).loss)) < 100


def open_data(observations, actions, space=None, algo="discrete_bc", terminated=True):
    log = {"observations": observations, "actions": actions, "rewards": np.ones(len(actions)), "terminated": terminated}
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


# --- A whole run


LOGS = record_corridor()
OPTIONS = {"action_mask": "legal", "hyperparameters": {"hidden_sizes": (8,)}, "batch_size": 8, "progress": False}


@pytest.fixture(scope="module")
def corridor(tmp_path_factory):
    """Provides a run on logs without spaces, whose categories and masks are those of the environment."""
    folder = tmp_path_factory.mktemp("corridor")
    evaluation = {"env": MaskedCorridor, "eval_every": 10, "eval_episodes": 2}
    return train(LOGS, "discrete_iql", folder, steps=20, **evaluation, **OPTIONS)


def observe_all():
    env = MaskedCorridor()
    env.reset()
    rows = []
    for env.cell in range(NUM_CELLS):
        rows.append(env.observe())
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def test_run_takes_categories_from_the_environment_and_obeys_its_mask(corridor):
    # The environment raises an error for illegal actions.
    assert corridor.last_return is not None and corridor.configuration["action_mask"] == "legal"
    identity = corridor.identity
    assert identity["observations"]["observation['cell']"].endswith("in [1, 5]")
    assert identity["observations"]["observation['clock']"].endswith("in from 0 to 1, 2")
    assert "in [" not in identity["observations"]["observation['legal']"]


def test_exported_policy_takes_legal_actions_only(corridor):
    observations = observe_all()
    for policy in (corridor.policy, load_policy(corridor.path / "policy")):
        actions = policy.predict(observations)
        assert observations["legal"][np.arange(NUM_CELLS), actions].all()


@pytest.mark.slow
def test_run_continues_with_the_same_categories_only(corridor, tmp_path):
    shutil.copytree(corridor.path, tmp_path / "run")
    again = {"env": MaskedCorridor, "eval_every": 10, "eval_episodes": 2, **OPTIONS}
    assert train(LOGS, "discrete_iql", tmp_path / "run", steps=22, **again).progress["step"][-1] == 22
    log = {"observations": np.array([0, 1]), "actions": np.array([0]), "rewards": np.ones(1), "terminated": True}
    config = TrainingConfig("discrete_bc", env=None)
    few, many = (
        open_training_data([log, log], config, action_space=Discrete(2), observation_space=Discrete(n)) for n in (2, 3)
    )
    assert few.identity()["observations"] == {"observation": "int64 [] in [0, 1]"} != many.identity()["observations"]


@pytest.mark.parametrize("method", ["fqe", "wdr"])
def test_estimates_of_masked_policies_are_finite(corridor, method):
    fqe = FitOptions(num_updates=20, ensemble_size=1, hidden_sizes=(8,))
    result = evaluate_offline(corridor, LOGS, method, fit=fqe, num_resamples=10, progress=False)
    assert abs(result.estimate) < 100


@pytest.mark.parametrize("is_legal", [True, False])
def test_masks_of_tables_are_checked(is_legal):
    logs = LOGS if is_legal else [{**log, "actions": np.full_like(log["actions"], 2)} for log in LOGS]
    space = MaskedCorridor.observation_space
    source = dataclasses.replace(load(logs), observation_space=space, action_space=Discrete(3))
    config = TrainingConfig("dqn", env=None, action_mask="legal")
    with ReplayServer([TableConfig()], NStep(1, 0.99).item_spec(source.step_spec)) as server:
        ingest(source, server, adder=NStep(1, 0.99))
        if is_legal:
            notes = open_training_data(server, config).notes
            assert "5 categories" in notes[0] and "2 + 3 categories" in notes[1] and "are legal" in notes[2]
        else:
            with pytest.raises(SpecMismatchError, match="table 'replay' is invalid: action must be legal .*, got 2"):
                open_training_data(server, config)


@pytest.mark.parametrize("algo", ["discrete_bc", "bc"])
def test_option_that_names_no_mask_is_refused(algo):
    log = {**LOGS[0], "actions": LOGS[0]["actions"] if algo != "bc" else np.zeros((6, 1), np.float32)}
    expected = "one number for each of the 2 actions" if algo != "bc" else "with discrete actions"
    with pytest.raises(ArgumentError, match=f"action_mask='cell' must be a field of the observation.* {expected}"):
        open_training_data([log], TrainingConfig(algo, env=None, action_mask="cell", action_bounds=None))


def test_description_of_multi_discrete_spaces_is_read_back():
    space = Dict({"a": MultiDiscrete([2, 3], start=[1, -1]), "b": Discrete(3), "c": Box(0, 9, (2,), np.int64)})
    assert load_space(dump_space(space)) == space


def test_goals_with_categories_are_one_hot_encoded():
    states = np.array([[0, 1, 2, 1], [2, 1, 0, 0]])
    logs = [
        {"observations": row, "actions": np.zeros((3, 1)), "rewards": np.zeros(3), "terminated": False}
        for row in states
    ]
    source = dataclasses.replace(load(logs), observation_space=Discrete(3))
    data = open_training_data(source, TrainingConfig("gcbc", env=None))
    agent = make_agent("gcbc", data.time_step_spec, data.action_spec, hidden_sizes=(4,))
    assert agent.observations.size == 6
