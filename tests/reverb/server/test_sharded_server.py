"""Tests of `ShardedReplayServer`: its shards together equal one table, and a checkpoint is one commit."""

import warnings

import numpy as np
import pytest
import tree
from reference_impls import episode

from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.errors import CheckpointError, InvalidEpisodeError, ServerUnavailableError
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.reverb.sampling import PriorityWriter, sample_dataset
from rlds2reverb.reverb.server import replay_server
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.server.sharded_server import ShardedReplayServer
from rlds2reverb.types.tables import Selector, TableConfig

EPISODES = [episode(5, terminal=True, start=100.0 * number) for number in range(20)]
SOURCE = load(EPISODES)
SIGNATURE = TrajectoryWindows().item_spec(SOURCE.step_spec)
NUM_ITEMS = 20 * 4
UNIFORM = TableConfig("replay", Selector("uniform"))


def read_items(server):
    """Returns the bytes of the items of a table, which are all different; the streams of some shards may start late."""
    items, num_more = set(), 40
    for sample in sample_dataset(server, "replay", 100).take(10_000).as_numpy_iterator():
        items.update(b"".join(leaf[row].tobytes() for leaf in tree.flatten(sample.data)) for row in range(100))
        num_more -= len(items) >= NUM_ITEMS  # There must not be others.
        if not num_more:
            break
    return items


def count_items(server):
    return [table_infos(shard.client)["replay"].current_size for shard in server.servers]


@pytest.mark.slow
def test_shards_have_the_items_of_one_table():
    with ReplayServer([UNIFORM], SIGNATURE) as one, ShardedReplayServer([UNIFORM], SIGNATURE, num_shards=3) as several:
        expected, got = ingest(SOURCE, one), ingest(SOURCE, several)
        assert (got.episodes, got.items) == (expected.episodes, expected.items) == (20, NUM_ITEMS)
        assert got.table_sizes == {"replay": NUM_ITEMS}
        assert min(count_items(several)) > 0
        items = read_items(several)
        assert len(items) == NUM_ITEMS and items == read_items(one)


def test_items_that_are_sent_again_stay_in_their_shard():
    with ShardedReplayServer([TableConfig()], SIGNATURE, num_shards=3) as server:
        ingest(SOURCE, server)
        before = count_items(server)
        ingest(SOURCE, server.address, resume=False)
        assert count_items(server) == before


def test_invalid_episode_is_found_before_any_shard_is_written():
    invalid = dict(EPISODES[7], reward=np.full(5, np.nan, np.float32))
    with ShardedReplayServer([TableConfig()], SIGNATURE, num_shards=3) as server:
        for index in range(7, 15):  # Some of these are in each shard.
            with pytest.raises(InvalidEpisodeError, match="holds NaN"):
                ingest([*EPISODES[:index], invalid, *EPISODES[index:]], server)
            assert count_items(server) == [0, 0, 0]


@pytest.mark.slow
def test_priorities_go_to_the_server_of_the_item():
    with ShardedReplayServer([TableConfig()], SIGNATURE, num_shards=2) as server:
        ingest(SOURCE, server)
        batches = sample_dataset(server, "replay", 64).take(10_000).as_numpy_iterator()
        batch = next(batch for batch in batches if set(batch.info.server) == {0, 1})  # One shard may start later.
        with PriorityWriter(server, "replay") as writer:
            writer.write(batch.info, np.full(64, 5.0))
        changed = dict(zip(batch.info.key.tolist(), batch.info.server.tolist(), strict=True))
        seen = {}
        batches = sample_dataset(server, "replay", 64, max_in_flight=1, prefetch=1).take(10_000).as_numpy_iterator()
        for number, sample in enumerate(batches, 1):
            info = sample.info
            for key, shard, priority in zip(info.key, info.server, info.priority, strict=True):
                seen[int(key)] = (int(shard), float(priority))
            if number >= 30 and set(changed) <= set(seen):
                break
        del batches  # Without its server it would wait for samples until its timeout.
        for key, shard in changed.items():
            assert seen[key] == (shard, 5.0)
        assert {priority for key, (_, priority) in seen.items() if key not in changed} <= {1.0}


def open_server(root, **options):
    return ShardedReplayServer([TableConfig()], SIGNATURE, num_shards=3, checkpoint_root=root, **options)


def fail_at_shard(monkeypatch, shard):
    """Makes the checkpoint of one shard fail."""
    checkpoint = ReplayServer.checkpoint

    def fail(self, **options):
        if str(self._root.path).endswith(f"shard_{shard}"):
            raise ServerUnavailableError("the server was killed")
        return checkpoint(self, **options)

    monkeypatch.setattr(replay_server.ReplayServer, "checkpoint", fail)


@pytest.mark.slow
def test_checkpoint_restores_all_shards(tmp_path):
    with open_server(tmp_path) as server:
        ingest(SOURCE, server)
        sizes = count_items(server)
        assert server.checkpoint() == tmp_path / "commit.json"
    with open_server(tmp_path) as server:
        assert count_items(server) == sizes


