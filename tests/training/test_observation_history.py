"""Histories of observations: what items contain against a naive loop, and policies that see the same as in training."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies.random_tf_policy import RandomTFPolicy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from rlds2reverb import TrainingConfig, load, load_policy, train
from rlds2reverb.adders import Transitions, check_adder
from rlds2reverb.adders.observation_history import ObservationHistory, PartHistory
from rlds2reverb.cli.main import run
from rlds2reverb.envs import evaluate, record_episodes
from rlds2reverb.learners.agents import ChunkPolicy
from rlds2reverb.learners.agents.history_policy import HistoryPolicy, extend_spec, extend_statistics, make_history
from rlds2reverb.learners.agents.policies import ActorPolicy
from rlds2reverb.policies.onnx_policies import OnnxPolicy
from rlds2reverb.training.collected_pieces import PieceConverter
from rlds2reverb.training.collector import Collector
from rlds2reverb.training.sources import open_data
from rlds2reverb.training.training import make_run_agent
from tests.support.counting import Counting

#: Offsets of the parts of the observations of `make_episode`.
OFFSETS = {"observation.camera": (-2, 0), "observation.state": (-3, -1, 0), "observation.time": (-1, 0)}


def make_episode(first, num_steps):
    """Returns an episode whose observations reveal their steps in every element."""
    place = first + np.arange(num_steps + 1)
    camera = place[:, None, None, None] + np.arange(12).reshape(2, 2, 3) * 16
    observations = {
        "camera": camera.astype(np.uint8),
        "chw": np.moveaxis(np.tile(camera, (1, 3, 3, 1)), -1, 1).astype(np.uint8),
        "state": (place[:, None] + [0, 100]).astype(np.float32),
        "time": place.astype(np.float32),
    }
    actions = place[:-1, None].astype(np.float32) / 100
    return {"observations": observations, "actions": actions, "rewards": place[:-1] * 1.0, "terminated": False}


EPISODES = [make_episode(0, 6), make_episode(100, 1)]


def see(observations, step, name, offsets, axis=-1):
    """Returns what a policy sees of a part of the observation of a step."""
    parts = [observations[name][max(step + offset, 0)] for offset in offsets]
    return np.stack(parts) if not parts[0].shape else np.concatenate(parts, axis)


@pytest.mark.parametrize(("n", "chunk"), [(1, 1), (3, 1), (1, 2)])
def test_items_match_a_naive_loop(n, chunk, tmp_path):
    options = {"observation_offsets": {**OFFSETS, "observation.chw": [0, -1]}, "n_step": n, "chunk_length": chunk}
    for store_dir in (None, str(tmp_path)):
        items = open_data(EPISODES, TrainingConfig("iql", store_dir=store_dir, **options)).items
        got = items.read_items(np.arange(items.num_items))
        steps = max(n, chunk)
        places = [
            (episode["observations"], step, min(step + steps, len(episode["rewards"])))
            for episode in EPISODES
            for step in range(len(episode["rewards"]) - chunk + 1)
        ]
        for field, number in (("observation", 1), ("next_observation", 2)):
            for name, offsets, axis in [
                ("camera", (-2, 0), -1),
                ("chw", (-1, 0), 0),
                ("state", (-3, -1, 0), -1),
                ("time", (-1, 0), -1),
            ]:
                expected = [see(place[0], place[number], name, offsets, axis) for place in places]
                np.testing.assert_array_equal(got[field][name], expected, err_msg=f"{field} {name}")


def test_adder_meets_the_contract():
    parts = [PartHistory("observation.camera", (0,)), PartHistory("observation.chw", (-2, -1, 0), 0)]
    parts += [PartHistory("observation.state", (-1, 0)), PartHistory("observation.time", (-4, 0))]
    check_adder(Transitions(2, 0.9, history=ObservationHistory(tuple(parts))), load(EPISODES))


@pytest.mark.parametrize("num_envs", [1, 3])
def test_policy_sees_in_an_episode_what_the_items_contain(num_envs):
    """The inner policy returns a sum of what it sees, weighted so that each element counts."""
    data = open_data(EPISODES, TrainingConfig("bc", observation_offsets=OFFSETS))
    seen = []

    class Spy(tf.Module):
        def mode(self, vector):
            seen.append(vector.numpy())
            return vector[:, :1]

    spec = extend_spec(data.time_step_spec, data.history)
    inner = ActorPolicy(spec, data.action_spec, Flat(), Same(), Spy(), greedy=True)
    policy = HistoryPolicy(inner, data.time_step_spec, data.history)
    state, expected = policy.get_initial_state(num_envs), []
    for episode in [EPISODES[0], EPISODES[1], EPISODES[0]]:
        observations = episode["observations"]
        for step in range(len(episode["rewards"])):
            batch = tf.nest.map_structure(lambda column: tf.constant(np.stack([column[step]] * num_envs)), observations)  # noqa: B023
            first = ts.restart(batch, num_envs) if not step else ts.transition(batch, tf.zeros(num_envs))
            state = policy.action(first, state).state
            views = [see(observations, step, name.split(".")[1], offsets) for name, offsets in OFFSETS.items()]
            views.insert(1, observations["chw"][step])
            expected.append(np.concatenate([np.float32(view).ravel() for view in views]))
    np.testing.assert_array_equal(np.array(seen), np.repeat(np.array(expected)[:, None], num_envs, axis=1))


class Flat(tf.Module):
    """Observations as vectors."""

    def __call__(self, observation):
        parts = [tf.cast(tf.reshape(leaf, [leaf.shape[0], -1]), tf.float32) for leaf in tf.nest.flatten(observation)]
        return tf.concat(parts, axis=1)


class Same(tf.Module):
    """Actions as they are."""

    def to_environment(self, unit):
        return unit


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("n", [1, 3])
def test_collected_pieces_contain_the_items_of_whole_episodes_once(num_steps, n):
    spec = ts.time_step_spec(tf.TensorSpec([2], tf.float32))
    policy = RandomTFPolicy(spec, tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2))
    history = make_history((-2, 0), spec.observation)
    convert, found = PieceConverter(Transitions(n, 0.5, history=history)), []
    collector = Collector(partial(Counting, 4), policy, num_kept=convert.num_kept)
    while collector.num_collected < 12:
        for items in map(convert, collector.collect(min(num_steps, 12 - collector.num_collected))):
            found += [
                (*items.columns["observation"][k, ::2], items.columns["next_observation"][k, 2]) for k in items.starts
            ]
    collector.close()
    assert found == 3 * [(max(step - 2, 0), step, min(step + n, 4)) for step in range(4)]


def test_specs_and_statistics_are_repeated_like_the_arrays():
    spec = {
        "category": tensor_spec.BoundedTensorSpec([], tf.int64, 2, 4),
        "position": tensor_spec.BoundedTensorSpec([2], tf.float32, [0, 1], [5, 6]),
    }
    history = make_history((-1, 0), spec)
    extended = extend_spec(ts.time_step_spec(spec), history).observation
    assert extended["category"].shape == (2,) and extended["category"].maximum.tolist() == [4, 4]
    assert extended["position"].minimum.tolist() == [0, 1, 0, 1]
    mean = extend_statistics({"category": 0.5, "position": np.array([1.0, 2.0])}, history)
    assert mean["category"].tolist() == [0.5, 0.5] and mean["position"].tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observation_offsets": (0, 1)}, r"observation_offsets must be different integers up to 0, .* got \(0, 1\)"),
        ({"observation_offsets": ()}, "observation_offsets must be different integers"),
        ({"observation_offsets": (-1, -1)}, "observation_offsets must be different integers"),
        ({"observation_offsets": (-1, 0), "algo": "decision_transformer"}, "which sees its context_length instead"),
        ({"observation_offsets": (-1, 0), "algo": "gcbc"}, "which learns to reach goals"),
    ],
)
def test_option_is_checked(options, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**{"algo": "bc", **options})


def test_parts_that_do_not_exist_are_named():
    config = TrainingConfig("bc", observation_offsets={"observation.lidar": (-1, 0)})
    with pytest.raises(
        ValueError, match=r"observation_offsets must name parts .*'observation.lidar'.*observation.camera"
    ):
        open_data(EPISODES, config)


def test_observations_in_tuples_are_refused():
    with pytest.raises(ValueError, match="observation_offsets requires an observation that is an array or a dict"):
        make_history((-1, 0), {"sensors": (tf.TensorSpec([2]), tf.TensorSpec([3]))})


class Hidden(gymnasium.Env):
    """The sign of the action must be that of the change of the observation, which only two observations show."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.moves = self.np_random.choice([-1.0, 1.0], 8)
        self.place = self.step_number = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        reward = float(np.sign(action[0]) == np.sign(self.moves[self.step_number - 1])) if self.step_number else 0.0
        self.place += self.moves[self.step_number]
        self.step_number += 1
        return np.float32([self.place]), reward, self.step_number == 8, False, {}


