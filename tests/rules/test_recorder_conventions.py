"""The rule: what a dataset states twice must agree; a contradiction is an error or a finding with both values and its place."""

import json
import re
import shutil

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from rlds2reverb import check_dataset, load, write_dataset

LENGTHS = (4, 6, 5)


def make_logs():
    """Returns three logs, each with a final observation."""
    random = np.random.default_rng(0)
    return [
        {
            "observations": random.normal(size=(length + 1, 2)).astype(np.float32),
            "actions": random.normal(size=(length, 2)).astype(np.float32),
            "rewards": random.normal(size=length).astype(np.float32),
            "terminated": number == 1,
            "task": np.array([f"task {number}"] * length, object),
        }
        for number, length in enumerate(LENGTHS)
    ]


def make_rows():
    """Returns the columns of the logs under D4RL's names."""
    logs = make_logs()
    columns = {name: np.concatenate([log[name] for log in logs]) for name in ("actions", "rewards")}
    for name, rows in (("observations", slice(None, -1)), ("next_observations", slice(1, None))):
        columns[name] = np.concatenate([log["observations"][rows] for log in logs])
    ends = np.isin(np.arange(sum(LENGTHS)), np.cumsum(LENGTHS) - 1)
    return {**columns, "terminals": ends & (np.arange(len(ends)) < 10) & (np.arange(len(ends)) > 4), "timeouts": ends}


def make_ogbench_columns():
    rows = make_rows()
    is_end, num_rows = rows["timeouts"], len(rows["timeouts"])
    terminals = np.minimum(is_end + np.append(is_end[1:], True), 1)
    names = ("observations", "actions")
    return {
        **{name: rows[name] for name in names},
        "terminals": terminals,
        "valids": ~is_end,
        "qpos": np.zeros(num_rows),
    }


def make_neorl_columns():
    rows = make_rows()
    named = {"obs": "observations", "next_obs": "next_observations", "action": "actions", "reward": "rewards"}
    return {
        **{name: rows[stored] for name, stored in named.items()},
        "done": rows["timeouts"].astype(np.float32),
        "index": np.cumsum(LENGTHS),
    }


# --- how each dataset is written


def write(data_format, **options):
    def write_to(folder, data):
        logs = make_logs()
        for log in logs if data_format != "lerobot" else ():
            del log["task"]
        path = folder / "x-v0"
        write_dataset(logs, path, format=data_format, **options)
        return path

    return write_to


def copy(name):
    def copy_to(folder, data):
        shutil.copytree(data / name, folder / "x")
        return folder / "x"

    return copy_to


def write_drq(folder, data):
    path = folder / f"20261125T143830_0_{LENGTHS[0]}.npz"
    num_rows = LENGTHS[0] + 1
    columns = {name: np.ones((num_rows, 1), np.float32) for name in ("action", "reward", "discount")}
    np.savez(path, observation=np.arange(num_rows * 2).reshape(num_rows, 2), is_terminal=np.zeros(num_rows), **columns)
    return path


def write_vd4rl(folder, data):
    path = folder / "x.hdf5"
    with h5py.File(path, "w") as file:
        for name in ("observation", "action", "reward", "discount"):
            file[name] = np.ones(6, np.float32)
        file["step_type"] = np.array([0, 1, 2, 0, 1, 2])
    return path


def in_memory(make):
    return lambda folder, data: make()


# --- how it is made to contradict itself


def edit_json(name, **values):
    def edit(path):
        file = path / name
        content = json.loads(file.read_text())
        for key, value in values.items():
            part, *keys = content, *key.split("__")
            for inner in keys[:-1]:
                part = part[int(inner) if inner.isdecimal() else inner]
            part[keys[-1]] = value
        file.write_text(json.dumps(content))
        return path

    return edit


def edit_rows(pattern, column, row, value):
    """Returns a function that sets a value in a parquet file, adding it to the one there unless it is a list."""

    def edit(path):
        (file,) = path.glob(pattern)
        table = parquet.read_table(file)
        values = table[column].to_pylist()
        values[row] = value if isinstance(value, list) else values[row] + value
        index = table.column_names.index(column)
        parquet.write_table(table.set_column(index, column, pa.array(values, table[column].type)), file)
        return path

    return edit


