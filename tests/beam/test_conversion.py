"""Tests of `convert_with_beam`: the same bytes as `ingest` writes, whatever fails or is repeated."""

import gc
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import h5py
import internals
import numpy as np
import pytest
from lazy_beam import convert_with_beam, make_options
from written_directories import assert_same_files, assert_same_reports, write_hopper_with_nan

from rlds2reverb import IngestOptions, ReplayServer, TableConfig, TrajectoryEpisodes, ingest, sample_dataset
from rlds2reverb.datasets import load
from rlds2reverb.datasets.transforms import CastFloats, NormalizeObservations, apply_transforms, parse_reward
from rlds2reverb.errors import (
    CheckpointError,
    InvalidEpisodeError,
    ResourceInUseError,
    ResumeError,
    SourceError,
    StorageFullError,
)
from rlds2reverb.reverb.wire import item_blocks
from rlds2reverb.reverb.writing.report import IngestWarning
from rlds2reverb.types.priorities import ByReturn

HOPPER = "d4rl/hopper_medium-v2.hdf5"


def small():
    """Returns options with slices and parts that are much smaller than the files of the tests."""
    return {"part_bytes": 100_000, "beam_options": make_options(slice_bytes=150_000)}


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch):
    """Makes groups of episodes so small that the files of the tests consist of many."""
    monkeypatch.setattr(item_blocks, "FIRST_GROUP_BYTES", 20_000)
    monkeypatch.setattr(item_blocks, "GROUP_BYTES", 50_000)


