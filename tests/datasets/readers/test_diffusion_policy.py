"""Tests of replay buffers in Zarr; the expectations come from the package zarr."""

import itertools

import numpy as np
import pytest
from robot_files import write_replay_buffer

from rlds2reverb import load, write_dataset
from rlds2reverb.datasets.transforms import DropFields, apply_transforms
from rlds2reverb.errors import SourceError

zarr = pytest.importorskip("zarr")
HAS_FORMAT_3 = zarr.__version__ >= "3"


@pytest.fixture(params=[2, pytest.param(3, marks=pytest.mark.skipif(not HAS_FORMAT_3, reason="zarr 2 is installed"))])
def zarr_format(request):
    return request.param


@pytest.mark.parametrize("name", ["replay_buffer.zarr", "replay_buffer.zarr.zip"])
def test_rows_match_zarr(tmp_path, name, zarr_format):
    path = write_replay_buffer(tmp_path / name, zarr_format=zarr_format)
    source = load(path)
    root = zarr.open_group(zarr.storage.ZipStore(path, mode="r") if name.endswith(".zip") else str(path), mode="r")
    bounds = [0, *root["meta/episode_ends"][:].tolist()]
    assert source.count() == 2 and source.num_rows == 7
    for episode, (start, stop) in zip(source, itertools.pairwise(bounds), strict=True):
        for stored, column in (("img", "observation"), ("state", "observation"), ("action", "action")):
            read = episode.steps[column]
            assert ((read[stored] if column == "observation" else read) == root[f"data/{stored}"][start:stop]).all()
        assert (episode.timestamps == root["data/timestamp"][start:stop]).all()
        assert episode.unterminated and episode.dropped_last_transition and episode.num_steps == stop - start
    assert "records neither rewards nor how its episodes end" in source.warnings[0]


def test_buffer_in_a_folder_of_a_zip_file_is_found(tmp_path):
    import shutil

    write_replay_buffer(tmp_path / "outer/replay.zarr")
    shutil.make_archive(str(tmp_path / "x.zarr"), "zip", tmp_path / "outer")
    assert load(tmp_path / "x.zarr.zip").count() == 2


def test_buffer_converts_to_lerobot(tmp_path):
    write_dataset(write_replay_buffer(tmp_path / "x.zarr"), tmp_path / "out", format="lerobot", fps=10)
    assert [episode.num_steps for episode in load(tmp_path / "out")] == [3, 4]


def test_array_that_is_dropped_is_not_read(tmp_path, zarr_format):
    path = write_replay_buffer(tmp_path / "x.zarr", zarr_format=zarr_format)
    for part in (path / "data/img").rglob("*"):
        if part.is_file() and not part.name.startswith((".z", "zarr")):
            part.write_bytes(b"x")
    with pytest.raises(SourceError, match="'data/img', episode 0 cannot be read"):
        list(load(path))
    source, _ = apply_transforms(load(path), [DropFields(("observation/img",))])
    assert [[*episode.steps["observation"]] for episode in source] == [["state"], ["state"]]


def change(path, name, column, **options):
    root = zarr.open_group(str(path), mode="a")
    if name in root:
        del root[name]
    if column is not None:
        create = root.create_array if HAS_FORMAT_3 else root.create_dataset
        create(name, shape=column.shape, dtype=column.dtype, **options)[:] = column
    return path


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("data/action", None, "x.zarr has no 'action' in data, which has img, state, timestamp"),
        ("data/state", np.zeros((6, 2)), "'data/state' must have the 7 rows of meta/episode_ends, got 6"),
        ("meta/episode_ends", np.array([4, 3]), "must be the ascending ends of the episodes, got int64"),
        ("meta/episode_ends", np.array([3.0, 7]), "must be the ascending ends of the episodes, got float64"),
    ],
)
def test_malformed_buffer_raises(tmp_path, name, column, message):
    path = change(write_replay_buffer(tmp_path / "x.zarr"), name, column)
    with pytest.raises(SourceError, match=message):
        load(path)


def test_rows_after_the_last_episode_and_missing_chunks_are_reported(tmp_path):
    path = change(write_replay_buffer(tmp_path / "x.zarr"), "data/state", np.ones((9, 2)), chunks=(2, 2))
    (path / "data/action/1.0").unlink()
    source = load(path)
    assert any("'data/state' has 2 rows after the last episode" in sentence for sentence in source.warnings)
    assert any(
        "'data/action': 1 of 4 chunks are not stored and stand for 0" in sentence for sentence in source.warnings
    )
    assert [episode.num_steps for episode in source] == [3, 4]


def test_damaged_chunk_names_array_and_episode(tmp_path):
    path = write_replay_buffer(tmp_path / "x.zarr")
    (path / "data/state/2.0").write_bytes(b"damaged")
    with pytest.raises(SourceError, match="x.zarr: 'data/state', episode 1 cannot be read"):
        list(load(path))


@pytest.mark.parametrize("key", ["compressor", "filters"])
def test_pickled_chunks_raise(tmp_path, key):
    import json

    path = write_replay_buffer(tmp_path / "x.zarr")
    description = path / "data/state/.zarray"
    pickle = {"id": "pickle", "protocol": 4}
    described = json.loads(description.read_text()) | {key: [pickle] if key == "filters" else pickle}
    description.write_text(json.dumps(described))
    with pytest.raises(SourceError, match="x.zarr.*(not unpickled|cannot be read)"):
        list(load(path))


def test_format_3_requires_zarr_3(tmp_path, monkeypatch):
    path = write_replay_buffer(tmp_path / "x.zarr")
    (path / "meta/episode_ends/.zarray").rename(path / "meta/episode_ends/zarr.json")
    monkeypatch.setattr(zarr, "__version__", "2.18.7")
    with pytest.raises(SourceError, match="x.zarr has Zarr's format 3, which zarr 2.18.7 cannot read; use Python 3.12"):
        load(path)


def test_missing_package_is_reported_with_the_command(tmp_path, monkeypatch):
    import sys

    path = write_replay_buffer(tmp_path / "x.zarr")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(SourceError, match="Zarr files require the package zarr .* run .*zarr"):
        load(path)
