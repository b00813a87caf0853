"""A `ReplayServer` stands wherever an address may."""

import numpy as np
import pytest
import reverb
from numbers_served import numbers
from reference_impls import episode, rlds_dataset
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb import PriorityWriter, ReplayServer, TableConfig, TrajectoryWindows, ingest, load, sample_dataset
from rlds2reverb._server.clients import connect, connect_all, table_infos
from rlds2reverb.rlds_to_reverb import push_rlds_to_reverb
from rlds2reverb.tables import item_signature
from rlds2reverb.trajectories import trajectory_spec

SOURCE = load([episode(4, terminal=True)])


@pytest.fixture(scope="module")
def server():
    spec = TrajectoryWindows(2).item_spec(SOURCE.step_spec)
    with ReplayServer([TableConfig("replay")], spec) as server:
        yield server


def size(server):
    return table_infos(server.client)["replay"].current_size


def test_every_kind_of_server_gives_a_client_of_the_same_server(server):
    for given in (server, server.client, server.address, server.port, str(server.port)):
        assert connect(given).server_address == server.address
    assert [client.server_address for client in connect_all([server, server.address])] == [server.address] * 2
    assert [client.server_address for client in connect_all(server)] == [server.address]
    stock = reverb.Server([reverb.Table.queue("q", 1)], port=None)
    assert connect(stock).server_address.endswith(f":{stock.port}")
    stock.stop()
    with pytest.raises(TypeError, match="server is a float, expected 'host:port', a port, a ReplayServer or a Client"):
        connect(1.5)


def test_ingest_and_sample_dataset_take_a_replay_server(server):
    assert ingest(SOURCE, server, "replay", adder=TrajectoryWindows(2)).items == size(server) == 3
    batch = next(iter(sample_dataset(server, "replay", batch_size=4)))
    assert batch.data.observation.shape[:2] == (4, 2)
    assert next(iter(sample_dataset([server], "replay", batch_size=4))).info.weight.shape == (4,)


def test_a_priority_writer_takes_replay_servers():
    with numbers({1: 1.0}, {2: 1.0}) as servers:
        batch = next(iter(sample_dataset(servers, "items", 8)))
        PriorityWriter(servers, "items").write(batch.info, np.full(8, 5.0))
        for number in range(2):
            if number in batch.info.server.numpy():
                sample = next(iter(servers[number].client.sample("items", emit_timesteps=False)))
                assert sample.info.priority == 5.0


@pytest.mark.parametrize("fast", [False, True])
def test_push_writes_to_a_replay_server(fast):
    dataset = rlds_dataset([episode(4, terminal=True)])
    signature = item_signature(trajectory_spec(SOURCE.step_spec), 2)
    with ReplayServer([TableConfig("replay")], signature) as server:
        observer = reverb_utils.ReverbAddTrajectoryObserver(server.client, "replay", sequence_length=2)
        assert push_rlds_to_reverb(dataset, observer, fast=fast) == 4
        observer.close()
        assert size(server) == 3