def edit_attribute(group, name, value, file=""):
    def edit(path):
        with h5py.File(path / file if file else path, "r+") as opened:
            opened[group].attrs[name] = value
        return path

    return edit


def edit_column(name, row, value):
    def edit(columns):
        columns[name][row] = value
        return columns

    return edit


def edit_step_type(path):
    with h5py.File(path, "r+") as file:
        file["step_type"][3] = 1
    return path


EPISODES, ROWS = "meta/episodes/*/*.parquet", "data/*/*.parquet"
CAMERA = "videos/observation.images.front"
VIDEO = copy("formats/lerobot/v3.0/c2")
LEROBOT, MINARI, ROBOMIMIC = write("lerobot"), write("minari"), write("robomimic")
MINARI_FILE = "data/main_data.hdf5"
ERROR, FINDING, WARNING = "error", "finding", "warning"
#: How a dataset is written, how it is made to contradict itself, and how that is reported.
CONTRADICTIONS = {
    "LeRobot: a span begins two frames late": (
        VIDEO, edit_rows(EPISODES, f"{CAMERA}/from_timestamp", 1, 0.2),
        ERROR, r"episode 1: .*front.*: the timestamps .* require the frames from 1\.4\d* s to 2\.3\d* s .*, but its span ends at 2\.1\d* s",
    ),
    "LeRobot: a span ends in the next one": (
        VIDEO, edit_rows(EPISODES, f"{CAMERA}/to_timestamp", 1, 0.2),
        ERROR, r"episode 1: .* require the frames from 1\.2\d* s to 2\.1\d* s .*, but its span ends at 2\.3\d* s",
    ),
    "LeRobot: spans overlap": (
        VIDEO,
        lambda path: edit_rows(EPISODES, f"{CAMERA}/to_timestamp", 0, 0.2)(
            edit_rows(EPISODES, f"{CAMERA}/from_timestamp", 0, 0.2)(path)
        ),
        ERROR, r"episode 0: .* to 1\.4\d* s .*, but the span of the next episode begins at 1\.2",
    ),
    "LeRobot: length": (
        LEROBOT, edit_rows(EPISODES, "dataset_to_index", 1, 1),
        ERROR, r"episode 1: dataset_to_index is 11, but dataset_from_index \+ length 10",
    ),
    "LeRobot: more episodes": (LEROBOT, edit_json("meta/info.json", total_episodes=4), ERROR, "lists 3 .* info.json says 4"),
    "LeRobot: more rows": (
        LEROBOT, edit_json("meta/info.json", total_frames=16),
        WARNING, "total_frames in info.json is 16, but the sum of lengths in meta/ 15",
    ),
    "LeRobot: more tasks": (
        LEROBOT, edit_json("meta/info.json", total_tasks=4), WARNING, "total_tasks .* is 4, but the number in meta/ 3"
    ),
    "LeRobot: rows of another episode": (
        LEROBOT, edit_rows(ROWS, "episode_index", 5, 1), ERROR, "episode 1, step 1: .* has episode_index 2 where .* expects 1"
    ),
    "LeRobot: frame_index": (
        LEROBOT, edit_rows(ROWS, "frame_index", 6, 1),
        FINDING, ("frame_index", 1, 2, "frame_index is 3, but the row requires 2"),
    ),
    "LeRobot: index": (
        LEROBOT, edit_rows(ROWS, "index", 12, 1), FINDING, ("index", 2, 2, "index is 13, but the row requires 12")
    ),
    "LeRobot: task": (
        LEROBOT, edit_rows(EPISODES, "tasks", 2, ["task 0"]),
        FINDING, ("task_index", 2, 0, "the task of the row is b'task 2', but meta/ lists b'task 0'"),
    ),
    "LeRobot: timestamp": (LEROBOT, edit_rows(ROWS, "timestamp", 6, 0.1), FINDING, ("timestamp", 1, 3, "a time is not after the one before it")),
    "Minari: more episodes": (
        MINARI, edit_json("data/metadata.json", total_episodes=4),
        ERROR, "total_episodes in metadata.json is 4, but in the files 3",
    ),
    "Minari: more rows": (
        MINARI, edit_json("data/metadata.json", total_steps=16),
        ERROR, "total_steps in metadata.json is 16, but in the files 15",
    ),
    "Minari: length": (
        MINARI,
        lambda path: edit_attribute("episode_2", "total_steps", 6, MINARI_FILE)(
            edit_json("data/metadata.json", total_steps=16)(path)
        ),
        FINDING, ("length", 2, None, "total_steps is 6, but the number of rewards 5"),
    ),
    "robomimic: length": (
        ROBOMIMIC, edit_attribute("data/demo_1", "num_samples", 7),
        FINDING, ("length", 1, None, "num_samples is 7, but the number of actions 6"),
    ),
    "robomimic: more rows": (
        ROBOMIMIC, edit_attribute("data", "total", 16), WARNING, "the attribute total is 16, but the sum of rows 15"
    ),
    "TFDS: more episodes": (
        write("rlds"), edit_json("dataset_info.json", splits__0__shardLengths=["4"]), ERROR, "damaged at episode 3"
    ),
    "TFDS: fewer episodes": (
        write("rlds"), edit_json("dataset_info.json", splits__0__shardLengths=["2"]), ERROR, "damaged at episode 2"
    ),
    "TFDS: features": (
        write("rlds"),
        lambda path: edit_text(path, "features.json", '"2"', '"3"'), ERROR, "damaged at episode 0",
    ),
    "D4RL: flag under two names": (
        in_memory(lambda: {**make_rows(), "truncated": np.zeros(15, bool)}), lambda columns: columns,
        ERROR, "has timeouts and truncated, which mean the same",
    ),
    "D4RL: end without a flag": (
        in_memory(make_rows), lambda rows: edit_column("timeouts", 3, False)(edit_column("terminals", 3, False)(rows)),
        FINDING, None,
    ),
    "OGBench: ends": (
        in_memory(make_ogbench_columns), edit_column("terminals", 9, 0),
        ERROR, "row 9: terminals is False, but where valids is 0, it must be True",
    ),
    "NeoRL: ends": (
        in_memory(make_neorl_columns), edit_column("done", 6, 1),
        ERROR, "row 6: done is True, but inside the trajectories of index, it must be False",
    ),
    "DrQ-v2: length": (
        write_drq, lambda path: path.rename(path.with_name("20261125T143830_0_7.npz")),
        FINDING, ("length", 0, None, "the length in the file's name is 7, but it has the rows 5"),
    ),
    "V-D4RL: ends": (
        write_vd4rl, edit_step_type, ERROR, "step_type is 1, but after a last step, it must be 0"
    ),
}  # fmt: skip


