"""Datasets that are written for the loaders of Octo, OpenVLA and LeRobot, which train on all rows that they find."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from properties import mark_slow_except
from robot_loaders import cut_octo_chunks, cut_openvla_chunks, normalize_by_quantiles, read_trajectories

from rlds2reverb import load, write_dataset
from rlds2reverb.cli import run
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


def is_advised(report):
    """Returns whether a report advises the layout of Octo and OpenVLA."""
    return any("in their layout (mapping='octo')" in sentence for sentence in report.warnings)


def write_for_robots(source, mapping, path, *, is_beam):
    """Writes a dataset with a mapping in the layout of the loaders."""
    changes = [*([mapping] if mapping else []), {"layout": "octo"}]
    if not is_beam:
        return write_dataset(load(source, mapping=changes), path, format="rlds", verify=True)
    beam = pytest.importorskip("rlds2reverb.beam")
    options = beam.BeamOptions("direct", ("--direct_num_workers=1", "--direct_running_mode=in_memory"))
    return beam.prepare_with_beam(source, path, mapping=changes, beam_options=options)


@pytest.mark.parametrize("is_beam", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", mark_slow_except(FAST, SOURCES))
def test_octo_and_openvla_read_all_actions_and_no_others(name, is_beam, data, tmp_path):
    mapping, cameras = SOURCES[name]
    source = load(data / "formats" / name, mapping=mapping)
    path = tmp_path / "robot/1.0.0"
    assert not is_advised(write_for_robots(data / "formats" / name, mapping, path, is_beam=is_beam))
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


def test_placeholders_would_train_without_the_layout(data, tmp_path):
    """Rows of final observations are RLDS's own layout, whose actions the loaders do not leave out."""
    source = load(data / "formats/rlds/a2", image_decoding=False)
    assert is_advised(write_dataset(source, tmp_path / "robot/1.0.0", format="rlds"))
    for episode, (_, actions, _) in zip(source, read_trajectories(tmp_path / "robot/1.0.0", ["image"]), strict=True):
        assert len(actions) == count_actions(episode) + 1 and not actions[-1].any()


def test_datasets_that_are_not_of_robots_get_no_advice(data, tmp_path):
    report = write_dataset(data / "d4rl/hopper_medium-v2.hdf5", tmp_path / "hopper/1.0.0", format="rlds")
    assert not is_advised(report)


def test_layout_names_observations_keeps_encodings_and_adds_nothing_twice(data):
    rows = {"actions": np.zeros((3, 2)), "rewards": np.zeros(3, np.float32), "terminated": False}
    task = {"constant": {"task": "lift the cube"}}
    mapped = load([{"observations": np.zeros((4, 5)), **rows}], mapping=[task, {"layout": "octo"}])
    spec = mapped.step_spec
    assert "language_instruction" in spec
    assert spec["observation"]["state"].dtype == spec["action"].dtype == np.float32
    images = {"images": {"front": np.zeros((4, 8, 8, 3), np.uint8)}}
    described = {"describe": {"observation.images.front": "jpeg"}}
    mapped = load([{"observations": images, **rows}], mapping=[task, described, {"layout": "octo"}])
    assert mapped.descriptions == {"observation.front": "jpeg"}
    again = load(mapped, mapping="octo")
    assert again.step_spec == mapped.step_spec and again.descriptions == mapped.descriptions


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("octo", r"layout: steps must have the text of a task for 'octo'; set the constant 'language_instruction'"),
        ([{"split": {"action": {"action.a": 3, "action.b": 4}}}, {"layout": "octo"}], "layout: actions must be one vector"),
        ({"layout": "pi0"}, "there is only the layout 'octo', which is also that of OpenVLA, got 'pi0'"),
        ({"layout": {}}, "must have the name of a layout under 'layout', got {}"),
    ],
)  # fmt: skip
def test_layout_that_does_not_fit_raises(mapping, message, data):
    with pytest.raises(ValueError, match=message):
        load(data / "formats/robomimic/d1_low_dim.hdf5", mapping=mapping)


def test_command_takes_the_name_of_the_layout(data, tmp_path, capsys):
    source, path = data / "formats/lerobot/v3.0/c3", tmp_path / "robot/1.0.0"
    assert run(["convert", str(source), "--out", str(tmp_path / "plain/1.0.0"), "--format", "rlds"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "Octo and OpenVLA read this dataset differently; write it in their layout (--map octo)" in words
    assert run(["convert", str(source), "--out", str(path), "--format", "rlds", "--map", "octo"]) == 0
    assert "Octo" not in capsys.readouterr().out
    ((_, actions, _), *_) = read_trajectories(path)
    np.testing.assert_array_equal(
        actions, load(source).first_episode.steps["action"][: len(actions)].astype(np.float32)
    )


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
    schema = pq.read_schema(next((tmp_path / "lerobot/data").rglob("*.parquet")))
    described = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert list(described) == schema.names
    for field in schema:
        kind = described[field.name]["_type"]
        assert (kind == "Value") == (not pa.types.is_nested(field.type)) and (kind == "Image") == (
            "image" in field.name
        )
