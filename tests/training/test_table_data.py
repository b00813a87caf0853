"""Training from tables that already contain items: servers, directories, and pairs (server, table)."""

import shutil
from contextlib import contextmanager
from itertools import islice

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rlds2reverb import (
    CheckpointError,
    ReplayServer,
    Selector,
    ServerUnavailableError,
    SourceError,
    SpecMismatchError,
    TableConfig,
    TrajectoryWindows,
    ingest,
    packed_signature,
)
from rlds2reverb.adders import NStep
from rlds2reverb.datasets import load
from rlds2reverb.datasets.source import Source
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.reverb.wire.packing import Packing
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.evaluation_environment import resolve_environment
from rlds2reverb.training.sources import find_fingerprint, open_data, open_source
from rlds2reverb.training.table_data import identify_table
from rlds2reverb.types.locations import TableLocation

IQL = TrainingConfig("iql")
TD3_BC = TrainingConfig("td3_bc")
BOUNDS_NOTE = "the action bounds are [-1, 1], which all sampled actions are within; choose the environment or set the bounds (env or action_bounds)"


@pytest.fixture(scope="module")
def source(data):
    few = list(islice(load(data / "d4rl" / "hopper_medium-v2.hdf5"), 3))
    return Source("few", "memory", lambda: iter(few))


@pytest.fixture(scope="module")
def directory(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "out"
    ingest(source, path, TableConfig("replay", sampler=Selector("uniform")), adder=NStep(3, 0.99), layout="packed")
    return path


@pytest.fixture(scope="module")
def server(source):
    """Provides a server with 3-step transitions in the table 'replay', and an empty table."""
    signature = packed_signature(Packing(NStep(3, 0.99).item_spec(source.step_spec), True))
    with ReplayServer([TableConfig("replay"), TableConfig("empty")], signature) as server:
        ingest(source, server, "replay", adder=NStep(3, 0.99), layout="packed")
        yield server


def test_directory_is_served_until_the_data_are_closed(directory, source):
    num_items = sum(episode.num_transitions for episode in source)
    assert open_source(directory) == TableLocation(directory)
    with open_data(str(directory), TD3_BC) as got:
        assert got.name == str(directory) and got.table.table == "replay" and got.owns_server
        assert got.num_transitions == num_items and table_infos(got.table.server.client)["replay"].current_size
        assert got.returns is None and got.data_return is None and got.moments is None
        assert got.time_step_spec.observation.shape == (11,) and got.action_spec.shape == (3,)
        assert got.notes[0] == BOUNDS_NOTE and f"are not normalised, because {directory} has no stat" in got.notes[1]
        address, identity = got.table.server.address, got.identity()
    with pytest.raises(ServerUnavailableError):
        table_infos(address, timeout_secs=0.5)
    with open_data(directory, IQL, action_space=Box(-2, 2, (3,))) as again:
        assert again.fingerprint == identity["data"] and len(again.fingerprint) == 32 and again.notes == ()
        assert again.identity()["action bounds"] == "[-2, 2]"


def test_directory_of_shards_is_served_until_the_data_are_closed(source, tmp_path):
    ingest(source, [tmp_path / "shard_0", tmp_path / "shard_1"], adder=NStep(3, 0.99))
    assert open_source(str(tmp_path)) == TableLocation(str(tmp_path))
    identity = find_fingerprint(tmp_path, TD3_BC)
    with open_data(tmp_path, TD3_BC) as got:
        assert got.num_transitions == sum(episode.num_transitions for episode in source)
        assert got.owns_server and len(got.table.server.servers) == 2 and got.fingerprint == identity
        address = got.table.server.servers[1].address
        with got.open_batches(TrainingConfig("td3_bc", sampler="prioritized")) as batches:
            batches.replay.save_data(tmp_path / "saved")
            batches.replay.load_data(tmp_path / "saved")
    with pytest.raises(ServerUnavailableError):
        table_infos(address, timeout_secs=0.5)
    shutil.rmtree(tmp_path / "shard_0")
    for function in (find_fingerprint, open_data):
        with pytest.raises(CheckpointError, match="shard_0 of its 2 shards is missing"):
            function(tmp_path, TD3_BC)


@pytest.mark.slow
def test_tables_of_servers_are_found(server):
    for location, fingerprint in (
        (server.address, server.address),
        ((server, "replay"), "table 'replay'"),
        (server.client, "table 'replay'"),
    ):
        got = open_data(location, IQL)
        assert got.table.table == "replay" and not got.table.has_trajectories and not got.owns_server
        assert got.fingerprint == fingerprint and got.name == server.address
    assert resolve_environment("auto", open_source(server.address)).make_env is None


def test_table_with_priorities_has_a_warning_for_uniform_sampling(server, source):
    with ReplayServer([TableConfig("other")], TrajectoryWindows(2).item_spec(source.step_spec)) as trajectories:
        ingest(source, trajectories, "other", priority=lambda episode, items: np.arange(len(items)) + 1.0)
        warning = "the table samples items by priority; do the same here for importance weights (sampler='prioritized')"
        got = open_data(trajectories, TrainingConfig("rebrac"))
        assert got.table.has_trajectories and got.table.table == "other" and got.warnings == (warning,)
        assert got.collected_adder == TrajectoryWindows(2)
        assert open_data(trajectories, IQL.replace(sampler="prioritized")).warnings == ()
    got = open_data(server, IQL)
    assert got.warnings == () and got.collected_adder is got.adder


@pytest.mark.parametrize(
    ("config", "table", "space", "message"),
    [
        (TrainingConfig("rebrac"), "replay", None, "are transitions, but rebrac learns from trajectories of two steps"),
        (IQL.replace(gamma=0.9), "replay", None, r"is not a power of 0.9; use that of the conversion \(gamma\)"),
        (TrainingConfig("cal_ql"), "replay", None, r"have no policy_info\['return_to_go'\], from which cal_ql learns"),
        (TrainingConfig("decision_transformer"), "replay", None, "learns from windows of a dataset's steps; train on"),
        (TrainingConfig("dqn"), "replay", None, "dqn requires discrete actions"),
        (IQL, "replay", Box(-1, 1, (2,)), r"actions have shape \(3,\), but those of the environment \(2,\)"),
    ],
)
def test_tables_that_do_not_match_raise(server, config, table, space, message):
    with pytest.raises(SpecMismatchError, match=message):
        open_data((server, table), config, action_space=space)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_length": 2}, "chunk_length requires a dataset; the items of a table are already converted"),
        ({"top_percent": 10}, "top_percent requires a dataset; the items of a table are already converted"),
        ({"epochs": 2}, "epochs requires a dataset; servers choose the items"),
        ({"n_step": 3}, "n_step requires a dataset"),
        ({"reward": "scale:2"}, "reward requires a dataset"),
        ({"clip_actions": True}, "clip_actions requires a dataset"),
        ({"cut_at_terminal": True}, "cut_at_terminal requires a dataset"),
        ({"drop_fields": ("x",)}, "drop_fields requires a dataset"),
        ({"normalize_observations": True}, "normalize_observations requires a dataset"),
        ({"deterministic": True}, "deterministic=True requires a dataset; servers sample nondeterministically"),
    ],
)
def test_options_of_datasets_raise(server, options, message):
    with pytest.raises(ValueError, match=message):
        open_data(server, IQL.replace(**options))


