"""Tests of `mixed_dataset`, and of writing back the priorities of its batches."""

import gc
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from numbers_served import NUMBER, addresses, serve_numbers, write_numbers
from properties import mark_slow_except
from reference_impls import episode

from rlds2reverb.adders.trajectory_windows import TrajectoryEpisodes
from rlds2reverb.datasets import load
from rlds2reverb.errors import ServerUnavailableError, SpecMismatchError
from rlds2reverb.ingestion import ingest
from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig, BufferManager
from rlds2reverb.reverb.sampling import MixedPriorities, PriorityWriter, mixed_dataset, sample_dataset
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.types.mixtures import allocate_items
from rlds2reverb.types.tables import Selector, TableConfig

OWN, EXPERT = {1: 1.0, 2: 3.0}, {11: 2.0, 12: 2.0, 13: 4.0}
HALVES = {"own": 0.5, "expert": 0.5}


@pytest.fixture(scope="module")
def number_servers():
    """Provides one server with numbers below 10, and one with numbers above 10."""
    with serve_numbers(OWN, EXPERT) as servers:
        yield servers
        gc.collect()  # An iterator that outlives its server blocks until its timeout when it is deleted.


def make_dataset(server, **options):
    """Returns a function of the number of items per batch."""
    return partial(sample_dataset, server, "items", max_in_flight=8, num_workers=1, **options)


def make_datasets(servers, **options):
    return {
        name: make_dataset(server.address, **options) for name, server in zip(("own", "expert"), servers, strict=True)
    }


@pytest.mark.parametrize(
    ("weights", "num_expert"),
    mark_slow_except(
        [((1 / 3, 2 / 3), 11)],
        [((0.5, 0.5), 8), ((0.25, 0.75), 12), ((0.9, 0.1), 2), ((1 / 3, 2 / 3), 11)],
    ),
)
def test_every_batch_has_the_same_number_of_items_per_dataset(number_servers, weights, num_expert):
    weights = dict(zip(("own", "expert"), weights, strict=True))
    for sample in mixed_dataset(make_datasets(number_servers), 16, weights=weights).take(40).as_numpy_iterator():
        # The datasets are sorted by name: 'expert' comes before 'own'.
        assert sample.info.dataset_index.tolist() == [0] * num_expert + [1] * (16 - num_expert)
        assert ((sample.data > 10) == (sample.info.dataset_index == 0)).all() and not sample.info.server.any()


def test_importance_weights_are_relative_to_each_dataset(number_servers):
    tables = [EXPERT, OWN]
    for sample in (
        mixed_dataset(make_datasets(number_servers, beta=1.0), 32, weights=HALVES).take(20).as_numpy_iterator()
    ):
        for index, table in enumerate(tables):
            mask = sample.info.dataset_index == index
            priorities = np.array([table[value] for value in sample.data[mask].astype(int)])
            np.testing.assert_allclose(sample.info.probability[mask], priorities / sum(table.values()))
            np.testing.assert_allclose(sample.info.weight[mask], priorities.min() / priorities, rtol=1e-6)


def test_priorities_are_written_to_the_server_of_the_dataset():
    with serve_numbers({1: 1.0}, {2: 1.0}, {3: 1.0}) as servers:
        own, *experts = addresses(servers)
        datasets = {"own": make_dataset(own), "expert": make_dataset(experts)}
        writers = {
            name: PriorityWriter(server, "items", eps=0.5) for name, server in (("own", own), ("expert", experts))
        }
        seen = set()
        with MixedPriorities(writers) as priorities:
            for sample in mixed_dataset(datasets, 16, weights=HALVES).as_numpy_iterator():
                priorities.update(sample.info, sample.data * -10)
                seen |= set(sample.data.tolist())
                if len(seen) == 3:
                    break
        for server, value in zip(servers, (1, 2, 3), strict=True):
            sample = next(iter(sample_dataset(server.address, "items", 1)))
            assert (float(sample.data), float(sample.info.priority)) == (value, 10 * value + 0.5)


