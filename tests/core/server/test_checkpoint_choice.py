"""Which checkpoint a server starts from: after kills at the worst moment, without manifests, and when some are damaged."""

import re
import shutil
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from faults import DAMAGES, around, damage_file, files, hear, process
from reference_impls import episode

from rlds2reverb._encoding import tfrecords
from rlds2reverb._server.checkpoint_contents import require_consistent
from rlds2reverb._server.checkpoint_root import CheckpointRoot
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb.errors import CheckpointError
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.tables import TableConfig

FILES = ("tables", "items", "chunks")


def filled(root, *num_steps):
    """Makes a checkpoint root, with a checkpoint after each of some episodes."""
    with ReplayServer([TableConfig()], checkpoint_root=root) as server:
        for number, length in enumerate(num_steps):
            ingest([episode(length, terminal=True, start=1000 * number)], server.address)
            server.checkpoint()


def size(root, **options):
    """The number of items that a server starts with."""
    with ReplayServer([TableConfig()], checkpoint_root=root, **options) as server:
        return server.client.server_info(timeout=10)["replay"].current_size


def newest(root):
    (checkpoint,) = (root / "checkpoints").iterdir()
    return checkpoint


@pytest.fixture(scope="module")
def one_made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made") / "root"
    filled(root, 5)
    return root


@pytest.fixture(scope="module")
def two_made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made") / "root"
    filled(root, 5, 4)
    return root


@pytest.fixture
def one(tmp_path, one_made):
    """A root with one checkpoint, of 4 items."""
    return shutil.copytree(one_made, tmp_path / "root")


@pytest.fixture
def two(tmp_path, two_made):
    """A root whose newest checkpoint has 7 items, and the one before 4."""
    return shutil.copytree(two_made, tmp_path / "root")


# --- the process is killed between Reverb's checkpoint and our manifest


def killed_before_the_manifest(channel, root):
    """Serves; is held when Reverb has completed a checkpoint, before its manifest is written."""

    def hold():
        channel.send("held")
        channel.recv()

    with ReplayServer([TableConfig()], checkpoint_root=root) as server:
        ingest([episode(4, terminal=True, start=1000)], server.address)
        around(CheckpointRoot, "write_manifest", before=hold)
        server.checkpoint()


def kill_before_the_manifest(root):
    with process(killed_before_the_manifest, root) as (running, channel):
        assert hear(channel) == "held"
        running.kill()
        running.join()


def test_a_server_killed_before_its_manifest_starts_from_what_reverb_wrote(one):
    kill_before_the_manifest(one)
    assert not (one / "manifests" / f"{newest(one).name}.json").exists()
    assert size(one) == 7
    assert (one / "manifests" / f"{newest(one).name}.json").is_file()
    CheckpointRoot(one).verify_latest()


def test_a_server_killed_before_its_manifest_in_a_new_root_starts(tmp_path):
    (tmp_path / "root").mkdir()
    kill_before_the_manifest(tmp_path / "root")
    assert size(tmp_path / "root") == 3


def test_a_server_killed_before_reverb_deleted_the_one_before_starts_from_the_newest(one, tmp_path):
    before = newest(one)
    shutil.copytree(before, tmp_path / "copy")
    kill_before_the_manifest(one)
    shutil.copytree(tmp_path / "copy", before)
    assert size(one) == 7


@pytest.mark.parametrize("name", FILES)
def test_what_was_killed_and_then_damaged_gives_way_to_the_one_before(one, name):
    kill_before_the_manifest(one)
    damage_file(newest(one) / f"{name}.tfrecord", "flipped")
    with pytest.warns(RuntimeWarning, match=rf"{name}.tfrecord is damaged .*passed_over now\); started from"):
        assert size(one) == 4


def test_a_checkpoint_that_a_stock_client_asked_for_is_started_from(one):
    with ReplayServer([TableConfig()], checkpoint_root=one) as server:
        ingest([episode(4, terminal=True, start=1000)], server.address)
        server.client.checkpoint()
    assert size(one) == 7
    CheckpointRoot(one).verify_latest()


