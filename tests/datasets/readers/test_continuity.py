"""Tests of discontinuities: a few rows that do not continue in the next row are counted, many raise an error."""

import h5py
import numpy as np
import pytest
from hypothesis import given, strategies as st
from reference_impls import episode

from rlds2reverb.adders import TrajectoryWindows
from rlds2reverb.datasets import load, summarize
from rlds2reverb.datasets.readers import d4rl
from rlds2reverb.datasets.readers.continuity import find_differing_rows, find_discontinuities
from rlds2reverb.errors import SourceError
from rlds2reverb.reverb.writing.report import IngestReport
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import find_errors


def make_rows(ends, num_rows, *, jump_at=()):
    """Returns rows that count up; `next_observations` differs from the next observation in the rows of `jump_at`."""
    now = np.arange(num_rows, dtype=np.float32) + 10
    following = now + 1
    following[list(jump_at)] += 0.5
    return {
        "observations": np.stack([now, now], axis=1),
        "next_observations": np.stack([now + 1, following], axis=1),
        "actions": np.arange(num_rows, dtype=np.int64),
        "rewards": now + 90,
        "terminals": np.zeros(num_rows, bool),
        "timeouts": np.isin(np.arange(num_rows), ends),
    }


def naive_discontinuities(rows):
    """Returns the discontinuities by their definition, row by row."""
    is_end = rows["timeouts"] | rows["terminals"]
    return [
        row
        for row in range(len(is_end) - 1)
        if not is_end[row] and (rows["next_observations"][row] != rows["observations"][row + 1]).any()
    ]


