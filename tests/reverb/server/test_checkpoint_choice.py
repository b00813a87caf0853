"""Tests of which checkpoint a server starts from after a kill, without a manifest, or after damage."""

import io
import itertools
import re
import shutil
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from faults import DAMAGES, damage_file, hash_files, process, receive, wrap_calls
from properties import mark_slow_except
from reference_impls import episode

from rlds2reverb.errors import CheckpointError
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.server.checkpoint_contents import require_readable
from rlds2reverb.reverb.server.checkpoint_root import CheckpointRoot
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.wire import tfrecords
from rlds2reverb.types.tables import TableConfig

FILES = ("tables", "items", "chunks")


def fill(root, *num_steps):
    """Creates a checkpoint root with one checkpoint after each of several episodes."""
    with ReplayServer([TableConfig()], checkpoint_root=root) as server:
        for number, length in enumerate(num_steps):
            ingest([episode(length, terminal=True, start=1000 * number)], server.address)
            server.checkpoint()


def count_items(root, **options):
    """Returns the number of items that a server starts with."""
    with ReplayServer([TableConfig()], checkpoint_root=root, **options) as server:
        return server.client.server_info(timeout=10)["replay"].current_size


def find_newest(root):
    (checkpoint,) = (root / "checkpoints").iterdir()
    return checkpoint


@pytest.fixture(scope="module")
def one_template(tmp_path_factory):
    root = tmp_path_factory.mktemp("template") / "root"
    fill(root, 5)
    return root


@pytest.fixture(scope="module")
def two_template(tmp_path_factory):
    root = tmp_path_factory.mktemp("template") / "root"
    fill(root, 5, 4)
    return root


@pytest.fixture
def one_checkpoint(tmp_path, one_template):
    """Provides a root with one checkpoint of 4 items."""
    return shutil.copytree(one_template, tmp_path / "root")


@pytest.fixture
def two_checkpoints(tmp_path, two_template):
    """Provides a root whose newest checkpoint has 7 items; the previous checkpoint has 4."""
    return shutil.copytree(two_template, tmp_path / "root")


# --- a process killed between Reverb's checkpoint and its manifest


def hold_before_manifest(channel, root):
    """Completes a checkpoint of Reverb, reports that it is held, and waits before writing the manifest."""

    def hold():
        channel.send("held")
        channel.recv()

    with ReplayServer([TableConfig()], checkpoint_root=root) as server:
        ingest([episode(4, terminal=True, start=1000)], server.address)
        wrap_calls(CheckpointRoot, "write_manifest", before=hold)
        server.checkpoint()


def kill_before_manifest(root):
    with process(hold_before_manifest, root) as (running, channel):
        assert receive(channel) == "held"
        running.kill()
        running.join()


@pytest.fixture(scope="module")
def killed_template(tmp_path_factory, one_template):
    root = shutil.copytree(one_template, tmp_path_factory.mktemp("template") / "root")
    kill_before_manifest(root)
    return root


@pytest.fixture
def killed(tmp_path, killed_template):
    """Provides a root with one checkpoint of 4 items, and one of 7 items whose manifest is missing."""
    return shutil.copytree(killed_template, tmp_path / "root")


@pytest.mark.drill("F7")
def test_server_killed_before_manifest_starts_from_reverbs_checkpoint(killed):
    manifest = killed / "manifests" / f"{find_newest(killed).name}.json"
    assert not manifest.exists()
    assert count_items(killed) == 7
    assert manifest.is_file()
    CheckpointRoot(killed).verify_latest()


def test_server_killed_before_manifest_starts_in_a_new_root(tmp_path):
    (tmp_path / "root").mkdir()
    kill_before_manifest(tmp_path / "root")
    assert count_items(tmp_path / "root") == 3


def test_server_killed_before_the_previous_is_deleted_uses_the_newest(killed, one_template):
    before = find_newest(one_template)
    shutil.copytree(before, killed / "checkpoints" / before.name)
    assert count_items(killed) == 7


@pytest.mark.parametrize("name", FILES)
@pytest.mark.drill("F8")
def test_damaged_checkpoint_without_manifest_is_replaced_by_the_previous(killed, name):
    damage_file(find_newest(killed) / f"{name}.tfrecord", "flipped")
    with pytest.warns(RuntimeWarning, match=rf"{name}.tfrecord is damaged .*moved to .*set_aside\); started from"):
        assert count_items(killed) == 4