@pytest.mark.parametrize("content", ["", '{"files": {}}', '{"files": {"tables.tfrecord": [1, 2, 3]}}'])
def test_a_damaged_manifest_is_written_again(one, content):
    (manifest,) = (one / "manifests").iterdir()
    before = manifest.read_text()
    manifest.write_text(content)
    assert size(one) == 4
    assert manifest.read_text() == before


# --- the newest is damaged


@pytest.mark.parametrize("damage", [*DAMAGES, "missing"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_moved_away_and_the_one_before_served(two, name, damage):
    file = newest(two) / f"{name}.tfrecord"
    file.unlink() if damage == "missing" else damage_file(file, damage)
    moved = files(file.parent)
    with pytest.warns(RuntimeWarning, match=rf"{name}.tfrecord is (damaged|missing).*passed_over now\); started from"):
        assert size(two) == 4
    assert files(two / "passed_over" / file.parent.name) == moved
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filled(two, 9)
        assert size(two) == 12
    assert files(two / "passed_over" / file.parent.name) == moved
    assert (two / "manifests" / f"{file.parent.name}.json").is_file()


def test_a_lost_done_file_is_a_damage(two):
    (newest(two) / "DONE").unlink()
    with pytest.warns(RuntimeWarning, match="has no DONE file.*; started from"):
        assert size(two) == 4


def test_a_server_killed_while_it_kept_the_newest_starts_from_it(one):
    half = one / "previous/2999-01-01T00:00:00.000000000+00:00"
    half.mkdir(parents=True)
    (half / "tables.tfrecord").write_bytes(b"half")
    assert size(one) == 4
    filled(one, 9)
    assert not half.exists()


def test_a_server_killed_between_the_two_moves_starts_from_the_one_before(two):
    (two / "passed_over").mkdir()
    newest(two).rename(two / "passed_over" / newest(two).name)
    assert size(two) == 4


@pytest.mark.parametrize("fixture", ["one", "two"])
def test_where_none_is_good_nothing_is_changed(fixture, request):
    root = request.getfixturevalue(fixture)
    for file in root.glob("*/*/items.tfrecord"):
        damage_file(file, "flipped")
    before = files(root)
    with pytest.raises(
        CheckpointError, match=f"{re.escape(str(newest(root)))}/items.tfrecord is damaged: its size and sha256"
    ):
        size(root)
    assert files(root) == before


def test_without_keeping_the_one_before_a_damaged_one_is_refused(two):
    damage_file(newest(two) / "items.tfrecord", "flipped")
    before = files(two)
    with pytest.raises(CheckpointError, match=r"items.tfrecord is damaged"):
        size(two, keep_previous=False)
    assert files(two) == before


def test_without_keeping_the_one_before_there_is_no_second(tmp_path):
    with ReplayServer([TableConfig()], checkpoint_root=tmp_path / "root", keep_previous=False) as server:
        names = [server.checkpoint().name for _ in range(2)]
    assert not (tmp_path / "root/previous").exists()
    assert [path.stem for path in (tmp_path / "root/manifests").iterdir()] == names[1:]


def test_where_there_are_no_hard_links_the_newest_is_kept_alone(one, monkeypatch):
    def refuse(*_):
        raise OSError("no hard links here")

    monkeypatch.setattr("os.link", refuse)
    filled(one, 9)
    assert list((one / "previous").iterdir()) == []
    assert size(one) == 12


# --- one was cut off while it was written


def cut_off(root):
    """Leaves what a kill in the middle of a checkpoint leaves."""
    path = root / "checkpoints/2999-01-01T00:00:00.000000000+00:00"
    path.mkdir(parents=True)
    (path / "tables.tfrecord").write_bytes(b"half")


def test_a_checkpoint_that_was_cut_off_is_passed_over_and_named(one):
    cut_off(one)
    with pytest.warns(RuntimeWarning, match=r"2999\S* was cut off while it was written; started from"):
        assert size(one) == 4


def test_a_first_checkpoint_that_was_cut_off_does_not_stop_a_server(tmp_path):
    cut_off(tmp_path / "root")
    with pytest.warns(RuntimeWarning, match="was cut off .*; there is no other, and the tables start empty"):
        assert size(tmp_path / "root") == 0


# --- what a checkpoint says without its manifest


def records(file: Path) -> list[bytes]:
    plain = file.with_name("plain")
    plain.write_bytes(zlib.decompress(file.read_bytes()))
    return list(tfrecords.read(plain))


def rewritten(checkpoint, name, records):
    """Writes a file of a checkpoint as Reverb does, with other records."""
    (checkpoint / f"{name}.tfrecord").write_bytes(zlib.compress(b"".join(map(framed, records))))


def framed(record: bytes) -> bytes:
    return tfrecords.framed(np.frombuffer(record, np.uint8)[None]).tobytes()


@pytest.mark.parametrize("damage", [*DAMAGES, "last byte", "longer", "missing"])
@pytest.mark.parametrize("name", FILES)
def test_every_damage_is_found_without_a_manifest(one, name, damage):
    file = newest(one) / f"{name}.tfrecord"
    require_consistent(file.parent)
    if damage == "missing":
        file.unlink()
    elif damage in DAMAGES:
        damage_file(file, damage)
    else:
        file.write_bytes(file.read_bytes()[:-1] if damage == "last byte" else file.read_bytes() + b"x")
    with pytest.raises(CheckpointError, match=f"{re.escape(str(file))} is (damaged|missing)"):
        require_consistent(file.parent)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("items", lambda found: found[1:], "table 'replay' should have 4 items and has 3"),
        ("items", lambda found: [*found[1:], found[1]], "it has items twice"),
        ("tables", lambda found: [], "table 'replay' should have 0 items and has 4"),
        ("items", lambda found: [], "table 'replay' should have 4 items and has 0"),
        ("chunks", lambda found: found[1:], r"item \d+ of table 'replay' lacks a chunk"),
        ("items", lambda found: [b"\xff", *found[1:]], r"items.tfrecord is damaged \(Error parsing message"),
    ],
)
def test_files_that_do_not_belong_together_are_found(one, name, change, message):
    checkpoint = newest(one)
    rewritten(checkpoint, name, change(records(checkpoint / f"{name}.tfrecord")))
    with pytest.raises(CheckpointError, match=message):
        require_consistent(checkpoint)


