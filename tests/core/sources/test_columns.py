"""The door for arrays: what comes in, in which form, and what does not."""

import h5py
import ml_dtypes
import numpy as np
import pytest
from reference_impls import episode

from rlds2reverb.errors import SourceError
from rlds2reverb.sources import load
from rlds2reverb.sources.columns import as_columns, as_flags

ROWS = {
    "observations": np.arange(8, dtype=np.float32).reshape(4, 2),
    "actions": np.zeros((4, 1), np.float32),
    "rewards": np.arange(4, dtype=np.float32),
    "terminals": np.array([0, 0, 0, 1]),
    "timeouts": np.zeros(4, bool),
}


def test_the_other_byte_order_becomes_the_machines(tmp_path):
    swapped = {name: column.astype(column.dtype.newbyteorder(">")) for name, column in ROWS.items()}
    with h5py.File(tmp_path / "big_endian.hdf5", "w") as file:
        for name, column in swapped.items():
            file[name] = column
    (wanted,) = load(ROWS)
    for source in (swapped, tmp_path / "big_endian.hdf5"):
        (got,) = load(source)
        for name, column in wanted.steps.items():
            assert got.steps[name].dtype == column.dtype and got.steps[name].tobytes() == column.tobytes()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "x is a single NoneType, expected a column"),
        (3.0, "x is a single float, expected a column"),
        ([[1, 2], [3]], "x is not an array: its rows differ in shape"),
        (np.zeros(2, np.complex64), "x holds complex64, expected bool, integers or floats"),
        (np.zeros(2, np.longdouble), "x holds float128"),
        (np.array(["2020-01-01"], "M8[D]"), "x holds datetime64"),
        (np.zeros(2, ml_dtypes.bfloat16), "x holds bfloat16"),
        (np.array([object()]), "x holds object"),
    ],
)
def test_what_is_no_column_is_refused(value, message):
    with pytest.raises(SourceError, match=message):
        as_columns(value, "x")


def test_nests_lists_and_strings():
    got = as_columns({"a": [1, 2], "b": (np.zeros(2), {"c": ["x", b"y"]})}, "x")
    assert got["a"].tolist() == [1, 2] and got["b"][1]["c"].dtype == object
    with pytest.raises(SourceError, match=r"x\['b'\]\[1\]\['c'\] is a single int"):
        as_columns({"b": (np.zeros(2), {"c": 1})}, "x")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (np.array([0, 2]), r"f\[1\] is 2, expected 0 or 1"),
        (np.array([0.0, np.nan]), r"f\[1\] is nan, expected 0 or 1"),
        (np.zeros((2, 3)), r"f has shape \(2, 3\), expected one flag for each row"),
    ],
)
def test_flags_are_0_and_1(flags, message):
    with pytest.raises(SourceError, match=message):
        as_flags(flags, "f")
    assert as_flags(np.array([[0], [1]]), "f").tolist() == [False, True]


def test_flags_of_steps_are_checked_and_made_bool():
    steps = episode(3, terminal=True)
    (got,) = load([{**steps, "is_first": np.array([[1.0], [0.0], [0.0]])}])
    assert got.steps["is_first"].tolist() == [True, False, False]
    with pytest.raises(SourceError, match=r"episode 0\['is_terminal'\]\[2\] is nan"):
        load([{**steps, "is_terminal": np.array([0, 0, np.nan])}])
    with pytest.raises(SourceError, match="episode 0 is a int, expected a dict of arrays"):
        load([1])


def test_a_further_field_may_not_hide_one_of_the_step(tmp_path):
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for name, column in ROWS.items():
            file[name] = column
        file["infos/reward"] = np.ones(4)
    with pytest.raises(SourceError, match="a further field named 'reward' would hide the step's own"):
        load(tmp_path / "x.hdf5", extra_fields=["reward"])
    log = {"observations": np.zeros((3, 2)), "actions": np.zeros(3), "rewards": np.zeros(3), "terminated": True}
    with pytest.raises(SourceError, match="a further field named 'discount'"):
        load([{**log, "discount": np.ones(3)}])


def test_the_dict_of_a_d4rl_environment_is_taken_as_it_is():
    more = {"metadata/algorithm": b"SAC", "metadata/policy/bias": np.zeros(256), "infos/qpos": np.arange(4)}
    (plain,) = load({**ROWS, **more})
    assert "qpos" not in plain.steps
    (asked,) = load({**ROWS, **more}, extra_fields=["qpos"])
    assert asked.steps["qpos"].tolist() == [0, 1, 2, 3, 0]
    with pytest.raises(SourceError, match="'rewards' is a single|rewards' is a single"):
        load({**ROWS, "rewards": np.float32(1)})


def test_a_final_observation_of_another_dtype_is_refused():
    with pytest.raises(
        SourceError, match=r"'next_observations' has rows of float64 \[2\], 'observations' of float32 \[2\]"
    ):
        load({**ROWS, "next_observations": ROWS["observations"].astype(np.float64)})