def test_server_starts_from_a_checkpoint_requested_by_a_stock_client(one_checkpoint):
    with ReplayServer([TableConfig()], checkpoint_root=one_checkpoint) as server:
        ingest([episode(4, terminal=True, start=1000)], server.address)
        server.client.checkpoint()
    assert count_items(one_checkpoint) == 7
    CheckpointRoot(one_checkpoint).verify_latest()


@pytest.mark.parametrize("content", ["", '{"files": {}}', '{"files": {"tables.tfrecord": [1, 2, 3]}}'])
def test_damaged_manifest_is_rewritten(one_checkpoint, content):
    (manifest,) = (one_checkpoint / "manifests").iterdir()
    before = manifest.read_text()
    manifest.write_text(content)
    assert count_items(one_checkpoint) == 4
    assert manifest.read_text() == before


# --- a damaged newest checkpoint


@pytest.mark.parametrize(
    ("name", "damage"),
    mark_slow_except(
        [*zip(FILES, DAMAGES, strict=False), ("items", "missing")], itertools.product(FILES, [*DAMAGES, "missing"])
    ),
)
@pytest.mark.drill("F8")
def test_damaged_checkpoint_is_set_aside_and_the_previous_served(two_checkpoints, name, damage):
    file = find_newest(two_checkpoints) / f"{name}.tfrecord"
    file.unlink() if damage == "missing" else damage_file(file, damage)
    moved = hash_files(file.parent)
    with pytest.warns(
        RuntimeWarning, match=rf"{name}.tfrecord is (damaged|missing).*moved to .*set_aside\); started from"
    ):
        assert count_items(two_checkpoints) == 4
    assert hash_files(two_checkpoints / "set_aside" / file.parent.name) == moved
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the last steps of")
        fill(two_checkpoints, 9)
        assert count_items(two_checkpoints) == 12
    assert hash_files(two_checkpoints / "set_aside" / file.parent.name) == moved
    assert (two_checkpoints / "manifests" / f"{file.parent.name}.json").is_file()


@pytest.mark.drill("F8")
def test_missing_done_file_counts_as_damage(two_checkpoints):
    (find_newest(two_checkpoints) / "DONE").unlink()
    with pytest.warns(RuntimeWarning, match="has no DONE file.*; started from"):
        assert count_items(two_checkpoints) == 4


def test_server_killed_while_linking_the_newest_starts_from_it(one_checkpoint):
    half = one_checkpoint / "previous/2999-01-01T00:00:00.000000000+00:00"
    half.mkdir(parents=True)
    (half / "tables.tfrecord").write_bytes(b"half")
    assert count_items(one_checkpoint) == 4
    fill(one_checkpoint, 9)
    assert not half.exists()


def test_server_killed_between_two_moves_uses_the_previous(two_checkpoints):
    (two_checkpoints / "set_aside").mkdir()
    find_newest(two_checkpoints).rename(two_checkpoints / "set_aside" / find_newest(two_checkpoints).name)
    assert count_items(two_checkpoints) == 4


@pytest.mark.parametrize("fixture", ["one_checkpoint", "two_checkpoints"])
def test_root_is_unchanged_when_no_checkpoint_is_valid(fixture, request):
    root = request.getfixturevalue(fixture)
    for file in root.glob("*/*/items.tfrecord"):
        damage_file(file, "flipped")
    before = hash_files(root)
    with pytest.raises(
        CheckpointError,
        match=f"{re.escape(str(find_newest(root)))}/items.tfrecord is damaged: its content does not match",
    ):
        count_items(root)
    assert hash_files(root) == before


def test_only_the_newest_is_kept_without_hard_links(one_checkpoint, monkeypatch):
    def refuse(*_):
        raise OSError("no hard links here")

    monkeypatch.setattr("os.link", refuse)
    fill(one_checkpoint, 9)
    assert list((one_checkpoint / "previous").iterdir()) == []
    assert count_items(one_checkpoint) == 12


# --- interrupted checkpoints


def interrupt(root):
    """Leaves the same files as a kill in the middle of a checkpoint."""
    path = root / "checkpoints/2999-01-01T00:00:00.000000000+00:00"
    path.mkdir(parents=True)
    (path / "tables.tfrecord").write_bytes(b"half")


def test_interrupted_checkpoint_is_ignored_with_a_warning(one_checkpoint):
    interrupt(one_checkpoint)
    with pytest.warns(RuntimeWarning, match=r"2999\S* was interrupted while it was written; started from"):
        assert count_items(one_checkpoint) == 4


def test_server_starts_empty_when_the_first_checkpoint_was_interrupted(tmp_path):
    interrupt(tmp_path / "root")
    with pytest.warns(RuntimeWarning, match="was interrupted .*; there is no other, so the tables start empty"):
        assert count_items(tmp_path / "root") == 0


