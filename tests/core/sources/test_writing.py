"""Tests of `write_dataset`: every format is read back equal, and nothing incomplete is ever visible."""

import operator

import h5py
import numpy as np
import pytest
from reference_impls import assert_equal_nests, episode

from rlds2reverb import load, write_dataset
from rlds2reverb.errors import InvalidEpisodeError, SourceError

LOG = {
    "observations": np.arange(8, dtype=np.float32).reshape(4, 2),
    "actions": np.array([3, 4, 5], np.int32),
    "rewards": np.array([0.5, 1.5, 2.5]),
    "terminated": False,
    "phase": np.array([7, 8, 9], np.uint8),
}
LOGS = [LOG, {**LOG, "terminated": True}]


def assert_same_episodes(got, expected):
    """Asserts that two sources have equal steps, dtypes and ends, episode for episode."""
    for have, want in zip(got, expected, strict=True):
        assert sorted(have.steps) == sorted(want.steps)
        assert_equal_nests(have.steps, want.steps)
        assert have.unterminated == want.unterminated


@pytest.mark.parametrize(
    "name",
    [
        "d4rl/invertedpendulum_random-v2.hdf5",
        "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5",
        "tfds_fake/d4rl_mujoco_hopper/hopper_medium_replay-v1.hdf5",
    ],
)
def test_d4rl_file_is_read_back_equal(data, tmp_path, name):
    report = write_dataset(data / name, tmp_path / "out.hdf5", format="d4rl")
    source, written = load(data / name), load(tmp_path / "out.hdf5")
    assert_same_episodes(written, source)
    assert written.metadata == source.metadata and report.episodes == len(list(source))
    assert [path.name for path in tmp_path.iterdir()] == ["out.hdf5"]


def test_d4rl_file_has_the_rows_of_the_episodes(tmp_path):
    write_dataset(LOGS, tmp_path / "out.hdf5", format="d4rl")
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert file["observations"][:, 0].tolist() == [0, 2, 4] * 2
        assert file["next_observations"][:, 0].tolist() == [2, 4, 6] * 2
        assert file["terminals"][:].tolist() == [False] * 5 + [True]
        assert file["timeouts"][:].tolist() == [False, False, True, False, False, False]
        assert file["infos/phase"][:].tolist() == [7, 8, 9] * 2
    assert_same_episodes(load(tmp_path / "out.hdf5", extra_fields=["phase"]), load(LOGS))


def test_invalid_data_raise_and_leave_nothing(tmp_path):
    nan = {**LOG, "rewards": np.array([0.5, np.nan, 2.5])}
    with pytest.raises(InvalidEpisodeError, match="NaN"):
        write_dataset([LOG, nan], tmp_path / "new" / "out.hdf5", format="d4rl")
    with pytest.raises(SourceError, match=r"step\['discount'\] must be 1 for D4RL.* got 0.5 \(episode 0, step 0\)"):
        write_dataset([episode(3, terminal=False, discount=0.5)], tmp_path / "out.hdf5", format="d4rl")
    assert list(tmp_path.iterdir()) == []
    report = write_dataset([nan, LOG], tmp_path / "out.hdf5", format="d4rl", on_invalid="skip_episode")
    assert operator.attrgetter("episodes", "transitions", "skipped_episodes")(report) == (1, 3, 1)
