"""Tests of the validation of columns: accepted forms and errors."""

import json

import h5py
import ml_dtypes
import numpy as np
import pytest
from reference_impls import assert_equal_nests, episode
from robot_files import damage_column, write_aloha, write_isaac_lab, write_maniskill

from rlds2reverb.cli import run
from rlds2reverb.datasets import load
from rlds2reverb.datasets.readers.columns import as_columns, as_flags
from rlds2reverb.datasets.transforms import DropFields, apply_transforms
from rlds2reverb.errors import SourceError

ROWS = {
    "observations": np.arange(8, dtype=np.float32).reshape(4, 2),
    "actions": np.zeros((4, 1), np.float32),
    "rewards": np.arange(4, dtype=np.float32),
    "terminals": np.array([0, 0, 0, 1]),
    "timeouts": np.zeros(4, bool),
}


@pytest.mark.parametrize(
    ("write", "column", "dropped"),
    [
        (write_aloha, "observations/images/cam_low", "observation/images/cam_low"),
        (write_maniskill, "traj_2/obs/sensor_data/base_camera/rgb", "observation/sensor_data"),
        (write_isaac_lab, "data/demo_1/obs/datagen_info/eef_pose/franka", "observation/datagen_info/eef_pose"),
    ],
)
def test_columns_that_are_dropped_are_not_read(tmp_path, write, column, dropped):
    drop = [DropFields((dropped,))]
    path = write(tmp_path / "x.hdf5")
    expected = list(apply_transforms(load(path), drop)[0])
    damage_column(path / "episode_1.hdf5" if path.is_dir() else path, column)
    with pytest.raises(SourceError, match="damaged"):
        list(load(path))
    mapping = {"drop": [dropped.replace("/", ".")]}
    for source, count in (
        (apply_transforms(load(path), drop)[0], 1),
        (apply_transforms(load(path, split="[:100%]"), drop)[0], 1),
        (apply_transforms(load([path, path], on_invalid="skip_episode"), drop)[0], 2),
        (load(path, on_invalid="skip_episode", mapping=mapping), 1),
    ):
        for read, other in zip(source, expected * count, strict=True):
            assert_equal_nests(read.steps, other.steps)
        assert not source.skipped
    (tmp_path / "map.json").write_text(json.dumps(mapping))
    assert run(["validate", str(path), "--map", str(tmp_path / "map.json")]) == 0
    with pytest.raises(ValueError, match="there is no field 'observation/none' to drop"):
        list(apply_transforms(load(path), [DropFields((dropped, "observation/none"))])[0])


@pytest.mark.parametrize(
    ("write", "first", "column", "dropped"),
    [
        (write_maniskill, "traj_0/obs", "traj_2/obs/sensor_data/base_camera/rgb", "observation/sensor_data"),
        (
            write_isaac_lab,
            "data/demo_0/obs",
            "data/demo_1/obs/datagen_info/eef_pose/franka",
            "observation/datagen_info",
        ),
    ],
)
def test_columns_are_dropped_when_the_first_episode_is_damaged(tmp_path, write, first, column, dropped):
    path = write(tmp_path / "x.hdf5")
    damage_column(path, column)
    with h5py.File(path, "a") as file:
        del file[first]
    source, _ = apply_transforms(load(path, on_invalid="skip_episode"), [DropFields((dropped,))])
    assert [episode.index for episode in source] == [1, 2] and list(source.skipped) == [0]


