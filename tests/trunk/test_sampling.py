"""Batches of a table, whatever the layout of its items."""

import numpy as np
import pytest
import tensorflow as tf
import tree
from oracles import assert_equal_nests, episode

from rlds2reverb.ingestion import ingest
from rlds2reverb.packing import Packing, packed_signature
from rlds2reverb.sampling import sample_dataset
from rlds2reverb.serving import ReplayServer
from rlds2reverb.sources import load
from rlds2reverb.tables import RateLimiter, Selector, TableConfig
from rlds2reverb.trajectories import trajectory_columns
from rlds2reverb.windows import Windows

SOURCE = load([episode(30, terminal=True, nested=True)])
SIGNATURE = Windows().item_spec(SOURCE.step_spec)
CONFIG = TableConfig("items", Selector("uniform"))


@pytest.mark.parametrize("layout", ["columns", "packed"])
def test_a_batch_is_the_same_nest_in_both_layouts(layout):
    packed = packed_signature(Packing(SIGNATURE, squeeze=False))
    with ReplayServer([CONFIG], packed if layout == "packed" else SIGNATURE) as server:
        ingest(SOURCE, server.address, "items", layout=layout)
        sample = next(iter(sample_dataset(server.address, "items", 8, max_in_flight=8).as_numpy_iterator()))
    assert sample.info.key.shape == (8,) and np.all(sample.info.probability == 1 / 29)
    rows = trajectory_columns(SOURCE.first_episode.steps)
    for item in range(8):
        begin = int(sample.data.observation["state"][item, 0, 0]) - 10
        wanted = tree.map_structure(lambda column, b=begin: column[b : b + 2], rows)
        assert_equal_nests(tree.map_structure(lambda column, i=item: column[i], sample.data), wanted)


@pytest.mark.parametrize("min_size", [1, 1000])
def test_a_table_that_gives_nothing_is_told_after_the_time_out(min_size):
    config = TableConfig("items", Selector("uniform"), rate_limiter=RateLimiter("min_size", min_size))
    with ReplayServer([config], SIGNATURE) as server:
        if min_size > 1:
            ingest(SOURCE, server.address, "items")
        stored = 29 if min_size > 1 else 0
        told = f"waited 0.5 s for a sample of table 'items' at .*: it has {stored} items, .* waits for {min_size} items"
        with pytest.raises(tf.errors.OpError, match=told):
            next(iter(sample_dataset(server.address, "items", 8, timeout_secs=0.5)))


@pytest.mark.parametrize("layout", ["columns", "packed"])
def test_a_queue_that_is_empty_does_not_hang(layout):
    packed = packed_signature(Packing(SIGNATURE, squeeze=False))
    queue = TableConfig("items", Selector("fifo"), Selector("fifo"), max_times_sampled=1)
    with ReplayServer([queue], packed if layout == "packed" else SIGNATURE) as server:
        ingest(SOURCE, server.address, "items", layout=layout)
        samples = sample_dataset(server.address, "items", 1, max_in_flight=1, num_workers=1, timeout_secs=0.5)
        assert sum(1 for _ in samples.take(29)) == 29


def test_what_cannot_be_sampled_is_refused():
    with ReplayServer([CONFIG], None) as server:
        with pytest.raises(ValueError, match="the server has no table 'other'; it has items"):
            sample_dataset(server.address, "other", 8)
        with pytest.raises(ValueError, match="table 'items' has no signature; serve it with one"):
            sample_dataset(server.address, "items", 8)
        for name in ("batch_size", "max_in_flight", "num_workers"):
            with pytest.raises(ValueError, match=f"{name} is 0, wanted at least 1"):
                sample_dataset(server.address, "items", **{"batch_size": 8, name: 0})
