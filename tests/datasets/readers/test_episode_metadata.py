"""Fields of episodes apart from their steps: read from RLDS, and written and read again by the other formats."""

import dataclasses
import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from properties import mark_slow_except

from rlds2reverb import SourceError, apply_transforms, load, summarize, write_dataset
from rlds2reverb.cli import run
from rlds2reverb.datasets.transforms import DropFields
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.specs import leaves

BOUNDARIES = "formats/rlds/a2/openx_boundary/1.0.0"
#: Path of each format, and the options with which it is written.
TARGETS = {
    "rlds": ("out/1.0.0", {}),
    "minari": ("out-v0", {}),
    "robomimic": ("out.hdf5", {}),
    "lerobot": ("out", {"fps": 30}),
    "lerobot-v2.1": ("out", {"fps": 30, "lerobot_version": "v2.1"}),
}


def make_metadata(index):
    return {
        "instruction": np.array("grüße".encode(), object),
        "episode_metadata": {
            "success": np.array(index == 1),
            "score": np.array(0.1 + index, np.float32),
            "goal": np.arange(3, dtype=np.int16) + index,
            "tags": np.array([b"a", b""], object),
            "thumbnail": np.full((2, 3, 3), index, np.uint8),
            "pose": np.array([[np.pi, index]]),
            "nothing": np.zeros(0, np.float32),
        },
    }


def make_source(make=make_metadata):
    columns = {"observations": {"x": np.arange(4.0)}, "actions": np.ones((3, 1)), "terminated": True}
    source = load([{**columns, "rewards": np.ones(3)}] * 2)
    episodes = [dataclasses.replace(episode, metadata=make(episode.index)) for episode in source]
    return dataclasses.replace(source, read=lambda: iter(episodes))


def list_values(metadata):
    return {"/".join(path): (value.dtype, value.shape, value.tolist()) for path, value in leaves(metadata)}


def write(source, folder, target):
    path, options = TARGETS[target]
    write_dataset(source, folder / path, format=target.split("-")[0], **options)
    return load(folder / path)


@pytest.mark.slow
def test_metadata_are_those_that_tfds_returns(data):
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(data / BOUNDARIES)
    for episode, record in zip(load(data / BOUNDARIES), builder.as_dataset(split="train"), strict=True):
        expected = {name: value.numpy() for name, value in record["episode_metadata"].items()}
        assert {name: value.item() for name, value in episode.metadata["episode_metadata"].items()} == expected


@pytest.mark.parametrize("target", mark_slow_except(TARGETS.keys() - {"lerobot"}, TARGETS))
def test_metadata_are_read_back_equal(tmp_path, target):
    written = write(make_source(), tmp_path, target)
    assert not written.warnings
    again = write(written, tmp_path / "again", "rlds") if target == "lerobot" else ()
    for episode in (*written, *again):
        assert list_values(episode.metadata) == list_values(make_metadata(episode.index))


def test_metadata_without_a_place_are_named_before_writing(data, tmp_path, capsys):
    columns = {"observations": np.arange(4.0), "actions": np.ones((3, 1)), "rewards": np.ones(3), "terminated": True}
    episode = dataclasses.replace(load([columns]).first_episode, metadata={"lang": np.array(b"x", object)})
    source = dataclasses.replace(load([columns]), read=lambda: iter([episode]))
    (sentence,) = write_dataset(source, tmp_path / "a.hdf5", format="d4rl").warnings
    assert sentence == "D4RL has no place for the fields lang of an episode, which are not written"
    # The command names them although the conversion fails, because D4RL has no dicts of observations.
    assert run(["convert", str(data / BOUNDARIES), "--format", "d4rl", "--out", str(tmp_path / "x.hdf5")]) == 2
    assert "for the fields episode_metadata/file_path, episode_metadata/success of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "make", "error", "message"),
    [
        (
            "rlds",
            lambda i: {"x": np.zeros(i + 1)},
            SpecMismatchError,
            r"metadata\['x'\] is float64 \[2\].*drop the field",
        ),
        ("rlds", lambda i: {"steps": np.zeros(1)}, SourceError, "'steps' of an episode would replace that of RLDS"),
        ("minari", lambda i: {"id": np.zeros(1)}, SourceError, "'id' of an episode would replace that of Minari"),
        (
            "lerobot",
            lambda i: {"x": np.array(b"\xff", object)},
            SourceError,
            "'x' of episode 0 must be UTF-8 for LeRobot",
        ),
        ("robomimic", lambda i: {"x": np.array(b"\0", object)}, SourceError, "contains NUL"),
        ("robomimic", lambda i: {"x": np.zeros(9999)}, SourceError, "at most 60,000 bytes for robomimic, got 79,992"),
    ],
)
def test_metadata_that_a_format_cannot_represent_raise(tmp_path, target, make, error, message):
    with pytest.raises(error, match=message):
        write(make_source(make), tmp_path, target)


def test_metadata_can_be_dropped():
    dropped = DropFields(("instruction", "episode_metadata/score", "episode_metadata"))
    assert apply_transforms(make_source(), [dropped])[0].first_episode.metadata == {}
    some = make_source(lambda index: {} if index else make_metadata(index))
    assert [episode.metadata for episode in apply_transforms(some, [dropped])[0]] == [{}, {}]
    with pytest.raises(ValueError, match="there is no field 'episode_metadata/path' to drop"):
        list(apply_transforms(make_source(), [DropFields(("episode_metadata/path",))])[0])


def test_inspect_shows_metadata(data, capsys):
    assert run(["inspect", str(data / BOUNDARIES)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "episode field episode_metadata/file_path string [], first '/raw/run_003/trajectory.h5'" in shown
    fields = summarize(make_source(lambda i: {"x": np.array(b"a" * 99, object), "y": np.zeros(3)})).episode_fields
    assert fields == {"x": "string [], first '" + "a" * 59 + "...", "y": "float64 [3]"}


def test_fields_of_other_writers_are_read_from_lerobot(data, tmp_path):
    v2 = shutil.copytree(data / "formats/lerobot/v2.1/c1", tmp_path / "v2")
    path = v2 / "meta/episodes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [{**row, "operator": f"no. {i}", "grade": i / 2, "notes": ["a"] * i} for i, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = load(v2, done="terminal")
    assert [episode.metadata["grade"].item() for episode in source] == [i / 2 for i in range(7)]
    assert source.first_episode.metadata["operator"].item() == b"no. 0"
    (warning,) = source.warnings
    assert warning.endswith("that are not alike in all of them are not read: notes")

    v3 = shutil.copytree(data / "formats/lerobot/v3.0/c3", tmp_path / "v3")
    path = v3 / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("grade", [list(range(len(table)))]), path)
    assert [episode.metadata["grade"].item() for episode in load(v3)] == list(range(len(table)))
