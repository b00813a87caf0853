"""Tests of `prepare_with_beam`: the same RLDS directory as `write_dataset` writes."""

import pytest
from lazy_beam import make_options, prepare_with_beam
from written_directories import assert_same_files, write_hopper_with_nan

from rlds2reverb.datasets import load
from rlds2reverb.datasets.transforms import (
    ActionBounds,
    ClipActions,
    NormalizeObservations,
    apply_transforms,
)
from rlds2reverb.datasets.writers.writing import write_dataset
from rlds2reverb.errors import InvalidEpisodeError

HOPPER = "d4rl/hopper_medium-v2.hdf5"


@pytest.mark.slow
def test_files_are_those_of_write_dataset(data, tmp_path):
    mapping, options = {"rename": {"observation": "observation.state"}}, {"shard_bytes": 120_000}
    mapped = load(data / HOPPER, mapping=mapping)
    expected = write_dataset(mapped, tmp_path / "plain/hopper/1.0.0", format="rlds", **options)
    options["mapping"] = mapping
    got = prepare_with_beam(
        data / HOPPER, tmp_path / "beam/hopper/1.0.0", beam_options=make_options(slice_bytes=150_000), **options
    )
    assert_same_files(tmp_path / "beam", tmp_path / "plain")
    assert got.as_dict() == {**expected.as_dict(), "path": got.path}
    assert len(list((tmp_path / "beam/hopper/1.0.0").glob("*.tfrecord*"))) > 3
    assert list(load(tmp_path / "beam/hopper/1.0.0").step_spec["observation"]) == ["state"]
    assert [path.name for path in (tmp_path / "beam/hopper").iterdir()] == ["1.0.0"]


@pytest.mark.parametrize(
    ("name", "slice_bytes"),
    [
        ("malformed/hdf5/ok_control.hdf5", 800),
        pytest.param("d4rl/pendulum_mixed-v2.hdf5", 50_000, marks=pytest.mark.slow),
    ],
)
def test_small_dataset_has_the_files_and_report_of_write_dataset(data, tmp_path, name, slice_bytes):
    path, options = data / name, make_options(slice_bytes=slice_bytes)
    transforms = [NormalizeObservations(), ActionBounds(-1, 1), ClipActions()]
    source, _ = apply_transforms(load(path), transforms)
    expected = write_dataset(source, tmp_path / "plain/pendulum/1.0.0", format="rlds")
    got = prepare_with_beam(path, tmp_path / "beam/pendulum/1.0.0", transforms=transforms, beam_options=options)
    assert_same_files(tmp_path / "beam", tmp_path / "plain")
    assert got.as_dict() == {**expected.as_dict(), "path": got.path}
    assert [entry.name for entry in (tmp_path / "beam/pendulum").iterdir()] == ["1.0.0"]


@pytest.mark.slow
def test_final_observations_are_those_of_the_file(data, tmp_path):
    prepare_with_beam(data / HOPPER, tmp_path / "hopper/1.0.0", beam_options=make_options(slice_bytes=150_000))
    for got, expected in zip(load(tmp_path / "hopper/1.0.0"), load(data / HOPPER), strict=True):
        assert (got.steps["observation"][-1] == expected.steps["observation"][-1]).all()


@pytest.mark.slow
def test_invalid_episodes_are_errors_or_skipped(data, tmp_path):
    write_hopper_with_nan(data, tmp_path / "nan.hdf5", 5000)
    with pytest.raises(InvalidEpisodeError, match="holds NaN"):
        prepare_with_beam(tmp_path / "nan.hdf5", tmp_path / "a/1.0.0", beam_options=make_options(slice_bytes=150_000))
    report = prepare_with_beam(
        tmp_path / "nan.hdf5",
        tmp_path / "b/1.0.0",
        on_invalid="skip_episode",
        beam_options=make_options(slice_bytes=150_000),
    )
    assert report.skipped_episodes == 1 and report.episodes == 31
    assert not (tmp_path / "a").exists() or list((tmp_path / "a").iterdir()) == []


def test_path_that_exists_raises(data, tmp_path):
    with pytest.raises(FileExistsError, match="exists already"):
        prepare_with_beam(data / HOPPER, tmp_path)


def test_unknown_choice_for_invalid_episodes_raises(data, tmp_path):
    with pytest.raises(ValueError, match="on_invalid must be one of 'error', 'skip_episode', 'keep', got 'drop'"):
        prepare_with_beam(data / HOPPER, tmp_path / "a/1.0.0", on_invalid="drop")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_metadata_and_images_are_those_of_write_dataset(data, tmp_path):
    path, options = (
        data / "formats/rlds/a2/openx_boundary/1.0.0",
        {"mapping": {"describe": {"observation.image": "png"}}},
    )
    write_dataset(load(path, **options), tmp_path / "plain/arm/1.0.0", format="rlds")
    prepare_with_beam(path, tmp_path / "beam/arm/1.0.0", beam_options=make_options(slice_bytes=150_000), **options)
    assert_same_files(tmp_path / "beam", tmp_path / "plain")
    assert "file_path" in load(tmp_path / "beam/arm/1.0.0").first_episode.metadata["episode_metadata"]