@pytest.mark.slow
@pytest.mark.parametrize("num_failures", [1, 2])
@pytest.mark.drill("F7")
def test_shards_return_to_the_last_commit_after_a_partial_one(tmp_path, monkeypatch, num_failures):
    with open_server(tmp_path) as server:
        ingest(EPISODES[:10], server)
        sizes = count_items(server)
        server.checkpoint()
        ingest(SOURCE, server, resume=False)
        fail_at_shard(monkeypatch, 2)
        for _ in range(num_failures):
            with pytest.raises(ServerUnavailableError):
                server.checkpoint()
        monkeypatch.undo()
    with pytest.warns(RuntimeWarning, match="is not part of the commit, and was moved to"):
        server = open_server(tmp_path)
    with server:
        assert count_items(server) == sizes
        server.checkpoint()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with open_server(tmp_path) as server:
            assert count_items(server) == sizes


def test_checkpoints_without_a_commit_are_set_aside(tmp_path, monkeypatch):
    with open_server(tmp_path) as server:
        ingest(SOURCE, server)
        fail_at_shard(monkeypatch, 1)
        with pytest.raises(ServerUnavailableError):
            server.checkpoint()
        monkeypatch.undo()
    with pytest.warns(RuntimeWarning, match="not part of the commit"):
        server = open_server(tmp_path)
    with server:
        assert count_items(server) == [0, 0, 0]


def damage_newest(root, shard):
    newest = max((root / f"shard_{shard}" / "checkpoints").iterdir())
    path = newest / "items.tfrecord"
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.drill("F8")
def test_damaged_checkpoint_returns_all_shards_to_the_commit_before(tmp_path):
    with open_server(tmp_path) as server:
        ingest(EPISODES[:10], server)
        sizes = count_items(server)
        server.checkpoint()
        ingest(SOURCE, server, resume=False)
        server.checkpoint()
    for shard in (1, 0):
        damage_newest(tmp_path, shard)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            server = open_server(tmp_path)
        messages = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
        assert "items.tfrecord is damaged" in messages[0] and "all shards return to the commit before" in messages[0]
        with server:
            assert count_items(server) == sizes
            server.checkpoint()


def test_single_damaged_commit_is_an_error(tmp_path):
    with open_server(tmp_path) as server:
        ingest(SOURCE, server)
        server.checkpoint()
    damage_newest(tmp_path, 1)
    with pytest.raises(CheckpointError, match="shard_1.*items.tfrecord is damaged"):
        open_server(tmp_path)


def test_different_number_of_shards_raises(tmp_path):
    with open_server(tmp_path) as server:
        ingest(SOURCE, server)
        server.checkpoint()
    with pytest.raises(CheckpointError, match="contains the checkpoints of 3 shards, but 2 were requested"):
        ShardedReplayServer([TableConfig()], SIGNATURE, num_shards=2, checkpoint_root=tmp_path)


def test_damaged_commit_file_raises(tmp_path):
    with open_server(tmp_path) as server:
        server.checkpoint()
    (tmp_path / "commit.json").write_text("{}")
    with pytest.raises(CheckpointError, match="commit.json is damaged; restore it from a copy"):
        open_server(tmp_path)


def test_converted_shards_are_served(tmp_path):
    ingest(SOURCE, [tmp_path / f"shard_{shard}" for shard in range(2)])
    with pytest.raises(CheckpointError, match=r"different arguments: shard was \[0, 2\], is now \[0, 3\]"):
        ingest(SOURCE, [tmp_path / f"shard_{shard}" for shard in range(3)])
    with ShardedReplayServer(directory=tmp_path) as server:
        assert sum(count_items(server)) == NUM_ITEMS and len(count_items(server)) == 2
    with pytest.raises(CheckpointError, match="has no shard_0"):
        ShardedReplayServer(directory=tmp_path / "shard_0")


def test_ports_are_consecutive(unused_ports):
    with ShardedReplayServer([TableConfig()], num_shards=2, port=unused_ports) as server:
        assert server.address == f"localhost:{unused_ports},localhost:{unused_ports + 1}"


@pytest.fixture
def unused_ports():
    import portpicker

    while True:
        port = portpicker.pick_unused_port()
        if portpicker.is_port_free(port + 1):
            return port


@pytest.mark.parametrize("destination", [[], ()])
def test_empty_list_of_destinations_raises(destination):
    with pytest.raises(ValueError, match="got an empty list"):
        ingest(SOURCE, destination)


def test_checkpoint_without_a_root_raises():
    with ShardedReplayServer([TableConfig()], num_shards=2) as server:
        assert not server.has_checkpoints
        with pytest.raises(ValueError, match="pass checkpoint_root=DIRECTORY"):
            server.checkpoint()
