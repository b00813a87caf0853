"""Tests that functions of a server accept a `ReplayServer`, an address, a port or a client."""

import gc
from pathlib import Path

import numpy as np
import pytest
import reverb
from numbers_served import serve_numbers
from reference_impls import episode, rlds_dataset
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb import PriorityWriter, ReplayServer, TableConfig, TrajectoryWindows, ingest, load, sample_dataset
from rlds2reverb.reverb.client import Connection, find_address, find_addresses, table_infos
from rlds2reverb.rlds_to_reverb import push_rlds_to_reverb
from rlds2reverb.types.tables import item_signature
from rlds2reverb.types.trajectories import trajectory_spec

SOURCE = load([episode(4, terminal=True)])


@pytest.fixture(scope="module")
def server():
    spec = TrajectoryWindows(2).item_spec(SOURCE.step_spec)
    with ReplayServer([TableConfig("replay")], spec) as server:
        yield server
        gc.collect()  # An iterator that outlives its server blocks until its timeout when it is deleted.


def count_items(server):
    return table_infos(server.client)["replay"].current_size


def test_find_address_accepts_every_kind_of_server(server):
    for kind in (server, server.client, server.address, server.port):
        assert find_address(kind) == server.address
    assert find_addresses([server, "localhost:1"]) == [server.address, "localhost:1"]
    with pytest.raises(ValueError, match=f"the servers must differ, but {server.address} is named twice"):
        find_addresses([server, server.address])
    assert find_addresses(server) == [server.address]
    stock = reverb.Server([reverb.Table.queue("q", 1)], port=None)
    assert find_address(stock) == f"localhost:{stock.port}"
    stock.stop()
    with pytest.raises(
        TypeError, match="server must be 'HOST:PORT', a port, a ReplayServer or a reverb.Client, got a float"
    ):
        find_address(1.5)
    for path in ("data", "8000", Path("localhost:8000")):
        with pytest.raises(ValueError, match="server must be HOST:PORT"):
            find_address(path)


def test_ingest_and_sample_dataset_accept_a_replay_server(server):
    assert ingest(SOURCE, server, "replay", adder=TrajectoryWindows(2)).items == count_items(server) == 3
    batch = next(iter(sample_dataset(server, "replay", batch_size=4)))
    assert batch.data.observation.shape[:2] == (4, 2)
    assert next(iter(sample_dataset([server], "replay", batch_size=4))).info.weight.shape == (4,)


def test_priority_writer_accepts_replay_servers():
    with serve_numbers({1: 1.0}, {2: 1.0}) as servers:
        batch = next(iter(sample_dataset(servers, "items", 8)))
        PriorityWriter(servers, "items").write(batch.info, np.full(8, 5.0))
        for number in range(2):
            if number in batch.info.server.numpy():
                sample = next(iter(servers[number].client.sample("items", emit_timesteps=False)))
                assert sample.info.priority == 5.0


def test_reset_removes_all_items_of_one_table():
    with serve_numbers({1: 1.0}) as (server,):
        with Connection(server) as connection:
            connection.reset("items", timeout_secs=10)
        assert table_infos(server)["items"].current_size == 0


@pytest.mark.parametrize("fast", [False, True])
def test_push_accepts_a_replay_server(fast):
    dataset = rlds_dataset([episode(4, terminal=True)])
    signature = item_signature(trajectory_spec(SOURCE.step_spec), 2)
    with ReplayServer([TableConfig("replay")], signature) as server:
        observer = reverb_utils.ReverbAddTrajectoryObserver(server.client, "replay", sequence_length=2)
        assert push_rlds_to_reverb(dataset, observer, fast=fast) == 4
        observer.close()
        assert count_items(server) == 3
