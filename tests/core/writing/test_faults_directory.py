"""Writing a directory, while processes are killed and disks are full: in the end it is the same to the byte."""

import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
from faults import (
    DAMAGES,
    convert_on_full_disk,
    convert,
    damage_file,
    hash_files,
    run_ingest,
    kill_after,
    kill_at,
    make_episodes,
    random_times,
    process,
    receive,
    skip_unless_mounted,
)
from reference_impls import episode

from rlds2reverb._encoding import item_blocks
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb._writing import directory_destination
from rlds2reverb.errors import CheckpointError, InvalidEpisodeError, ResourceInUseError, ResumeError, StorageFullError
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.sources import load
from rlds2reverb.tables import TableConfig
from rlds2reverb.trajectory_items import TrajectoryEpisodes, TrajectoryWindows

NUM_ITEMS = 100 * 149


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A directory written by a run that nobody disturbs."""
    directory = tmp_path_factory.mktemp("undisturbed") / "data"
    assert run_ingest(directory)["items"] == NUM_ITEMS
    return directory


@pytest.fixture(scope="module")
def wanted(undisturbed):
    """The digests of its files."""
    return hash_files(undisturbed)


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """What is left of a run that was killed in the middle."""
    directory = tmp_path_factory.mktemp("unfinished") / "data"
    kill_at("write", 55, directory)
    return directory.with_name("data.partial")


@pytest.fixture
def partial(tmp_path, unfinished):
    """A copy of that."""
    return shutil.copytree(unfinished, tmp_path / "data.partial")


# --- the process is killed


@pytest.mark.parametrize("index", [0, 1, 55, 99])
def test_a_killed_conversion_is_continued_to_the_same_bytes(tmp_path, wanted, index):
    kill_at("write", index, tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["data.partial"]
    assert (run_ingest(tmp_path / "data")["resumed_episodes"] > 0) == (index > 50)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert hash_files(tmp_path / "data") == wanted


@pytest.mark.slow
def test_a_conversion_killed_at_any_of_20_moments_is_continued_to_the_same_bytes(tmp_path, wanted):
    taken = []
    for name in "abc":
        with process(convert, tmp_path / name, {}) as (_, channel):
            assert receive(channel) == "begun"
            began = time.monotonic()
            receive(channel)
            taken.append(time.monotonic() - began)
    num_late = num_continued = 0
    for number, moment in enumerate(random_times(20, min(taken), seed=3)):
        directory = tmp_path / f"data{number}"
        while not kill_after(moment, directory):
            num_late += 1
            moment *= 0.8
            shutil.rmtree(directory)
        num_continued += run_ingest(directory)["resumed_episodes"] > 0
        assert hash_files(directory) == wanted, f"killed after {moment} s"
    assert num_late <= 4 and num_continued >= 5


@pytest.mark.parametrize(
    "step", [("assemble", 0), ("link", 0), ("manifest", 0), ("manifest", 1), ("rename", 0), ("rename", 1)]
)
def test_a_conversion_killed_while_it_finishes_is_continued_to_the_same_bytes(tmp_path, wanted, step):
    kill_at(*step, tmp_path / "data")
    assert (tmp_path / "data").exists() == (step == ("rename", 1))
    report = run_ingest(tmp_path / "data")
    assert (report["resumed_episodes"], report["items"]) == (100, NUM_ITEMS)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert hash_files(tmp_path / "data") == wanted


@pytest.fixture
def renamed(tmp_path):
    """The directory of a run that was killed after its rename: what it was put together from is still next to it."""
    kill_at("rename", 1, tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.partial"]
    return tmp_path / "data"


def test_a_directory_is_complete_when_it_has_its_name(renamed, wanted):
    assert hash_files(renamed) == wanted
    with ReplayServer.from_directory(renamed) as server:
        assert server.client.server_info(timeout=10)["replay"].current_size == NUM_ITEMS
    assert hash_files(renamed) == wanted


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"resume": False}, "data exists already; give a new directory, or delete it"),
        (
            {"priority": 2.0},
            r"data exists already, written with other arguments: priority \(--priority\) was 1\.0, is 2\.0; give a new",
        ),
    ],
)
def test_a_conversion_killed_after_its_rename_is_not_written_over(renamed, wanted, options, match):
    with pytest.raises(CheckpointError, match=match):
        run_ingest(renamed, **options)
    assert hash_files(renamed) == wanted
    assert run_ingest(renamed)["resumed_episodes"] == 100
    assert [path.name for path in renamed.parent.iterdir()] == ["data"]
    assert hash_files(renamed) == wanted


@pytest.mark.parametrize("deleted", [["journal.json"], ["items.tfrecord", "item_keys", "lock"]])
def test_a_conversion_killed_while_it_tidies_up_is_complete_and_tidied_up(renamed, wanted, deleted):
    for name in deleted:
        (renamed.with_name("data.partial") / name).unlink()
    assert run_ingest(renamed)["resumed_episodes"] == 100
    assert [path.name for path in renamed.parent.iterdir()] == ["data"]
    assert hash_files(renamed) == wanted


@pytest.mark.parametrize("resume", [True, False])
def test_what_is_left_after_the_rename_does_not_change_a_directory_that_is_moved_away(renamed, wanted, resume):
    moved = renamed.rename(renamed.with_name("moved"))
    run_ingest(renamed, resume=resume)
    assert sorted(path.name for path in renamed.parent.iterdir()) == ["data", "moved"]
    assert hash_files(renamed) == hash_files(moved) == wanted


def test_a_directory_that_is_moved_away_is_not_appended_to_by_a_longer_data_set(tmp_path, monkeypatch):
    def convert(num_episodes):  # of a source that does not say how long it is
        return ingest(replace(load(make_episodes(num_episodes)), num_episodes=None, num_rows=None), tmp_path / "data")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda path, **options: None)  # as if it were killed after the rename
        convert(5)
    moved = (tmp_path / "data").rename(tmp_path / "moved")
    before = hash_files(moved)
    assert convert(8).resumed_episodes == 0
    assert hash_files(moved) == before


def test_a_conversion_killed_again_and_again_is_continued_to_the_same_bytes(tmp_path, wanted):
    for index in (20, 30, 31, 60, 99):
        kill_at("write", index, tmp_path / "data")
    run_ingest(tmp_path / "data")
    assert hash_files(tmp_path / "data") == wanted


def test_the_same_again_leaves_a_finished_directory_as_it_is(tmp_path, undisturbed, wanted):
    shutil.copytree(undisturbed, tmp_path / "data")
    assert run_ingest(tmp_path / "data")["resumed_episodes"] == 100
    assert hash_files(tmp_path / "data") == wanted


def test_without_resuming_a_conversion_begins_again(partial, wanted):
    directory = partial.with_name("data")
    assert run_ingest(directory, resume=False)["resumed_episodes"] == 0
    assert hash_files(directory) == wanted
    with pytest.raises(CheckpointError, match="data exists already; give a new directory, or delete it"):
        run_ingest(directory, resume=False)
    assert hash_files(directory) == wanted


# --- the disk is full


def test_a_conversion_without_space_is_told_and_continued_to_the_same_bytes(tmp_path, undisturbed, wanted):
    num_bytes = sum(path.stat().st_size for path in undisturbed.rglob("*"))
    sizes = [int(num_bytes * part) >> 12 << 12 for part in (0.002, 0.1, 0.5, 0.51, 0.9, 1.0)]
    with process(convert_on_full_disk, tmp_path, [*sizes, 2 * num_bytes]) as (_, channel):
        skip_unless_mounted(channel)
        for _ in sizes:
            error, names = receive(channel)
            assert isinstance(error, StorageFullError)
            kept = "what is there is kept" if names else "nothing is kept"
            assert names in ([], ["data.partial"]) and f"data.partial; {kept}" in str(error)
        assert receive(channel) == wanted


def test_a_conversion_without_space_to_finish_is_told_and_continued_to_the_same_bytes(tmp_path, undisturbed, wanted):
    """Page by page, from where the data have no space left to where everything has."""
    large = [undisturbed.glob(f"checkpoints/*/{name}.tfrecord") for name in ("items", "chunks")]
    num_bytes = sum(path.stat().st_size for paths in large for path in paths) + 8 * (NUM_ITEMS + 1900)
    pages = range((num_bytes >> 12) - 2, (num_bytes >> 12) + 16)
    with process(convert_on_full_disk, tmp_path, [page << 12 for page in pages]) as (_, channel):
        skip_unless_mounted(channel)
        told = 0
        while isinstance(said := receive(channel), tuple):
            assert isinstance(said[0], StorageFullError) and said[1] == ["data.partial"]
            told += 1
        assert 4 < told < len(pages)
        assert said == wanted


# --- what is left of an unfinished conversion is damaged


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["items.tfrecord", "chunks.tfrecord", "item_keys", "chunk_keys", "journal.json"])
def test_a_damaged_file_of_an_unfinished_conversion_is_named(partial, damage, name):
    damage_file(partial / name, damage)
    with pytest.raises(CheckpointError, match=f"{partial / name} is damaged"):
        ingest(make_episodes(), partial.with_name("data"))
    assert not partial.with_name("data").exists()


@pytest.mark.parametrize("name", ["items.tfrecord", "chunks.tfrecord", "item_keys", "chunk_keys"])
def test_a_missing_file_of_an_unfinished_conversion_is_named(partial, name):
    (partial / name).unlink()
    with pytest.raises(CheckpointError, match=f"{partial / name} is damaged"):
        ingest(make_episodes(), partial.with_name("data"))


def test_a_conversion_whose_journal_is_lost_begins_again(partial, wanted):
    (partial / "journal.json").unlink()
    assert run_ingest(partial.with_name("data"))["resumed_episodes"] == 0
    assert hash_files(partial.with_name("data")) == wanted


@pytest.mark.parametrize("name", ["items.tfrecord", "chunks.tfrecord", "item_keys", "chunk_keys"])
def test_what_stands_behind_the_last_part_is_written_again(partial, wanted, name):
    with (partial / name).open("ab") as stream:
        stream.write(b"half a record")
    assert run_ingest(partial.with_name("data"))["resumed_episodes"] > 0
    assert hash_files(partial.with_name("data")) == wanted


@pytest.mark.parametrize("name", ["root", "journal.tmp"])
def test_what_was_left_of_putting_it_together_does_no_harm(partial, wanted, name):
    if name == "root":
        (partial / "root/checkpoints/foreign").mkdir(parents=True)
    else:
        (partial / name).write_text("half")
    run_ingest(partial.with_name("data"))
    assert hash_files(partial.with_name("data")) == wanted


# --- a finished directory is damaged


@pytest.fixture
def finished(tmp_path, undisturbed):
    """A copy of the directory of a run that nobody disturbed."""
    return shutil.copytree(undisturbed, tmp_path / "data")


def refused(directory, match):
    with pytest.raises(CheckpointError, match=match):
        ReplayServer.from_directory(directory)


@pytest.mark.parametrize("damage", [*DAMAGES, "missing"])
@pytest.mark.parametrize("name", ["items", "chunks", "tables"])
def test_no_server_starts_from_a_damaged_file(finished, damage, name):
    (file,) = finished.glob(f"checkpoints/*/{name}.tfrecord")
    if damage == "missing":
        file.unlink()
    else:
        damage_file(file, damage)
    refused(finished, f"{name}.tfrecord is (damaged|missing)")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("pattern", ["rlds2reverb.json", "manifests/*.json"])
def test_no_server_starts_from_a_damaged_description(finished, damage, pattern):
    (file,) = finished.glob(pattern)
    damage_file(file, damage)
    refused(finished, f"{file.name.replace('+', '.')} is damaged; restore it from a copy")


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("checkpoints/*/DONE", "has no DONE file"),
        ("manifests/*.json", "is complete but has no manifest"),
        ("rlds2reverb.json", "data/rlds2reverb.json is missing; restore it from a copy"),
    ],
)
def test_no_server_starts_where_a_file_is_missing(finished, pattern, match):
    (file,) = finished.glob(pattern)
    file.unlink()
    refused(finished, match)


def test_no_server_starts_where_the_checkpoint_is_missing(finished):
    for folder in (finished / "checkpoints").iterdir():
        shutil.rmtree(folder)
    refused(finished, "data holds no checkpoint; write it again")


@pytest.mark.parametrize(
    ("place", "match"),
    [(".", r"is not a checkpoint root of ours \(notes.txt\)"), ("checkpoints", "notes.txt is not a checkpoint")],
)
def test_a_foreign_file_is_refused_and_left_alone(finished, place, match):
    (finished / place / "notes.txt").write_text("kept")
    before = hash_files(finished)
    refused(finished, match)
    with pytest.raises(CheckpointError, match=match):
        ingest(make_episodes(), finished)
    assert hash_files(finished) == before


@pytest.mark.parametrize("name", ["items", "chunks", "tables"])
def test_the_same_again_does_not_take_a_damaged_directory_for_a_finished_one(finished, name):
    (file,) = finished.glob(f"checkpoints/*/{name}.tfrecord")
    damage_file(file, "truncated")
    with pytest.raises(CheckpointError, match=f"{name}.tfrecord is damaged"):
        ingest(make_episodes(), finished)


def test_a_directory_that_serves_stays_as_it_is(finished, wanted):
    with ReplayServer.from_directory(finished) as server:
        assert server.client.server_info(timeout=10)["replay"].current_size == NUM_ITEMS
    assert hash_files(finished) == wanted


# --- another process, other data, other arguments


def test_two_processes_do_not_write_the_same(tmp_path, wanted):
    directory = tmp_path / "data"
    with process(convert, directory, {}, [("write", 50)]) as (_, channel):
        assert [receive(channel), receive(channel)] == ["begun", "held"]
        with pytest.raises(ResourceInUseError, match=f"the conversion to {directory} is in use by process"):
            ingest(make_episodes(), directory)
        channel.send("on")
        assert receive(channel)["items"] == NUM_ITEMS
    assert hash_files(directory) == wanted


def other_data():
    other = make_episodes()
    other[3] = episode(150, terminal=False, start=7)
    return other


def test_other_data_under_the_same_name_are_not_resumed_and_do_no_harm(partial, wanted):
    with pytest.raises(
        ResumeError, match=r"its first \d+ episodes are others; write to an empty table or a new directory"
    ):
        ingest(other_data(), partial.with_name("data"))
    assert not partial.with_name("data").exists()
    assert run_ingest(partial.with_name("data"))["resumed_episodes"] > 0
    assert hash_files(partial.with_name("data")) == wanted


def test_other_data_are_not_taken_for_those_of_a_finished_directory(finished, wanted):
    with pytest.raises(ResumeError, match="its first 100 episodes are others"):
        ingest(other_data(), finished)
    assert hash_files(finished) == wanted


OTHER_ARGUMENTS = [
    ({"adder": TrajectoryWindows(3)}, r"length of adder TrajectoryWindows \(--sequence-length\) was 2, is 3"),
    (
        {"adder": TrajectoryEpisodes()},
        r"adder \(--sequence-length, --n-step\) was TrajectoryWindows, is TrajectoryEpisodes",
    ),
    ({"priority": 2.0}, r"priority \(--priority\) was 1\.0, is 2\.0"),
    ({"layout": "packed"}, r"layout \(--layout\) was columns, is packed"),
    ({"on_invalid": "skip_episode"}, r"on_invalid \(--on-invalid\) was error, is skip_episode"),
    ({"options": IngestOptions(key_seed=1)}, r"key_seed \(--key-seed\) was 0, is 1"),
    ({"options": IngestOptions(chunk_length=3)}, r"chunk_length \(--chunk-length\) was None, is 3"),
    ({"tables": "other"}, r"tables \(--table\) was \['replay'\], is \['other'\]"),
    (
        {"tables": TableConfig("replay", max_size=20_000)},
        r"max_size of table 'replay' \(--max-size\) was None, is 20000",
    ),
    ({"source": make_episodes(99)}, r"source \(SRC\) was .*100\], is .*99\]"),
    ({"source": [episode(150, terminal=True, start=7), *make_episodes()[1:]]}, "the first episode gave other items"),
]


@pytest.mark.parametrize(("options", "difference"), OTHER_ARGUMENTS)
def test_other_arguments_are_refused_and_the_difference_is_named(partial, options, difference):
    with pytest.raises(
        CheckpointError, match=rf"is left of a conversion with other arguments: {difference}; delete it"
    ):
        ingest(destination=partial.with_name("data"), **{"source": make_episodes(), **options})
    assert partial.exists()


@pytest.mark.parametrize(("options", "difference"), OTHER_ARGUMENTS)
def test_a_finished_directory_is_not_written_over_with_other_arguments(finished, wanted, options, difference):
    with pytest.raises(CheckpointError, match=rf"exists already, written with other arguments: {difference}; give a"):
        ingest(destination=finished, **{"source": make_episodes(), **options})
    assert hash_files(finished) == wanted


# --- a conversion fails


class BrokenSource(Exception):
    """What a source raises in these tests."""


def failing(error, num_episodes):
    """The data set, whose reading fails after some episodes."""
    source = load(make_episodes())

    def read():
        for number, found in enumerate(source):
            if number == num_episodes:
                raise error
            yield found

    return replace(source, read=read)


@pytest.fixture
def small_parts(monkeypatch):
    """Has this process write in as small parts as `faults.use_small_groups` does."""
    monkeypatch.setattr(item_blocks, "_GROUP_BYTES", 1 << 15)
    monkeypatch.setattr(directory_destination, "_PART_BYTES", 1 << 18)


@pytest.mark.usefixtures("small_parts")
def test_nothing_is_left_of_invalid_data_and_they_can_be_left_out(tmp_path):
    episodes = make_episodes()
    episodes[-1]["reward"][7] = np.nan
    with pytest.raises(InvalidEpisodeError, match="holds NaN"):
        ingest(episodes, tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
    assert ingest(episodes, tmp_path / "data", on_invalid="skip_episode").items == NUM_ITEMS - 149


@pytest.mark.usefixtures("small_parts")
def test_a_run_with_more_items_than_its_table_holds_leaves_nothing(tmp_path):
    table = TableConfig("replay", max_size=14_000)
    with pytest.raises(ValueError, match="gives 14,900 items or more, and the smallest table holds 14,000"):
        ingest(make_episodes(), tmp_path / "data", table)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_parts")
def test_a_failed_run_that_fails_again_each_time_says_that_nothing_is_left(tmp_path):
    def priority(episode, items):
        return -1.0 if episode.index == 90 else 1.0

    nothing = rf"the priority of item 0 of episode 90 is -1.*; nothing is left in {tmp_path}/data.partial$"
    with pytest.raises(ValueError, match=nothing):
        ingest(make_episodes(), tmp_path / "data", priority=priority)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_parts")
def test_a_failed_run_that_can_be_continued_says_so_and_is_continued(tmp_path, wanted):
    kept = f"gone; what was written is kept in {tmp_path}/data.partial: the same call continues it$"
    with pytest.raises(BrokenSource, match=kept):
        ingest(failing(BrokenSource("gone"), 90), tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["data.partial"]
    assert ingest(make_episodes(), tmp_path / "data").resumed_episodes > 0
    assert hash_files(tmp_path / "data") == wanted


@pytest.mark.usefixtures("small_parts")
def test_an_interrupted_run_can_be_continued(tmp_path, wanted):
    with pytest.raises(KeyboardInterrupt):
        ingest(failing(KeyboardInterrupt(), 90), tmp_path / "data")
    assert ingest(make_episodes(), tmp_path / "data").resumed_episodes > 0
    assert hash_files(tmp_path / "data") == wanted


def test_a_failed_run_that_has_not_completed_a_part_leaves_nothing(tmp_path):
    with pytest.raises(BrokenSource, match=f"^gone; nothing is left in {tmp_path}/data.partial$"):
        ingest(failing(BrokenSource("gone"), 90), tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


# --- the directory is there already, and empty


def test_an_empty_directory_is_as_good_as_none(tmp_path, wanted):
    (tmp_path / "data").mkdir()
    kill_at("write", 55, tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.partial"]
    assert run_ingest(tmp_path / "data")["resumed_episodes"] > 0
    assert hash_files(tmp_path / "data") == wanted
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_directory_that_cannot_be_renamed_over_is_refused(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="link exists already; give a new directory"):
        ingest(make_episodes(1, 11), tmp_path / "link")
    monkeypatch.setattr("os.path.ismount", lambda path: str(path).endswith("empty"))
    with pytest.raises(CheckpointError, match="empty is the root of a file system.* such as .*/empty/data"):
        ingest(make_episodes(1, 11), tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "link"]
    assert ingest(make_episodes(1, 11), tmp_path / "empty/data").items == 10
