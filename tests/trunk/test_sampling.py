"""Batches of a table, whatever the layout of its items."""

import numpy as np
import pytest
import tree
from oracles import assert_equal_nests, episode

from rlds2reverb.ingestion import ingest
from rlds2reverb.packing import Packing, packed_signature
from rlds2reverb.sampling import sample_dataset
from rlds2reverb.serving import ReplayServer
from rlds2reverb.sources import load
from rlds2reverb.tables import Selector, TableConfig
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


def test_what_cannot_be_sampled_is_refused():
    with ReplayServer([CONFIG], None) as server:
        with pytest.raises(ValueError, match="the server has no table 'other'; it has items"):
            sample_dataset(server.address, "other", 8)
        with pytest.raises(ValueError, match="table 'items' has no signature; serve it with one"):
            sample_dataset(server.address, "items", 8)
        for name in ("batch_size", "max_in_flight", "num_workers"):
            with pytest.raises(ValueError, match=f"{name} is 0, wanted at least 1"):
                sample_dataset(server.address, "items", **{"batch_size": 8, name: 0})
