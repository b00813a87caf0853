"""Tests of OGBench's files, dicts and names."""

import json

import numpy as np
import pytest
from expected_formats import FORMATS, describe_field, read_expected

from rlds2reverb.datasets import load
from rlds2reverb.errors import SourceError

FOLDER = FORMATS / "ogbench"
FILES = [
    (name, split)
    for name, splits in {
        "pointmaze-medium-navigate-v0": ("train", "val"),
        "cube-single-play-v0": ("val",),
        "puzzle-3x3-play-v0": ("val",),
        "visual-cube-single-play-v0": ("val",),
    }.items()
    for split in splits
]


def make_raw(num_rows=(4, 1, 3)):
    """Returns the columns of a file: trajectories of some rows, whose values are the row numbers."""
    total = sum(num_rows)
    rows = np.arange(total, dtype=np.float32)
    terminals = np.isin(np.arange(total), np.cumsum(num_rows) - 1)
    return {
        "observations": rows[:, None],
        "actions": rows + 100,
        "terminals": terminals,
        "qpos": rows + 200,
    }


def to_regular(raw):
    """Returns what `ogbench.load_dataset` returns by default."""
    is_kept = ~raw["terminals"]
    is_next = np.concatenate([[False], is_kept[:-1]])
    kept = {name: column[is_kept] for name, column in raw.items()}
    terminals = np.concatenate([raw["terminals"][1:], [True]])[is_kept].astype(np.float32)
    return {**kept, "next_observations": raw["observations"][is_next], "terminals": terminals}


def to_compact(raw):
    """Returns what `ogbench.load_dataset(..., compact_dataset=True)` returns."""
    terminals = raw["terminals"].astype(np.float32)
    shifted = np.concatenate([terminals[1:], [1]])
    return {**raw, "valids": 1 - terminals, "terminals": np.minimum(terminals + shifted, 1)}


def assert_equal_sources(source, other):
    for one, two in zip(source, other, strict=True):
        assert one.is_terminal == two.is_terminal
        for (path, column), (_, expected) in zip(one.columns, two.columns, strict=True):
            np.testing.assert_array_equal(column, expected, err_msg=str(path))


@pytest.mark.parametrize(("name", "split"), FILES)
def test_published_file_is_read_as_expected(name, split):
    expected = read_expected(f"ogbench/{name}")["files"][split]
    states = [key for key in ("qpos", "qvel", "button_states") if key in expected["regular"]]
    source = load(FOLDER / expected["file"], extra_fields=states)
    assert (source.count(), source.num_rows) == (expected["num_episodes"], sum(expected["rows"]))
    for episode, num_rows, described in zip(source, expected["rows"], expected["episodes"], strict=True):
        assert (episode.num_steps, episode.is_terminal, episode.unterminated) == (num_rows, False, False)
        assert not episode.dropped_last_transition and episode.total_reward == 0
        steps = episode.steps
        columns = {
            "observations": steps["observation"][:-1],
            "next_observations": steps["observation"][1:],
            "actions": steps["action"][:-1],
            **{key: steps[key][:-1] for key in states},
        }
        for key, column in columns.items():
            assert describe_field(column) == described[key]
        assert not steps["action"][-1].any()


def test_all_forms_of_a_dataset_are_equal(tmp_path):
    raw = make_raw(num_rows=(4, 2, 3))
    np.savez_compressed(tmp_path / "x.npz", **raw)
    np.savez(tmp_path / "regular.npz", **to_regular(raw))
    source = load(tmp_path / "x.npz")
    assert [episode.steps["observation"][:, 0].tolist() for episode in source] == [[0, 1, 2, 3], [4, 5], [6, 7, 8]]
    assert [episode.steps["action"].tolist() for episode in source] == [[100, 101, 102, 0], [104, 0], [106, 107, 0]]
    for other in (raw, to_compact(raw), to_regular(raw), tmp_path / "regular.npz"):
        assert_equal_sources(load(other), source)
    assert [episode.index for episode in source.read(1, 2)] == [1]


def test_trajectory_of_one_row_has_no_transition():
    episodes = list(load(make_raw()))
    assert [episode.num_transitions for episode in episodes] == [3, 0, 2]
    assert episodes[1].steps["observation"].tolist() == [[4]]


