"""Tests of repaired copies of LeRobot datasets: what follows from the rows is corrected, and nothing else is changed."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pytest
from lerobot_samples import CAMERA, write_sample
from pyarrow import parquet
from reference_impls import assert_equal_nests

from rlds2reverb import check_dataset, load, write_dataset
from rlds2reverb.cli import run
from rlds2reverb.datasets.writers.lerobot_repairs import repair_lerobot
from rlds2reverb.errors import SourceError

LENGTHS = (4, 6, 5)
ORDER = np.array([0, 1, 2, 3, 6, 4, 9, 5, 8, 7, 10, 11, 12, 13, 14])  # Of which episode 1 is shuffled.


def digest(folder):
    """Returns the content of all files of a directory."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def right(tmp_path):
    """Provides a sample with statistics and two data files, and without anything to repair."""
    write_sample(tmp_path / "without", LENGTHS, features={CAMERA: None}, files=[0, 1, 1])
    repair_lerobot(tmp_path / "without", tmp_path / "right")
    return tmp_path / "right"


def damage_places(path):
    (file,) = path.glob("meta/episodes/*/*.parquet")
    table = parquet.read_table(file)
    for name, values in (
        ("data/file_index", [0, 0, 1]),
        ("dataset_from_index", [0, 5, 11]),
        ("dataset_to_index", [4, 11, 16]),
    ):
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    parquet.write_table(table, file)


def edit_rows(path, change):
    for file in sorted(path.glob("data/*/*.parquet")):
        parquet.write_table(change(parquet.read_table(file)), file)


def replace_column(name, function):
    def change(table):
        values = pa.array(function(table[name].to_numpy()), table[name].type)
        return table.set_column(table.column_names.index(name), name, values)

    return change


def edit_info(path, **changes):
    info = {**json.loads((path / "meta/info.json").read_text()), **changes}
    (path / "meta/info.json").write_text(json.dumps({name: value for name, value in info.items() if value is not None}))


def damage_statistics(path):
    stats = json.loads((path / "meta/stats.json").read_text())
    stats["action"]["mean"] = [9.0, 9.0]
    (path / "meta/stats.json").write_text(json.dumps(stats))


def shuffle(table):
    order = np.argsort(ORDER[table["index"].to_numpy()], kind="stable")
    return table.take(pa.array(order))


DAMAGES = {
    "places": (damage_places, "places of the rows of 2 episodes corrected"),
    "frame_index": (lambda path: edit_rows(path, replace_column("frame_index", lambda rows: rows[::-1])), "frame_index counted again"),
    "index": (lambda path: edit_rows(path, replace_column("index", lambda rows: rows + 3)), "index counted again"),
    "order": (lambda path: edit_rows(path, shuffle), "file-001.parquet: rows sorted by frame_index"),
    "fps": (lambda path: edit_info(path, fps=5), "info.json: fps is 10 instead of 5"),
    "totals": (lambda path: edit_info(path, total_frames=99, total_episodes=None), "info.json: total_episodes is 3 instead of null"),
    "statistics": (damage_statistics, "stats.json: statistics of action corrected"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_repaired_in_a_copy(right, tmp_path, name):
    damage, message = DAMAGES[name]
    expected = list(load(right))
    assert repair_lerobot(right, tmp_path / "nothing") == [] and not (tmp_path / "nothing").exists()
    damage(right)
    before = digest(right)
    repairs = repair_lerobot(right, tmp_path / "out")
    assert any(message in repair for repair in repairs), repairs
    assert digest(right) == before
    for read, other in zip(load(tmp_path / "out"), expected, strict=True):
        assert_equal_nests(read.steps, other.steps)
        assert not read.contradictions
    assert load(tmp_path / "out").metadata["fps"] == 10
    assert repair_lerobot(tmp_path / "out", tmp_path / "again") == []


def test_written_datasets_need_no_repair(tmp_path, data):
    for version in ("v3.0", "v2.1"):
        write_dataset(data / "formats/lerobot/v3.0/c3", tmp_path / version, format="lerobot", lerobot_version=version)
        assert repair_lerobot(tmp_path / version, tmp_path / "out") == []
        edit_info(tmp_path / version, fps=99)
        own = json.loads((tmp_path / version / "meta/rlds2reverb.json").read_text())
        own["metadata"]["fps"] = 99
        (tmp_path / version / "meta/rlds2reverb.json").write_text(json.dumps(own))
        assert repair_lerobot(tmp_path / version, tmp_path / f"{version} repaired") == [
            "info.json: fps is 30 instead of 99"
        ]
        assert load(tmp_path / f"{version} repaired").metadata["fps"] == 30


def test_command_lists_what_it_did_and_what_it_left(right, tmp_path, capsys):
    DAMAGES["fps"][0](right)
    DAMAGES["index"][0](right)
    edit_rows(right, replace_column("timestamp", lambda times: times))
    assert run(["validate", str(right), "--fix", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "repaired: info.json: fps is 10 instead of 5" in out and "repaired: file-001.parquet: index" in out
    assert f"{tmp_path / 'out'}: valid" in out and "contradicting-rate" not in out
    assert run(["validate", str(tmp_path / "out"), "--fix", str(tmp_path / "again"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["repairs"] == []
    assert run(["validate", str(right), "--fix", str(tmp_path / "out")]) == 1
    assert "exists already" in capsys.readouterr().err
    assert "contradicting-rate" in {found.check for found in check_dataset(load(right))}


def test_other_formats_and_missing_rows_raise(right, tmp_path, data, capsys):
    assert run(["validate", str(data / "formats/robomimic/d1_low_dim.hdf5"), "--fix", str(tmp_path / "out")]) == 1
    assert "--fix requires a LeRobot directory" in capsys.readouterr().err
    (right / "data/chunk-000/file-001.parquet").unlink()
    with pytest.raises(SourceError, match="the rows of episode 1 are not in data/"):
        repair_lerobot(right, tmp_path / "out")
    assert not (tmp_path / "out").exists()
