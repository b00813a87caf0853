"""Tests of specs: comparison, conversion and formatting."""

import collections

import h5py
import numpy as np
import pytest
import tensorflow as tf
import tree
from tf_agents.trajectories import trajectory

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.specs import (
    ArraySpec,
    describe,
    make_step_spec,
    map_structure,
    path_name,
    require_match,
    to_tensor_spec,
)

SPEC = {"a": ArraySpec((17,), np.dtype("float32")), "b": {"c": ArraySpec((), np.dtype("int64"))}}


def test_step_spec_drops_the_leading_axis():
    assert make_step_spec({"a": np.zeros((5, 17), np.float32), "b": {"c": np.zeros(5, np.int64)}}) == SPEC


@pytest.mark.parametrize(
    "nest",
    [
        np.arange(3),
        {"b": np.arange(3), "a": {"c": (np.arange(2), [np.arange(4)])}, "empty": {}, "none": ()},
        collections.OrderedDict(b=np.arange(3), a=np.arange(2)),
        trajectory.Trajectory(*(np.arange(size) for size in range(7))),
    ],
    ids=["leaf", "dicts and tuples", "ordered dict", "named tuple"],
)
def test_map_structure_matches_tree(nest):
    got, expected = map_structure(np.sum, nest), tree.map_structure(np.sum, nest)
    tree.assert_same_structure(got, expected, check_types=True)
    assert got == expected


def test_tensor_specs_keep_shapes_and_dtypes():
    spec = to_tensor_spec(SPEC, leading=(None,))
    assert spec["a"] == tf.TensorSpec((None, 17), tf.float32) and spec["b"]["c"] == tf.TensorSpec((None,), tf.int64)
    assert to_tensor_spec(ArraySpec((), np.dtype(object))).dtype == tf.string


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {**SPEC, "a": ArraySpec((17,), np.dtype("float64"))},
            r"step\['a'\] is float64 \[17\], but table 't' expects float32",
        ),
        (
            {**SPEC, "a": ArraySpec((16,), np.dtype("float32"))},
            r"step\['a'\] is float32 \[16\], but table 't' expects float32 \[17\]",
        ),
        ({"a": SPEC["a"]}, r"the data do not match table 't': missing step\['b'\]\['c'\]"),
        ({**SPEC, "d": SPEC["a"]}, r"the data do not match table 't': unexpected step\['d'\]"),
    ],
)
def test_mismatch_names_the_field_and_both_specs(other, message):
    with pytest.raises(SpecMismatchError, match=message + ".*; do this"):
        require_match(other, SPEC, holder="table 't'", advice="do this")


def test_unknown_size_matches_any_size():
    require_match(SPEC["a"], ArraySpec((None,), np.dtype("float32")), holder="h", advice="a")
    require_match(SPEC["a"], tf.TensorSpec((None,), tf.float32), holder="h", advice="a")


def test_specs_and_paths_are_formatted():
    assert describe(tf.TensorSpec((None, 3), tf.uint8)) == "uint8 [?, 3]"
    assert str(ArraySpec((), np.dtype(object))) == "string []"
    assert path_name(("observation", "joint_pos")) == "step['observation']['joint_pos']"


def test_specs_of_hdf5_files_have_the_dtypes_of_numpy(tmp_path):
    """Keys of items are derived from the text of specs, which must not depend on where arrays come from."""
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        dtype = file.create_dataset("x", data=np.zeros(2, np.float32)).dtype
    assert repr(ArraySpec((2,), dtype)) == repr(ArraySpec((2,), np.dtype("float32")))
    record = np.dtype([("x", np.float32)])
    assert ArraySpec((), record).dtype == record


def test_bounds_are_neither_compared_nor_shown():
    bounded, plain = ArraySpec((2,), np.dtype("int8"), minimum=0, maximum=3), ArraySpec((2,), np.dtype("int8"))
    assert bounded == plain and repr(bounded) == repr(plain) and (bounded.minimum, plain.maximum) == (0, None)
