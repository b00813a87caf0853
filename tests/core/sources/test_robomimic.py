"""Tests of robomimic files as robomimic's scripts write them, with the three modes of `dones`."""

import json

import h5py
import numpy as np
import pytest
from expected_formats import FORMATS, describe_field, read_expected

from rlds2reverb.errors import SourceError
from rlds2reverb.sources import load

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


@pytest.mark.parametrize("column", ["rewards", "dones"])
def test_column_that_only_some_demonstrations_have_raises(tmp_path, column):
    path = write_demos(tmp_path / "x.hdf5", [{}, {column: None}])
    with pytest.raises(SourceError, match=f"'data/demo_1/{column}' is missing"):
        load(path)


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
