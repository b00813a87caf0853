"""Tests of layouts of LeRobot datasets: stale file numbers, plain names, annotations, 16-bit images, other storage."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest
from lerobot_samples import CAMERA, write_sample
from PIL import Image
from reference_impls import assert_equal_nests

from rlds2reverb import check_dataset, load
from rlds2reverb.cli import run
from rlds2reverb.datasets.transforms import DropFields, apply_transforms
from rlds2reverb.errors import SourceError

LENGTHS = (4, 6, 5)
NO_CAMERA = {CAMERA: None}


def test_stale_file_numbers_are_resolved_and_found(tmp_path):
    expected = list(load(write_sample(tmp_path / "right", LENGTHS, files=[0, 1, 1], features=NO_CAMERA)))
    for number, stated in enumerate(([0, 0, 1], [0, 0, 0], [1, 1, 0])):
        path = write_sample(tmp_path / str(number), LENGTHS, files=[0, 1, 1], stated_files=stated, features=NO_CAMERA)
        source = load(path)
        for read, other in zip(source, expected, strict=True):
            assert_equal_nests(read.steps, other.steps)
        assert [read.index for read in source.read(2, 3)] == [2]
        (found,) = [one for one in check_dataset(load(path)) if one.check == "stale-index"]
        wrong = [place for place, pair in enumerate(zip([0, 1, 1], stated, strict=True)) if pair[0] != pair[1]]
        assert (found.num_episodes, found.episode) == (len(wrong), wrong[0])
        assert "meta/ expects the rows in file-00" in found.message


def test_plain_names_have_their_places_in_a_step(tmp_path):
    state, actions = np.ones((2, 15, 2), np.float32)
    columns = {"observation.state": state, "state": 2 * state, "actions": 3 * actions}
    path = write_sample(tmp_path / "x", LENGTHS, columns=columns, features=NO_CAMERA)
    info = json.loads((path / "meta/info.json").read_text())
    described = info["features"]
    for left_out, observation, action in (
        (("observation.state", "action"), {"state": 2}, 3),
        (("action",), {"state": 1}, 3),
    ):
        info["features"] = {name: feature for name, feature in described.items() if name not in left_out}
        (path / "meta/info.json").write_text(json.dumps(info))
        episode = load(path).first_episode
        assert {name: column[0, 0] for name, column in episode.steps["observation"].items()} == observation
        assert episode.steps["action"][0, 0] == action


def test_plain_names_of_cameras_are_observations_beside_others(tmp_path):
    path = write_sample(tmp_path / "x", LENGTHS)
    folder = path / "videos" / CAMERA
    folder.rename(folder.with_name("front"))
    for file in (path / "meta/info.json",):
        file.write_text(file.read_text().replace(CAMERA, "front"))
    with pytest.raises(SourceError, match="videos/front/chunk_index must be an integer"):
        load(path)


def test_annotations_are_left_alone_or_read_as_json(tmp_path):
    rows = [[{"role": "user", "content": "pick it up", "camera": None}], []] * 7 + [[]]
    columns = {"language_events": pa.array(rows)}
    features = {"language_events": {"dtype": "language", "shape": [1], "names": None}, **NO_CAMERA}
    source = load(write_sample(tmp_path / "x", LENGTHS, columns=columns, features=features))
    assert source.unread == ("language_events",)
    assert "language_events" not in source.first_episode.steps
    read = next(iter(load(tmp_path / "x", extra_fields=["language_events"])))
    assert [json.loads(text) for text in read.steps["language_events"][:2]] == rows[:2]


def test_16_bit_images_are_read_bit_for_bit(tmp_path):
    depth = np.random.default_rng(0).integers(0, 1 << 16, (15, 16, 24)).astype(np.uint16)
    for kind in ("TIFF", "PNG"):
        files = []
        for image in depth:
            stream = io.BytesIO()
            Image.fromarray(image).save(stream, format=kind)
            files.append({"bytes": stream.getvalue(), "path": None})
        features = {"observation.images.depth": {"dtype": "image", "shape": [16, 24, 1], "names": None}, **NO_CAMERA}
        path = write_sample(
            tmp_path / kind, LENGTHS, columns={"observation.images.depth": pa.array(files)}, features=features
        )
        read = [episode.steps["observation"]["images"]["depth"] for episode in load(path)]
        np.testing.assert_array_equal(read[1][..., 0], depth[4:10])
        assert read[1].dtype == np.uint16


@pytest.mark.parametrize("content", [b"", None])
def test_images_without_a_file_raise(tmp_path, content):
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, format="PNG")
    files = [{"bytes": content if row == 5 else stream.getvalue(), "path": "5.png"} for row in range(15)]
    name = "observation.images.wrist"
    features = {name: {"dtype": "image", "shape": [8, 8, 3], "names": None}, **NO_CAMERA}
    path = write_sample(tmp_path / "x", LENGTHS, columns={name: pa.array(files)}, features=features)
    with pytest.raises(
        SourceError, match="episode 1: 'observation.images.wrist', step 1: the image is not in the parq"
    ):
        list(load(path))


def test_other_storage_and_missing_counts_are_named(tmp_path):
    path = write_sample(tmp_path / "x", LENGTHS, features=NO_CAMERA, info={"storage_format": "lance"})
    with pytest.raises(
        SourceError, match="storage_format must be 'parquet', got 'lance'; write the dataset again as parquet"
    ):
        load(path)
    path = write_sample(tmp_path / "y", LENGTHS, features=NO_CAMERA, info={"total_episodes": None})
    assert load(path).num_episodes == 3


def test_unreadable_columns_and_cameras_do_not_block_the_others(tmp_path, capsys):
    columns = {"observation.odd": pa.array([[1.0] * (1 + row % 2) for row in range(15)])}
    features = {"observation.odd": {"dtype": "float32", "shape": [2], "names": None}}
    path = write_sample(tmp_path / "x", LENGTHS, columns=columns, features=features)
    (path / f"videos/{CAMERA}/chunk-000/file-000.mp4").write_bytes(b"no video")
    with pytest.raises(SourceError, match=r"'observation.odd' must have \[2\] values per row, .* or leave it out"):
        list(load(path))
    source, statistics = apply_transforms(load(path), [DropFields(("observation/odd", "observation/images", "task"))])
    assert [*source.first_episode.steps["observation"]] == ["state"] and "task" not in source.first_episode.steps
    assert statistics["dropped_fields"] == ["observation/odd", "observation/images", "task"]
    assert source.identify() != load(path).identify()
    assert run(["inspect", str(path)]) == 2
    assert "--drop-field" in capsys.readouterr().err
    assert run(["inspect", str(path), "--camera", "none", "--drop-field", "observation/odd"]) == 0
    assert run(["inspect", str(path), "--camera", "none", "--camera", "top"]) == 1
    assert "--camera must be the names of cameras, or only none" in capsys.readouterr().err
    with pytest.raises(ValueError, match="there is no field 'observation/none' to drop"):
        list(apply_transforms(load(path, cameras=[]), [DropFields(("observation/odd", "observation/none"))])[0])
