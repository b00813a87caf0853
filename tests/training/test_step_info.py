"""The numbers of steps that an algorithm learns from in addition to the fields of RLDS, in each kind of data."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from counting import Counting
from tf_agents.policies.random_tf_policy import RandomTFPolicy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from rlds2reverb import Training, TrainingConfig, ingest, register_agent
from rlds2reverb.adders import NStep
from rlds2reverb.learners import algorithms
from rlds2reverb.learners.agents import CQLAgent
from rlds2reverb.training.collected_pieces import PieceConverter
from rlds2reverb.training.collector import Collector
from rlds2reverb.training.sources import open_data
from rlds2reverb.training.step_info import make_step_info

OPTIONS = {"env": None, "batch_size": 8, "gamma": 0.5, "action_bounds": (-1, 1)}
CONFIG = TrainingConfig("cal_ql", reward="scale:10", **OPTIONS)


def make_episode(rewards, *, terminal):
    """Returns an episode whose observations are its rewards."""
    size = len(rewards) + 1
    is_last = np.arange(size) == size - 1
    return {
        "observation": np.append(rewards, 99).astype(np.float32)[:, None],
        "action": np.zeros((size, 1), np.float32),
        "reward": np.append(rewards, 77).astype(np.float32),
        "discount": np.ones(size, np.float32),
        "is_first": np.arange(size) == 0,
        "is_last": is_last,
        "is_terminal": is_last & terminal,
    }


EPISODES = [make_episode([1, 2, 4], terminal=True), make_episode([8, 16], terminal=False)]


class NumberedCQLAgent(CQLAgent):
    """An agent of the user's own."""


#: The returns of the scaled rewards with a discount factor of 1/2, by reward.
RETURNS = {1: 30, 2: 40, 4: 40, 8: 160, 16: 160}


def join(episodes):
    """Returns the columns of several episodes."""
    return {name: np.concatenate([episode[name] for episode in episodes]) for name in episodes[0]}


def test_step_info_matches_hand_computed_values():
    info = make_step_info(join(EPISODES), np.array([4, 3]), ("return_to_go", "time_step"), gamma=0.5)
    np.testing.assert_array_equal(info["return_to_go"], [3, 4, 4, 0, 16, 16, 0])
    np.testing.assert_array_equal(info["time_step"], [0, 1, 2, 3, 0, 1, 2])
    assert info["return_to_go"].dtype == np.float32 and info["time_step"].dtype == np.int32


def test_failed_episodes_have_the_return_of_endless_ones():
    episodes = [make_episode(rewards, terminal=False) for rewards in ([-1, -1], [-1, 0, -1], [-1])]
    info = make_step_info(join(episodes), np.array([3, 4, 2]), ("return_to_go",), gamma=0.5, failure_reward=-1.0)
    np.testing.assert_array_equal(info["return_to_go"][:2], [-2, -2])
    np.testing.assert_array_equal(info["return_to_go"][3:6], [-1.25, -0.5, -1])
    assert info["return_to_go"][7] == -2


def read_transitions(feed):
    """Returns some batches as TF-Agents' transitions."""
    for step in range(8):
        data, _ = feed.read(step, 1)
        yield feed.to_experience(tf.nest.map_structure(lambda column: tf.constant(column[0]), data))


def read_returns(data, config):
    """Returns the return to go by reward."""
    seen = {}
    with data, data.open_batches(config) as batches:
        batches.fill()
        for transition in read_transitions(batches.feed):
            rewards = transition.time_step.observation.numpy()[:, 0].tolist()
            seen |= dict(zip(rewards, transition.action_step.info["return_to_go"].numpy().tolist(), strict=True))
    return seen


@pytest.mark.parametrize("options", [{}, {"n_step": 2}, {"sampler": "prioritized"}])
def test_transitions_of_a_dataset_contain_returns_of_the_transformed_rewards(options):
    config = CONFIG.replace(**options)
    assert read_returns(open_data(EPISODES, config), config) == RETURNS


