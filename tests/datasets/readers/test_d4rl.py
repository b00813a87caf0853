"""Tests of episodes from D4RL rows: compared with the files, with irregular ends, and for any block size."""

import h5py
import numpy as np
import pytest
from hypothesis import given, strategies as st

from rlds2reverb.datasets import load
from rlds2reverb.datasets.readers import d4rl
from rlds2reverb.errors import SourceError

FILES = [
    "d4rl/hopper_medium-v2.hdf5",
    "d4rl/invertedpendulum_random-v2.hdf5",
    "d4rl/pendulum_mixed-v2.hdf5",
    "tfds_fake/d4rl_adroit_door/door-human-v0.hdf5",
    "tfds_fake/d4rl_mujoco_halfcheetah/halfcheetah_medium.hdf5",
    "tfds_fake/d4rl_mujoco_hopper/hopper_medium.hdf5",
    "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5",
    "tfds_fake/d4rl_mujoco_hopper/hopper_medium_replay-v1.hdf5",
    "tfds_fake/d4rl_mujoco_hopper/hopper_random-v1.hdf5",
]


@pytest.mark.parametrize("name", FILES)
def test_episodes_match_the_rows_of_the_file(data, name):
    """Compares every row with h5py's, including the final observation of each episode."""
    with h5py.File(data / name) as file:
        rows = {key: file[key][:] for key in file if isinstance(file[key], h5py.Dataset)}
    row = 0
    for episode in load(data / name):
        steps = episode.steps
        num_rows = episode.num_steps - ("next_observations" in rows or episode.is_terminal)
        stop = row + num_rows
        assert steps["observation"][:num_rows].tobytes() == rows["observations"][row:stop].tobytes()
        assert steps["action"][:num_rows].tobytes() == rows["actions"][row:stop].tobytes()
        assert steps["reward"][:num_rows].tobytes() == rows["rewards"][row:stop].tobytes()
        assert steps["observation"].dtype == rows["observations"].dtype
        is_end = (rows["terminals"] != 0) | (rows["timeouts"] != 0)
        assert is_end[row:stop].tolist() == [False] * (num_rows - 1) + [not episode.unterminated]
        assert episode.is_terminal == bool(rows["terminals"][stop - 1])
        assert steps["discount"].tolist()[:num_rows] == [1.0] * (num_rows - 1) + [0.0 if episode.is_terminal else 1.0]
        if "next_observations" in rows:
            assert steps["observation"][-1].tobytes() == rows["next_observations"][stop - 1].tobytes()
        elif episode.is_terminal:
            assert not steps["observation"][-1].any()
        row = stop
    assert row == len(rows["rewards"])


def make_rows(terminals, timeouts=None, **more):
    num_rows = len(terminals)
    position = np.arange(num_rows, dtype=np.float32)
    rows = {
        "observations": position[:, None] + 10,
        "next_observations": position[:, None] + 11,
        "actions": position[:, None],
        "rewards": position + 100,
        "terminals": np.array(terminals),
        **more,
    }
    return {**rows, "timeouts": np.array(timeouts)} if timeouts is not None else rows


def episode_lengths(rows, **options):
    return [episode.num_transitions for episode in load(rows, **options)]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30), st.integers(1, 8))
def test_episodes_do_not_depend_on_the_block_size(flags, block_rows):
    terminals, timeouts = np.array(flags).T
    whole = list(load(make_rows(terminals, timeouts)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(d4rl, "MAX_BLOCK_ROWS", block_rows)
        parts = list(load(make_rows(terminals, timeouts)))
        limited = episode_lengths(make_rows(terminals, timeouts), max_episode_steps=3)
    assert len(whole) == len(parts)
    for one, other in zip(whole, parts, strict=True):
        assert one.unterminated == other.unterminated
        assert all(one.steps[name].tobytes() == other.steps[name].tobytes() for name in one.steps)
    assert limited == episode_lengths(make_rows(terminals, timeouts), max_episode_steps=3)


def test_terminal_overrides_timeout_and_last_rows_are_unterminated():
    first, second, third = load(make_rows([0, 1, 0, 0, 0], [0, 1, 0, 1, 0]))
    assert (first.is_terminal, first.num_transitions, first.steps["discount"].tolist()) == (True, 2, [1, 0, 0])
    assert (second.is_terminal, second.unterminated, second.steps["discount"].tolist()) == (False, False, [1, 1, 1])
    assert (third.is_terminal, third.unterminated) == (False, True)
    assert third.steps["observation"].reshape(-1).tolist() == [14, 15]


def test_max_episode_steps_ends_episodes_without_timeouts():
    rows = make_rows([0, 0, 0, 0, 0, 1, 0])
    with pytest.raises(
        SourceError, match=r"has no 'timeouts', which mark the ends of truncated episodes; .* \(max_episode_steps or"
    ):
        load(rows)
    assert episode_lengths(rows, max_episode_steps=2) == [2, 2, 2, 1]
    assert episode_lengths(rows, max_episode_steps=4) == [4, 2, 1]
    assert episode_lengths(rows, max_episode_steps=100) == [6, 1]
    assert [e.is_terminal for e in load(rows, max_episode_steps=4)] == [False, True, False]
    assert [e.unterminated for e in load(rows, max_episode_steps=4)] == [False, False, True]


def test_discontinuity_ends_episodes_without_timeouts():
    rows = make_rows([0] * 6)
    rows["observations"] = rows["observations"].copy()
    rows["observations"][3:] += 50
    rows["next_observations"] = rows["next_observations"].copy()
    rows["next_observations"][3:] += 50
    assert episode_lengths(rows, split_at_discontinuity=True) == [3, 3]
    del rows["next_observations"]
    with pytest.raises(
        SourceError, match="split_at_discontinuity=True requires 'next_observations', which .* does not contain"
    ):
        load(rows, split_at_discontinuity=True)


def test_infos_are_read_only_as_extra_fields(data):
    path = data / "d4rl/hopper_medium-v2.hdf5"
    assert "qpos" not in next(iter(load(path))).steps
    source = load(path, extra_fields=["qpos"])
    episode = next(iter(source))
    assert source.unread == ("infos/action_log_probs", "infos/qvel")
    with h5py.File(path) as file:
        np.testing.assert_array_equal(episode.steps["qpos"][:-1], file["infos/qpos"][: episode.num_transitions])
    with pytest.raises(SourceError, match="has no 'infos/nothing'"):
        load(path, extra_fields=["nothing"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"terminals": np.array([0, 2, 0])}, r"terminals\[1\] must be 0 or 1, got 2"),
        ({"terminals": np.array([0, np.nan, 0])}, r"terminals\[1\] must be 0 or 1, got nan"),
        ({"rewards": np.zeros((3, 2))}, r"'rewards' must have shape \(N,\) or \(N, 1\), got \(3, 2\)"),
        ({"rewards": np.array(["a", "b", "c"])}, r"'rewards' must contain numbers, got strings"),
        ({"actions": np.zeros((4, 1))}, r"'actions' must have as many rows as 'rewards' \(3\), got 4"),
    ],
)
def test_inconsistent_columns_raise(change, message):
    with pytest.raises(SourceError, match=message):
        list(load({**make_rows([0, 0, 1], [0, 0, 0]), **change}))


def test_max_episode_steps_below_one_raises():
    with pytest.raises(ValueError, match="max_episode_steps must be an integer >= 1, got 0"):
        load(make_rows([0, 1]), max_episode_steps=0)
