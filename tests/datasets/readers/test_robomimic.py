"""Tests of robomimic files as robomimic's scripts write them, with the three modes of `dones`."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
from expected_formats import FORMATS, describe_field, read_expected
from reference_impls import assert_equal_nests, episode as make_steps
from robot_files import damage_column, write_isaac_lab

from rlds2reverb import write_dataset
from rlds2reverb.cli import run
from rlds2reverb.datasets import load
from rlds2reverb.datasets.readers import robomimic
from rlds2reverb.errors import SourceError

NAMES = ["d1_low_dim", "d2_image_no_next_obs", "d3_done_mode_0", "d3_done_mode_1", "d3_done_mode_2"]


def write_demos(path, demos, **columns):
    """Writes demonstrations of 3 rows, each given as a dict of columns that replace or, if None, remove others."""
    with h5py.File(path, "w") as file:
        for number, changes in enumerate(demos):
            demo = {"obs/x": np.arange(3.0), "actions": np.zeros((3, 1)), "rewards": [0.0, 0, 1], "dones": [0, 0, 1]}
            for name, column in {**demo, **columns, **changes}.items():
                if column is not None:
                    file[f"data/demo_{number}/{name}"] = np.asarray(column)
    return path


def read_ends(source):
    return [(episode.num_transitions, episode.is_terminal) for episode in source]


@pytest.mark.parametrize("name", NAMES)
def test_published_file_is_read_as_expected(name):
    expected = read_expected(f"robomimic/{name}")
    source = load(FORMATS / f"robomimic/{name}.hdf5")
    assert (source.count(), source.num_rows) == (expected["num_episodes"], expected["num_rows"])
    assert json.loads(source.env_spec)["id"] == source.metadata["env_name"] == "Lift"
    for episode, row in zip(source, expected["episodes"], strict=True):
        has_next = any(key.startswith("next_obs/") for key in row["fields"])
        assert episode.is_terminal == (row["ends"] == "terminated")
        assert episode.dropped_last_transition == (not has_next and not episode.is_terminal)
        assert episode.num_transitions == row["rows"] - episode.dropped_last_transition
        assert episode.steps["reward"][: episode.num_transitions].sum() == row["sum_reward"]
        for key, field in row["fields"].items():
            kind, _, column = key.partition("/")
            steps = episode.steps["observation"][column] if column else episode.steps.get(kind.removesuffix("s"))
            if kind == "next_obs":
                assert describe_field(steps[1:]) == field
            elif steps is not None:
                assert describe_field(steps[: row["rows"]]) == field
    assert_final_observations_are_zeros(source, has_next)


def test_large_rewards_are_read_with_each_episode(monkeypatch):
    path = FORMATS / "robomimic/d1_low_dim.hdf5"
    expected = list(load(path))
    monkeypatch.setattr(robomimic, "MAX_KEPT_BYTES", 0)
    for read, other in zip(load(path), expected, strict=True):
        assert (read.steps["reward"] == other.steps["reward"]).all()


def assert_final_observations_are_zeros(source, has_next):
    for episode in source:
        if episode.is_terminal and not has_next:
            assert not any(column[-1].any() for column in episode.steps["observation"].values())
            assert episode.steps["discount"][-2:].tolist() == [0, 0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", ["train", "valid"])
def test_split_reads_the_demonstrations_of_the_mask_that_the_file_contains(name, split):
    expected = read_expected(f"robomimic/{name}")
    source = load(FORMATS / f"robomimic/{name}.hdf5", split=split)
    absent = expected["mask_names_absent_demos"][split]
    assert source.num_episodes == len(expected["mask"][split]) - len(absent)
    lengths = {row["demo"]: row["rows"] for row in expected["episodes"]}
    present = [demo for demo in expected["mask"][split] if demo in lengths]
    assert source.num_rows == sum(lengths[demo] for demo in present)
    warned = [sentence for sentence in source.warnings if "that the file does not contain" in sentence]
    assert [absent[0] in sentence for sentence in warned] == ([True] if absent else [])


def test_filter_key_with_absent_demonstrations_is_reported_by_validate(tmp_path, capsys, monkeypatch):
    path = write_demos(tmp_path / "x.hdf5", [{}])
    with h5py.File(path, "a") as file:
        file["mask/valid"] = np.array([b"demo_0", b"demo_7"])
    monkeypatch.setenv("COLUMNS", "1000")
    run(["validate", str(path)])
    output = capsys.readouterr()
    assert "'mask/valid' lists 1 demonstrations that the file does not contain, first demo_7" in output.out + output.err


@pytest.mark.parametrize("mask", [h5py.Empty("S6"), np.bytes_(b"demo_0"), np.array([0]), np.array([[b"demo_0"]])])
def test_split_that_is_no_list_of_names_raises(tmp_path, mask):
    path = write_demos(tmp_path / "x.hdf5", [{}])
    with h5py.File(path, "a") as file:
        file["mask/valid"] = mask
    with pytest.raises(SourceError, match="x.hdf5: 'mask/valid' must be a list of names of demonstrations"):
        load(path, split="valid")


def test_split_without_any_demonstration_of_the_file_raises(tmp_path):
    path = write_demos(tmp_path / "x.hdf5", [{}])
    with h5py.File(path, "a") as file:
        file["mask/valid"] = np.array([b"demo_7"])
    with pytest.raises(SourceError, match=r"'mask/valid' must list demonstrations of the file, got \['demo_7'\]"):
        load(path, split="valid")


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_mode_of_dones_is_reported(mode):
    source = load(FORMATS / f"robomimic/d3_done_mode_{mode}.hdf5")
    assert source.metadata["done_mode"].startswith(f"{mode} (")
    sentences = [sentence for sentence in source.warnings if "1 demonstrations end with dones set" in sentence]
    assert len(sentences) == (mode > 0)


DENSE = {"rewards": [0.2, 0.3, 0.7]}


@pytest.mark.parametrize(
    ("demos", "ends", "warning"),
    [
        # Mode 0: a last row without `dones` exists, so that `dones` mark successes.
        ([{}, {"dones": [0, 1, 0]}], [(3, True), (2, False)], None),
        # Mode 1: only last rows.
        ([{}, {}], [(2, False), (2, False)], "nothing tells success from the end"),
        # Mode 2: every last row, and others.
        ([{}, {"dones": [0, 1, 1]}], [(2, False), (3, True)], "1 of 2, in which the row before is set"),
        ([{"dones": None}, {"dones": None}], [(2, False), (2, False)], "nothing tells success from the end"),
        # Rewards of 0 and 1 are no successes if others are dense.
        ([{"rewards": [0, 0, 1]}, DENSE], [(2, False), (2, False)], "nothing tells success from the end"),
    ],
)
@pytest.mark.parametrize("rewards", [DENSE, {"rewards": None}])
def test_ends_without_sparse_rewards_follow_from_dones(tmp_path, demos, ends, warning, rewards):
    source = load(write_demos(tmp_path / "x.hdf5", demos, **rewards))
    assert read_ends(source) == ends
    warnings = [sentence for sentence in source.warnings if "no rewards" not in sentence]
    assert [warning in sentence for sentence in warnings] == ([True] if warning else [])


def test_missing_rewards_are_zeros_with_a_warning(tmp_path):
    source = load(write_demos(tmp_path / "x.hdf5", [{}], rewards=None))
    assert any("has no rewards, so that all are 0" in sentence for sentence in source.warnings)
    assert source.assumed_fields == ("reward",)
    assert source.first_episode.steps["reward"].tolist() == [0, 0, 0]


def test_demonstrations_are_in_the_order_of_their_numbers(tmp_path):
    source = load(write_demos(tmp_path / "x.hdf5", [{"obs/x": np.full(3, number)} for number in range(11)]))
    assert [episode.steps["observation"]["x"][0] for episode in source] == list(range(11))


def test_success_in_the_last_row_keeps_the_only_reward(tmp_path):
    source = load(write_demos(tmp_path / "x.hdf5", [{}]))
    assert read_ends(source) == [(3, True)] and source.first_episode.total_reward == 1


def test_demonstrations_without_rows_are_left_out_with_a_warning(tmp_path):
    empty = {"obs/x": np.zeros(0), "actions": np.zeros((0, 1)), "rewards": np.zeros(0), "dones": np.zeros(0, int)}
    source = load(write_demos(tmp_path / "x.hdf5", [{}, empty, {}]))
    assert read_ends(source) == [(3, True), (3, True)]
    assert "x.hdf5: 1 demonstrations without rows are left out, first 'data/demo_1'" in source.warnings


@pytest.mark.parametrize("column", ["rewards", "dones"])
def test_column_that_only_some_demonstrations_have_raises(tmp_path, column):
    path = write_demos(tmp_path / "x.hdf5", [{}, {column: None}])
    with pytest.raises(SourceError, match=f"'data/demo_1/{column}' is missing"):
        list(load(path))


@pytest.mark.parametrize("change", ["rewards", "dones", "length"])
def test_damaged_demonstration_does_not_block_the_others(tmp_path, change):
    path = write_demos(
        tmp_path / "x.hdf5", [{}, {"rewards": [0, 1]} if change == "length" else {}, {"rewards": [0.0, 0, 0]}]
    )
    if change != "length":
        damage_column(path, f"data/demo_1/{change}")
    source = load(path, on_invalid="skip_episode")
    assert read_ends(source) == [(3, True), (2, False)] and list(source.skipped) == [1]
    with pytest.raises(SourceError, match="'data/demo_1'.* (is damaged|the same number of rows)"):
        list(load(path))
    assert [episode.index for episode in load(path).read(2, 3)] == [2]


def test_linked_demonstrations_and_observations_raise(tmp_path):
    for name, linked in (("demo_0", "demo_1"), ("demo_0/obs", "demo_1/obs")):
        path, other = tmp_path / f"{name[-3:]}.hdf5", tmp_path / f"{name[-3:]}-other.hdf5"
        for file_path in (path, other):
            write_demos(file_path, [{}, {}])
        with h5py.File(path, "r+") as file:
            del file[f"data/{name}"]
            file[f"data/{name}"] = h5py.ExternalLink(str(other), f"data/{linked}")
        with pytest.raises(SourceError, match=f"'data/{name}' is a link to another file"):
            list(load(path))


def test_file_of_states_only_raises(tmp_path):
    path = write_demos(tmp_path / "x.hdf5", [{"obs/x": None}])
    with pytest.raises(SourceError, match="extract the observations .* dataset_states_to_obs"):
        list(load(path))


@pytest.mark.parametrize("value", ["{", "[1]", '{"env_name": 3}', np.zeros(3)])
def test_damaged_env_args_are_ignored(tmp_path, value):
    path = write_demos(tmp_path / "x.hdf5", [{}])
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = value
    assert load(path).env_spec is None


# --- writing


def test_written_file_is_read_back_equal(tmp_path):
    logs = [
        {"observations": {"arm": np.arange(4.0), "grip": np.arange(8).reshape(4, 2)}, "actions": np.array([[1], [2], [3]]),
         "rewards": np.array([0.5, -1, 2]), "terminated": terminated} for terminated in (True, False)
    ]  # fmt: skip
    episodes = [*load(logs), replace(load(logs).first_episode, index=2, unterminated=True)]
    source = replace(
        load(logs),
        read=lambda: iter(episodes),
        num_episodes=3,
        count=None,
        env_spec='{"id": "Lift", "kwargs": {"x": 1}}',
    )
    assert write_dataset(source, tmp_path / "a.hdf5", format="robomimic").warnings == ()
    written = load(tmp_path / "a.hdf5")
    for got, want in zip(written, episodes, strict=True):
        assert_equal_nests(got.steps, want.steps)
        assert (got.is_terminal, got.unterminated) == (want.is_terminal, want.unterminated)
    assert (written.warnings, json.loads(written.env_spec)) == ((), {"id": "Lift", "kwargs": {"x": 1}})
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert file["data"].attrs["total"] == 9 and file["data/demo_1"].attrs["num_samples"] == 3
        assert file["data/demo_1/dones"][()].tolist() == [0, 0, 1]
        assert json.loads(file["data"].attrs["env_args"])["type"] == 2


def test_samples_are_written_with_their_environment(tmp_path):
    source = load(FORMATS / "robomimic/d1_low_dim.hdf5")
    write_dataset(source, tmp_path / "a.hdf5", format="robomimic")
    written = load(tmp_path / "a.hdf5")
    assert (written.env_spec, written.metadata["env_type"]) == (source.env_spec, source.metadata["env_type"])
    for got, want in zip(written, source, strict=True):
        assert_equal_nests(got.steps, want.steps)


def test_single_observations_are_named(tmp_path):
    steps = make_steps(3, terminal=False)
    source = replace(load([steps]), metadata={"seed": 3})
    *_, flat = write_dataset(source, tmp_path / "a.hdf5", format="robomimic").warnings
    assert "'obs/flat'" in flat and load(tmp_path / "a.hdf5").metadata["seed"] == 3
    assert (
        load(tmp_path / "a.hdf5").first_episode.steps["observation"]["flat"].tolist() == steps["observation"].tolist()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation": {"a": {"b": np.zeros(3)}}}, r"\['a'\]\['b'\] must be an array for robomimic"),
        ({"action": {"a": np.zeros(3)}}, r"\['action'\]\['a'\] must be an array for robomimic"),
        ({"observation": {"a": np.array(["x"] * 3, object)}}, r"\['a'\] must contain numbers for robomimic"),
        ({"reward": np.zeros((3, 2))}, "must be one number for robomimic"),
    ],
)
def test_steps_that_robomimic_cannot_represent_raise(tmp_path, changes, message):
    with pytest.raises(SourceError, match=message):
        write_dataset([{**make_steps(3, terminal=False), **changes}], tmp_path / "a.hdf5", format="robomimic")
    assert not list(tmp_path.iterdir())


def test_text_of_the_task_is_in_ep_meta_as_in_robocasa(tmp_path):
    source = load(FORMATS / "robomimic/d1_low_dim.hdf5", mapping={"constant": {"task": "lift the cube"}})
    write_dataset(source, tmp_path / "x.hdf5", format="robomimic", verify=True)
    with h5py.File(tmp_path / "x.hdf5", "r+") as file:
        groups = list(file["data"].values())
        assert {group.attrs["ep_meta"] for group in groups} == {'{"lang": "lift the cube"}'}
        for group in groups:  # As RoboCasa writes it.
            del group.attrs["is_terminal"], group["step_fields"]
            group.attrs["ep_meta"] = '{"lang": "open the door", "layout_id": 3}'
    recorded = load(tmp_path / "x.hdf5")
    metadata = recorded.first_episode.metadata
    assert metadata["language_instruction"].item() == b"open the door" and b"layout_id" in metadata["ep_meta"].item()
    write_dataset(recorded, tmp_path / "again.hdf5", format="robomimic", verify=True)


def test_isaac_lab_file_has_nested_observations_and_ends_by_success(tmp_path):
    path = write_isaac_lab(tmp_path / "x.hdf5")
    source = load(path)
    episodes = list(source)
    assert read_ends(source) == [(4, True), (3, False), (4, True)]
    assert [episode.seed for episode in episodes] == [5, 6, 7]
    assert [bool(episode.metadata["success"]) for episode in episodes] == [True, False, True]
    with h5py.File(path) as file:
        for number, episode in enumerate(episodes):
            nest = episode.steps["observation"]["datagen_info"]
            assert (
                nest["eef_pose"]["franka"][:4] == file[f"data/demo_{number}/obs/datagen_info/eef_pose/franka"]
            ).all()
            assert nest["subtask_term_signals"]["grasp_1"].dtype == bool
    assert "terminal because of their attribute success; 1 others failed and are truncated" in source.warnings[0]
    assert source.unread == ("initial_state", "processed_actions")


def test_isaac_lab_file_converts_to_lerobot(tmp_path):
    write_dataset(write_isaac_lab(tmp_path / "x.hdf5"), tmp_path / "out", format="lerobot", fps=20)
    written = list(load(tmp_path / "out"))
    assert [episode.seed for episode in written] == [5, 6, 7]
    assert written[1].steps["observation"]["datagen_info"]["eef_pose"]["franka"][0, 0, 0] == 1


def test_seed_of_a_demonstration_is_written_and_read(tmp_path):
    seeded = replace(load([make_log()]).first_episode, seed=3)
    source = replace(load([make_log()]), read=lambda first=0, stop=None: iter([seeded][first:stop]))
    write_dataset(source, tmp_path / "x.hdf5", format="robomimic")
    assert load(tmp_path / "x.hdf5").first_episode.seed == 3


def make_log():
    return {"observations": np.zeros((3, 1)), "actions": np.zeros((2, 1)), "rewards": np.ones(2), "terminated": True}


def test_group_that_contains_itself_raises(tmp_path):
    path = write_isaac_lab(tmp_path / "x.hdf5")
    with h5py.File(path, "a") as file:
        file["data/demo_1/obs/datagen_info/again"] = file["data/demo_1/obs"]
    with pytest.raises(
        SourceError, match="'data/demo_1/obs/datagen_info/again' contains itself; a group must have one"
    ):
        list(load(path))


def test_nested_column_of_a_different_length_raises(tmp_path):
    path = write_isaac_lab(tmp_path / "x.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_1/obs/joint_pos"]
        file["data/demo_1/obs/joint_pos"] = np.zeros((3, 2))
    with pytest.raises(SourceError, match="'data/demo_1': all columns must have the same number.*'obs/joint_pos': 3"):
        list(load(path))
