"""Tests of Atari replay logs in the layout of the DQN Replay Dataset."""

import gzip
import shutil

import numpy as np
import pytest
from expected_formats import FORMATS, describe_field, read_expected

from rlds2reverb.errors import SourceError
from rlds2reverb.sources import load

LOGS = FORMATS / "atari/replay_logs"


def test_published_logs_are_read_as_expected():
    expected = read_expected("atari/replay_logs")["episodes"]
    source = load(LOGS)
    assert source.count() == len(expected)
    assert source.num_rows == sum(row["rows"] for row in expected)
    for episode, row in zip(source, expected, strict=True):
        steps = episode.steps
        assert (episode.num_transitions, episode.is_terminal) == (row["rows"], row["ends"] == "terminated")
        assert episode.total_reward == row["sum_reward"]
        for name in ("observation", "action", "reward"):
            assert describe_field(steps[name][:-1]) == row["fields"][name]
        assert not steps["observation"][-1].any() and not episode.unterminated
    assert [episode.index for episode in source.read(5, 7)] == [5, 6]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_single_file_loses_only_the_rows_at_its_ends(tmp_path, number):
    expected = read_expected("atari/replay_logs")["each_file_alone"][str(number)]
    for path in LOGS.glob(f"*.{number}.gz"):
        shutil.copy(path, tmp_path)
    source = load(tmp_path)
    assert source.num_rows == expected["valid_rows"] - expected["padding_rows"]
    episodes = list(source)
    assert sum(episode.is_terminal for episode in episodes) == expected["terminals"]
    assert [episode.unterminated for episode in episodes[:-1]] == [False] * (len(episodes) - 1)
    assert episodes[-1].unterminated == (number < 2) and episodes[-1].dropped_last_transition == (number < 2)


def test_missing_file_between_others_ends_an_episode(tmp_path):
    for number in (0, 2):
        for path in LOGS.glob(f"*.{number}.gz"):
            shutil.copy(path, tmp_path)
    ends = [episode.unterminated for episode in load(tmp_path)]
    assert ends.count(True) == 1 and not ends[-1]


def test_several_missing_rows_end_an_episode(tmp_path):
    save(tmp_path, 0, 2, action=[1, 2, 9, 9], reward=np.zeros(4), terminal=np.zeros(4))
    save(tmp_path, 1, 3, action=[5, 6, 7, 9], reward=np.zeros(4), terminal=[0, 0, 1, 0])
    one, two = load(tmp_path)
    assert one.unterminated and one.steps["action"].tolist() == [1, 2]
    assert two.is_terminal and two.steps["action"].tolist() == [5, 6, 7, 0]


def save(folder, number, add_count, **columns):
    capacity = len(columns["action"])
    rows = np.arange(capacity)
    frames = np.broadcast_to((number * capacity + rows + 1).astype(np.uint8)[:, None, None], (capacity, 2, 2))
    arrays = {"$store$_observation": frames, "add_count": np.array(add_count)}
    if number:
        arrays["invalid_range"] = np.zeros(5)
    arrays |= {f"$store$_{name}": np.asarray(column) for name, column in columns.items()}
    for name, array in arrays.items():
        with gzip.open(folder / f"{name}_ckpt.{number}.gz", "wb") as stream:
            np.save(stream, array)


def test_padding_after_a_terminal_row_is_left_out_across_files(tmp_path):
    # File 0 ends with a terminal row and three rows of padding, of which file 1 has the last one, in its stale last row; then the episode starts.
    save(tmp_path, 0, 7, action=[0, 0, 0, 1, 1, 0, 0, 9], reward=np.zeros(8), terminal=[0, 0, 0, 0, 1, 0, 0, 0])
    save(
        tmp_path,
        1,
        4,
        action=[0, 2, 0, 2, 9, 9, 9, 0],
        reward=[0.0, 1, 2, 3, 4, 5, 6, 0],
        terminal=[0, 0, 0, 1, 0, 0, 0, 0],
    )
    one, two = load(tmp_path)
    assert one.steps["action"].tolist() == [1, 1, 0]
    assert two.steps["action"].tolist() == [0, 2, 0, 2, 0]
    assert two.steps["reward"].tolist() == [0, 1, 2, 3, 0]
    assert one.is_terminal and two.is_terminal


def test_stacks_share_their_frames_and_never_cross_an_episode():
    single, stacked = load(LOGS), load(LOGS, frame_stack=4)
    for one, other in zip(single.read(), stacked.read(), strict=True):
        frames, stacks = one.steps["observation"], other.steps["observation"]
        assert stacks.shape == (*frames.shape, 4)
        for age in range(4):
            np.testing.assert_array_equal(stacks[age:, ..., 3 - age], frames[: len(frames) - age])
            assert not stacks[:age, ..., 3 - age].any()
        stored = stacks
        while stored.base is not None:
            stored = stored.base
        assert stored.nbytes <= 1.1 * frames.nbytes
    for (_, column), (_, copy) in zip(other.columns, list(stacked)[-1].columns, strict=True):
        np.testing.assert_array_equal(column, copy)
    with pytest.raises(ValueError, match="frame_stack must be an integer >= 1, got 0"):
        load(LOGS, frame_stack=0)


def test_missing_and_damaged_files_raise(tmp_path):
    for path in LOGS.glob("*.2.gz"):
        shutil.copy(path, tmp_path)
    path = tmp_path / "$store$_observation_ckpt.2.gz"
    path.write_bytes(path.read_bytes()[:5_000])
    source = load(tmp_path)
    with pytest.raises(SourceError, match=r"observation_ckpt.2.gz is damaged; copy or download it again"):
        list(source)
    (tmp_path / "$store$_reward_ckpt.2.gz").unlink()
    with pytest.raises(SourceError, match=r"must contain \$store\$_reward_ckpt.2.gz"):
        load(tmp_path)


def test_impossible_count_raises(tmp_path):
    save(tmp_path, 0, 9, action=[1, 1], reward=np.zeros(2), terminal=[0, 1])
    with pytest.raises(SourceError, match="add_count must not exceed it, got .* and 9"):
        load(tmp_path)