# --- verification without a manifest


def read_records(file: Path) -> list[bytes]:
    plain = file.with_name("plain")
    plain.write_bytes(zlib.decompress(file.read_bytes()))
    return list(tfrecords.read_stream(io.BytesIO(plain.read_bytes()), plain))


def frame_record(record: bytes) -> bytes:
    return tfrecords.frame(np.frombuffer(record, np.uint8)[None]).tobytes()


@pytest.mark.parametrize("damage", [*DAMAGES, "last byte", "longer", "missing"])
@pytest.mark.parametrize("name", FILES)
def test_require_readable_detects_every_damage(one_checkpoint, name, damage):
    file = find_newest(one_checkpoint) / f"{name}.tfrecord"
    require_readable(file.parent)
    if damage == "missing":
        file.unlink()
    elif damage in DAMAGES:
        damage_file(file, damage)
    else:
        file.write_bytes(file.read_bytes()[:-1] if damage == "last byte" else file.read_bytes() + b"x")
    with pytest.raises(CheckpointError, match=f"{re.escape(str(file))} is (damaged|missing)"):
        require_readable(file.parent)


def test_require_readable_raises_for_a_record_that_is_no_message(one_checkpoint):
    checkpoint = find_newest(one_checkpoint)
    records = read_records(checkpoint / "items.tfrecord")
    (checkpoint / "items.tfrecord").write_bytes(zlib.compress(b"".join(map(frame_record, [b"\xff", *records[1:]]))))
    with pytest.raises(CheckpointError, match=r"items.tfrecord is damaged \(Error parsing message"):
        require_readable(checkpoint)


def test_require_readable_reads_files_written_without_a_server(tmp_path):
    ingest([episode(5, terminal=True)], tmp_path / "data")
    require_readable(find_newest(tmp_path / "data"))
    damage_file(find_newest(tmp_path / "data") / "chunks.tfrecord", "truncated")
    with pytest.raises(CheckpointError, match=r"chunks.tfrecord is damaged \(near byte \d+\); restore it"):
        require_readable(find_newest(tmp_path / "data"))


def test_require_readable_reads_highly_compressed_files(one_checkpoint):
    file = find_newest(one_checkpoint) / "chunks.tfrecord"
    first, *others = read_records(file)
    file.write_bytes(zlib.compress(b"".join(map(frame_record, others)) + frame_record(first) * 20_000))
    assert file.stat().st_size < 30_000
    require_readable(file.parent)


# --- the clock is set back


def move_to_future(root):
    """Renames the newest checkpoint as if it had been written before the clock was set back."""
    newest, future = find_newest(root), "2999-01-01T00:00:00.000+00:00"
    (root / "manifests" / f"{newest.name}.json").rename(root / "manifests" / f"{future}.json")
    newest.rename(newest.with_name(future))


@pytest.mark.drill("F26")
def test_checkpoint_written_after_the_clock_was_set_back_is_the_newest(one_checkpoint):
    move_to_future(one_checkpoint)
    with ReplayServer([TableConfig()], checkpoint_root=one_checkpoint) as server:
        assert server.started_from.name.startswith("2999")
        ingest([episode(4, terminal=True, start=1000)], server.address)
        newest = server.checkpoint()
    assert count_items(one_checkpoint) == 4 + 3
    damage_file(newest / "items.tfrecord", "truncated")
    with pytest.warns(RuntimeWarning, match="items.tfrecord is damaged"):
        assert count_items(one_checkpoint) == 4  # That from the future is the previous one.


@pytest.mark.drill("F26")
def test_server_killed_after_the_clock_was_set_back_keeps_its_checkpoint(one_checkpoint):
    move_to_future(one_checkpoint)
    CheckpointRoot(one_checkpoint).retire_future_names()  # Where a kill before the next checkpoint leaves it.
    assert count_items(one_checkpoint) == 4


@pytest.mark.drill("F26")
def test_loaded_data_replace_a_checkpoint_from_the_future(one_checkpoint, tmp_path):
    with ReplayServer([TableConfig()], checkpoint_root=one_checkpoint) as server:
        server.save_data(tmp_path / "saved")
    move_to_future(one_checkpoint)
    with ReplayServer([TableConfig()], checkpoint_root=one_checkpoint) as server:
        ingest([episode(4, terminal=True, start=1000)], server.address)
        server.load_data(tmp_path / "saved")
        assert server.client.server_info(timeout=10)["replay"].current_size == 4
