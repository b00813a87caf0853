"""Tests of `sample_dataset`: layouts, weights, sampling frequencies, several servers, and invalid arguments."""

import contextlib
import gc
import threading
import weakref
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import reverb
import tensorflow as tf
import tree
from numbers_served import NUMBER, addresses, serve_numbers, write_numbers
from properties import mark_slow_except
from reference_impls import assert_equal_nests, episode
from tensorflow.python.framework.func_graph import FuncGraph
from tf_agents.trajectories import trajectory

from rlds2reverb.adders.trajectory_windows import TrajectoryEpisodes, TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.errors import ServerUnavailableError, SpecMismatchError
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.sampling import SampleInfo, sample, sample_dataset, to_experience
from rlds2reverb.reverb.sampling.importance import LinearSchedule
from rlds2reverb.reverb.sampling.sample_iterator import ServerBalance, choose_num_blocks
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.server.sharded_server import ShardedReplayServer
from rlds2reverb.reverb.wire.packing import Packing, packed_signature
from rlds2reverb.rlds_to_reverb import convert_rlds_to_trajectories
from rlds2reverb.types.items import Items
from rlds2reverb.types.tables import RateLimiter, Selector, TableConfig
from rlds2reverb.types.trajectories import trajectory_columns, trajectory_spec

SOURCE = load([episode(30, terminal=True, nested=True)])
SIGNATURE = TrajectoryWindows().item_spec(SOURCE.step_spec)
CONFIG = TableConfig("items", Selector("uniform"))
LENGTHS = (3, 7, 5, 9)
EPISODES = load([episode(length, terminal=False, start=100.0 * at) for at, length in enumerate(LENGTHS)])


class Transitions:
    """An adder that turns every row of an episode into an item without a time axis."""

    def __call__(self, episode):
        rows = trajectory_columns(episode.steps)
        num_rows = len(rows.step_type)
        return Items(rows, np.arange(num_rows), np.ones(num_rows, np.int64), squeeze=True)

    def item_spec(self, step_spec):
        return tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), trajectory_spec(step_spec))


def make_signature(adder, source, layout, *, squeeze=False):
    spec = adder.item_spec(source.step_spec)
    return packed_signature(Packing(spec, squeeze)) if layout == "packed" else spec


def sample_batches(servers, num_batches, batch_size=1000, **options):
    """Returns several batches concatenated into one, once the streams of all servers have started."""
    batches = sample_dataset(addresses(servers), "items", batch_size, **options).as_numpy_iterator()
    started = set()
    while len(servers) > 1 and len(started) < len(servers):
        started |= set(next(batches).info.server)
    return tree.map_structure(lambda *parts: np.concatenate(parts), *islice(batches, num_batches))


def chi_square_p_value(counts, expected, degrees):
    """Returns the p-value of Pearson's chi-square test for these counts."""
    statistic = float((np.square(counts - expected) / expected).sum())
    return float(tf.math.igammac(degrees / 2, statistic / 2))


# --- layouts


@pytest.mark.parametrize("layout", mark_slow_except(["packed"], ["columns", "packed"]))
def test_batch_has_the_same_nest_in_both_layouts(layout):
    with ReplayServer([CONFIG], make_signature(TrajectoryWindows(), SOURCE, layout)) as server:
        ingest(SOURCE, server.address, "items", layout=layout)
        sample = next(iter(sample_dataset(server.address, "items", 8, max_in_flight=8).as_numpy_iterator()))
    assert sample.info.key.shape == (8,) and np.all(sample.info.probability == 1 / 29)
    rows = trajectory_columns(SOURCE.first_episode.steps)
    for item in range(8):
        begin = int(sample.data.observation["state"][item, 0, 0]) - 10
        expected = tree.map_structure(lambda column, b=begin: column[b : b + 2], rows)
        assert_equal_nests(tree.map_structure(lambda column, i=item: column[i], sample.data), expected)


