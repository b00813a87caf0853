"""Batches of training runs: in memory, from a server of the run's own, and from tables."""

import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb import ServerUnavailableError, TableConfig, ingest
from rlds2reverb.adders import NStep
from rlds2reverb.datasets import load
from rlds2reverb.learners import InMemoryDataset, collect_items
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.sources import open_data

NUM_ITEMS = 6


def make_episodes():
    place = np.arange(10, 11 + NUM_ITEMS, dtype=np.float32)
    log = {"observations": place[:, None], "actions": place[:-1, None] / 100, "rewards": place[:-1] + 90}
    return [{**log, "terminated": True}]


def read(feed, step=0):
    """Returns a batch of a feed as numpy arrays."""
    data, info = tf.nest.map_structure(lambda column: column[0], feed.read(step, 1))
    experience = tf.function(feed.to_experience, autograph=False)(tf.nest.map_structure(tf.constant, data))
    return tf.nest.map_structure(np.asarray, experience), info


@pytest.fixture(scope="module")
def prioritized():
    """Provides the batches of a filled server of the run's own, with weights from 0.4 to 1 over 10 steps.

    Tests may change priorities, to 0.5 at least.
    """
    config = TrainingConfig("iql", sampler="prioritized", steps=10, batch_size=64, reward="scale:2")
    with open_data(make_episodes(), config) as data, data.open_batches(config) as batches:
        batches.fill()
        yield batches


def test_uniform_batches_are_those_of_the_items_in_memory(data):
    hopper = data / "d4rl" / "hopper_medium-v2.hdf5"
    config = TrainingConfig("iql", seed=3, batch_size=16)
    items = collect_items(NStep(1, 0.99)(episode) for episode in load(hopper))
    expected = InMemoryDataset(items, 16, seed=3, to_experience=NStep(1, 0.99).as_transition)
    with open_data(hopper, config) as opened, opened.open_batches(config) as batches:
        assert batches.priorities is None and batches.replay is None
        batches.fill()
        for step in (0, 5):
            got = read(batches.feed, step)
            tf.nest.map_structure(np.testing.assert_array_equal, got, read(expected, step))


def test_server_of_the_run_contains_the_prepared_items(prioritized):
    info = table_infos(prioritized.replay.client)["replay"]
    assert info.current_size == NUM_ITEMS and info.sampler_options.prioritized.priority_exponent == pytest.approx(0.6)
    found = set()
    for _ in range(10):
        experience, sampled = read(prioritized.feed)
        rewards = experience.next_time_step.reward
        assert sampled.key.shape == (64,)
        np.testing.assert_array_equal(experience.time_step.observation[:, 0], rewards / 2 - 90)
        found |= set(rewards.tolist())
    assert found == {200, 202, 204, 206, 208, 210}


def test_weights_of_prioritized_batches_follow_the_step(prioritized):
    _, sampled = read(prioritized.feed)
    _, item = np.unique(sampled.key, return_inverse=True)
    prioritized.priorities.update(sampled, np.where(item % 2, 0.5, 2.0))
    for step, beta in ((0, 0.4), (5, 0.7), (10, 1.0), (20, 1.0)):
        prioritized.feed.close()
        _, sampled = read(prioritized.feed, step)
        relative = sampled.probability.min() / sampled.probability
        smallest = (
            sampled.weight / relative**beta
        ).max()  # The batch need not contain the item with the lowest probability.
        np.testing.assert_allclose(sampled.weight, smallest * relative**beta, rtol=1e-5)
    assert len(set(sampled.priority.tolist())) > 1 and sampled.priority.max() == 1  # That of items never sampled.


@pytest.mark.slow
def test_server_of_the_run_stops_with_the_batches():
    config = TrainingConfig("iql", sampler="prioritized", batch_size=4)
    with open_data(make_episodes(), config) as data:
        with data.open_batches(config) as batches:
            address = batches.replay.address
            assert table_infos(batches.replay.client)["replay"].current_size == 0  # A checkpoint may be loaded.
            batches.fill()
            read(batches.feed)
        with pytest.raises(ServerUnavailableError):
            table_infos(address, timeout_secs=1)


@pytest.mark.parametrize("sampler", [pytest.param("uniform", marks=pytest.mark.slow), "prioritized"])
def test_batches_of_a_directory_come_from_its_server(tmp_path, sampler):
    ingest(make_episodes(), tmp_path / "out", TableConfig("replay"), adder=NStep(1, 0.99))
    config = TrainingConfig("iql", sampler=sampler, batch_size=4)
    with open_data(tmp_path / "out", config) as data:
        with data.open_batches(config) as batches:
            batches.fill()
            experience, _ = read(batches.feed)
            assert experience.action_step.action.shape == (4, 1)
            assert (batches.replay is data.table.server) == (batches.priorities is not None) == (sampler != "uniform")
        assert table_infos(data.table.server.client)["replay"].current_size == NUM_ITEMS


def test_server_of_the_user_is_not_saved_with_the_run(prioritized):
    config = TrainingConfig("iql", sampler="prioritized", batch_size=4)
    with open_data(prioritized.replay, config) as data, data.open_batches(config) as batches:
        assert batches.replay is None and batches.priorities is not None
        read(batches.feed)