def test_two_tables_of_one_server_are_mixed_and_updated():
    configs = [TableConfig(name, Selector("prioritized", 1.0)) for name in ("items", "others")]
    with ReplayServer(configs, NUMBER) as server:
        write_numbers(server.client, {1: 1.0})
        with server.client.trajectory_writer(1) as writer:
            writer.append(np.float32(2))
            writer.create_item("others", 1.0, writer.history[-1])
        datasets = {"a": make_dataset(server), "b": partial(sample_dataset, server, "others")}
        sample = next(iter(mixed_dataset(datasets, 4, weights={"a": 0.5, "b": 0.5})))
        assert sample.data.numpy().tolist() == [1, 1, 2, 2]
        writers = {"b": PriorityWriter(server, "others", eps=1), "a": PriorityWriter(server, "items", eps=0.5)}
        with MixedPriorities(writers) as priorities:
            priorities.update(sample.info, [5, 5, 7, 7])
        for table, priority in (("items", 5.5), ("others", 8)):
            info = next(iter(sample_dataset(server, table, 1))).info
            assert info.priority.numpy().tolist() == [priority]


def test_buffers_and_servers_are_mixed_and_updated():
    with (
        serve_numbers({1: 1.0}) as (server,),
        AdvancedReplayBuffer("online", BufferConfig(alpha=1.0, sample_min_limit_ratio=0)) as online,
    ):
        online.extend_columns({"x": np.full(3, 2, np.float32)}, priorities=[1.0, 2.0, 1.0], collect_iters=7)
        make_own = make_dataset(server.address)
        datasets = {
            "online": lambda size: online.dataset(size, cur_learner_iter=lambda: 9),
            "own": lambda size: make_own(size).map(lambda sample: sample._replace(data={"x": sample.data})),
        }
        batch = next(iter(mixed_dataset(datasets, 4, weights={"online": 0.75, "own": 0.25})))
        info = batch.info
        assert batch.data["x"].numpy().tolist() == [2, 2, 2, 1] and info.dataset_index.numpy().tolist() == [0, 0, 0, 1]
        assert info.staleness.numpy().tolist() == [2, 2, 2, -1] and info.collect_iter.numpy().tolist() == [7, 7, 7, -1]
        assert info.table_size.numpy().tolist() == [3, 3, 3, 1]
        np.testing.assert_allclose(info.probability[:3], info.priority[:3] / 4)
        with MixedPriorities({"online": online, "own": PriorityWriter(server, "items")}) as priorities:
            priorities.update(info, [5.0, 5.0, 5.0, -6.0])
        assert sorted(set(online.sample_batch(50).info.priority.tolist()) - {1.0, 2.0}) == [5.01]
        own = next(iter(make_own(1)))
        assert own.info.priority.numpy().tolist() == [6.01]


def test_mixture_of_a_mixture_raises():
    with BufferManager({"a": BufferConfig()}) as manager:
        manager["a"].extend_columns({"x": np.zeros(8)})
        with pytest.raises(ValueError, match="dataset 'both' is a mixture itself; pass its parts"):
            mixed_dataset({"both": manager.dataset}, 4, weights={"both": 1.0})


@pytest.mark.slow
def test_episodes_are_padded_to_the_longest_of_the_batch():
    sources = [load([episode(length, terminal=True)]) for length in (3, 5)]
    signature = TrajectoryEpisodes().item_spec(sources[0].step_spec)
    config = TableConfig("items", Selector("uniform"))
    with ReplayServer([config], signature) as first, ReplayServer([config], signature) as second:
        for source, server in zip(sources, (first, second), strict=True):
            ingest(source, server, "items", adder=TrajectoryEpisodes())
        datasets = {"a": make_dataset(first), "b": make_dataset(second)}
        sample = next(iter(mixed_dataset(datasets, 4, weights={"a": 0.5, "b": 0.5})))
    lengths = sample.info.mask.numpy().sum(1)
    assert lengths[0] == lengths[1] < lengths[2] == lengths[3] == sample.data.reward.shape[1]


