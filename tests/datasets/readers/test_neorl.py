"""Tests of NeoRL's files, whose `index` contains the ends of the trajectories."""

import numpy as np
import pytest
from expected_formats import FORMATS, describe_field, read_expected

from rlds2reverb.datasets import load
from rlds2reverb.errors import SourceError

NAMES = ["HalfCheetah-v3-low-4-train-noise", "Hopper-v3-low-2-val-noise", "Hopper-v3-low-8-train-noise"]
ROWS = {
    "obs": np.arange(6.0)[:, None],
    "next_obs": np.arange(1.0, 7)[:, None],
    "action": np.zeros((6, 1)),
    "reward": np.arange(6.0)[:, None],
    "done": np.array([0, 0, 1, 1, 0, 1.0])[:, None],
    "index": np.float32([3, 4, 6]),
}


def read_ends(source):
    return [(episode.num_transitions, episode.is_terminal) for episode in source]


@pytest.mark.parametrize("name", NAMES)
def test_published_file_is_read_as_expected(name):
    expected = read_expected(f"neorl/{name}")
    source = load(FORMATS / f"neorl/{name}.npz")
    assert (source.num_rows, source.count()) == (expected["num_rows"], len(expected["episodes"]))
    for episode, row in zip(source, expected["episodes"], strict=True):
        steps = episode.steps
        assert (episode.num_transitions, episode.is_terminal) == (row["rows"], row["ends"] == "terminated")
        assert episode.total_reward == pytest.approx(row["sum_reward"])
        fields = {
            "obs": steps["observation"][:-1],
            "next_obs": steps["observation"][1:],
            "action": steps["action"][:-1],
        }
        for key, column in {**fields, "reward": steps["reward"][:-1, None]}.items():
            assert describe_field(column) == row["fields"][key]
    assert "done does not tell terminal states from time limits" in source.warnings[0]


@pytest.mark.parametrize("index", [[3, 4, 6], [0, 3, 4], [0, 3, 4, 6]])
def test_index_may_contain_ends_or_beginnings(index):
    source = load({**ROWS, "index": np.array(index)})
    assert read_ends(source) == [(3, True), (1, True), (2, True)]
    assert source.read(1, 2).__next__().steps["observation"].tolist() == [[3], [4]]


def test_time_limit_decides_which_ends_are_truncated():
    source = load(ROWS, max_episode_steps=2)
    assert read_ends(source) == [(3, False), (1, True), (2, False)] and not source.warnings
    assert read_ends(load(ROWS, max_episode_steps=4)) == [(3, True), (1, True), (2, True)]


@pytest.mark.parametrize("index", [{}, {"index": [0, 3, 4]}])
def test_files_of_neorl_2_tell_terminal_states_from_time_limits(index):
    rows = {name: column for name, column in ROWS.items() if name != "index"}
    done, truncated = np.array([[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]])[..., None]
    source = load({**rows, "done": done, "truncated": truncated, **index})
    assert read_ends(source) == [(3, True), (1, False), (2, False)] and not source.warnings and not source.unread
    with pytest.raises(SourceError, match="truncated"):
        load({**rows, "done": done, "truncated": truncated, "index": [3, 6]}).count()
    source = load({**ROWS, "truncated": 0 * truncated})
    assert read_ends(source) == [(3, True), (1, True), (2, True)] and not source.warnings


@pytest.mark.parametrize(
    ("index", "ends"), [([2, 4, 6], [(2, False)] * 3), ([2, 3, 5, 6], [(2, False), (1, True)] * 2), ([6], [(6, False)])]
)
def test_longest_trajectories_are_truncated_if_several_have_that_length(index, ends):
    source = load({**ROWS, "done": np.isin(np.arange(6), np.array(index) - 1), "index": np.array(index)})
    assert read_ends(source) == ends


def test_done_that_some_trajectories_lack_marks_terminal_states():
    source = load({**ROWS, "done": np.array([0, 0, 0, 1, 0, 1])})
    assert read_ends(source) == [(3, False), (1, True), (2, True)] and not source.warnings


@pytest.mark.parametrize("index", [[3, 4], [4, 3, 6], [3, 3, 6], [2.5, 6], []])
def test_invalid_index_raises(index):
    with pytest.raises(
        SourceError, match="'index' must contain the ascending ends of the trajectories, the last one 6"
    ):
        load({**ROWS, "index": np.array(index)})


def test_missing_column_raises(tmp_path):
    np.savez(tmp_path / "x.npz", **{name: column for name, column in ROWS.items() if name != "index"})
    with pytest.raises(SourceError, match="has no 'index'; NeoRL data have obs, "):
        load(tmp_path / "x.npz")
