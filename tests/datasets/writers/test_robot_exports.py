"""Datasets that are written for the loaders of Octo, OpenVLA and LeRobot, which train on all rows that they find."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from properties import mark_slow_except
from robot_loaders import cut_octo_chunks, cut_openvla_chunks, normalize_by_quantiles, read_trajectories

from rlds2reverb import load, write_dataset
from rlds2reverb.types.episodes import FinalRow

JOIN = ["observation.robot0_eef_pos", "observation.robot0_eef_quat"]
LIFT = {"join": {"observation.state": JOIN}, "constant": {"task": "lift the cube"}}
#: Sources, mappings of the user, and names of cameras.
SOURCES = {
    "rlds/a2": (None, ["image"]),
    "lerobot/v3.0/c3": (None, []),
    "lerobot/v2.1/c2": (None, ["front", "wrist"]),
    "robomimic/d1_low_dim.hdf5": (LIFT, []),
    "robomimic/d2_image_no_next_obs.hdf5": (LIFT, ["agentview_image"]),
}
FAST = ("lerobot/v3.0/c3", "robomimic/d1_low_dim.hdf5")
HORIZON = 4


def count_actions(episode):
    return episode.num_steps - (episode.final_row is not FinalRow.ACTION)


def find_mapping(report):
    """Returns the mapping that a report advises for Octo and OpenVLA, or None."""
    texts = [sentence for sentence in report.warnings if "Octo" in sentence]
    return yaml.safe_load(texts[0][texts[0].index("{") : texts[0].rindex("}") + 1]) if texts else None


@pytest.mark.parametrize("name", mark_slow_except(FAST, SOURCES))
def test_octo_and_openvla_read_all_actions_and_no_others(name, data, tmp_path):
    mapping, cameras = SOURCES[name]
    source = load(data / "formats" / name, mapping=mapping)
    advised = find_mapping(write_dataset(source, tmp_path / "first/1.0.0", format="rlds"))
    path = tmp_path / "robot/1.0.0"
    report = write_dataset(load(source, mapping=advised), path, format="rlds", verify=True)
    assert find_mapping(report) is None
    read = list(read_trajectories(path, cameras))
    of_all = np.concatenate([actions for _, actions, _ in read])
    for episode, (observations, actions, texts) in zip(source, read, strict=True):
        num_actions = count_actions(episode)
        recorded = episode.steps["action"][:num_actions].astype(np.float32)
        np.testing.assert_array_equal(actions, recorded)
        text = episode.steps["task" if "task" in episode.steps else "language_instruction"]
        assert texts == [one if isinstance(one, bytes) else one.encode() for one in text[:num_actions]] and all(texts)
        columns = {keys[-1]: column for keys, column in episode.columns if keys[0] == "observation"}
        for name, column in columns.items():
            np.testing.assert_array_equal(observations[name], column[:num_actions].astype(observations[name][0].dtype))
        chunks, mask = cut_octo_chunks(actions, HORIZON)
        np.testing.assert_array_equal(chunks[-1][mask[-1]], recorded[[-1, -1]])  # Octo repeats it once.
        absolute = np.arange(recorded.shape[1]) == recorded.shape[1] - 1
        neutral = cut_openvla_chunks(actions, HORIZON, absolute)
        np.testing.assert_array_equal(neutral[-1][0], recorded[-1])
        np.testing.assert_array_equal(neutral[-1][1:], np.where(absolute, recorded[-1], 0)[None].repeat(3, axis=0))
        assert np.abs(normalize_by_quantiles(actions, of_all)).max() <= 1


def test_placeholders_would_train_without_the_mapping(data, tmp_path):
    """Rows of final observations are RLDS's own layout, whose actions the loaders do not leave out."""
    source = load(data / "formats/rlds/a2", image_decoding=False)
    advised = find_mapping(write_dataset(source, tmp_path / "robot/1.0.0", format="rlds"))
    assert advised == {"trim": {"final_observation": True}}
    for episode, (_, actions, _) in zip(source, read_trajectories(tmp_path / "robot/1.0.0", ["image"]), strict=True):
        assert len(actions) == count_actions(episode) + 1 and not actions[-1].any()


def test_datasets_that_are_not_of_robots_get_no_advice(data, tmp_path):
    report = write_dataset(data / "d4rl/hopper_medium-v2.hdf5", tmp_path / "hopper/1.0.0", format="rlds")
    assert find_mapping(report) is None


@pytest.mark.parametrize("name", ["rlds/a2", "robomimic/d1_low_dim.hdf5"])
def test_lerobot_reads_all_actions_and_no_others(name, data, tmp_path):
    source = load(data / "formats" / name, mapping=SOURCES[name][0])
    write_dataset(source, tmp_path / "lerobot", format="lerobot", fps=10, recompute_discounts=True)
    rows = pq.read_table(tmp_path / "lerobot/data").to_pydict()
    ends = pq.read_table(tmp_path / "lerobot/meta/episodes").to_pydict()["dataset_to_index"]
    tasks = pq.read_table(tmp_path / "lerobot/meta/tasks.parquet").to_pydict()["__index_level_0__"]
    for episode, end in zip(source, ends, strict=True):
        start = end - count_actions(episode)
        assert rows["frame_index"][start:end] == list(range(end - start))
        np.testing.assert_array_equal(rows["action"][start:end], episode.steps["action"][: end - start])
        assert tasks[rows["task_index"][end - 1]]
    assert len(rows["index"]) == end