def test_files_that_were_written_without_a_server_are_read_as_well(tmp_path):
    ingest([episode(5, terminal=True)], tmp_path / "data")
    require_consistent(newest(tmp_path / "data"))
    damage_file(newest(tmp_path / "data") / "chunks.tfrecord", "truncated")
    with pytest.raises(CheckpointError, match=r"chunks.tfrecord is damaged \(near byte \d+\); restore it"):
        require_consistent(newest(tmp_path / "data"))


def test_what_was_evicted_sampled_up_and_deleted_is_not_missed(tmp_path):
    configs = [TableConfig("small", max_size=3), TableConfig("once", max_times_sampled=1)]
    with ReplayServer(configs, checkpoint_root=tmp_path / "root") as server:
        with pytest.warns(RuntimeWarning, match="5 or more of them will be removed"):
            options = IngestOptions(allow_eviction=True)
            ingest([episode(9, terminal=True)], server.address, ["small", "once"], options=options)
        list(server.client.sample("once", 2))
        (sample,) = server.client.sample("small", 1)
        server.client.mutate_priorities("small", deletes=[sample[0].info.key])
        require_consistent(Path(server.client.checkpoint()))
        server.client.reset("once")
        require_consistent(Path(server.client.checkpoint()))


def test_a_file_that_shrinks_a_thousandfold_is_read_to_its_end(one):
    file = newest(one) / "chunks.tfrecord"
    first, *others = records(file)
    file.write_bytes(zlib.compress(b"".join(map(framed, others)) + framed(first) * 20_000))
    assert file.stat().st_size < 30_000
    require_consistent(file.parent)