def test_windows_of_a_dataset_contain_undiscounted_returns_and_times():
    config = CONFIG.replace(algo="decision_transformer", reward=None, hyperparameters={"context_length": 2})
    seen = set()
    with open_data(EPISODES, config).open_batches(config) as batches:
        for windows in read_transitions(batches.feed):
            info, observations = windows.policy_info, windows.observation[..., 0].numpy()
            for row, observation in enumerate(observations.tolist()):
                columns = [info[name][row].numpy().tolist() for name in ("mask", "return_to_go", "time_step")]
                seen.add(tuple(map(tuple, (observation, *columns))))
            # 4 and 16 are the observations before the end of a terminated and of a truncated episode.
            last = observations[:, -1]
            np.testing.assert_array_equal(windows.next_step_type[:, -1], np.where(np.isin(last, (4, 16)), 2, 1))
            np.testing.assert_array_equal(windows.discount[:, -1], last != 4)
    assert seen == {
        ((1, 2), (True, True), (7, 6), (0, 1)),
        ((2, 4), (True, True), (6, 4), (1, 2)),
        ((0, 4), (False, True), (0, 4), (0, 2)),
        ((8, 16), (True, True), (24, 16), (0, 1)),
        ((0, 16), (False, True), (0, 16), (0, 1)),
    }


def test_custom_agents_ask_for_step_info(monkeypatch):
    monkeypatch.setattr(algorithms, "CUSTOM_ALGORITHMS", {})
    with pytest.raises(ValueError, match="step_info must be one of 'return_to_go', 'time_step', got 'value'"):
        register_agent("numbered_cql", NumberedCQLAgent, step_info=["value"])
    register_agent("numbered_cql", NumberedCQLAgent, step_info=["time_step"])
    with open_data(EPISODES, CONFIG.replace(algo="numbered_cql")).open_batches(CONFIG) as batches:
        transition = next(read_transitions(batches.feed))
    times = {1: 0, 2: 1, 4: 2, 8: 0, 16: 1}
    rewards = transition.time_step.observation.numpy()[:, 0]
    assert transition.action_step.info["time_step"].numpy().tolist() == [times[reward] for reward in rewards]


def test_other_algorithms_receive_no_step_info():
    with open_data(EPISODES, CONFIG.replace(algo="cql")).open_batches(CONFIG) as batches:
        assert next(read_transitions(batches.feed)).action_step.info == ()


@pytest.mark.slow
def test_step_info_is_read_from_a_table_that_contains_it(tmp_path):
    config = CONFIG.replace(reward=None)
    returns = make_step_info(join(EPISODES), np.array([4, 3]), ("return_to_go",), gamma=0.5)["return_to_go"]
    episodes = [
        {**episode, "policy_info": {"return_to_go": part}}
        for episode, part in zip(EPISODES, np.split(returns, [4]), strict=True)
    ]
    ingest(episodes, tmp_path / "with", adder=NStep(1, 0.5))
    assert read_returns(open_data(tmp_path / "with", config), config) == {1: 3, 2: 4, 4: 4, 8: 16, 16: 16}


def test_collected_items_contain_returns_once_their_episode_has_ended():
    policy = RandomTFPolicy(
        ts.time_step_spec(tf.TensorSpec([2], tf.float32)), tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2)
    )
    convert = PieceConverter(NStep(1, 0.5), step_info=("return_to_go",), gamma=0.5)
    collector = Collector(partial(Counting, 4, terminates=False), policy, num_kept=convert.num_kept)
    assert collector.collect(3) == []
    (piece,) = collector.collect(3)
    collector.close()
    items = convert(piece)
    assert items.columns["reward"].tolist() == [10, 11, 12, 13]
    assert items.columns["policy_info"]["return_to_go"].tolist() == [20.125, 20.25, 18.5, 13]


def test_online_phase_without_a_complete_episode_raises(tmp_path):
    config = TrainingConfig(
        "cal_ql", env="Pendulum-v1", steps=0, online_steps=20, warmup_steps=1, hyperparameters={"hidden_sizes": (4,)}
    )
    with (
        pytest.raises(ValueError, match="online_steps must be larger, got 20: no episode has ended, and cal_ql"),
        Training(None, config, tmp_path) as training,
    ):
        training.run()
