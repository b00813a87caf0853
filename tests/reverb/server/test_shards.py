"""Tests of the rule that a directory of shards is used only if all of its shards are there."""

import shutil

import pytest
from reference_impls import episode

from rlds2reverb.datasets import load
from rlds2reverb.errors import ArgumentError, CheckpointError, SourceError
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.server.sharded_server import ShardedReplayServer
from rlds2reverb.reverb.server.shards import find_num_shards, find_shards, find_table_directories
from rlds2reverb.types.tables import TableConfig

EPISODES = [episode(5, terminal=True, start=100.0 * number) for number in range(20)]


def convert(path, num_shards, episodes=EPISODES):
    return ingest(episodes, [path / f"shard_{shard}" for shard in range(num_shards)])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("shards") / "out"
    convert(path, 3)
    return path


@pytest.fixture
def shards(written, tmp_path):
    return shutil.copytree(written, tmp_path / "out")


def test_all_shards_are_found_in_order(shards, tmp_path):
    paths = [shards / f"shard_{shard}" for shard in range(3)]
    assert find_shards(str(shards)) == find_table_directories(shards) == paths and find_num_shards(shards) == 3
    assert find_shards(paths[0]) == find_shards(tmp_path) == find_shards(tmp_path / "none") == []
    assert find_table_directories(paths[0]) == [paths[0]] and find_num_shards(paths[0]) is None


@pytest.mark.parametrize("missing", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)])
def test_missing_shards_raise_until_the_conversion_is_repeated(shards, missing):
    for shard in missing:
        shutil.rmtree(shards / f"shard_{shard}")
    names = ", ".join(f"shard_{shard}" for shard in missing)
    with pytest.raises(
        CheckpointError, match=rf"out is incomplete: {names} of its 3 shards \w+ missing; repeat the con"
    ):
        ShardedReplayServer(directory=shards)
    convert(shards, 3)
    assert len(find_shards(shards)) == 3


def test_interrupted_shards_are_missing(shards):
    for shard in range(3):
        (shards / f"shard_{shard}").rename(shards / f"shard_{shard}.partial")
    with pytest.raises(CheckpointError, match="shard_0, shard_1, shard_2 of its 3 shards are missing"):
        find_shards(shards)


def test_names_of_many_missing_shards_are_shortened(tmp_path):
    (tmp_path / "shard_9.partial").mkdir()
    with pytest.raises(CheckpointError, match="shard_4 and 5 more of its 10 shards"):
        find_shards(tmp_path)


def test_shards_of_different_conversions_raise(shards, tmp_path):
    convert(tmp_path / "other", 2)
    shutil.rmtree(shards / "shard_1")
    shutil.move(tmp_path / "other/shard_1", shards)
    with pytest.raises(CheckpointError, match="shards of different conversions, to 2 and to 3 shards; convert"):
        find_shards(shards)


def test_shards_that_servers_wrote_are_found_without_a_recorded_number(tmp_path):
    for shard in range(2):
        with ReplayServer([TableConfig()], checkpoint_root=tmp_path / f"shard_{shard}") as server:
            server.checkpoint()
    assert find_num_shards(tmp_path) is None and len(find_shards(tmp_path)) == 2


def test_tables_are_not_a_dataset(shards):
    for path in (shards, shards / "shard_0"):
        with pytest.raises(SourceError, match="contains Reverb tables; pass the dataset that they were converted from"):
            load(path)


def test_empty_shard_raises_before_anything_is_written(tmp_path):
    with pytest.raises(ArgumentError, match=r"shard \d+ of 40 would be empty, .* only 20 with steps; use fewer shards"):
        convert(tmp_path / "out", 40)
    without_steps = episode(0, terminal=False)
    with pytest.raises(ArgumentError, match="of 3 would be empty, .* only 1 with steps"):
        convert(tmp_path / "out", 3, [EPISODES[0], *[without_steps] * 20])
    with pytest.raises(SourceError, match="has no episode with steps; there is nothing to convert"):
        convert(tmp_path / "out", 3, [])
    assert not (tmp_path / "out").exists()
