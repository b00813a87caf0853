"""Tests of ManiSkill's trajectories; the expectations come from h5py."""

import json

import h5py
import numpy as np
import pytest
from robot_files import make_images, write_maniskill

from rlds2reverb import load
from rlds2reverb.errors import SourceError


def test_trajectories_keep_the_order_of_their_numbers_and_end_by_their_last_rows(tmp_path):
    source = load(write_maniskill(tmp_path / "x.h5"))
    episodes = list(source)
    ends = [(episode.is_terminal, episode.unterminated, episode.num_transitions) for episode in episodes]
    assert ends == [(True, False, 3), (False, False, 3), (False, True, 3)]
    assert all(episode.is_end_known for episode in episodes)
    assert [episode.seed for episode in episodes] == [7, 9, 17]
    assert [int(episode.metadata["episode_id"]) for episode in episodes] == [0, 2, 10]
    assert json.loads(source.env_spec) == {"id": "PickCube-v1", "kwargs": {"obs_mode": "rgb"}}
    assert source.metadata == {"env_id": "PickCube-v1", "max_episode_steps": 50}
    assert (source.unread, source.warnings, source.assumed_fields) == (("env_states",), (), ())


def test_rows_match_h5py(tmp_path):
    path = write_maniskill(tmp_path / "x.h5")
    with h5py.File(path) as file:
        for group, episode in zip((file[name] for name in ("traj_0", "traj_2", "traj_10")), load(path), strict=True):
            observation = episode.steps["observation"]
            assert (observation["agent"]["qpos"] == group["obs/agent/qpos"]).all()
            assert (observation["sensor_data"]["base_camera"]["rgb"] == make_images(4)).all()
            for name, stored in (
                ("action", "actions"),
                ("reward", "rewards"),
                ("success", "success"),
                ("fail", "fail"),
            ):
                assert (episode.steps[name][:3] == group[stored]).all(), name


def test_missing_rewards_and_sidecar_are_reported(tmp_path):
    source = load(write_maniskill(tmp_path / "x.h5", has_rewards=False, has_sidecar=False, is_nested=False))
    assert source.warnings == (
        "x.h5 has no x.json next to it, which describes the environment",
        "x.h5 has no rewards, so that all are 0; use it for cloning",
    )
    assert source.assumed_fields == ("reward",) and source.env_spec is None
    assert source.first_episode.steps["observation"].shape == (4, 2)


def test_length_that_differs_from_the_sidecar_is_a_contradiction(tmp_path):
    path = write_maniskill(tmp_path / "x.h5")
    sidecar = tmp_path / "x.json"
    sidecar.write_text(sidecar.read_text().replace('"elapsed_steps": 3', '"elapsed_steps": 4', 1))
    (found,) = load(path).first_episode.contradictions
    assert found.message == "elapsed_steps is 4, but the number of actions 3"


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("obs", None, "'traj_2' has no observations .*replay_trajectory"),
        ("actions", None, "'traj_2' must have actions"),
        ("obs/agent/qpos", np.zeros((6, 2)), "'traj_2': observations must have as many rows as rewards"),
        ("success", np.full(3, 7), r"'traj_2/success'\[0\] must be 0 or 1, got 7"),
        ("rewards", np.zeros((3, 2)), "'traj_2': rewards must be one number per row"),
    ],
)
def test_malformed_trajectory_raises(tmp_path, name, column, message):
    path = write_maniskill(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        del file[f"traj_2/{name}"]
        if column is not None:
            file[f"traj_2/{name}"] = column
    with pytest.raises(SourceError, match=message):
        list(load(path))


def test_damaged_sidecar_raises(tmp_path):
    path = write_maniskill(tmp_path / "x.h5")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(SourceError, match="x.json cannot be read as JSON"):
        load(path)