def edit_text(path, name, old, new):
    file = path / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    return path


def find(source):
    """Returns the findings that are not infos or about constants in such small datasets."""
    ignored = (
        "constant",
        "zero-variance",
        "frozen",
        "repeated",
        "actions-at",
        "duplicate",
        "timestamp-drift",
        "sparse",
    )
    return [found for found in check_dataset(source) if not found.check.startswith(ignored)]


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradiction_is_reported_with_both_values_and_its_place(tmp_path, data, name):
    write_to, contradict, kind, expected = CONTRADICTIONS[name]
    source = contradict(write_to(tmp_path, data))
    if kind == ERROR:
        dataset = None
        for _ in range(2):
            with pytest.raises(ValueError, match=expected):
                dataset = dataset or load(source)
                list(dataset)
    elif kind == WARNING:
        assert any(re.search(expected, sentence) for sentence in load(source).warnings)
    elif expected is None:
        assert any(episode.discontinuities for episode in load(source))
    else:
        field, episode, step, message = expected
        found = next(part for part in check_dataset(load(source)) if part.field == field and part.severity == "warning")
        assert (found.episode, found.step) == (episode, step) and message in found.message


@pytest.mark.parametrize(
    "write_to",
    [LEROBOT, write("lerobot", lerobot_version="v2.1"), VIDEO, MINARI, ROBOMIMIC, write("rlds"), write("d4rl"),
     in_memory(make_rows), in_memory(make_ogbench_columns), in_memory(make_neorl_columns), write_drq, write_vd4rl],
)  # fmt: skip
def test_valid_dataset_gives_no_finding(tmp_path, data, write_to):
    source = load(write_to(tmp_path, data))
    assert [found.check for found in find(source)] == []
    assert not any(" is " in sentence and ", but " in sentence for sentence in source.warnings)
