"""Tests that conversions to a directory resume after kills and full disks, and produce the same files."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from faults import (
    DAMAGES,
    convert,
    convert_on_full_disk,
    damage_file,
    hash_files,
    kill_after,
    kill_at,
    make_episodes,
    process,
    random_moments,
    receive,
    run_ingest,
    skip_unless_mounted,
)
from properties import mark_slow_except
from reference_impls import episode

from rlds2reverb.adders.trajectory_windows import TrajectoryEpisodes, TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.errors import CheckpointError, InvalidEpisodeError, ResourceInUseError, ResumeError, StorageFullError
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.wire import item_blocks
from rlds2reverb.reverb.writing import directory_destination
from rlds2reverb.types.tables import TableConfig

NUM_ITEMS = 100 * 149


@pytest.fixture(scope="module")
def uninterrupted_directory(tmp_path_factory):
    """Provides a directory written by an uninterrupted run."""
    directory = tmp_path_factory.mktemp("uninterrupted") / "data"
    assert run_ingest(directory)["items"] == NUM_ITEMS
    return directory


@pytest.fixture(scope="module")
def expected(uninterrupted_directory):
    """Provides the hashes of the files of an uninterrupted run."""
    return hash_files(uninterrupted_directory)


@pytest.fixture(scope="module")
def partial_template(tmp_path_factory):
    """Provides the partial directory of a run that was killed halfway."""
    directory = tmp_path_factory.mktemp("unfinished") / "data"
    kill_at("write", 55, directory)
    return directory.with_name("data.partial")


@pytest.fixture
def partial_directory(tmp_path, partial_template):
    """Provides a copy of the partial directory of a killed run."""
    return shutil.copytree(partial_template, tmp_path / "data.partial")


# --- the process is killed


@pytest.mark.parametrize("index", mark_slow_except({0, 55}, [0, 1, 55, 99]))
@pytest.mark.drill("F2")
def test_killed_conversion_resumes(tmp_path, expected, index):
    kill_at("write", index, tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["data.partial"]
    assert (run_ingest(tmp_path / "data")["resumed_episodes"] > 0) == (index > 50)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert hash_files(tmp_path / "data") == expected


@pytest.mark.slow
@pytest.mark.drill("F2")
def test_conversion_killed_at_20_random_times_resumes(tmp_path, expected):
    num_resumed = 0
    for number, moment in enumerate(random_moments(20, "write", seed=3)):
        directory = tmp_path / f"data{number}"
        kill_after(moment, directory)
        num_resumed += not directory.exists() and run_ingest(directory)["resumed_episodes"] > 0
        assert hash_files(directory) == expected, f"killed at {moment}"
    assert num_resumed >= 3


@pytest.mark.parametrize(
    ("stage", "index"),
    mark_slow_except(
        [("link", 0), ("rename", 0)],
        [("assemble", 0), ("link", 0), ("manifest", 0), ("manifest", 1), ("rename", 0), ("rename", 1)],
    ),
)
@pytest.mark.drill("F7")
def test_conversion_killed_while_finishing_resumes(tmp_path, expected, stage, index):
    kill_at(stage, index, tmp_path / "data")
    assert (tmp_path / "data").exists() == ((stage, index) == ("rename", 1))
    report = run_ingest(tmp_path / "data")
    assert (report["resumed_episodes"], report["items"]) == (100, NUM_ITEMS)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert hash_files(tmp_path / "data") == expected


@pytest.fixture
def renamed_directory(tmp_path):
    """Provides the directory of a run that was killed after renaming it; the partial directory is still next to it."""
    kill_at("rename", 1, tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.partial"]
    return tmp_path / "data"


def test_directory_is_complete_once_it_is_renamed(renamed_directory, expected):
    assert hash_files(renamed_directory) == expected
    with ReplayServer(directory=renamed_directory) as server:
        assert server.client.server_info(timeout=10)["replay"].current_size == NUM_ITEMS
    assert hash_files(renamed_directory) == expected


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"resume": False}, "data exists already; use a new directory, or delete it"),
        (
            {"priority": 2.0},
            r"data exists already, written with different arguments: priority was 1\.0, is now 2\.0; use a",
        ),
    ],
)
def test_renamed_directory_is_not_overwritten(renamed_directory, expected, options, match):
    with pytest.raises(CheckpointError, match=match):
        run_ingest(renamed_directory, **options)
    assert hash_files(renamed_directory) == expected
    assert run_ingest(renamed_directory)["resumed_episodes"] == 100
    assert [path.name for path in renamed_directory.parent.iterdir()] == ["data"]
    assert hash_files(renamed_directory) == expected


@pytest.mark.parametrize(
    "deleted", [["journal.json"], pytest.param(["items.tfrecord", "item_keys", "lock"], marks=pytest.mark.slow)]
)
def test_next_run_cleans_up_after_a_renamed_directory(renamed_directory, expected, deleted):
    for name in deleted:
        (renamed_directory.with_name("data.partial") / name).unlink()
    assert run_ingest(renamed_directory)["resumed_episodes"] == 100
    assert [path.name for path in renamed_directory.parent.iterdir()] == ["data"]
    assert hash_files(renamed_directory) == expected


@pytest.mark.parametrize("resume", mark_slow_except({True}, [True, False]))
@pytest.mark.drill("moved")
def test_leftover_partial_files_do_not_change_a_moved_directory(renamed_directory, expected, resume):
    moved = renamed_directory.rename(renamed_directory.with_name("moved"))
    run_ingest(renamed_directory, resume=resume)
    assert sorted(path.name for path in renamed_directory.parent.iterdir()) == ["data", "moved"]
    assert hash_files(renamed_directory) == hash_files(moved) == expected


def test_longer_dataset_is_not_appended_to_a_moved_directory(tmp_path, monkeypatch):
    def convert_episodes(num_episodes):
        """Converts a source of unknown length."""
        return ingest(replace(load(make_episodes(num_episodes)), num_episodes=None, num_rows=None), tmp_path / "data")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda path, **options: None)  # This simulates a kill after renaming.
        convert_episodes(5)
    moved = (tmp_path / "data").rename(tmp_path / "moved")
    before = hash_files(moved)
    assert convert_episodes(8).resumed_episodes == 0
    assert hash_files(moved) == before


@pytest.mark.slow
@pytest.mark.drill("F2")
def test_conversion_killed_repeatedly_resumes(tmp_path, expected):
    for index in (20, 30, 31, 60, 99):
        kill_at("write", index, tmp_path / "data")
    run_ingest(tmp_path / "data")
    assert hash_files(tmp_path / "data") == expected


def test_repeated_conversion_does_not_change_the_directory(tmp_path, uninterrupted_directory, expected):
    shutil.copytree(uninterrupted_directory, tmp_path / "data")
    assert run_ingest(tmp_path / "data")["resumed_episodes"] == 100
    assert hash_files(tmp_path / "data") == expected


def test_conversion_without_resuming_starts_over(partial_directory, expected):
    directory = partial_directory.with_name("data")
    assert run_ingest(directory, resume=False)["resumed_episodes"] == 0
    assert hash_files(directory) == expected
    with pytest.raises(CheckpointError, match="data exists already; use a new directory, or delete it"):
        run_ingest(directory, resume=False)
    assert hash_files(directory) == expected


# --- the disk is full


@pytest.mark.drill("F9")
def test_conversion_on_a_full_disk_raises_and_resumes(tmp_path, uninterrupted_directory, expected):
    num_bytes = sum(path.stat().st_size for path in uninterrupted_directory.rglob("*"))
    sizes = [int(num_bytes * part) >> 12 << 12 for part in (0.002, 0.1, 0.5, 0.51, 0.9, 1.0)]
    with process(convert_on_full_disk, tmp_path, [*sizes, 2 * num_bytes]) as (_, channel):
        skip_unless_mounted(channel)
        for _ in sizes:
            error, names = receive(channel)
            assert isinstance(error, StorageFullError)
            kept = "existing data are kept" if names else "nothing is kept"
            assert names in ([], ["data.partial"]) and f"data.partial; {kept}" in str(error)
        assert receive(channel) == expected


@pytest.mark.slow
def test_conversion_on_a_full_disk_raises_while_finishing_and_resumes(tmp_path, uninterrupted_directory, expected):
    """The size of the disk grows page by page, from too small for the data to large enough for the whole directory."""
    large = [uninterrupted_directory.glob(f"checkpoints/*/{name}.tfrecord") for name in ("items", "chunks")]
    num_bytes = sum(path.stat().st_size for paths in large for path in paths) + 8 * (NUM_ITEMS + 1900)
    pages = range((num_bytes >> 12) - 2, (num_bytes >> 12) + 16)
    with process(convert_on_full_disk, tmp_path, [page << 12 for page in pages]) as (_, channel):
        skip_unless_mounted(channel)
        num_errors = 0
        while isinstance(message := receive(channel), tuple):
            assert isinstance(message[0], StorageFullError) and message[1] == ["data.partial"]
            num_errors += 1
        assert 4 < num_errors < len(pages)
        assert message == expected


# --- an unfinished conversion is damaged


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["items.tfrecord", "chunks.tfrecord", "item_keys", "chunk_keys", "journal.json"])
def test_damaged_partial_file_raises_and_is_kept(partial_directory, damage, name):
    damage_file(partial_directory / name, damage)
    with pytest.raises(CheckpointError, match=f"{partial_directory / name} is damaged"):
        ingest(make_episodes(), partial_directory.with_name("data"))
    assert (partial_directory / name).exists() and not partial_directory.with_name("data").exists()


@pytest.mark.parametrize("name", ["items.tfrecord", "chunks.tfrecord", "item_keys", "chunk_keys"])
def test_missing_partial_file_raises(partial_directory, name):
    (partial_directory / name).unlink()
    with pytest.raises(CheckpointError, match=f"{partial_directory / name} is damaged"):
        ingest(make_episodes(), partial_directory.with_name("data"))


def test_conversion_without_its_journal_starts_over(partial_directory, expected):
    (partial_directory / "journal.json").unlink()
    assert run_ingest(partial_directory.with_name("data"))["resumed_episodes"] == 0
    assert hash_files(partial_directory.with_name("data")) == expected


@pytest.mark.parametrize(
    "name", mark_slow_except({"items.tfrecord"}, ["items.tfrecord", "chunks.tfrecord", "item_keys", "chunk_keys"])
)
def test_data_after_the_last_part_are_written_again(partial_directory, expected, name):
    with (partial_directory / name).open("ab") as stream:
        stream.write(b"half a record")
    assert run_ingest(partial_directory.with_name("data"))["resumed_episodes"] > 0
    assert hash_files(partial_directory.with_name("data")) == expected


@pytest.mark.parametrize("name", ["root", ".rlds2reverb-0.tmp"])
def test_files_left_from_assembling_are_ignored(partial_directory, expected, name):
    if name == "root":
        (partial_directory / "root/checkpoints/foreign").mkdir(parents=True)
    else:
        (partial_directory / name).write_text("half")
    run_ingest(partial_directory.with_name("data"))
    assert hash_files(partial_directory.with_name("data")) == expected


# --- a complete directory is damaged


@pytest.fixture
def complete_directory(tmp_path, uninterrupted_directory):
    """Provides a copy of the directory of an uninterrupted run."""
    return shutil.copytree(uninterrupted_directory, tmp_path / "data")


def assert_server_raises(directory, match):
    with pytest.raises(CheckpointError, match=match):
        ReplayServer(directory=directory)


@pytest.mark.parametrize("damage", [*DAMAGES, "missing"])
@pytest.mark.parametrize("name", ["items", "chunks", "tables"])
def test_server_raises_for_a_damaged_file(complete_directory, damage, name):
    (file,) = complete_directory.glob(f"checkpoints/*/{name}.tfrecord")
    if damage == "missing":
        file.unlink()
    else:
        damage_file(file, damage)
    assert_server_raises(complete_directory, f"{name}.tfrecord is (damaged|missing)")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("pattern", ["rlds2reverb.json", "manifests/*.json"])
def test_server_raises_for_a_damaged_description(complete_directory, damage, pattern):
    (file,) = complete_directory.glob(pattern)
    damage_file(file, damage)
    assert_server_raises(complete_directory, f"{file.name.replace('+', '.')} is damaged; restore it from a copy")


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("checkpoints/*/DONE", "has no DONE file"),
        ("manifests/*.json", "its manifest .* is missing"),
        ("rlds2reverb.json", "data/rlds2reverb.json is missing; restore it from a copy"),
    ],
)
def test_server_raises_for_a_missing_file(complete_directory, pattern, match):
    (file,) = complete_directory.glob(pattern)
    file.unlink()
    assert_server_raises(complete_directory, match)


def test_server_raises_for_a_missing_checkpoint(complete_directory):
    for folder in (complete_directory / "checkpoints").iterdir():
        shutil.rmtree(folder)
    assert_server_raises(complete_directory, "data has no checkpoint; write it again")


@pytest.mark.parametrize(
    ("folder", "match"),
    [(".", r"is not a checkpoint root \(it holds notes.txt\)"), ("checkpoints", "notes.txt is not a checkpoint")],
)
@pytest.mark.drill("F10")
def test_foreign_file_raises_and_is_not_changed(complete_directory, folder, match):
    (complete_directory / folder / "notes.txt").write_text("kept")
    before = hash_files(complete_directory)
    assert_server_raises(complete_directory, match)
    with pytest.raises(CheckpointError, match=match):
        ingest(make_episodes(), complete_directory)
    assert hash_files(complete_directory) == before


@pytest.mark.parametrize("name", ["items", "chunks", "tables"])
def test_repeated_conversion_raises_for_a_damaged_directory(complete_directory, name):
    (file,) = complete_directory.glob(f"checkpoints/*/{name}.tfrecord")
    damage_file(file, "truncated")
    with pytest.raises(CheckpointError, match=f"{name}.tfrecord is damaged"):
        ingest(make_episodes(), complete_directory)


def test_serving_does_not_change_the_directory(complete_directory, expected):
    with ReplayServer(directory=complete_directory) as server:
        assert server.client.server_info(timeout=10)["replay"].current_size == NUM_ITEMS
    assert hash_files(complete_directory) == expected


# --- a second process, different data, different arguments


def test_second_process_raises(tmp_path, expected):
    directory = tmp_path / "data"
    with process(convert, directory, {}, [("write", 50)]) as (_, channel):
        assert [receive(channel), receive(channel)] == ["begun", "held"]
        with pytest.raises(ResourceInUseError, match=f"the conversion to {directory} is in use by process"):
            ingest(make_episodes(), directory)
        channel.send("continue")
        assert receive(channel)["items"] == NUM_ITEMS
    assert hash_files(directory) == expected


def make_different_episodes():
    other = make_episodes()
    other[3] = episode(150, terminal=False, start=7)
    return other


@pytest.mark.drill("moved")
def test_resuming_with_different_data_raises_and_changes_nothing(partial_directory, expected):
    with pytest.raises(ResumeError, match=r"its first \d+ episodes differ; write to an empty table or a new directory"):
        ingest(make_different_episodes(), partial_directory.with_name("data"))
    assert not partial_directory.with_name("data").exists()
    assert run_ingest(partial_directory.with_name("data"))["resumed_episodes"] > 0
    assert hash_files(partial_directory.with_name("data")) == expected


def test_different_data_raise_for_a_complete_directory(complete_directory, expected):
    with pytest.raises(ResumeError, match="its first 100 episodes differ"):
        ingest(make_different_episodes(), complete_directory)
    assert hash_files(complete_directory) == expected


DIFFERENT_ARGUMENTS = [
    ({"adder": TrajectoryWindows(3)}, r"length of adder TrajectoryWindows was 2, is now 3"),
    (
        {"adder": TrajectoryEpisodes()},
        r"adder was TrajectoryWindows, is now TrajectoryEpisodes",
    ),
    ({"priority": 2.0}, r"priority was 1\.0, is now 2\.0"),
    ({"layout": "packed"}, r"layout was columns, is now packed"),
    ({"on_invalid": "skip_episode"}, r"on_invalid was error, is now skip_episode"),
    ({"options": IngestOptions(key_seed=1)}, r"key_seed was 0, is now 1"),
    ({"options": IngestOptions(chunk_length=3)}, r"chunk_length was None, is now 3"),
    ({"tables": "other"}, r"tables was \['replay'\], is now \['other'\]"),
    (
        {"tables": TableConfig("replay", max_size=20_000)},
        r"max_size of table 'replay' was None, is now 20000",
    ),
    ({"source": make_episodes(99)}, r"source was .*100\], is now .*99\]"),
    (
        {"source": [episode(150, terminal=True, start=7), *make_episodes()[1:]]},
        "the first episode had different items, or the code of the adder or priority has changed",
    ),
]


@pytest.mark.parametrize(("options", "difference"), DIFFERENT_ARGUMENTS)
def test_resuming_with_different_arguments_raises_naming_them(partial_directory, options, difference):
    with pytest.raises(CheckpointError, match=rf"contains a conversion with different arguments: {difference}; delete"):
        ingest(destination=partial_directory.with_name("data"), **{"source": make_episodes(), **options})
    assert partial_directory.exists()


@pytest.mark.parametrize(("options", "difference"), DIFFERENT_ARGUMENTS)
def test_different_arguments_raise_for_a_complete_directory(complete_directory, expected, options, difference):
    with pytest.raises(
        CheckpointError, match=rf"exists already, written with different arguments: {difference}; use a"
    ):
        ingest(destination=complete_directory, **{"source": make_episodes(), **options})
    assert hash_files(complete_directory) == expected


# --- a conversion fails


class BrokenSourceError(Exception):
    """The error that a source raises in these tests."""


def make_failing_source(error, num_episodes):
    """Returns a source that raises an error after some episodes."""
    source = load(make_episodes())

    def read():
        for number, read_episode in enumerate(source):
            if number == num_episodes:
                raise error
            yield read_episode

    return replace(source, read=read)


@pytest.fixture
def small_parts(monkeypatch):
    """Makes this process write small parts, as `faults.use_small_groups` does."""
    monkeypatch.setattr(item_blocks, "GROUP_BYTES", 1 << 15)
    monkeypatch.setattr(directory_destination, "PART_BYTES", 1 << 18)


@pytest.mark.usefixtures("small_parts")
def test_invalid_data_leave_nothing_and_can_be_skipped(tmp_path):
    episodes = make_episodes()
    episodes[-1]["reward"][7] = np.nan
    with pytest.raises(InvalidEpisodeError, match="holds NaN"):
        ingest(episodes, tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
    assert ingest(episodes, tmp_path / "data", on_invalid="skip_episode").items == NUM_ITEMS - 149


@pytest.mark.usefixtures("small_parts")
def test_too_many_items_raise_and_leave_nothing(tmp_path):
    table = TableConfig("replay", max_size=14_000)
    with pytest.raises(ValueError, match="at least 14,900 items, but the smallest table holds 14,000"):
        ingest(make_episodes(), tmp_path / "data", table)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_parts")
def test_permanent_error_says_that_the_partial_directory_is_removed(tmp_path):
    def priority(episode, items):
        return -1.0 if episode.index == 90 else 1.0

    message = rf"the priority of item 0 of episode 90 must be .*got -1.*; {tmp_path}/data.partial was removed$"
    with pytest.raises(ValueError, match=message):
        ingest(make_episodes(), tmp_path / "data", priority=priority)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_parts")
def test_temporary_error_says_that_the_run_can_be_resumed(tmp_path, expected):
    message = f"gone; {tmp_path}/data.partial is kept; call again with the same arguments to continue$"
    with pytest.raises(BrokenSourceError, match=message):
        ingest(make_failing_source(BrokenSourceError("gone"), 90), tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["data.partial"]
    assert ingest(make_episodes(), tmp_path / "data").resumed_episodes > 0
    assert hash_files(tmp_path / "data") == expected


@pytest.mark.usefixtures("small_parts")
def test_interrupted_run_resumes(tmp_path, expected):
    with pytest.raises(KeyboardInterrupt):
        ingest(make_failing_source(KeyboardInterrupt(), 90), tmp_path / "data")
    assert ingest(make_episodes(), tmp_path / "data").resumed_episodes > 0
    assert hash_files(tmp_path / "data") == expected


def test_error_before_the_first_part_leaves_nothing(tmp_path):
    with pytest.raises(BrokenSourceError, match=f"^gone; {tmp_path}/data.partial was removed$"):
        ingest(make_failing_source(BrokenSourceError("gone"), 90), tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


# --- the directory exists already and is empty


def test_empty_directory_is_replaced(tmp_path, expected):
    (tmp_path / "data").mkdir()
    kill_at("write", 55, tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.partial"]
    assert run_ingest(tmp_path / "data")["resumed_episodes"] > 0
    assert hash_files(tmp_path / "data") == expected
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_directory_that_cannot_be_replaced_raises(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="link exists already; use a new directory"):
        ingest(make_episodes(1, 11), tmp_path / "link")
    monkeypatch.setattr("os.path.ismount", lambda path: str(path).endswith("empty"))
    with pytest.raises(CheckpointError, match="empty must not be the root of a file system.* such as .*/empty/data"):
        ingest(make_episodes(1, 11), tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "link"]
    assert ingest(make_episodes(1, 11), tmp_path / "empty/data").items == 10
