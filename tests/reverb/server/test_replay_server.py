"""Tests of servers: checks before the start (ports, locks, checkpoint roots), and restarts from checkpoints."""

import itertools
import signal
import socket
import time

import pytest
from faults import DAMAGES, damage_file, process, receive
from properties import mark_slow_except
from reference_impls import episode

from rlds2reverb.datasets import load
from rlds2reverb.errors import CheckpointError, ResourceInUseError, SpecMismatchError
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.reverb.server import ports
from rlds2reverb.reverb.server.checkpoint_root import CheckpointRoot
from rlds2reverb.reverb.server.ports import pick_port, require_free_port
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.server.sharded_server import ShardedReplayServer
from rlds2reverb.types.tables import Selector, TableConfig, item_signature
from rlds2reverb.types.trajectories import trajectory_spec

EPISODES = [episode(5, terminal=True)]
SIGNATURE = item_signature(trajectory_spec(load(EPISODES).step_spec), 2)


def count_items(server):
    return server.client.server_info(timeout=10)["replay"].current_size


@pytest.fixture
def root(tmp_path):
    """Provides a checkpoint root with one checkpoint of four items."""
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=tmp_path / "root") as server:
        ingest(EPISODES, server.address)
        assert server.checkpoint().parent == tmp_path / "root/checkpoints"
    return tmp_path / "root"


def test_restarted_server_has_the_items_of_the_checkpoint(root):
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root) as server:
        assert count_items(server) == 4
        ingest(EPISODES, server.address)  # The same items are stored once.
        assert count_items(server) == 4
        ingest([episode(5, terminal=True, start=50)], server.address)
        assert count_items(server) == 8


def write_and_wait(channel, root):
    """Writes items that are in no checkpoint, and waits for the end."""
    server = ReplayServer([TableConfig()], checkpoint_root=root)
    ingest([episode(50, terminal=True)], server.address)
    channel.send("written")
    channel.recv()


def test_killed_server_restarts_from_its_last_checkpoint(root):
    with process(write_and_wait, root) as (running, channel):
        assert receive(channel) == "written"
        running.kill()
        running.join()
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root) as server:
        assert count_items(server) == 4


def test_two_newest_checkpoints_and_their_manifests_are_kept(root):
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root) as server:
        before, newest = [server.checkpoint().name for _ in range(3)][1:]
    assert [path.name for path in (root / "checkpoints").iterdir()] == [newest]
    assert [path.name for path in (root / "previous").iterdir()] == [before]
    assert sorted(path.stem for path in (root / "manifests").iterdir()) == [before, newest]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TableConfig(max_size=5), "max_size of table 'replay' was 2147483647, is now 5"),
        (TableConfig(sampler=Selector("uniform")), "sampler of table 'replay' was prioritized"),
        (TableConfig("other"), r"tables was \['replay'\], is now \['other'\]"),
    ],
)
def test_tables_that_differ_from_the_stored_ones_raise(root, config, message):
    with pytest.raises(CheckpointError, match=message):
        ReplayServer([config], SIGNATURE, checkpoint_root=root)


@pytest.mark.drill("F28")
def test_signature_that_differs_from_the_stored_one_raises(root):
    with pytest.raises(SpecMismatchError, match="table 'replay' expects"):
        ReplayServer([TableConfig()], item_signature(SIGNATURE, 3), checkpoint_root=root)
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root) as server:
        assert count_items(server) == 4


@pytest.mark.parametrize(
    ("name", "damage"),
    mark_slow_except(
        [*zip(["tables", "items", "chunks"], DAMAGES, strict=True), ("items", "missing")],
        itertools.product(["tables", "items", "chunks"], [*DAMAGES, "missing"]),
    ),
)
def test_damaged_file_raises_before_the_server_starts(root, damage, name):
    (checkpoint,) = (root / "checkpoints").iterdir()
    file = checkpoint / f"{name}.tfrecord"
    file.unlink() if damage == "missing" else damage_file(file, damage)
    with pytest.raises(CheckpointError, match=f"{name}.tfrecord is (damaged|missing)"):
        ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root)


def test_missing_done_file_raises(root):
    (checkpoint,) = (root / "checkpoints").iterdir()
    (checkpoint / "DONE").unlink()
    with pytest.raises(CheckpointError, match="has no DONE file"):
        ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root)


