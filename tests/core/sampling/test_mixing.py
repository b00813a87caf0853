"""Exact shares of several tables in every batch, and the way back of their priorities."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from numbers_served import NUMBER, addresses, numbers, put
from reference_impls import episode

from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.ingestion import ingest
from rlds2reverb.sampling import PriorityWriter, mixed_dataset, sample_dataset
from rlds2reverb.sampling.mixing import shared_out
from rlds2reverb.sources import load
from rlds2reverb.tables import Selector, TableConfig
from rlds2reverb.trajectory_items import TrajectoryEpisodes

OWN, EXPERT = {1: 1.0, 2: 3.0}, {11: 2.0, 12: 2.0, 13: 4.0}
HALVES = {"own": 0.5, "expert": 0.5}


@pytest.fixture(scope="module")
def served():
    """Numbers below 10 and numbers from 10, each with a server."""
    with numbers(OWN, EXPERT) as servers:
        yield servers


def sampled(server, **options):
    return partial(sample_dataset, server, "items", max_in_flight=8, num_workers=1, **options)


def parts_of(servers, **options):
    return {name: sampled(server.address, **options) for name, server in zip(("own", "expert"), servers, strict=True)}


@pytest.mark.parametrize(
    ("shares", "of_expert"), [((0.5, 0.5), 8), ((0.25, 0.75), 12), ((0.9, 0.1), 2), ((1 / 3, 2 / 3), 11)]
)
def test_every_batch_has_the_same_counts(served, shares, of_expert):
    shares = dict(zip(("own", "expert"), shares, strict=True))
    for sample in mixed_dataset(parts_of(served), 16, shares=shares).take(40).as_numpy_iterator():
        assert sample.info.part.tolist() == [0] * of_expert + [1] * (16 - of_expert)  # 'expert' comes before 'own'
        assert ((sample.data > 10) == (sample.info.part == 0)).all() and not sample.info.server.any()


def test_weights_are_relative_to_the_own_part(served):
    tables = [EXPERT, OWN]
    for sample in mixed_dataset(parts_of(served, beta=1.0), 32, shares=HALVES).take(20).as_numpy_iterator():
        for part, table in enumerate(tables):
            own = sample.info.part == part
            priorities = np.array([table[value] for value in sample.data[own].astype(int)])
            np.testing.assert_allclose(sample.info.probability[own], priorities / sum(table.values()))
            np.testing.assert_allclose(sample.info.weight[own], priorities.min() / priorities, rtol=1e-6)


def test_priorities_go_back_to_the_server_of_the_part():
    with numbers({1: 1.0}, {2: 1.0}, {3: 1.0}) as servers:
        own, *experts = addresses(servers)
        parts = {"own": sampled(own), "expert": sampled(experts)}
        where = {"own": own, "expert": experts}
        seen = set()
        with PriorityWriter(where, "items") as priorities:
            for sample in mixed_dataset(parts, 16, shares=HALVES).as_numpy_iterator():
                priorities.write(sample.info, sample.data * 10)
                seen |= set(sample.data.tolist())
                if len(seen) == 3:
                    break
        for server, value in zip(servers, (1, 2, 3), strict=True):
            sample = next(iter(sample_dataset(server.address, "items", 1)))
            assert (float(sample.data), float(sample.info.priority)) == (value, 10 * value)


def test_two_tables_of_one_server_are_mixed_and_get_their_priorities():
    configs = [TableConfig(name, Selector("prioritized", 1.0)) for name in ("items", "others")]
    with ReplayServer(configs, NUMBER) as server:
        put(server.client, {1: 1.0})
        with server.client.trajectory_writer(1) as writer:
            writer.append(np.float32(2))
            writer.create_item("others", 1.0, writer.history[-1])
        parts = {"a": sampled(server), "b": partial(sample_dataset, server, "others")}
        sample = next(iter(mixed_dataset(parts, 4, shares={"a": 0.5, "b": 0.5})))
        assert sample.data.numpy().tolist() == [1, 1, 2, 2]
        with PriorityWriter({"b": server, "a": server}, {"a": "items", "b": "others"}) as priorities:
            priorities.write(sample.info, [5, 5, 7, 7])
        for table, priority in (("items", 5), ("others", 7)):
            info = next(iter(sample_dataset(server, table, 1))).info
            assert info.priority.numpy().tolist() == [priority]


def test_episodes_of_varying_length_are_padded_to_the_longest_of_the_batch():
    sources = [load([episode(length, terminal=True)]) for length in (3, 5)]
    signature = TrajectoryEpisodes().item_spec(sources[0].step_spec)
    config = TableConfig("items", Selector("uniform"))
    with ReplayServer([config], signature) as first, ReplayServer([config], signature) as second:
        for source, server in zip(sources, (first, second), strict=True):
            ingest(source, server, "items", adder=TrajectoryEpisodes())
        parts = {"a": sampled(first), "b": sampled(second)}
        sample = next(iter(mixed_dataset(parts, 4, shares={"a": 0.5, "b": 0.5})))
    lengths = sample.info.mask.numpy().sum(1)
    assert lengths[0] == lengths[1] < lengths[2] == lengths[3] == sample.data.reward.shape[1]


def test_the_error_of_one_part_reaches_the_caller_who_may_leave_at_any_time(served):
    with numbers({}) as (empty,):
        parts = {"own": sampled(served[0].address), "expert": sampled(empty.address, timeout_secs=0.5)}
        batches = iter(mixed_dataset(parts, 4, shares=HALVES))
        with pytest.raises(tf.errors.OpError, match=r"waited 0\.5 s for a sample of table 'items' at .* has 0 items"):
            next(batches)
        waiting = iter(mixed_dataset(parts, 4, shares=HALVES))
        del waiting, batches


def test_parts_of_other_items_are_refused(served):
    with ReplayServer([TableConfig("items")], tf.TensorSpec((2,), tf.float64)) as other:
        parts = {"own": sampled(served[0].address), "expert": sampled(other.address)}
        told = (
            r"an item of part 'expert' is float64 \[2\], but part 'own' expects float32 \[\]; mix parts of like items"
        )
        with pytest.raises(SpecMismatchError, match=told):
            mixed_dataset(parts, 4, shares=HALVES)


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ({"own": 0.5, "expert": 0.4}, r"the shares .* add up to 0\.9, expected 1"),
        ({"own": 1.5, "expert": -0.5}, r"the share of part 'own' is 1\.5, expected a number in \[0, 1\]"),
        ({"own": float("nan"), "expert": 0.5}, "the share of part 'own' is nan"),
        ({"own": 1.0, "expert": 0.0}, "the share of part 'expert' is 0, expected a number above 0; leave the part out"),
        ({"own": 1.0}, "there are shares of 'own' and parts 'expert', 'own'; expected one share for each part"),
        ({"own": 0.95, "expert": 0.05}, r"a share of 0\.05 gives part 'expert' none of 8 items; give it more"),
    ],
)
def test_bad_shares_are_refused_before_anything_is_asked(shares, told):
    nobody = {"own": sampled("localhost:1"), "expert": sampled("localhost:1")}
    with pytest.raises(ValueError, match=told):
        mixed_dataset(nobody, 8, shares=shares)


def test_what_is_no_part_is_refused(served):
    with pytest.raises(ValueError, match="there are shares of none and parts none"):
        mixed_dataset({}, 8, shares={})
    for name in ("batch_size", "prefetch"):
        with pytest.raises(ValueError, match=f"{name} is 0, expected an integer from 1"):
            mixed_dataset({"own": sampled("localhost:1")}, **{"batch_size": 8, name: 0}, shares={"own": 1.0})
    made = tf.data.Dataset.range(3)
    with pytest.raises(TypeError, match="part 'own' is a .*Dataset, expected a function of the number of its items"):
        mixed_dataset({"own": made}, 8, shares={"own": 1.0})
    with pytest.raises(TypeError, match="part 'own' gives TensorSpec.*, expected batches as sample_dataset gives them"):
        mixed_dataset({"own": lambda size: made}, 8, shares={"own": 1.0})


def test_a_batch_and_a_writer_that_do_not_fit_are_refused(served):
    own, expert = addresses(served)
    mixed = next(iter(mixed_dataset(parts_of(served), 2, shares=HALVES))).info
    plain = next(iter(sample_dataset(own, "items", 2))).info
    with pytest.raises(ValueError, match="the batch was mixed, expected a dict of the parts' servers in PriorityWrit"):
        PriorityWriter([own, expert], "items").write(mixed, [1.0, 1.0])
    with pytest.raises(ValueError, match="the batch has no parts, expected no dict in PriorityWriter"):
        PriorityWriter({"own": own, "expert": expert}, "items").write(plain, [1.0, 1.0])
    with pytest.raises(ValueError, match="the batch has items of part 1, there are 1; give the servers of each part"):
        PriorityWriter({"own": own}, "items").write(mixed, [1.0, 1.0])
    with pytest.raises(ValueError, match=r"there are tables of \['own'\] and servers of \['expert', 'own'\]; expected"):
        PriorityWriter({"own": own, "expert": expert}, {"own": "items"})


@pytest.mark.parametrize(
    ("size", "shares", "counts"),
    [
        (5, (0.5, 0.3, 0.2), [3, 1, 1]),  # 2.5, 1.5, 1.0: equal remainders, the first one counts
        (10, (0.29, 0.71), [3, 7]),
        (100, (0.29, 0.71), [29, 71]),  # 0.29 * 100 is 28.999999999999996
        (256, (1 / 3, 1 / 3, 1 / 3), [86, 85, 85]),
        (3, (1.0,), [3]),
    ],
)
def test_counts_are_those_of_the_largest_remainders(size, shares, counts):
    assert list(shared_out(size, dict(zip("abc", shares, strict=False))).values()) == counts
