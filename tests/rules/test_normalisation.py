"""Observations are normalised as documented, and padded actions have no weight, whatever the agent."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from agent_data import small_networks
from properties import mark_slow_except
from tf_agents.specs.tensor_spec import BoundedTensorSpec
from tf_agents.trajectories.policy_step import PolicyStep

from rlds2reverb import TrainingConfig, load
from rlds2reverb.datasets.moments import ObservationMoments
from rlds2reverb.envs import GymnasiumEnvironment, ObservationNormalizer
from rlds2reverb.learners.agents import Observations
from rlds2reverb.learners.algorithms import ALGORITHMS
from rlds2reverb.training.presets import preset_names
from rlds2reverb.training.sources import fit_config, open_data
from rlds2reverb.training.stuck_actions import warn_stuck
from rlds2reverb.training.training import make_run_agent
from rlds2reverb.types.experience import convert_data

PUBLISHED = {"td3_bc", "spot", "decision_transformer"}
#: Presets whose authors do not normalise, although their other presets do.
NOT_NORMALISED = {"spot-antmaze", "spot-antmaze-medium-play", "spot-antmaze-umaze"}
CLONING_FLOWS_AND_GOALS = {"bc", "discrete_bc", "fql", "gcbc", "gciql", "gcivl", "hiql", "crl"}
CHUNKED = [
    name for name, algorithm in ALGORITHMS.items()
    if (algorithm.actions, algorithm.items) == ("continuous", "transitions")
]  # fmt: skip


def make_episode(number, *, is_discrete=False, num_actions=6):
    random = np.random.default_rng(number)
    angle = 90 * random.normal(size=(num_actions + 1, 1))
    actions = random.integers(0, 3, num_actions) if is_discrete else random.uniform(-1, 1, (num_actions, 1))
    constant = np.full_like(angle, 40.0)
    return {
        "observations": np.concatenate([angle, constant], 1),
        "actions": actions if is_discrete else actions.astype("f"),
        "rewards": np.zeros(num_actions),
        "terminated": False,
    }


@pytest.mark.parametrize(
    "algo", mark_slow_except(["bc", "discrete_bc", "iql", "dqn", "td3_bc", "fql", "gcbc"], ALGORITHMS)
)
def test_default_is_documented_and_large_observations_warn(algo):
    is_discrete = ALGORITHMS[algo].actions == "discrete"
    episodes = [make_episode(number, is_discrete=is_discrete) for number in range(4)]
    config = TrainingConfig(algo)
    assert config.normalize_observations == (algo in PUBLISHED | CLONING_FLOWS_AND_GOALS)
    assert config.as_dict()["normalize_observations"] == config.normalize_observations
    for is_normalized in (False, True):
        data = open_data(episodes, config.replace(normalize_observations=is_normalized))
        found = [str(warning) for warning in data.warnings if "more than 10 in size" in warning]
        assert len(found) == (not is_normalized)
    assert not found or "step['observation'] at [0], [1], up to" in found[0]
    assert not found or found[0].endswith("normalise them (normalize_observations=True)")


@pytest.mark.parametrize("algo", CHUNKED)
def test_chunks_are_normalised_by_default(algo):
    assert TrainingConfig(algo, chunk_length=2).normalize_observations
    assert not TrainingConfig(algo, chunk_length=2, normalize_observations=False).normalize_observations


@pytest.mark.parametrize(("algo", "eps"), [("td3_bc", 1e-3), ("decision_transformer", 1e-6)])
def test_agents_and_policies_add_the_constant_of_their_authors(algo, eps):
    episodes = [make_episode(number) for number in range(2)]
    for episode in episodes:
        episode["observations"][:, 0] *= 1e-5
    config = TrainingConfig(algo, hyperparameters=small_networks(algo))
    agent = make_run_agent(config, open_data(episodes, config))
    seen = np.concatenate([episode["observations"][:-1, 0] for episode in episodes])
    found = agent.observations(tf.constant([[2e-3, 40.0]]))[0, 0]
    np.testing.assert_allclose(found, (2e-3 - seen.mean()) / (seen.std() + eps), rtol=1e-4)
    names = {variable.name for variable in agent.policy.variables()}  # Also those that are exported.
    assert {variable.name for variable in agent.observations.variables} <= names


def test_presets_keep_what_was_published():
    for name in preset_names():
        algo = name.split("-")[0]
        config = TrainingConfig.from_gin(algo, presets=[name])
        assert config.normalize_observations == (algo in PUBLISHED and name not in NOT_NORMALISED), name


def test_data_without_statistics_are_not_normalised():
    config = TrainingConfig("td3_bc", online_steps=10, warmup_steps=1, env="Pendulum-v1")
    assert not fit_config(None, config).normalize_observations
    assert not fit_config("localhost:8000", TrainingConfig("bc")).normalize_observations
    with pytest.raises(ValueError, match="normalize_observations=True requires a dataset, whose statistics it uses"):
        fit_config("localhost:8000", TrainingConfig("iql", normalize_observations=True))


class Still(gymnasium.Env):
    """An environment whose observation is always the same number."""

    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, number):
        self.number = np.float32([number])

    def reset(self, *, seed=None, options=None):
        return self.number, {}


@pytest.mark.parametrize("offset", [3e5, pytest.param(1e7, marks=pytest.mark.slow)])
def test_statistics_are_exact_at_large_offsets(offset):
    values = offset + np.array([[0.0], [1], [2], [4], [0], [0]])  # The mean is not a float32.
    episode = {"observations": values, "actions": np.zeros((5, 1)), "rewards": np.zeros(5), "terminated": True}
    source = load([episode])
    moments = ObservationMoments.from_episodes(source, source.step_spec["observation"], "test")
    mean, std = moments.agent_statistics()
    expected = (values - mean) / std
    env = ObservationNormalizer.from_source(GymnasiumEnvironment(Still(offset + 1)), source)
    np.testing.assert_allclose(env.reset().observation, expected[1], atol=1e-6)
    observations = Observations(tf.TensorSpec([1]), mean, std)
    graph = tf.function(observations, input_signature=[tf.TensorSpec([None, 1])])
    for normalize in (observations, graph, *([tf.function(observations, jit_compile=True)] if offset > 1e6 else [])):
        np.testing.assert_allclose(normalize(tf.constant(values, tf.float32)), expected, atol=1e-6)
    if offset > 1e6:  # Conversions are slow.
        converter = tf.lite.TFLiteConverter.from_concrete_functions([graph.get_concrete_function()], observations)
        model = tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner()
        (found,) = model(**{next(iter(model.get_input_details())): values[:1].astype("f")}).values()
        np.testing.assert_allclose(found, expected[:1], atol=1e-6)


def test_constant_elements_stay_safe():
    data = open_data([make_episode(number) for number in range(4)], TrainingConfig("bc"))
    observations = Observations(data.time_step_spec.observation, *data.moments)
    for value in (40.0, -1e6, 1e30):
        assert observations(tf.constant([[0.0, value]]))[0, 1] == 0


@pytest.mark.parametrize("algo", mark_slow_except(["bc", "iql", "fql"], CHUNKED))
def test_padded_actions_have_no_weight(algo):
    """A loss depends on each action before the end of the episode, and on no padding."""
    config = TrainingConfig(algo, chunk_length=4, hyperparameters=small_networks(algo))
    data = open_data([make_episode(number, num_actions=5) for number in range(2)], config)
    items = data.items.read_items(np.arange(data.items.num_items))
    mask = items.get("policy_info", {}).get("mask", np.ones((len(items["action"]), 4), bool))
    actions = {action for number in range(2) for action in make_episode(number, num_actions=5)["actions"].ravel()}
    assert set(items["action"][mask]) == actions
    num_real = np.minimum(4, [*range(5, 0, -1)] * 2) if ALGORITHMS[algo].masks_chunks else 4
    np.testing.assert_array_equal(mask.sum(1), num_real)


@pytest.mark.parametrize("distribution", ["deterministic", "gaussian"])
def test_cloning_learns_from_real_actions_only(distribution):
    hyperparameters = {"distribution": distribution, "hidden_sizes": (4,)}
    config = TrainingConfig("bc", chunk_length=4, hyperparameters=hyperparameters)
    data = open_data([make_episode(number, num_actions=5) for number in range(2)], config)
    agent = make_run_agent(config, data)

    def find_loss(change, where):
        items = data.items.read_items(np.arange(data.items.num_items))
        mask = items["policy_info"]["mask"]
        items["action"] = np.where(mask == where, items["action"] + change, items["action"]).astype("f")
        batch = agent.batch(convert_data(tf.nest.map_structure(tf.constant, items)))
        return float(tf.reduce_mean(agent.losses(batch))), batch

    (loss, batch), (padded, _), (real, _) = (find_loss(*args) for args in [(0, True), (0.3, False), (0.3, True)])
    assert loss == padded != real
    if distribution == "deterministic":
        errors = np.square(agent.actor.mode(batch.observation) - batch.action)
        np.testing.assert_allclose(loss, errors[batch.step_info["mask"].numpy()].mean(), rtol=1e-5)


class Constant:
    """A policy that always takes the same action."""

    def __init__(self, *action):
        self.constant = np.float32(action)

    def get_initial_state(self, batch_size):
        return ()

    def action(self, time_step, state):
        return PolicyStep(tf.tile(self.constant[None], [len(time_step.reward), 1]))


def test_actions_that_stick_to_a_bound_warn():
    """The gripper of the data is at either of its bounds, and that of the policy at one of them."""
    observations = np.zeros((41, 1), "f")
    actions = np.stack([np.linspace(-0.5, 0.5, 40), np.tile([0.0, 1.0], 20)], axis=1).astype("f")
    log = {"observations": observations, "actions": actions, "rewards": np.zeros(40), "terminated": False}
    config = TrainingConfig("iql")
    data = open_data([log], config)
    spec = BoundedTensorSpec([2], tf.float32, [-1, 0], [1, 1])

    def warn(*action, config=config):
        return warn_stuck(Constant(*action), spec, data.items, config)

    assert warn(0, 0.5) == warn(0.9, 0.9) == []
    (warning,) = warn(0, 0)
    assert "100% of the policy's actions are at a bound, but 50% of the data's (element 1)" in warning
    assert warning.endswith("(normalize_observations=True)")
    (warning,) = warn(1, 0.5, config=config.replace(normalize_observations=True))
    assert "but 0% of the data's (element 0)" in warning and warning.endswith("(action_bounds)")


def test_action_far_above_all_others_warns_if_it_determines_the_bounds():
    actions = np.linspace(-5, 5, 40, dtype="f")[:, None]
    actions[7] = 4000
    log = {"observations": np.zeros((41, 1)), "actions": actions, "rewards": np.zeros(40), "terminated": False}
    (warning,) = open_data([log], TrainingConfig("bc")).warnings
    assert "action is at least 3 times as large as all others; element 0 (episode 0, step 7)" in warning
    assert not any(
        "as large as" in text for text in open_data([log], TrainingConfig("bc", action_bounds=(-5, 5))).warnings
    )