def test_incomplete_checkpoint_raises_without_verification(root):
    (manifest,) = (root / "manifests").iterdir()
    manifest.unlink()
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root, verify=False) as server:
        assert count_items(server) == 4
    assert not manifest.exists()
    (checkpoint,) = (root / "checkpoints").iterdir()
    items = (checkpoint / "items.tfrecord").read_bytes()
    (checkpoint / "items.tfrecord").write_bytes(b"garbage!")
    with pytest.raises(CheckpointError, match="Reverb cannot load the checkpoint"):
        ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root, verify=False)
    (checkpoint / "items.tfrecord").write_bytes(items[:0])
    with pytest.raises(CheckpointError, match="items.tfrecord is damaged: it is empty"):
        ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root, verify=False)


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"tables": 3}', '{"tables": [1]}', pytest.param("[" * 100_000, id="too deep")],
)
def test_damaged_configuration_raises(root, content):
    (root / "rlds2reverb.json").write_text(content)
    with pytest.raises(CheckpointError, match="rlds2reverb.json is damaged"):
        ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root)


def test_root_whose_creation_was_interrupted_is_accepted(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".rlds2reverb-0123.tmp").write_text("half")
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=str(tmp_path)) as server:
        assert count_items(server) == 0
        server.checkpoint()
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=tmp_path) as server:
        assert count_items(server) == 0


@pytest.mark.drill("F5")
def test_signal_is_deferred_until_the_manifest_is_written(tmp_path, monkeypatch):
    arrived = []
    previous = signal.signal(signal.SIGINT, lambda *_: arrived.append(list((tmp_path / "root/manifests").iterdir())))
    try:
        with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=tmp_path / "root") as server:
            write_manifest = CheckpointRoot.write_manifest
            monkeypatch.setattr(
                CheckpointRoot,
                "write_manifest",
                lambda root, path: (signal.raise_signal(signal.SIGINT), write_manifest(root, path)),
            )
            server.checkpoint()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert len(arrived) == 1 and len(arrived[0]) == 1


@pytest.mark.drill("F10")
def test_foreign_directory_raises_and_is_unchanged(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"is not a checkpoint root \(it holds thesis.tex\); use a new directory"):
        ReplayServer([TableConfig()], checkpoint_root=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.drill("F10")
def test_foreign_entry_raises_before_reverb_can_delete_it(root):
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root) as server:
        (root / "checkpoints/zzz").mkdir()
        (root / "checkpoints/zzz/precious").write_text("kept")
        with pytest.raises(CheckpointError, match="zzz is not a checkpoint; move it away"):
            server.checkpoint()
    with pytest.raises(CheckpointError, match="zzz is not a checkpoint"):
        CheckpointRoot(root)
    assert (root / "checkpoints/zzz/precious").read_text() == "kept"


def test_checkpoint_raises_without_a_checkpoint_root():
    with ReplayServer([TableConfig()], SIGNATURE) as server:
        with pytest.raises(ValueError, match="was started without a checkpoint root"):
            server.checkpoint()


@pytest.mark.drill("F18")
def test_second_server_on_a_port_or_checkpoint_root_raises(tmp_path):
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=tmp_path / "root") as server:
        with pytest.raises(ResourceInUseError, match=f"port {server.port} is in use"):
            ReplayServer([TableConfig()], port=server.port)
        with pytest.raises(ResourceInUseError, match="root is in use"):
            ReplayServer([TableConfig()], checkpoint_root=tmp_path / "root")
        port = server.port
    with ReplayServer([TableConfig()], port=port) as server:
        assert server.address == f"localhost:{port}"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.drill("F18")