@given(
    st.lists(st.integers(0, 29), max_size=6), st.lists(st.integers(0, 29), max_size=5, unique=True), st.integers(1, 9)
)
def test_discontinuities_match_the_naive_loop_for_any_block_size(ends, jump_at, block_rows):
    rows = make_rows(ends, 30, jump_at=jump_at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(d4rl, "MAX_BLOCK_ROWS", block_rows)
        patch.setattr("rlds2reverb.datasets.readers.continuity.MAX_SHARE", 1.0)
        got = list(load(rows))
    assert [row for episode in got for row in episode.discontinuities] == naive_discontinuities(rows)
    begin = 0
    for split in got:
        assert all(begin <= row < begin + split.num_transitions for row in split.discontinuities)
        begin += split.num_transitions


def test_unflagged_reset_is_reported_and_valid():
    rows = make_rows([49, 99, 299, 399], 400, jump_at=[49, 199, 224])
    source = load(rows)
    assert [error for episode in source for error in find_errors(episode, source.step_spec)] == []
    summary = summarize(source)
    assert summary.discontinuities == 2
    (warning,) = summary.warnings
    assert warning.startswith(
        "next_observations differs from the observation of the next row in 2 rows inside episodes"
    )
    assert "first in row 199 (episode 2)" in warning and "at_discontinuity" in warning
    report = IngestReport("rows", ("replay",))
    for read in source:
        report.add_batch(EpisodeBatch([read]), TrajectoryWindows(2))
    assert (report.discontinuities, report.first_discontinuity) == (2, "row 199 (episode 2)")
    assert report.notes == summary.warnings
    num_transitions = [split.num_transitions for split in load(rows, split_at_discontinuity=True)]
    assert num_transitions == [50, 50, 100, 25, 75, 100]
    assert summarize(load(rows, split_at_discontinuity=True)).discontinuities == 0


def test_file_with_half_of_its_timeouts_missing_has_a_warning(data, tmp_path):
    with h5py.File(data / "d4rl/pendulum_mixed-v2.hdf5") as file:
        rows = {name: file[name][:] for name in file if isinstance(file[name], h5py.Dataset)}
    ends = np.flatnonzero(rows["timeouts"])
    rows["timeouts"][ends[::2]] = False
    with h5py.File(tmp_path / "half.hdf5", "w") as file:
        for name, column in rows.items():
            file[name] = column
    summary = summarize(load(tmp_path / "half.hdf5"))
    assert summary.discontinuities == len(ends[::2]) == 40
    assert f"first in row {ends[0]:,} (episode 0)" in summary.warnings[0]


def test_shuffled_rows_require_independent_rows():
    rows = make_rows([99], 100)
    order = np.random.default_rng(0).permutation(100)
    rows = {name: column[order] for name, column in rows.items()}
    rows["terminals"][3] = True
    message = r"next_observations .* in more than 1% .* row \d+ \(episode 0\); .*\(independent_rows=True or split_at"
    with pytest.raises(SourceError, match=message):
        list(load(rows))
    episodes = list(load(rows, independent_rows=True))
    assert [episode.index for episode in episodes] == list(range(100))
    for row, alone in enumerate(episodes):
        steps = alone.steps
        assert find_errors(alone) == []
        np.testing.assert_array_equal(steps["observation"], [rows["observations"][row], rows["next_observations"][row]])
        assert steps["action"].tolist() == [rows["actions"][row], 0]
        assert steps["reward"].tolist() == [rows["rewards"][row], 0]
        assert steps["is_terminal"].tolist() == [False, row == 3]
        assert steps["discount"].tolist() == ([0, 0] if row == 3 else [1, 1])
        assert steps["is_first"].tolist() == [True, False] and steps["is_last"].tolist() == [False, True]
    assert summarize(load(rows, independent_rows=True)).transitions == 100


def test_independent_rows_are_read_from_files_without_timeouts(data):
    path = data / "d4rl/hopper_medium-v2.hdf5"
    with h5py.File(path) as file:
        num_rows, following = len(file["rewards"]), file["next_observations"][:]
    source = load(path, independent_rows=True, extra_fields=["qpos"])
    first, *_, last = episodes = list(source)
    assert len(episodes) == source.num_rows == num_rows
    np.testing.assert_array_equal(last.steps["observation"][1], following[-1])
    assert first.steps["qpos"].shape[0] == 2 and not first.steps["qpos"][1].any()
    rows = make_rows([], 4)
    del rows["timeouts"]
    assert len(list(load(rows, independent_rows=True))) == 4


def test_independent_rows_require_next_observations_and_no_other_ends():
    rows = make_rows([1], 2)
    with pytest.raises(
        ValueError,
        match=r"independent_rows=True already ends an episode after each row; leave out other rules \(max_episode_steps",
    ):
        load(rows, independent_rows=True, max_episode_steps=3)
    del rows["next_observations"]
    with pytest.raises(
        SourceError, match="independent_rows=True requires 'next_observations', which .* does not contain"
    ):
        load(rows, independent_rows=True)


@pytest.mark.parametrize(
    ("num_rows", "num_jumps", "is_error"),
    [(5, 1, True), (50, 5, False), (50, 6, True), (1000, 10, False), (1000, 11, True), (3000, 30, False)],
)
def test_many_discontinuities_raise(num_rows, num_jumps, is_error):
    rows = make_rows([], num_rows, jump_at=range(num_jumps))
    log = {name: rows[name] for name in ("observations", "next_observations", "actions", "rewards")}
    for source in (lambda: load(rows), lambda: load([{**log, "terminated": False}])):
        if is_error:
            with pytest.raises(SourceError, match=r"first in row 0 \(episode 0\)"):
                list(source())
        else:
            assert sum(len(episode.discontinuities) for episode in source()) == num_jumps


def test_rounding_and_nan_are_not_discontinuities():
    one = np.array([[1.0, 1000.0], [2.0, np.nan], [np.nan, 5.0], [3.0, 3.0]])
    other = np.array([[1.0 + 1e-7, 1000.001], [np.nan, 9.0], [1.0, 5.1], [3.0, 3.0]])
    assert find_differing_rows(one, other).tolist() == [2]
    assert find_differing_rows(np.array([1, 2, 3]), np.array([1, 9, 9]), ignore=[1]).tolist() == [2]
    assert find_differing_rows(np.zeros((3, 0)), np.zeros((3, 0))).tolist() == []


def test_nested_observations_of_logs_are_compared():
    now = {"a": np.arange(4), "b": (np.zeros((4, 2)),)}
    after = {"a": np.array([1, 2, 9, 4]), "b": (np.array([[0, 0], [0, 1], [0, 0], [0, 0]]),)}
    assert find_discontinuities(now, after) == (1, 2)
    longer = {"a": np.arange(5), "b": (np.zeros((5, 2)),)}
    assert find_discontinuities(longer, {**after, "a": np.array([1, 2, 3, 9])}) == (1, 3)


def test_relabelled_robomimic_observations_raise(data, tmp_path):
    path = tmp_path / "lift.hdf5"
    path.write_bytes((data / "tfds_fake/robomimic_ph/lift_low_dim.hdf5").read_bytes())
    assert summarize(load(path)).discontinuities == 0
    with h5py.File(path, "a") as file:
        column = file["data/demo_0/next_obs/object"]
        column[...] = column[:] + 1
    with pytest.raises(SourceError, match=r"first in row 0 \(episode 0\); put the rows in the order in which"):
        list(load(path))
    with pytest.raises(
        ValueError, match=r"independent_rows=True does not apply to a robomimic file \(its options: split\)"
    ):
        load(path, independent_rows=True)


def test_logs_of_shuffled_rows_are_read_as_independent_rows():
    now = np.array([10.0, 30.0, 20.0])
    log = {
        "observations": now,
        "next_observations": now + 1,
        "actions": np.arange(3),
        "rewards": np.ones(3),
        "terminations": [0, 1, 0],
        "qpos": np.arange(3),
    }
    longer = {**log, "observations": np.arange(4.0), "terminations": True}
    del longer["next_observations"]
    episodes = list(load([log, longer], independent_rows=True))
    assert [episode.steps["observation"].tolist() for episode in episodes] == [
        [10, 11],
        [30, 31],
        [20, 21],
        [0, 1],
        [1, 2],
        [2, 3],
    ]
    assert [episode.is_terminal for episode in episodes] == [False, True, False, False, False, True]
    assert episodes[2].steps["qpos"].tolist() == [2, 0]
    with pytest.raises(SourceError, match="episode 0 has no next_observations, which independent_rows=True requires"):
        list(load([{**longer, "observations": np.arange(3.0)}], independent_rows=True))
    with pytest.raises(SourceError, match=r"episode 0: \['qpos'\] must have as many rows as rewards \(3\), got 2"):
        list(load([{**log, "qpos": np.arange(2)}], independent_rows=True))
    with pytest.raises(SourceError, match=r"next_observations is float32 \[\], but observations expects float64"):
        list(load([{**log, "next_observations": now.astype(np.float32)}], independent_rows=True))
    with pytest.raises(SourceError, match="episode 0 is missing observations"):
        list(load([episode(2, terminal=True)], independent_rows=True))