@pytest.mark.parametrize(
    ("layout", "num_servers"),
    [("columns", 2), ("packed", 1), *mark_slow_except((), [("columns", 1), ("packed", 2)])],
)
def test_episodes_are_padded_with_zeros_and_masked(layout, num_servers):
    with contextlib.ExitStack() as stack:
        signature = make_signature(TrajectoryEpisodes(), EPISODES, layout)
        servers = [stack.enter_context(ReplayServer([CONFIG], signature)) for _ in range(num_servers)]
        for server in servers:
            ingest(EPISODES, server.address, "items", adder=TrajectoryEpisodes(), layout=layout)
        dataset = sample_dataset(addresses(servers), "items", 8)
        assert dataset.element_spec.info.mask == tf.TensorSpec((8, None), tf.bool)
        sample = next(dataset.as_numpy_iterator())
    expected = [trajectory_columns(steps.steps) for steps in EPISODES]
    indices = sample.data.observation[:, 0, 0].astype(int) // 100
    longest = max(LENGTHS[index] for index in indices)
    for item, index in enumerate(indices):
        length = LENGTHS[index]
        assert sample.info.mask[item].tolist() == [step < length for step in range(longest)]
        got = tree.map_structure(lambda leaf, i=item: leaf[i], sample.data)
        assert_equal_nests(tree.map_structure(lambda leaf, n=length: leaf[:n], got), expected[index])
        assert all(leaf.shape[0] == longest and not leaf[length:].any() for leaf in tree.flatten(got))


@pytest.mark.parametrize("layout", mark_slow_except(["columns"], ["columns", "packed"]))
def test_transitions_have_no_time_axis(layout):
    adder = Transitions()
    with ReplayServer([CONFIG], make_signature(adder, SOURCE, layout, squeeze=True)) as server:
        ingest(SOURCE, server.address, "items", adder=adder, layout=layout)
        sample = next(sample_dataset(server.address, "items", 4).as_numpy_iterator())
    rows = trajectory_columns(SOURCE.first_episode.steps)
    positions = sample.data.observation["state"][:, 0].astype(int) - 10
    assert_equal_nests(sample.data, tree.map_structure(lambda column: column[positions], rows))
    assert sample.info.mask == ()


def test_non_time_axes_of_varying_size_are_padded_without_a_mask():
    with ReplayServer([CONFIG], tf.TensorSpec((2, None), tf.float32)) as server:
        with server.client.trajectory_writer(2) as writer:
            for _ in range(2):
                writer.append(np.ones(3, np.float32))
            writer.create_item("items", 1.0, writer.history[-2:])
            writer.flush(0, timeout_ms=5000)
        sample = next(sample_dataset(server.address, "items", 4).as_numpy_iterator())
    assert sample.data.shape == (4, 2, 3) and sample.info.mask == ()


def test_to_experience_matches_tf_agents_transition():
    with ReplayServer([CONFIG], SIGNATURE) as server:
        ingest(SOURCE, server.address, "items")
        dataset = sample_dataset(server.address, "items", 16).map(to_experience)
        to_transition = tf_agents_as_transition(dataset.element_spec[0])
        experience, info = next(iter(dataset))
        assert isinstance(experience, trajectory.Trajectory) and isinstance(info, SampleInfo)
        transition = to_transition(experience)
    position = experience.observation["state"][:, 0, 0]
    np.testing.assert_array_equal(transition.time_step.observation["state"][:, 0], position)
    np.testing.assert_array_equal(transition.next_time_step.observation["state"][:, 0], position + 1)
    np.testing.assert_array_equal(transition.next_time_step.reward, position + 90)
    assert info.weight.shape == transition.next_time_step.reward.shape


def tf_agents_as_transition(spec):
    from tf_agents.agents import data_converter
    from tf_agents.trajectories import time_step

    step = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[2:], leaf.dtype), spec)
    steps = time_step.TimeStep(step.step_type, step.reward, step.discount, step.observation)
    context = data_converter.DataContext(steps, step.action, info_spec=())
    return data_converter.AsTransition(context, squeeze_time_dim=True)


# --- weights


def test_weights_are_relative_to_the_batch_and_follow_the_schedule():
    def choose(batch):  # AutoGraph converts functions of users.
        if batch < 1:
            return 0.25
        return 0.75

    with serve_numbers({value: 1.0 + value for value in range(20)}, alpha=0.6) as servers:
        batches = list(sample_dataset(servers[0].address, "items", 64, beta=LinearSchedule(0.0, 1.0, 4)).take(6))
        batches += sample_dataset(servers[0].address, "items", 64, beta=0.5).take(1)
        batches += sample_dataset(servers[0].address, "items", 64, beta=choose).take(2)
    for beta, batch in zip([0, 0.25, 0.5, 0.75, 1, 1, 0.5, 0.25, 0.75], batches, strict=True):
        info = tree.map_structure(np.asarray, batch.info)
        chances = (1.0 + np.arange(20)) ** 0.6
        np.testing.assert_allclose(info.probability, (info.priority**0.6) / chances.sum(), rtol=1e-9)
        expected = (1 / (20 * info.probability)) ** beta
        np.testing.assert_allclose(info.weight, expected / expected.max(), rtol=1e-6)
        assert info.weight.dtype == np.float32 and not info.server.any() and info.server.dtype == np.int32


