"""Tests of Atari replay logs in the layout of the DQN Replay Dataset."""

import gzip
import shutil

import numpy as np
import pytest
from expected_formats import FORMATS, describe_field, read_expected

from rlds2reverb.datasets import load
from rlds2reverb.errors import SourceError

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
    default = np.broadcast_to((number * capacity + rows + 1).astype(np.uint8)[:, None, None], (capacity, 2, 2))
    frames = columns.pop("observation", default)
    arrays = {"$store$_observation": frames, "add_count": np.array(add_count)}
    if number:
        arrays["invalid_range"] = np.zeros(5)
    arrays |= {f"$store$_{name}": np.asarray(column) for name, column in columns.items()}
    for name, array in arrays.items():
        with gzip.open(folder / f"{name}_ckpt.{number}.gz", "wb") as stream:
            np.save(stream, array)


def test_padding_after_a_terminal_row_is_left_out_across_files(tmp_path):
    # File 0 ends with a terminal row and three rows of padding, of which file 1 has the last one, in its stale last row; then the episode starts.
    frames = np.ones((2, 8, 2, 2), np.uint8)
    frames[0, [0, 1, 2, 5, 6]] = frames[1, [0, 7]] = 0
    zeros = np.zeros(8)
    actions = [0, 0, 0, 1, 1, 0, 0, 9]
    save(tmp_path, 0, 7, observation=frames[0], action=actions, reward=zeros, terminal=[0, 0, 0, 0, 1, 0, 0, 0])
    save(
        tmp_path,
        1,
        4,
        observation=frames[1],
        action=[0, 2, 0, 2, 1, 0, 0, 0],
        reward=[0.0, 1, 2, 3, 4, 5, 6, 0],
        terminal=[0, 0, 0, 1, 0, 0, 0, 0],
    )
    one, two = load(tmp_path)
    assert one.steps["action"].tolist() == [1, 1, 0]
    assert two.steps["action"].tolist() == [0, 2, 0, 2, 0]
    assert two.steps["reward"].tolist() == [0, 1, 2, 3, 0]
    assert one.is_terminal and two.is_terminal


@pytest.mark.slow
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
    with pytest.raises(SourceError, match=r"observation_ckpt.2.gz is damaged; copy or download it again"):
        load(tmp_path)
    (tmp_path / "$store$_reward_ckpt.2.gz").unlink()
    with pytest.raises(SourceError, match=r"must contain \$store\$_reward_ckpt.2.gz"):
        load(tmp_path)


def test_impossible_count_raises(tmp_path):
    save(tmp_path, 0, -1, action=[1, 1], reward=np.zeros(2), terminal=[0, 1])
    with pytest.raises(SourceError, match="add_count must not be negative, got .* and -1"):
        load(tmp_path)


class Recorder:
    """A ring buffer with Dopamine's rules: padding before episodes, and a log one row before the buffer is full."""

    def __init__(self, folder, capacity, *, stack_size=4, horizon=1, checkpoints=None):
        self.folder, self.capacity, self.num_padding = folder, capacity, stack_size - 1
        self.invalid_size, self.checkpoints = stack_size + horizon, checkpoints
        self.rows, self.files = [], {}
        self.columns = {
            "observation": np.zeros((capacity, 2, 2), np.uint8),
            "action": np.zeros(capacity, np.int32),
            "reward": np.zeros(capacity, np.float32),
            "terminal": np.zeros(capacity, np.uint8),
        }

    def play(self, *lengths):
        """Adds episodes; actions and rewards are 0 in their first two rows, as in an Atari game with no-ops."""
        for length in lengths:
            for _ in range(self.num_padding):
                self._add(None, 0, 0, 0)
            for step in range(length):
                value = len(self.rows) % 250 + 1
                action = 0 if step < 2 else value % 3
                self._add(value, action, action / 2, step == length - 1)
                stop = len(self.rows)
                if stop in self.checkpoints if self.checkpoints else (stop + 1) % self.capacity == 0:
                    self.log(stop)
        return self

    def log_final(self):
        self.log(len(self.rows) % self.capacity)
        return self

    def log(self, add_count):
        number = len(self.files)
        save(self.folder, number, add_count, **self.columns)
        with gzip.open(self.folder / f"invalid_range_ckpt.{number}.gz", "wb") as stream:
            np.save(stream, np.zeros(self.invalid_size, np.int64))
        self.files[number] = len(self.rows)

    def _add(self, *values):
        for column, value in zip(self.columns.values(), values, strict=True):
            column[len(self.rows) % self.capacity] = value or 0
        self.rows.append(values)

    def list_episodes(self, times):
        """Returns the frames, actions and whether it terminated, of each run of transitions at consecutive times."""
        episodes, rows = [], []
        for time, row in enumerate(self.rows):
            if time in times and row[0]:
                rows.append(row)
            if rows and (time not in times or time == max(times) or row[3]):
                episodes.append(([frame for frame, *_ in rows], [row[1] for row in rows], bool(rows[-1][3])))
                rows = []
        return episodes


def read_all(folder):
    """Returns what `Recorder.list_episodes` does; an episode without a terminal state loses its last action."""
    episodes = []
    for episode in load(folder):
        assert episode.unterminated != episode.is_terminal
        stop = episode.num_transitions if episode.is_terminal else None
        frames = episode.steps["observation"][:stop, 0, 0].tolist()
        episodes.append((frames, episode.steps["action"][: episode.num_transitions].tolist(), episode.is_terminal))
    return episodes


def shorten(episodes):
    return [(frames, actions if ends else actions[:-1], ends) for frames, actions, ends in episodes]


LENGTHS = (9, 1, 14, 7, 3, 22, 1, 1, 17, 10)


@pytest.mark.parametrize("capacity", range(33, 41))
def test_one_ring_buffer_is_read_from_its_oldest_row(tmp_path, capacity):
    recorder = Recorder(tmp_path, capacity, checkpoints={sum(LENGTHS) + 30}).play(*LENGTHS)
    stop = recorder.files[0]
    first = stop - capacity + (stop % capacity == capacity - 1)
    assert read_all(tmp_path) == shorten(recorder.list_episodes(range(first, stop)))


def test_rows_that_several_ring_buffers_contain_are_read_once(tmp_path):
    recorder = Recorder(tmp_path, 40, checkpoints={20, 30, 60, 82}).play(*LENGTHS)
    assert read_all(tmp_path) == shorten(recorder.list_episodes(range(82)))


@pytest.mark.parametrize(("stack_size", "horizon"), [(4, 1), (4, 3), (1, 1), (2, 2)])
def test_padding_is_told_from_no_ops_whatever_the_stack_and_the_horizon(tmp_path, stack_size, horizon):
    recorder = Recorder(tmp_path, 200, stack_size=stack_size, horizon=horizon).play(*LENGTHS).log_final()
    assert read_all(tmp_path) == recorder.list_episodes(range(200))


def test_final_log_of_a_full_buffer_repeats_no_row(tmp_path):
    recorder = Recorder(tmp_path, 30).play(9, 14)
    assert recorder.files == {0: 29}
    recorder.log_final()
    assert read_all(tmp_path) == recorder.list_episodes(range(30))


def test_log_that_padding_left_out_ends_an_episode(tmp_path):
    recorder = Recorder(tmp_path, 20).play(9, 6, 12, 9).log_final()
    assert recorder.files == {0: 19, 1: 48}  # Rows 39 and 40 are padding, so that no file was written there.
    assert read_all(tmp_path) == shorten(recorder.list_episodes({*range(19), *range(40, 48)}))
