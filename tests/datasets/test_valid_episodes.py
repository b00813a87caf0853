"""The rule: an episode that cannot be read or is invalid never blocks the others, and all such episodes are counted."""

import json
import shutil
import warnings

import h5py
import numpy as np
import pyarrow as pa
import pytest
from lerobot_samples import CAMERA, write_sample
from pyarrow import parquet

from rlds2reverb import check_dataset, ingest, load, write_dataset
from rlds2reverb.cli import run
from rlds2reverb.datasets.source import keep_images_encoded
from rlds2reverb.datasets.steps.loaded_steps import Preparation, read_steps
from rlds2reverb.datasets.steps.stores import build_store, open_store
from rlds2reverb.datasets.valid_episodes import read_readable
from rlds2reverb.errors import InvalidEpisodeError, SourceError
from rlds2reverb.reverb.writing.report import IngestWarning
from rlds2reverb.types import fields

LENGTHS = (4, 6, 5, 7, 4)


def damage_lerobot(path):
    """Gives episode 1 missing values, and episode 3 rows of another one; actions of episode 4 become NaN."""
    source = write_sample(path, LENGTHS, features={CAMERA: None})
    (file,) = source.glob("data/*/*.parquet")
    table = parquet.read_table(file)
    states, index, actions = (table[name].to_pylist() for name in ("observation.state", "episode_index", "action"))
    states[5], index[16], actions[23] = [None, 1.0], 2, [float("nan"), 0.0]
    for name, values, kind in (
        ("observation.state", states, pa.list_(pa.float32())),
        ("episode_index", index, pa.int64()),
        ("action", actions, pa.list_(pa.float32())),
    ):
        table = table.set_column(table.column_names.index(name), name, pa.array(values, kind))
    parquet.write_table(table, file)
    return source


def damage_robomimic(path):
    """Writes the same episodes; demonstrations 1 and 3 have actions of another length, and 4 has NaN."""
    path = path.with_suffix(".hdf5")
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number, length in enumerate(LENGTHS):
            group = file.create_group(f"data/demo_{number}")
            group.attrs["num_samples"] = length
            group["actions"] = random.normal(size=(length, 2)).astype(np.float32)
            states = random.normal(size=(length + 1, 2)).astype(np.float32)
            group["obs/state"], group["next_obs/state"] = states[: length - (number in (1, 3))], states[1:]
            group["rewards"], group["dones"] = np.zeros(length), np.arange(length) == length - 1
        file["data/demo_4/actions"][1, 0] = np.nan
        file["data"].attrs["env_args"] = json.dumps({"env_name": "x", "type": 1, "env_kwargs": {}})
    return path


@pytest.fixture(params=[damage_lerobot, damage_robomimic])
def path(request, tmp_path):
    return request.param(tmp_path / "source")


@pytest.mark.parametrize("damaged", [0, 1])
def test_other_episodes_keep_their_numbers_when_a_record_is_damaged(data, tmp_path, damaged):
    path = shutil.copytree(data / "formats/rlds/a1/pusher_demos/1.0.0", tmp_path / "1.0.0")
    expected = [episode.steps["action"] for episode in load(path, split="val")]
    file = sorted(path.glob("*val*"))[damaged]
    content = bytearray(file.read_bytes())
    content[20] ^= 0xFF
    file.write_bytes(content)
    source = load(path, split="val", on_invalid="skip_episode")
    for _ in range(4):  # TFDS would fill its cache in the first iterations.
        ((index, actions),) = [(episode.index, episode.steps["action"]) for episode in source]
        assert index == 1 - damaged and (actions == expected[index]).all()
    assert [*source.skipped] == [damaged]


def test_null_in_a_list_of_fixed_length_blocks_one_episode(tmp_path):
    path = write_sample(tmp_path / "x", LENGTHS, features={CAMERA: None})
    (file,) = path.glob("data/*/*.parquet")
    table = parquet.read_table(file)
    actions = table["action"].to_pylist()
    expected = actions[0]
    actions[5] = None
    table = table.set_column(table.column_names.index("action"), "action", pa.array(actions, pa.list_(pa.float32(), 2)))
    parquet.write_table(table, file)
    with pytest.raises(SourceError, match="episode 1: 'action' has missing values"):
        list(load(path))
    source = load(path, on_invalid="skip_episode")
    assert [episode.index for episode in source] == [0, 2, 3, 4] and [*source.skipped] == [1]
    assert source.first_episode.steps["action"][0].tolist() == expected


def test_other_episodes_are_read_in_any_part(path):
    with pytest.raises(SourceError, match="episode 1|demo_1"):
        list(load(path))
    source = load(path, on_invalid="skip_episode")
    assert [episode.index for episode in source] == [0, 2]
    assert sorted(source.skipped) == [1, 3, 4]
    assert {number: error.field for number, error in source.skipped.items()} == {
        1: "files",
        3: "files",
        4: "action",
    }
    assert [episode.index for episode in source.read(1, 5)] == [2]
    assert [episode.index for episode in load(load(path), on_invalid="skip_episode")] == [0, 2]
    assert source.identify() not in (None, load(path).identify())
    assert keep_images_encoded(source) is source
    with pytest.raises(ValueError, match="on_invalid must be"):
        load(path, on_invalid="keep")