@pytest.mark.parametrize("kind", mark_slow_except({"variable"}, ["number", "variable", "function"]))
def test_weights_are_relative_to_the_table_with_min_priority(kind):
    variable = tf.Variable(0.5, dtype=tf.float64)
    min_priority = {"number": 0.5, "variable": variable, "function": lambda: variable + 0.0}[kind]
    with serve_numbers({0: 0.5, **dict.fromkeys(range(1, 10), 100.0)}, alpha=0.8) as servers:
        sample = next(iter(sample_dataset(servers[0].address, "items", 8, beta=1.0, min_priority=min_priority)))
    expected = (0.5 / sample.info.priority.numpy()) ** 0.8
    np.testing.assert_allclose(sample.info.weight, expected, rtol=1e-6)


@pytest.mark.parametrize("selector", ["uniform", "fifo"])
def test_weights_are_one_without_priorities(selector):
    with ReplayServer([TableConfig("items", Selector(selector))], NUMBER) as server:
        write_numbers(server.client, dict.fromkeys(range(10), 1.0))
        sample = next(iter(sample_dataset(server.address, "items", 8, num_workers=1)))
        if selector == "fifo":
            with pytest.raises(ValueError, match="min_priority has no effect on table 'items', .* leave it out"):
                sample_dataset(server.address, "items", 8, min_priority=1.0)
    assert sample.info.weight.numpy().tolist() == [1] * 8


# --- frequencies


@pytest.mark.parametrize("alpha", mark_slow_except([1.0], [0.0, 0.6, 1.0, 2.0]))
def test_sampling_frequencies_match_the_priorities(alpha):
    priorities = {value: 0.5 + value % 7 for value in range(30)}
    with serve_numbers(priorities, alpha=alpha) as servers:
        for _ in range(2):
            sample = sample_batches(servers, 50)
            powers = np.array([priorities[value] for value in range(30)]) ** alpha
            counts = np.bincount(sample.data.astype(int), minlength=30)
            expected = powers / powers.sum() * counts.sum()
            assert counts.sum() == 50_000 and chi_square_p_value(counts, expected, len(counts) - 1) > 1e-6
            np.testing.assert_allclose(sample.info.probability, (powers / powers.sum())[sample.data.astype(int)])
            # The second round uses different priorities.
            keys = dict(zip(sample.data.astype(int).tolist(), sample.info.key.tolist(), strict=True))
            priorities = {value: 7.0 - priority for value, priority in priorities.items()}
            servers[0].client.mutate_priorities("items", {keys[value]: priorities[value] for value in keys})


def test_items_with_priority_zero_are_never_sampled():
    with serve_numbers({value: float(value % 2) for value in range(20)}) as servers:
        values = sample_batches(servers, 20).data.astype(int)
    assert set(values) == set(range(1, 20, 2))


# --- several servers


@pytest.mark.slow
@pytest.mark.parametrize("alphas", [(0.3, 1.0), (0.7, 0.7), (None, 0.7)])
def test_weighted_samples_of_shards_represent_their_union(alphas):
    tables = ({value: 1.0 + value for value in range(30)}, {value: 31.0 - value % 3 for value in range(30, 40)})
    with serve_numbers(*tables, alpha=alphas) as servers:
        sample = sample_batches(servers, 140, beta=1.0)
    info, values = sample.info, sample.data.astype(int)
    assert [set(values[info.server == k]) for k in (0, 1)] == [set(table) for table in tables]
    mass, times, complete = np.zeros(40), np.zeros(40), 0
    for begin in range(0, 140_000, 1000):
        batch = slice(begin, begin + 1000)
        counts = np.bincount(info.server[batch], minlength=2)
        probabilities = info.probability[batch] * counts[info.server[batch]] / 1000
        np.testing.assert_allclose(info.weight[batch], probabilities.min() / probabilities, rtol=1e-6)
        if counts.all():  # Otherwise the batch represents only one of the tables.
            complete += 1
            mass += np.bincount(values[batch], 1 / (1000 * probabilities), minlength=40)
            times += np.bincount(values[batch], minlength=40)
    assert complete >= 100
    # All 40 items have the same total weight, whatever their shard, up to the sampling error of their counts.
    assert chi_square_p_value(1 + (mass / complete - 1) * np.sqrt(times), np.ones(40), 40) > 1e-6