def test_port_used_by_another_program_raises(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((host, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ResourceInUseError, match=f"port {port} is in use"):
            require_free_port(port)


def test_free_ports_are_not_reused_within_a_process(monkeypatch):
    first, second = pick_port(), pick_port()
    with ReplayServer([TableConfig()], port=first):
        pass
    picked = iter([first, first, second])
    monkeypatch.setattr(ports, "find_port", lambda: next(picked))
    with ReplayServer([TableConfig()]) as server:
        assert server.port == second


@pytest.mark.slow
def test_new_server_on_a_reused_port_answers_immediately():
    with ReplayServer([TableConfig()], SIGNATURE) as server:
        assert count_items(server) == 0
        client = server.client  # Its growing reconnection delay applies to all clients of the process.
    time.sleep(25)
    with ReplayServer([TableConfig()], SIGNATURE, port=server.port) as server:
        assert ingest(EPISODES, server.address, timeout_secs=1.0).writer == "bulk"
        assert table_infos(client, timeout_secs=1.0)["replay"].current_size == 4


def test_invalid_port_and_missing_tables_raise():
    with pytest.raises(ValueError, match="port must be an integer from 1 to 65,535, got 70000"):
        require_free_port(70000)
    for tables in ([], None):
        with pytest.raises(ValueError, match="tables must contain at least one TableConfig"):
            ReplayServer(tables)
    with pytest.raises(ValueError, match="num_shards must be an integer >= 1, got 0"):
        ShardedReplayServer([TableConfig()])


@pytest.mark.parametrize("name", ["lr=[64,64]", "run*", "what?", "back\\slash"])
def test_checkpoint_root_with_pattern_characters_raises(tmp_path, name):
    with pytest.raises(CheckpointError, match="Reverb treats the path as a pattern.*use another directory"):
        ReplayServer([TableConfig("replay")], checkpoint_root=tmp_path / name)
    with pytest.raises(CheckpointError, match="Reverb treats the path as a pattern.*use another directory"):
        ingest(EPISODES, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_server_serves_the_items_written_by_ingest(tmp_path):
    ingest(EPISODES, tmp_path / "data", TableConfig("items", Selector("uniform")))
    with ReplayServer(directory=str(tmp_path / "data"), checkpoint_root=tmp_path / "root") as server:
        info = server.client.server_info(timeout=10)["items"]
        assert (info.current_size, info.sampler_options.uniform) == (4, True)
        ingest([episode(5, terminal=True, start=50)], server.address, "items")
        server.checkpoint()
    with ReplayServer(directory=tmp_path / "data", checkpoint_root=tmp_path / "root") as server:
        assert server.client.server_info(timeout=10)["items"].current_size == 8
    tables = [TableConfig("items", Selector("uniform"))]
    with ReplayServer(directory=tmp_path / "data", tables=tables) as server:
        assert server.client.server_info(timeout=10)["items"].current_size == 4
    with pytest.raises(CheckpointError, match="sampler of table 'items' was uniform"):
        ReplayServer(directory=tmp_path / "data", tables=[TableConfig("items")])
    with pytest.raises(CheckpointError, match="nowhere is not a directory; write one with ingest"):
        ReplayServer(directory=tmp_path / "nowhere")


# --- Data in folders of the caller


def find_priorities(server):
    """Returns the priority of each item by its key, found by sampling each of a few items many times."""
    return {sample[0].info.key: sample[0].info.priority for sample in server.client.sample("replay", 300)}


@pytest.mark.parametrize("has_root", [pytest.param(False, marks=pytest.mark.slow), True])
def test_load_data_restarts_the_server_on_its_port_with_the_saved_items(tmp_path, has_root):
    root = tmp_path / "root" if has_root else None
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root) as server:
        port = server.port
        ingest(EPISODES, server.address)
        server.client.mutate_priorities("replay", {min(find_priorities(server)): 7.0})
        saved = find_priorities(server)
        server.save_data(tmp_path / "one")
        ingest([episode(5, terminal=True, start=50)], server.address)
        server.save_data(tmp_path / "two")
        server.load_data(tmp_path / "one")
        assert server.port == port and find_priorities(server) == saved
        assert sorted(saved.values()) == [1.0, 1.0, 1.0, 7.0]
        with pytest.raises(CheckpointError, match="one already contains a checkpoint; pass a new folder"):
            server.save_data(tmp_path / "one")
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=root) as server:
        assert count_items(server) == (4 if has_root else 0)
        server.load_data(tmp_path / "two")
        assert count_items(server) == 8
        server.save_data(tmp_path / "three")


def test_load_data_keeps_the_server_when_the_folder_is_invalid(tmp_path):
    with ReplayServer([TableConfig()], SIGNATURE) as server:
        ingest(EPISODES, server.address)
        with pytest.raises(CheckpointError, match="nowhere has no checkpoint; pass a folder"):
            server.load_data(tmp_path / "nowhere")
        server.save_data(tmp_path / "saved")
        (path,) = (tmp_path / "saved" / "checkpoints").iterdir()
        with ReplayServer([TableConfig(sampler=Selector("fifo"))], SIGNATURE) as other:
            with pytest.raises(CheckpointError, match="was written with different tables"):
                other.load_data(tmp_path / "saved")
        damage_file(path / "items.tfrecord", "flipped")
        with pytest.raises(CheckpointError, match="items.tfrecord is damaged"):
            server.load_data(tmp_path / "saved")
        assert count_items(server) == 4