@pytest.mark.slow
def test_error_of_one_dataset_is_raised_and_iterators_can_be_deleted(number_servers):
    with serve_numbers({}) as (empty,):
        datasets = {
            "own": make_dataset(number_servers[0].address),
            "expert": make_dataset(empty.address, timeout_secs=3),
        }
        batches = iter(mixed_dataset(datasets, 4, weights=HALVES))
        with pytest.raises(ServerUnavailableError, match=r"waited 3 s for a sample of table 'items' at .* has 0 items"):
            next(batches)
        waiting = iter(mixed_dataset(datasets, 4, weights=HALVES))
        del waiting, batches


def test_datasets_with_different_items_raise(number_servers):
    with ReplayServer([TableConfig("items")], tf.TensorSpec((2,), tf.float64)) as other:
        datasets = {"own": make_dataset(number_servers[0].address), "expert": make_dataset(other.address)}
        message = (
            r"an item of dataset 'expert' is float64 \[2\], but dataset 'own' expects float32 \[\]; mix datasets whose"
        )
        with pytest.raises(SpecMismatchError, match=message):
            mixed_dataset(datasets, 4, weights=HALVES)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"own": 0.5, "expert": 0.4}, r"weights must add up to 1, got .*, which add up to 0\.9"),
        ({"own": 1.5, "expert": -0.5}, r"the weight of dataset 'own' must be a number in \[0, 1\], got 1\.5"),
        ({"own": float("nan"), "expert": 0.5}, "the weight of dataset 'own' must be a number in .*, got nan"),
        ({"own": 1.0, "expert": 0.0}, "the weight of dataset 'expert' must be above 0, got 0; remove the dataset"),
        ({"own": 1.0}, "same names, at least one, got weights of 'own' and datasets 'expert', 'own'"),
        ({"own": 0.95, "expert": 0.05}, r"the weight of dataset 'expert', 0\.05, leaves it no item in a batch of 8"),
    ],
)
def test_invalid_weights_raise_before_any_query(weights, message):
    unreachable = {"own": make_dataset("localhost:1"), "expert": make_dataset("localhost:1")}
    with pytest.raises(ValueError, match=message):
        mixed_dataset(unreachable, 8, weights=weights)


def test_invalid_datasets_raise():
    with pytest.raises(ValueError, match="at least one, got weights of none and datasets none"):
        mixed_dataset({}, 8, weights={})
    for name in ("batch_size", "prefetch"):
        with pytest.raises(ValueError, match=f"{name} must be an integer >= 1, got 0"):
            mixed_dataset({"own": make_dataset("localhost:1")}, **{"batch_size": 8, name: 0}, weights={"own": 1.0})
    numbers_only = tf.data.Dataset.range(3)
    with pytest.raises(
        TypeError, match="dataset 'own' must be a function of its number of items per batch.*, got .*Dataset"
    ):
        mixed_dataset({"own": numbers_only}, 8, weights={"own": 1.0})
    with pytest.raises(
        TypeError, match="dataset 'own' must return batches as sample_dataset does, got elements TensorS"
    ):
        mixed_dataset({"own": lambda size: numbers_only}, 8, weights={"own": 1.0})


@pytest.mark.parametrize(
    ("size", "weights", "counts"),
    [
        (5, (0.5, 0.3, 0.2), [3, 1, 1]),  # 2.5, 1.5, 1.0: the first of equal remainders wins
        (10, (0.29, 0.71), [3, 7]),
        (100, (0.29, 0.71), [29, 71]),  # 0.29 * 100 is 28.999999999999996
        (256, (1 / 3, 1 / 3, 1 / 3), [86, 85, 85]),
        (3, (1.0,), [3]),
    ],
)
def test_item_counts_use_the_largest_remainders(size, weights, counts):
    assert list(allocate_items(size, dict(zip("abc", weights, strict=False))).values()) == counts