@pytest.mark.parametrize("alphas", [(None, 0.8), pytest.param((0.5, 0.8), marks=pytest.mark.slow)])
def test_min_priority_weights_use_the_exponent_of_each_server(alphas):
    table = {0: 0.5, **dict.fromkeys(range(1, 10), 100.0)}
    with serve_numbers(table, table, alpha=alphas) as servers:
        info = sample_batches(servers, 1, 64, beta=1.0, min_priority=0.5).info
    exponents = np.array([alpha or 0.0 for alpha in alphas])
    lowest = 0.5**exponents / (0.5**exponents + 9 * 100.0**exponents)
    fractions = np.bincount(info.server, minlength=2) / 64
    probabilities = info.probability * fractions[info.server]
    np.testing.assert_allclose(info.weight, (fractions * lowest)[fractions > 0].min() / probabilities, rtol=1e-6)


def test_weights_are_one_when_all_shards_have_a_fixed_order():
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(ReplayServer([TableConfig("items", Selector(kind))], NUMBER))
            for kind in ("fifo", "max_heap")
        ]
        for server in servers:
            write_numbers(server.client, {1: 1.0, 2: 3.0})
        info = sample_batches(servers, 10, 8).info
    assert set(info.server) == {0, 1} and set(info.weight) == {1}


@pytest.mark.parametrize("alpha", mark_slow_except([1.0], [1.0, None]))
def test_several_servers_are_sampled_like_one_table(alpha):
    tables = [{1: 1.0, 2: 3.0}, {3: 2.0}, {4: 6.0, 5: 4.0, 6: 0.5, 7: 0.5}]
    priorities = np.array([priority for table in tables for priority in table.values()])
    expected = 19_200 * priorities / priorities.sum() if alpha else np.full(7, 19_200 / 7)

    def measure(servers):
        counts = np.bincount(sample_batches(servers, 200, 96).data.astype(int), minlength=8)[1:]
        parts = zip(np.split(counts, [2, 3]), np.split(expected, [2, 3]), strict=True)
        within = np.concatenate([found.sum() * part / part.sum() for found, part in parts])
        assert chi_square_p_value(counts, within, 4) > 1e-4  # Within a server, always.
        return chi_square_p_value(counts, expected, 6)

    with serve_numbers(*tables, alpha=alpha) as servers:
        # The others take over the share of a server that gets no processor for a while.
        assert any(measure(servers) > 1e-4 for _ in range(3))


def test_sharded_server_is_sampled_by_its_addresses():
    with ShardedReplayServer([TableConfig("items", Selector("uniform"))], NUMBER, num_shards=2) as server:
        for number, shard in enumerate(server.servers):
            write_numbers(shard.client, {10 + number: 1.0})
        for servers in (server, server.address, [shard.address for shard in server.servers]):
            # The first batches come from one server alone if the other starts late.
            numbers = set()
            for sample in sample_dataset(servers, "items", 64).take(10_000):
                numbers.update(sample.data.numpy())
                if len(numbers) == 2:
                    break
            assert numbers == {10, 11}


@pytest.mark.parametrize(
    ("batch_size", "num_servers", "num_blocks"),
    [(256, 1, 1), (256, 2, 8), (256, 3, 16), (96, 3, 12), (7, 2, 7), (4, 4, 4), (10, 4, 10)],
)
def test_blocks_divide_the_batch_and_cover_all_servers(batch_size, num_servers, num_blocks):
    assert choose_num_blocks(batch_size, num_servers) == num_blocks


# --- tables without samples


def keep_blocks(servers, tables, exponents):
    """Returns the servers of the blocks that are kept; a table is the priority and the number of its items."""
    balance = ServerBalance(exponents)
    kept = [server for server in servers if balance.keep(server, 1 / tables[server][1], tables[server][0])]
    return np.array(kept)


@pytest.mark.parametrize(("exponents", "share"), [((0.5, 0.5), 0.5), ((1.0, 1.0), 0.8), ((2.0, 0.5), 64 / 65)])
def test_shards_contribute_in_proportion_to_the_powers_of_their_priorities(exponents, share):
    """The sums are 4 * 16^alpha and 16 * 1^alpha."""
    kept = keep_blocks([0, 1] * 2000, [(16, 4), (1, 16)], exponents)
    assert np.mean(kept[-1000:] == 0) == pytest.approx(share, abs=0.01)