def test_columns_are_converted_to_native_byte_order(tmp_path):
    swapped = {name: column.astype(column.dtype.newbyteorder(">")) for name, column in ROWS.items()}
    with h5py.File(tmp_path / "big_endian.hdf5", "w") as file:
        for name, column in swapped.items():
            file[name] = column
    (expected,) = load(ROWS)
    for source in (swapped, tmp_path / "big_endian.hdf5"):
        (got,) = load(source)
        for name, column in expected.steps.items():
            assert got.steps[name].dtype == column.dtype and got.steps[name].tobytes() == column.tobytes()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "x must be a column with one row per step, got a single NoneType"),
        (3.0, "x must be a column with one row per step, got a single float"),
        ([[1, 2], [3]], "x is not an array: its rows differ in shape"),
        (np.zeros(2, np.complex64), "x must contain bool, integers or floats of at most 64 bits, got complex64"),
        (np.zeros(2, np.longdouble), "x must contain .*, got float128"),
        (np.array(["2020-01-01"], "M8[D]"), "x must contain .*, got datetime64"),
        (np.zeros(2, ml_dtypes.bfloat16), "x must contain .*, got bfloat16"),
        (np.array([object()]), "x must contain .*, got object"),
    ],
)
def test_invalid_columns_raise(value, message):
    with pytest.raises(SourceError, match=message):
        as_columns(value, "x")


def test_columns_accept_nests_lists_and_strings():
    got = as_columns({"a": [1, 2], "b": (np.zeros(2), {"c": ["x", b"y"]})}, "x")
    assert got["a"].tolist() == [1, 2] and got["b"][1]["c"].dtype == object
    with pytest.raises(SourceError, match=r"x\['b'\]\[1\]\['c'\] must be a column .*, got a single int"):
        as_columns({"b": (np.zeros(2), {"c": 1})}, "x")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (np.array([0, 2]), r"f\[1\] must be 0 or 1, got 2"),
        (np.array([0.0, np.nan]), r"f\[1\] must be 0 or 1, got nan"),
        (np.zeros((2, 3)), r"f must have one flag per row, got shape \(2, 3\)"),
    ],
)
def test_flags_must_be_0_or_1(flags, message):
    with pytest.raises(SourceError, match=message):
        as_flags(flags, "f")
    assert as_flags(np.array([[0], [1]]), "f").tolist() == [False, True]


def test_flags_of_steps_are_validated_and_cast_to_bool():
    steps = episode(3, terminal=True)
    (got,) = load([{**steps, "is_first": np.array([[1.0], [0.0], [0.0]])}])
    assert got.steps["is_first"].tolist() == [True, False, False]
    with pytest.raises(SourceError, match=r"episode 0\['is_terminal'\]\[2\] must be 0 or 1, got nan"):
        load([{**steps, "is_terminal": np.array([0, 0, np.nan])}])
    with pytest.raises(SourceError, match="episode 0 must be a dict of arrays, got a int"):
        load([1])


def test_extra_field_named_like_a_step_field_raises(tmp_path):
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for name, column in ROWS.items():
            file[name] = column
        file["infos/reward"] = np.ones(4)
    with pytest.raises(SourceError, match="an extra field named 'reward' would replace the step's own"):
        load(tmp_path / "x.hdf5", extra_fields=["reward"])
    log = {"observations": np.zeros((3, 2)), "actions": np.zeros(3), "rewards": np.zeros(3), "terminated": True}
    with pytest.raises(SourceError, match="an extra field named 'discount'"):
        load([{**log, "discount": np.ones(3)}])


def test_dict_of_a_d4rl_environment_is_accepted():
    more = {"metadata/algorithm": b"SAC", "metadata/policy/bias": np.zeros(256), "infos/qpos": np.arange(4)}
    (plain,) = load({**ROWS, **more})
    assert "qpos" not in plain.steps
    (extended,) = load({**ROWS, **more}, extra_fields=["qpos"])
    assert extended.steps["qpos"].tolist() == [0, 1, 2, 3, 0]
    with pytest.raises(SourceError, match="'rewards' must be a column .*, got a single"):
        load({**ROWS, "rewards": np.float32(1)})


def test_next_observations_of_a_different_dtype_raise():
    with pytest.raises(SourceError, match=r"rows of 'next_observations' must be float32 \[2\] .*, got float64 \[2\]"):
        load({**ROWS, "next_observations": ROWS["observations"].astype(np.float64)})