@pytest.fixture(autouse=True)
def _ignore_notes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IngestWarning)
        yield


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (HOPPER, {}),
        pytest.param("minari/classic/pendulum-dict/dev-v0", {"layout": "packed"}, marks=pytest.mark.slow),
        pytest.param(
            "rlds/physics_rlds/pendulum_pixels/1.0.0", {"adder": TrajectoryEpisodes()}, marks=pytest.mark.slow
        ),
        pytest.param(
            "d4rl/pendulum_mixed-v2.hdf5",
            {"adder": TrajectoryEpisodes(), "tables": ["a", TableConfig("b")]},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_files_are_those_of_ingest(data, tmp_path, name, options):
    expected = ingest(data / name, tmp_path / "plain", **options)
    got = convert_with_beam(data / name, tmp_path / "beam", **options, **small())
    assert_same_files(tmp_path / "beam", tmp_path / "plain")
    assert_same_reports(got, expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beam", "plain"]


@pytest.mark.parametrize(
    "select", [{"episodes": "5:13"}, pytest.param({"return": [1500, None]}, marks=pytest.mark.slow)]
)
def test_episodes_selected_by_a_mapping_are_those_of_ingest(data, tmp_path, select):
    mapping = {"select": select, "cast": {"observation": "float64"}}
    expected = ingest(load(data / HOPPER, mapping=mapping), tmp_path / "plain")
    got = convert_with_beam(data / HOPPER, tmp_path / "beam", mapping=mapping, **small())
    assert_same_files(tmp_path / "beam", tmp_path / "plain")
    assert 0 < got.episodes == expected.episodes < 32


@pytest.mark.slow
def test_several_files_become_shards(data, tmp_path):
    for number in range(2):
        shutil.copy(data / HOPPER, tmp_path / f"part-{number}.hdf5")
    pattern = str(tmp_path / "part-*.hdf5")
    expected = ingest(pattern, [tmp_path / "plain" / f"shard_{shard}" for shard in range(3)])
    got = convert_with_beam(pattern, tmp_path / "beam", num_shards=3, **small())
    assert_same_files(tmp_path / "beam", tmp_path / "plain")
    assert_same_reports(got, expected)
    assert expected.episodes == 64


@pytest.mark.parametrize("source", [3, [Path("a.hdf5"), 3], iter(["a.hdf5"])])
def test_data_in_memory_raise(source, tmp_path):
    with pytest.raises(TypeError, match="reads paths, addresses or names, which every worker can open, got a "):
        convert_with_beam(source, tmp_path / "beam", **small())


def test_numbers_out_of_range_raise(tmp_path):
    for name, options in (("num_shards", {"num_shards": -1}), ("part_bytes", {"part_bytes": 0})):
        with pytest.raises(ValueError, match=f"{name} must be an integer >= 1, got"):
            convert_with_beam("x.hdf5", tmp_path / "beam", **options)
    with pytest.raises(ValueError, match="verify=True has no effect on Beam"):
        convert_with_beam("x.hdf5", tmp_path / "beam", options=IngestOptions(verify=True))
    with pytest.raises(ValueError, match="slice_bytes must be an integer >= 1, got 0"):
        make_options(slice_bytes=0)


def test_empty_shard_raises_before_anything_is_written(data, tmp_path):
    with pytest.raises(ValueError, match="of 200 would be empty, .* only 80 with steps; use fewer shards"):
        convert_with_beam(data / "d4rl/pendulum_mixed-v2.hdf5", tmp_path / "beam", num_shards=200, **small())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_statistics_and_priorities_are_those_of_one_process(data, tmp_path):
    transforms = [CastFloats(), parse_reward("iql_locomotion"), NormalizeObservations()]
    source, statistics = apply_transforms(load(data / HOPPER), transforms)
    ingest(source, tmp_path / "plain", priority=ByReturn.from_episodes(source))
    got = convert_with_beam(data / HOPPER, tmp_path / "beam", transforms=transforms, priority="return", **small())
    assert_same_files(tmp_path / "beam", tmp_path / "plain")
    assert got.statistics == statistics


@pytest.mark.slow
def test_invalid_episode_raises_and_leaves_nothing(data, tmp_path):
    write_hopper_with_nan(data, tmp_path / "nan.hdf5", 5000)
    with pytest.raises(InvalidEpisodeError, match="step\\['reward'\\] holds NaN") as caught:
        convert_with_beam(tmp_path / "nan.hdf5", tmp_path / "out", **small())
    with pytest.raises(InvalidEpisodeError) as expected:
        ingest(tmp_path / "nan.hdf5", tmp_path / "out")
    assert caught.value.errors == expected.value.errors
    assert [path.name for path in tmp_path.iterdir()] == ["nan.hdf5"]


@pytest.mark.slow
def test_invalid_episodes_can_be_skipped(data, tmp_path):
    write_hopper_with_nan(data, tmp_path / "nan.hdf5", 5000)
    expected = ingest(tmp_path / "nan.hdf5", tmp_path / "plain", on_invalid="skip_episode")
    got = convert_with_beam(tmp_path / "nan.hdf5", tmp_path / "beam", on_invalid="skip_episode", **small())
    assert_same_files(tmp_path / "beam", tmp_path / "plain")
    assert_same_reports(got, expected)
    assert got.skipped_episodes == 1 and got.episodes == 31


@pytest.mark.drill("F29")
@pytest.mark.slow
def test_interrupted_run_encodes_only_the_missing_parts(data, tmp_path, monkeypatch):
    from rlds2reverb.beam.storage import WorkFolder

    write, written = WorkFolder.write, []

    def fail_at_fourth_part(self, name, content):
        if name.startswith("part-"):
            if len(written) == 3:
                raise OSError(28, "No space left on device")
            written.append(name)
        write(self, name, content)

    ingest(data / HOPPER, tmp_path / "plain")
    monkeypatch.setattr(WorkFolder, "write", fail_at_fourth_part)
    with pytest.raises(Exception, match="No space left"):
        convert_with_beam(data / HOPPER, tmp_path / "beam", **small())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beam.parts", "plain"]
    first, written[:] = list(written), [""] * 100
    convert_with_beam(data / HOPPER, tmp_path / "beam", **small())
    assert not set(first) & set(written[100:]) and len(written) > 100
    assert_same_files(tmp_path / "beam", tmp_path / "plain")


@pytest.mark.slow
@pytest.mark.drill("F9")
def test_full_disk_is_a_typed_error(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(28, "No space left on device")

    from rlds2reverb.beam.storage import WorkFolder

    monkeypatch.setattr(os, "fsync", fail)
    folder = WorkFolder(str(tmp_path / "work"))
    with pytest.raises(StorageFullError, match="no space left"):
        folder.write("part", b"content")
    assert not folder.exists("part") and list((tmp_path / "work").iterdir()) == []


@pytest.mark.slow
def test_complete_directory_is_not_written_again(data, tmp_path):
    convert_with_beam(data / HOPPER, tmp_path / "out", **small())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    report = convert_with_beam(data / HOPPER, tmp_path / "out", **small())
    assert report.resumed_episodes == report.episodes == 32
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    with pytest.raises(CheckpointError, match="exists already, written with different arguments: adder was"):
        convert_with_beam(data / HOPPER, tmp_path / "out", adder=TrajectoryEpisodes(), **small())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
@pytest.mark.drill("moved")
def test_changed_data_do_not_match_a_complete_directory(data, tmp_path):
    shutil.copy(data / HOPPER, tmp_path / "data.hdf5")
    convert_with_beam(tmp_path / "data.hdf5", tmp_path / "out", **small())
    with h5py.File(tmp_path / "data.hdf5", "r+") as file:
        file["rewards"][9000] += 1
    with pytest.raises(ResumeError, match="does not match the one that the earlier run wrote"):
        convert_with_beam(tmp_path / "data.hdf5", tmp_path / "out", **small())


@pytest.mark.slow
def test_second_process_is_rejected_and_leaves_the_parts(data, tmp_path):
    from rlds2reverb.beam.storage import lock_destination

    (tmp_path / "out.parts").mkdir()
    with lock_destination(str(tmp_path / "out")), pytest.raises(ResourceInUseError, match="conversion to"):
        convert_with_beam(data / HOPPER, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out.parts"]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        pytest.param("missing/*.hdf5", FileNotFoundError, "no file matches", marks=pytest.mark.slow),
        pytest.param("missing.hdf5", FileNotFoundError, "there is no file 'missing.hdf5'", marks=pytest.mark.slow),
        ([{"observations": [1.0]}], TypeError, "reads paths, addresses or names"),
    ],
)
def test_source_that_workers_cannot_open_raises(tmp_path, source, error, message):
    with pytest.raises(error, match=message):
        convert_with_beam(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_too_small_table_raises(data, tmp_path):
    with pytest.raises(ValueError, match="the dataset has at least 10,202 items, but the smallest table holds 100"):
        convert_with_beam(data / HOPPER, tmp_path / "out", TableConfig("replay", max_size=100))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_discontinuities_in_many_slices_are_added_up(tmp_path):
    num_rows = 6000
    observations = np.arange(num_rows, dtype=np.float32)[:, None]
    next_observations = observations + 1
    next_observations[::90] += 100  # 1.1 % of the rows, but less than 1 % of all rows in any slice.
    with h5py.File(tmp_path / "jumps.hdf5", "w") as file:
        file["observations"], file["next_observations"] = observations, next_observations
        file["actions"], file["rewards"] = observations, observations[:, 0]
        file["terminals"], file["timeouts"] = np.zeros(num_rows, bool), np.arange(num_rows) % 1000 == 999
    with pytest.raises(SourceError, match="in more than 1% of the rows inside episodes"):
        convert_with_beam(tmp_path / "jumps.hdf5", tmp_path / "out", beam_options=make_options(slice_bytes=20_000))
    with pytest.raises(SourceError, match="in more than 1% of the rows inside episodes"):
        ingest(tmp_path / "jumps.hdf5", tmp_path / "out")


@pytest.fixture
def objects(tmp_path, monkeypatch):
    import remote_files

    monkeypatch.setenv(remote_files.ROOT, str(tmp_path / "objects"))
    return tmp_path / "objects"


@pytest.mark.slow
def test_addresses_are_read_and_written_through_beam(data, tmp_path, objects, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (objects / "bucket/data").mkdir(parents=True)
    for number in range(2):
        shutil.copy(data / HOPPER, objects / f"bucket/data/part-{number}.hdf5")
    report = convert_with_beam("test://bucket/data/*.hdf5", "test://bucket/out", **small())
    ingest(str(objects / "bucket/data/*.hdf5"), tmp_path / "plain")
    assert_same_files(objects / "bucket/out", tmp_path / "plain")
    assert report.episodes == 64
    assert sorted(path.name for path in (objects / "bucket").iterdir() if any(path.rglob("*.*"))) == ["data", "out"]
    gc.collect()
    assert list(tmp_path.glob("rlds2reverb-*")) == []  # The copies of the files.
    with pytest.raises(CheckpointError, match="test://bucket/out exists already"):
        convert_with_beam("test://bucket/data/*.hdf5", "test://bucket/out", **small())


@pytest.mark.slow
def test_directory_at_an_address_is_read(data, tmp_path, objects):
    name = "rlds/physics_rlds/pendulum_dict/1.0.0"
    shutil.copytree(data / name, objects / "pendulum/1.0.0")
    convert_with_beam("test://pendulum/1.0.0", tmp_path / "beam", **small())
    ingest(data / name, tmp_path / "plain")
    assert_same_files(tmp_path / "beam", tmp_path / "plain")


@pytest.mark.slow
def test_address_without_objects_raises(objects, tmp_path):
    objects.mkdir()
    with pytest.raises(FileNotFoundError, match="no object matches"):
        convert_with_beam("test://nothing/*.hdf5", tmp_path / "out")
    with pytest.raises(SourceError, match="there is no object at test://nothing/file.hdf5"):
        convert_with_beam("test://nothing/file.hdf5", tmp_path / "out")


@pytest.mark.slow
def test_server_starts_from_the_directory(data, tmp_path):
    convert_with_beam(data / HOPPER, tmp_path / "out", **small())
    with ReplayServer(directory=tmp_path / "out") as server:
        sample = next(iter(sample_dataset(server, "replay", batch_size=4)))
    assert sample is not None


def fail_once(method, folder):
    """Returns a method that fails the first time that it is called with an argument, before or after its work."""

    def call(self, argument):
        marker = Path(folder) / f"{abs(hash(str(argument)))}"
        is_first = not marker.exists()
        marker.touch()
        if is_first and hash(str(argument)) % 2:
            raise OSError("the worker lost its connection")
        result = method(self, argument)
        if is_first:
            raise OSError("the worker was preempted")
        return result

    return call


@pytest.mark.slow
@pytest.mark.drill("F29")
def test_every_bundle_may_fail_once(data, tmp_path, monkeypatch):
    from rlds2reverb.beam import conversion

    ingest(data / HOPPER, tmp_path / "plain")
    (tmp_path / "failed").mkdir()
    job = getattr(conversion, internals.JOB)
    for name in ("scan", "write_part", "assemble"):
        monkeypatch.setattr(job, name, fail_once(getattr(job, name), tmp_path / "failed"))
    options = make_options("BundleBasedDirectRunner", slice_bytes=400_000)
    convert_with_beam(data / HOPPER, tmp_path / "beam", part_bytes=300_000, beam_options=options)
    assert len(list((tmp_path / "failed").iterdir())) >= 6
    assert_same_files(tmp_path / "beam", tmp_path / "plain")


@pytest.fixture(scope="module")
def large_file(tmp_path_factory):
    """Writes a file with several groups of the usual size, because other processes do not see `_small_groups`."""
    path = tmp_path_factory.mktemp("large") / "large.hdf5"
    rng = np.random.default_rng(0)
    num_rows = 60_000
    observations = rng.normal(size=(num_rows, 100)).astype(np.float32)
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = observations, observations[:, :3]
        file["rewards"], file["terminals"] = observations[:, 0], rng.random(num_rows) < 0.001
        file["timeouts"] = rng.random(num_rows) < 0.001
    return path


@pytest.fixture(scope="module")
def converted(large_file, tmp_path_factory):
    path = tmp_path_factory.mktemp("converted") / "plain"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IngestWarning)
        ingest(large_file, path)
    return path


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_number_of_processes_does_not_matter(large_file, converted, tmp_path, monkeypatch, num_workers):
    monkeypatch.undo()  # The parts must have the same groups in all processes.
    flags = ("--direct_running_mode=multi_processing", f"--direct_num_workers={num_workers}")
    options = make_options(flags=flags, slice_bytes=4_000_000)
    convert_with_beam(large_file, tmp_path / "beam", part_bytes=1_000_000, beam_options=options)
    assert_same_files(tmp_path / "beam", converted)