def test_remaining_server_contributes_alone_after_a_loss_until_the_other_is_back():
    """Server 1 has a share of 0.1. After server 0 is lost, hardly any of its blocks are dropped any more."""
    kept = keep_blocks([*[0, 1] * 500, *[1] * 2000, *[0, 1] * 1500], [(9, 1), (1, 1)], (1.0, 1.0))
    num_before = 500 + round(500 / 9)
    assert kept[num_before : num_before + 1900].mean() > 0.99
    assert kept[-500:].mean() == pytest.approx(0.1, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("min_size", [1, 1000])
@pytest.mark.drill("F17")
def test_table_without_samples_raises_after_the_timeout(min_size):
    config = TableConfig("items", Selector("uniform"), rate_limiter=RateLimiter("min_size", min_size))
    with ReplayServer([config], SIGNATURE) as server:
        if min_size > 1:
            ingest(SOURCE, server.address, "items")
        stored = 29 if min_size > 1 else 0
        message = (
            f"waited 3 s for a sample of table 'items' at .*: it has {stored} items, .* waits for {min_size} items"
        )
        with pytest.raises(ServerUnavailableError, match=message):
            next(iter(sample_dataset(server.address, "items", 8, timeout_secs=3)))


@pytest.mark.parametrize("layout", ["columns", pytest.param("packed", marks=pytest.mark.slow)])
@pytest.mark.drill("F17")
def test_empty_queue_does_not_hang(layout):
    queue = TableConfig("items", Selector("fifo"), Selector("fifo"), max_times_sampled=1)
    with ReplayServer([queue], make_signature(TrajectoryWindows(), SOURCE, layout)) as server:
        ingest(SOURCE, server.address, "items", layout=layout)
        samples = sample_dataset(server.address, "items", 1, max_in_flight=1, num_workers=1, timeout_secs=3)
        got = [float(sample.data.observation["state"][0, 0, 0]) for sample in samples.take(29)]
        assert got == [10.0 + at for at in range(29)]


@pytest.mark.slow
def test_empty_shard_is_reported_and_sampling_continues():
    reports = []
    with serve_numbers({1: 1.0}, {}) as servers:
        samples = iter(
            sample_dataset(
                addresses(servers),
                "items",
                2,
                timeout_secs=3.0,
                on_server_lost=lambda *report: reports.append(report),
                beta=1.0,
            )
        )
        while not reports:
            threading.Event().wait(0.02)  # Reading without pauses would keep a core busy.
            info = next(samples).info
            assert not info.server.numpy().any() and info.weight.numpy().tolist() == [1, 1]
        ((address, reason),) = reports
        assert address == servers[1].address and "it has 0 items" in reason and "waits for 1 items" in reason
        write_numbers(servers[1].client, {2: 1.0})
        while not next(samples).info.server.numpy().any():
            pass


# --- lifetime


@pytest.fixture(scope="module")
def number_server():
    """Provides a server whose table holds the number 1."""
    with ReplayServer([CONFIG], NUMBER) as server:
        write_numbers(server.client, {1: 1.0})
        yield server
        gc.collect()  # An iterator that outlives its server blocks until its timeout when it is deleted.


def find_graphs():
    gc.collect()
    return weakref.WeakSet(found for found in gc.get_objects() if isinstance(found, FuncGraph))


@pytest.mark.slow
@pytest.mark.parametrize("make", ["samples", "trajectories"])
def test_graphs_are_released_with_their_dataset(make, number_server):
    def make_dataset():
        if make == "samples":
            return sample_dataset(number_server.address, "items", 2)
        return convert_rlds_to_trajectories(SOURCE.to_rlds())

    make_dataset()
    before = find_graphs()
    for _ in range(3):
        make_dataset()
    assert not find_graphs() - before


def count_threads():
    return sum(thread.name.startswith("sample-") for thread in threading.enumerate())


def wait_until(condition):
    for _ in range(1000):
        if condition():
            return True
        threading.Event().wait(0.01)
    return False


def test_threads_end_with_their_iterator(number_server):
    before = count_threads()
    with sample(number_server, "items", 2) as batches:
        next(batches)
        assert count_threads() == before + 3  # One per worker, and the one that watches them.
    assert wait_until(lambda: count_threads() <= before)
    with pytest.raises(StopIteration):
        next(batches)
    batches = sample(number_server, "items", 2)
    next(batches)
    del batches
    assert wait_until(lambda: count_threads() <= before)
    batches = iter(sample_dataset(number_server, "items", 2))
    next(batches)
    del batches
    gc.collect()
    assert wait_until(lambda: count_threads() <= before)


@pytest.mark.drill("F17")
def test_close_ends_a_consumer_that_waits():
    with ReplayServer([CONFIG], NUMBER) as server:
        batches = sample(server, "items", 2, timeout_secs=60)
        outcome = []
        consumer = threading.Thread(target=lambda: outcome.append(next(batches, "closed")))
        consumer.start()
        batches.close()
        consumer.join(10)
        assert outcome == ["closed"]


def test_samples_are_not_autotuned(number_server):
    """Closing an autotuned iterator can take a minute, because TensorFlow's thread may miss the signal to end."""
    assert sample_dataset(number_server.address, "items", 2).options().autotune.enabled is False


# --- invalid arguments


def test_invalid_tables_and_counts_raise():
    with ReplayServer([CONFIG], None) as server:
        with pytest.raises(ValueError, match="the server has no table 'other'; it has items"):
            sample_dataset(server.address, "other", 8)
        with pytest.raises(ValueError, match="table 'items' has no signature; serve it with one"):
            sample_dataset(server.address, "items", 8)
        for name in ("batch_size", "max_in_flight", "num_workers", "prefetch"):
            with pytest.raises(ValueError, match=f"{name} must be an integer >= 1, got 0"):
                sample_dataset(server.address, "items", **{"batch_size": 8, name: 0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 1.5}, r"beta must be a number in \[0, 1\] or a schedule .*, got 1\.5"),
        ({"beta": lambda batch: 7.0}, r"beta must return a scalar in \[0, 1\], got 7\.0 for the first batch"),
        ({"min_priority": 0.0}, r"min_priority must be above 0 and at most .*, got 0\.0"),
        ({"timeout_secs": 0}, "timeout_secs must be above 0 and at most one year, got 0"),
    ],
)
def test_out_of_range_arguments_raise_before_any_query(options, message):
    with pytest.raises(ValueError, match=message):
        sample_dataset("localhost:1", "items", 8, **options)