@pytest.mark.parametrize(
    ("select", "kept"),
    [
        ({"episodes": ":60%"}, [0, 2]),
        ({"episodes": [2, 4]}, [0]),
        ({"episodes": "1:5"}, [1]),
        ({"length": [5, None]}, [0]),
    ],
)
def test_episodes_are_selected_among_those_that_can_be_read(path, select, kept, tmp_path):
    options = {"on_invalid": "skip_episode", "mapping": [{"select": select}, {"rename": {"action": "action.arm"}}]}
    source = load(path, **options)
    lengths = [episode.num_transitions + episode.dropped_last_transition for episode in source]
    assert [episode.index for episode in source] == kept and lengths == [LENGTHS[number] for number in (0, 2)][
        -len(kept) :
    ]
    report = write_dataset(source, tmp_path / "out/1.0.0", format="rlds", on_invalid="skip_episode")
    assert report.episodes == len(kept)


@pytest.mark.parametrize("mapping", [{}, {"select": {"length": [1, None]}, "rename": {"action": "action.arm"}}])
def test_validate_and_inspect_continue_and_count(path, mapping, tmp_path, capsys):
    (tmp_path / "map.json").write_text(json.dumps(mapping))
    options = [str(path), *(["--map", str(tmp_path / "map.json")] if mapping else [])]
    assert run(["validate", *options, "--json", "--normalize-observations"]) == 2
    result = json.loads(capsys.readouterr().out)
    assert (result["episodes"], result["num_errors"]) == (3, 3)
    # The selected episodes have new numbers, those that cannot be read keep theirs.
    assert [error["episode"] for error in result["errors"]] == [1, 3, 2 if mapping else 4]
    assert result["source_error"] is None
    assert (
        "2 episodes cannot be read, and are not checked; convert and train leave them out with" in result["notes"][-1]
    )
    page = tmp_path / "page.html"
    for shown in ([], ["--report", str(page)]):
        assert run(["inspect", *options, *shown]) == 2
        captured = capsys.readouterr()
        assert captured.out and "2 episodes cannot be read, and left out above" in captured.err
    assert "episode 1" in page.read_text()
    with pytest.raises(SourceError):
        check_dataset(load(path))
    assert all(found.severity == "info" for found in check_dataset(load(path, on_invalid="skip_episode")))


def test_writing_leaves_out_and_counts(path, tmp_path, capsys):
    for number, workers in enumerate((None, 0, 2)):
        out = tmp_path / str(number)
        report = write_dataset(path, out, format="lerobot", on_invalid="skip_episode", num_workers=workers)
        assert (report.episodes, report.skipped_episodes) == (2, 3)
    with pytest.raises((InvalidEpisodeError, SourceError)):
        write_dataset(path, tmp_path / "error", format="lerobot")
    assert run(["convert", str(path), "--out", str(tmp_path / "tables"), "--on-invalid", "skip_episode", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["episodes"], result["skipped_episodes"]) == (2, 3)
    for out in (tmp_path / "one", [tmp_path / "shard"]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IngestWarning)
            assert ingest(path, out, on_invalid="skip_episode").skipped_episodes == 3


def test_stores_continue_at_the_same_episode(path, tmp_path):
    source = load(path, on_invalid="skip_episode")
    build_store(source, tmp_path / "store", num_workers=0)
    assert [episode.num_steps for episode in open_store(tmp_path / "store")] == [
        episode.num_steps for episode in source
    ]


@pytest.mark.parametrize("is_stored", [False, True])
def test_training_data_leave_out_and_count(path, tmp_path, is_stored):
    source = load(path, on_invalid="skip_episode")
    functions = {"require": lambda spec: None, "decode_images": None, "progress": lambda stage, episode: None}
    preparation = Preparation(store_dir=str(tmp_path / "stores") if is_stored else None)
    for _ in range(2):
        steps = read_steps(source, preparation, fields.STEP_FIELDS, **functions)
        assert (len(steps.returns), steps.num_skipped) == (2, 3)


def test_many_failures_for_the_same_reason_are_those_of_the_source(tmp_path):
    path = write_sample(tmp_path / "x", [2] * 150, features={CAMERA: None}, files=[0] * 20 + [1] * 130)
    (path / "data/chunk-000/file-001.parquet").unlink()
    errors, read = [], []
    with pytest.raises(SourceError, match="file-001.parquet is missing"):
        read += read_readable(load(path), errors.append)
    assert len(errors) == 100 and {error.message for error in errors} == {errors[0].message}


def test_first_damage_is_named_if_no_episode_can_be_read(tmp_path, capsys):
    path = write_sample(tmp_path / "x", LENGTHS, features={CAMERA: None})
    next(path.glob("data/*/*.parquet")).unlink()
    with pytest.raises(
        SourceError, match="no episode with steps that can be read; the first error: .* is missing; copy"
    ):
        _ = load(path, on_invalid="skip_episode").step_spec
    code = run(
        ["train", "--data", str(path), "--algo", "bc", "--on-invalid", "skip_episode", "--run-dir", str(path / "run")]
    )
    assert code == 2 and "requires them; 5 invalid episodes are left out, such as: " in capsys.readouterr().err


def test_function_ends_at_an_episode_that_cannot_be_read():
    def episodes():
        yield {
            "observations": np.zeros((3, 2), np.float32),
            "actions": np.zeros((2, 1)),
            "rewards": np.zeros(2),
            "terminated": True,
        }
        raise SourceError("the robot has lost its clock")

    with pytest.raises(SourceError, match="lost its clock"):
        list(load(episodes, on_invalid="skip_episode"))