def demonstrate(seed):
    """Returns an episode of an expert in `Hidden`."""
    env = Hidden()
    observations, rewards = [env.reset(seed=seed)[0]], []
    actions = np.concatenate([[0.5], np.sign(env.moves[:-1])])[:, None].astype(np.float32)
    for action in actions:
        observation, reward, *_ = env.step(action)
        observations.append(observation)
        rewards.append(reward)
    return {"observations": np.array(observations), "actions": actions, "rewards": rewards, "terminated": True}


def clone(run_dir, **options):
    hyperparameters = {"hidden_sizes": (16,), "learning_rate": 1e-2}
    options = {"steps": 300, "batch_size": 32, "eval_every": 300, "eval_episodes": 8, "track": (), **options}
    episodes = [demonstrate(seed) for seed in range(100, 130)]
    return train(episodes, "bc", run_dir, env=Hidden, hyperparameters=hyperparameters, progress=False, **options)


@pytest.mark.slow
@pytest.mark.parametrize("chunk_length", [1, 2])
def test_clone_that_sees_two_steps_does_what_one_step_does_not_show(chunk_length, tmp_path, capsys):
    """Also as a SavedModel and in ONNX, resumed from a checkpoint, and for a recording."""
    options = {"observation_offsets": (-1, 0), "chunk_length": chunk_length, "execution_horizon": 1}
    clone(tmp_path / "two", steps=150, **options)
    two = clone(tmp_path / "two", **options)
    assert two.best_return > 6.7
    assert clone(tmp_path / "one").best_return < 6
    assert run(["export", str(tmp_path / "two"), "--format", "onnx", "--out", str(tmp_path / "two.onnx")]) == 0
    capsys.readouterr()
    for policy in (two.policy, load_policy(tmp_path / "two"), OnnxPolicy(tmp_path / "two.onnx")):
        assert evaluate(Hidden, policy, 8).returns.mean() == pytest.approx(two.best_return)
    (episode,) = record_episodes(Hidden, two.policy, num_episodes=1).read()
    assert episode.steps["reward"][:8].sum() > 6


def test_chunks_of_histories_execute_one_by_one():
    config = TrainingConfig("bc", observation_offsets=(-1, 0), chunk_length=2, hyperparameters={"hidden_sizes": (4,)})
    data = open_data(EPISODES, config)
    policy = make_run_agent(config, data).policy
    assert isinstance(policy, HistoryPolicy) and isinstance(policy.wrapped, ChunkPolicy)
    assert policy.time_step_spec.observation == data.time_step_spec.observation