@pytest.mark.drill("F11")
def test_inconsistent_servers_raise(number_server):
    packed = packed_signature(Packing(SIGNATURE, squeeze=False))
    with ReplayServer([CONFIG], tf.TensorSpec((2,), tf.float32)) as other, ReplayServer([CONFIG], packed) as third:
        with pytest.raises(
            SpecMismatchError, match=r"item is float32 \[2\], but table .* at .* expects float32 \[\]; the tables at"
        ):
            sample_dataset([number_server.address, other.address], "items", 8)
        with pytest.raises(SpecMismatchError, match="table 'items' packs its items differently at "):
            sample_dataset([number_server.address, third.address], "items", 8)
    with ReplayServer([TableConfig("others")], NUMBER) as other:
        with pytest.raises(ValueError, match=f"the server at {other.address} has no table 'items'; it has others"):
            sample_dataset([number_server.address, other.address], "items", 8)
    for kind in ("fifo", "lifo", "min_heap", "max_heap"):
        with ReplayServer([TableConfig("items", Selector(kind))], NUMBER) as other:
            message = (
                f"sampled at random at {number_server.address} but in a fixed order at {other.address}, for which no"
            )
            for servers in ([number_server.address, other.address], [other.address, number_server.address]):
                with pytest.raises(ValueError, match=f"table 'items' is {message}"):
                    sample_dataset(servers, "items", 8)
    with pytest.raises(ValueError, match="servers must be at least one, got none"):
        sample_dataset([], "items", 8)
    with pytest.raises(ValueError, match=f"the servers must differ, but {number_server.address} is named twice"):
        sample_dataset([number_server.address, number_server.address], "items", 8)


def test_batch_smaller_than_the_number_of_servers_raises():
    with serve_numbers({1: 1.0}, {2: 1.0}) as servers:
        with pytest.raises(ValueError, match="batch_size must be at least the number of servers, 2, got 1"):
            sample_dataset(addresses(servers), "items", 1)


def test_every_form_of_server_is_accepted_but_paths_raise(number_server):
    for server in (number_server.port, number_server, [reverb.Client(number_server.address)]):
        assert next(iter(sample_dataset(server, "items", 2))).data.numpy().tolist() == [1, 1]
    for path in ("data", Path(number_server.address)):
        with pytest.raises(ValueError, match="server must be HOST:PORT"):
            sample_dataset(path, "items", 2)