def test_tables_without_items_for_training_raise(server, source):
    with pytest.raises(SourceError, match="has the tables empty, replay; there is no table 'short'"):
        open_data((server, "short"), IQL)
    with pytest.raises(SourceError, match="table 'empty' at .* has no items, but training requires them"):
        open_data((server, "empty"), IQL)
    signature = TrajectoryWindows(3).item_spec(source.step_spec)
    with ReplayServer([TableConfig("a"), TableConfig("b")], signature) as other:
        ingest(source, other, "a", adder=TrajectoryWindows(3))
        with pytest.raises(
            SourceError, match="has the tables a, b; training requires one table, or one named 'replay'"
        ):
            open_data(other, IQL)
        with pytest.raises(SpecMismatchError, match="must be transitions of NStep or trajectories of TrajectoryW"):
            open_data((other, "a"), IQL)
        with pytest.raises(ValueError, match="has no table .replay.; it has a, b"):
            open_data(([server, other], "replay"), IQL)


def test_tables_of_one_server_or_directory_are_different_data(directory):
    for source in ("localhost:8000", ["localhost:8000", "localhost:8001"], directory):
        default, other = (identify_table(TableLocation(source), name) for name in ("replay", "other"))
        assert other == f"{default}, table 'other'"


SMALL_LOG = {"observations": np.float32([[0, 90]] * 4), "rewards": np.ones(3, np.float32), "terminated": True}
FLOAT64 = {"observations": np.zeros((4, 2)), "actions": np.zeros((3, 1)), "rewards": np.ones(3)}


@contextmanager
def serve_log(**columns):
    """Provides a server with the transitions of a small log."""
    source = load([{**SMALL_LOG, **columns}])
    with ReplayServer([TableConfig()], NStep(1, 0.99).item_spec(source.step_spec)) as server:
        ingest(source, server, adder=NStep(1, 0.99))
        yield server


@pytest.mark.parametrize(
    ("algo", "columns", "message"),
    [
        ("iql", FLOAT64, r"step\['action'\] of table 'replay' at .* must be float32, got float64; .* \(convert --cast-floats\)"),
        ("dqn", {"actions": np.zeros((3, 1), int)}, r"single integers, got int64 \[1\]; remove the last axis"),
        ("dqn", {"actions": np.arange(3)}, r"number of discrete actions is unknown; .* \(env or action_bounds\)"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_learned_from_raise(algo, columns, message):
    with serve_log(**columns) as server, pytest.raises(SpecMismatchError, match=message):
        open_data(server, TrainingConfig(algo))


def test_environment_tells_the_number_of_discrete_actions_of_a_table():
    with serve_log(actions=np.arange(3)) as server:
        got = open_data(server, TrainingConfig("dqn"), action_space=Discrete(5, start=-1))
    assert (int(got.action_spec.minimum), int(got.action_spec.maximum)) == (-1, 3)
    (warning,) = got.warnings
    assert "step['observation'] at [1], up to 90; normalise them with the hyperparameters" in warning