def test_rows_after_the_last_flag_are_an_unterminated_episode():
    raw = make_raw()
    raw["terminals"][-1] = False
    assert [(episode.num_steps, episode.unterminated) for episode in load(raw)] == [(4, False), (1, False), (3, True)]


def test_extra_fields_keep_the_row_of_the_final_observation():
    raw = make_raw((4, 3))
    (first, _) = load(raw, extra_fields=["qpos"])
    assert first.steps["qpos"].tolist() == [200, 201, 202, 203]
    (first, _) = load(to_regular(raw), extra_fields=["qpos"])
    assert first.steps["qpos"].tolist() == [200, 201, 202, 0]
    with pytest.raises(SourceError, match="has no 'qvel', only actions, observations, "):
        load(raw, extra_fields=["qvel"])


@pytest.mark.parametrize("convert", [to_regular, to_compact])
def test_masks_are_the_discounts_and_decide_terminal_ends(convert):
    raw = {**make_raw((5, 3)), "rewards": -np.ones(8, np.float32), "masks": np.array([1, 0, 1, 1, 1, 1, 0, 1.0])}
    one, two = load(convert(raw))
    assert (one.is_terminal, two.is_terminal) == (False, True)
    assert one.steps["discount"].tolist() == [1, 0, 1, 1, 1]
    assert two.steps["discount"].tolist() == [1, 0, 0]
    assert one.total_reward == -4 and two.total_reward == -2


def test_missing_rewards_are_zeros_with_a_warning():
    source = load(make_raw())
    assert any("has no rewards, so that all are 0" in sentence for sentence in source.warnings)
    assert source.assumed_fields == ("reward",)
    assert not load({**make_raw(), "rewards": np.ones(8), "masks": np.ones(8)}).warnings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": np.zeros(3)}, r"all columns must have the same number of rows >= 1, got {'observations': 8"),
        ({"terminals": np.arange(8)}, r"terminals\[2\] must be 0 or 1, got 2"),
        ({"masks": np.full(8, 3), "rewards": np.zeros(8)}, r"masks\[0\] must be 0 or 1, got 3"),
    ],
)
def test_invalid_columns_raise(change, message):
    with pytest.raises(SourceError, match=message):
        list(load({**make_raw(), **change}))


def test_d4rl_columns_are_not_mistaken_for_ogbench():
    rows = {**make_raw(), "rewards": np.zeros(8)}
    with pytest.raises(SourceError, match="has no 'timeouts'"):
        load(rows)
    assert load({**rows, "timeouts": np.zeros(8)}).kind == "memory"


@pytest.mark.parametrize("split", ["train", "val"])
def test_name_is_looked_up_in_the_directory(split, tmp_path, monkeypatch):
    name = "pointmaze-medium-navigate-v0"
    path = FOLDER / f"{name}{'-val' if split == 'val' else ''}.npz"
    assert_equal_sources(load(name, data_dir=FOLDER, split=split), load(path))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ogbench").mkdir()
    (tmp_path / ".ogbench/data").symlink_to(FOLDER)
    assert_equal_sources(load(name, split=split), load(path))


def test_missing_name_and_split_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"download https://.*/antmaze-large-stitch-v0-val.npz to "):
        load("antmaze-large-stitch-v0", data_dir=tmp_path, split="val")
    with pytest.raises(ValueError, match="split must be 'train' or 'val', got 'test'"):
        load("antmaze-large-stitch-v0", split="test")


def test_single_task_without_ogbench_raises(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.1.5")
    with pytest.raises(SourceError, match=r"require ogbench 1.2 or later, got 1.1.5; run .*pip install .*'ogbench<"):
        load("pointmaze-medium-navigate-singletask-v0", data_dir=FOLDER)


@pytest.mark.parametrize(("name", "split"), FILES)
def test_rewards_of_single_tasks_equal_those_of_ogbench(name, split):
    pytest.importorskip("ogbench")
    for task, described in read_expected(f"ogbench/{name}")["singletask"].items():
        source = load(task, data_dir=FOLDER, split=split)
        episodes = [episode for episode in source if episode.num_transitions]
        columns = {"rewards": "reward", "masks": "discount"}
        for key, field in columns.items():
            joined = np.concatenate([episode.steps[field][:-1] for episode in episodes])
            assert describe_field(joined) == described[split][key]
        assert json.loads(source.env_spec)["id"] == task.replace(f"-{name.split('-')[-2]}-", "-")
