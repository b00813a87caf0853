"""Tests of repaired copies of datasets: what follows from the rows is corrected, and nothing else is changed."""

import hashlib
import json
import stat

import h5py
import numpy as np
import pyarrow as pa
import pytest
from lerobot_samples import CAMERA, write_sample
from pyarrow import parquet
from reference_impls import assert_equal_nests

from rlds2reverb import check_dataset, load, write_dataset
from rlds2reverb.cli import run
from rlds2reverb.datasets.checks.repairs import repair_dataset
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
    repair_dataset(tmp_path / "without", tmp_path / "right")
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
    assert repair_dataset(right, tmp_path / "nothing") == [] and not (tmp_path / "nothing").exists()
    damage(right)
    before = digest(right)
    repairs = repair_dataset(right, tmp_path / "out")
    assert any(message in repair for repair in repairs), repairs
    assert digest(right) == before
    for read, other in zip(load(tmp_path / "out"), expected, strict=True):
        assert_equal_nests(read.steps, other.steps)
        assert not read.contradictions
    assert load(tmp_path / "out").metadata["fps"] == 10
    assert repair_dataset(tmp_path / "out", tmp_path / "again") == []


def test_copy_of_a_read_only_dataset_can_be_changed(right, tmp_path):
    edit_info(right, fps=5)
    for part in [*right.rglob("*"), right]:
        part.chmod(0o555 if part.is_dir() else 0o444)
    repair_dataset(right, tmp_path / "out")
    modes = [part.stat().st_mode for part in (tmp_path / "out", *(tmp_path / "out").rglob("*"))]
    for part in [right, *right.rglob("*")]:
        part.chmod(0o755)
    assert all(mode & stat.S_IWUSR for mode in modes)


def damage_counts(path):
    """Removes or changes numbers of rows that a file of robomimic or Minari states."""
    with h5py.File(path if path.is_file() else path / "data/main_data.hdf5", "r+") as file:
        (group, name) = (file["data"], "num_samples") if "data" in file else (file, "total_steps")
        *_, first, last = [group[key].attrs for key in group]
        first[name] = int(first[name])
        del last[name]
        if "data" in file:
            first[name] += 3
            group.attrs["total"] = 1
    if path.is_dir():
        described = json.loads((path / "data/metadata.json").read_text())
        del described["total_episodes"], described["total_steps"]
        (path / "data/metadata.json").write_text(json.dumps(described))


def set_fps(path, format, value):
    if format == "robomimic":
        with h5py.File(path, "r+") as file:
            described = json.loads(file["data"].attrs["metadata"])
            file["data"].attrs["metadata"] = json.dumps({**described, "fps": value})
        return
    names = {"rlds": "metadata.json", "minari": "data/metadata.json"}
    for name in [names[format]] if format in names else ["meta/info.json", "meta/rlds2reverb.json"]:
        content = json.loads((path / name).read_text())
        (content["metadata"] if "rlds2reverb" in name else content)["fps"] = value
        (path / name).write_text(json.dumps(content))


def damage_episode_statistics(path):
    lines = (path / "meta/episodes_stats.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    first["stats"]["action"]["max"] = [9.0, 9.0]
    (path / "meta/episodes_stats.jsonl").write_text("\n".join([json.dumps(first), *lines[2:]]))


def damage_totals(path):
    edit_info(path, total_chunks=9, total_videos=9)


#: By format, what is damaged besides the rate, and parts of the sentences about the repairs.
STATED = {
    "v3.0": ((), ()),
    "v2.1": ((damage_episode_statistics, damage_totals), ("episodes_stats.jsonl: statistics of ", "total_chunks is 1", "total_videos is 0")),
    "robomimic": ((damage_counts,), ("num_samples is 6 instead of 9", "num_samples is 5 instead of missing", "total is 15 instead of 1")),
    "minari": ((damage_counts,), ("total_steps is 4 instead of missing", "metadata.json: total_episodes is 3", "metadata.json: total_steps is 12")),
    "rlds": ((), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", STATED)
def test_written_datasets_are_repaired_only_where_they_are_wrong(right, tmp_path, name):
    damages, sentences = STATED[name]
    path = tmp_path / {"minari": "arm-v0", "robomimic": "arm.hdf5"}.get(name, name)
    options = {"format": "lerobot", "lerobot_version": name} if name.startswith("v") else {"format": name}
    changes = {"copy": {"timestamp": "observation.timestamp"}, "drop": ["timestamp"]}
    write_dataset(load(right, extra_fields=["timestamp"], mapping=changes), path, **options)
    assert repair_dataset(path, tmp_path / "nothing") == [] and not (tmp_path / "nothing").exists()
    expected = list(load(path))
    set_fps(path, options["format"], 99)
    for damage in damages:
        damage(path)
    before = digest(tmp_path)
    out = tmp_path / "out" / path.name
    repairs = repair_dataset(path, out)
    assert len(repairs) == len(sentences) + 1 and any("fps is 10 instead of 99" in repair for repair in repairs)
    for sentence in sentences:
        assert any(sentence in repair for repair in repairs), repairs
    assert before.items() <= digest(tmp_path).items()
    assert load(out).metadata["fps"] == 10
    for read, other in zip(load(out), expected, strict=True):
        assert_equal_nests(read.steps, other.steps)
        assert not read.contradictions
    assert repair_dataset(out, tmp_path / "again" / path.name) == []


def test_command_lists_repairs_and_other_findings(right, tmp_path, capsys):
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


def test_other_formats_options_and_missing_rows_raise(right, tmp_path, data, capsys):
    path, out = str(right), str(tmp_path / "out")
    assert run(["validate", str(data / "d4rl/pendulum_mixed-v2.hdf5"), "--fix", out]) == 1
    assert "must be the path of a LeRobot, robomimic, Minari or RLDS dataset to be repaired" in capsys.readouterr().err
    assert run(["validate", "missing/dataset-v0", "--fix", out]) == 1
    assert "missing/dataset-v0 must be the path of a LeRobot, robomimic" in capsys.readouterr().err
    before = digest(right)
    assert run(["validate", path, "--fix", f"{path}/meta/../out"]) == 1
    assert f"the repaired copy must be outside of {path}" in capsys.readouterr().err and digest(right) == before
    assert run(["validate", path, "--fix", out, "--split", "train"]) == 1
    assert "--split cannot be combined with --fix, which copies everything" in capsys.readouterr().err
    (right / "data/chunk-000/file-001.parquet").unlink()
    with pytest.raises(SourceError, match=f"^{right.name}: the rows of episode 1 are not in data/"):
        repair_dataset(right, tmp_path / "out")
    assert not (tmp_path / "out").exists()
