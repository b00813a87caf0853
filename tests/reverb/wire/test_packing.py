"""Tests of the packed layout: packing in NumPy, unpacking in TensorFlow, and its description in the signature."""

import base64
import zlib

import numpy as np
import pytest
import reverb
import tensorflow as tf
import tree
from hypothesis import given, strategies as st
from properties import examples
from reference_impls import assert_equal_nests, episode
from tf_agents.trajectories import trajectory

from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.wire import message_encoding as messages
from rlds2reverb.reverb.wire.packing import (
    Packing,
    find_packing,
    pack_columns,
    packed_signature,
    packed_spec,
    unpack,
    unpack_arrays,
)
from rlds2reverb.types.specs import ArraySpec
from rlds2reverb.types.tables import Selector, TableConfig, item_signature
from rlds2reverb.types.trajectories import trajectory_columns, trajectory_spec

DTYPES = sorted(messages.DATA_TYPES)
WORDS = [name for name in DTYPES if np.dtype(name).itemsize % 4 == 0]


@st.composite
def nests(draw):
    """Generates nests of columns `[R, ...]` with arbitrary contents."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_rows, dtypes = draw(st.integers(1, 6)), draw(st.sampled_from([DTYPES, WORDS]))

    def leaf():
        dtype = np.dtype(draw(st.sampled_from(dtypes)))
        shape = (num_rows, *draw(st.lists(st.integers(0, 3), max_size=3)))
        raw = generator.integers(
            0, 2 if dtype.kind == "b" else 256, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8
        )
        return raw.view(dtype).reshape(shape)

    names = draw(st.lists(st.sampled_from(["b", "a", "ü"]), min_size=1, unique=True))
    return {name: (leaf(), leaf()) if draw(st.booleans()) else leaf() for name in names}


def make_spec(nest, *, leading):
    return tree.map_structure(lambda column: tf.TensorSpec((*leading, *column.shape[1:]), column.dtype), nest)


def add_axes(nest, axes):
    """Prepends axes of size 1 to the columns of a nest."""
    return tree.map_structure(lambda column: column.reshape((1,) * axes + column.shape), nest)


# --- packing and unpacking


@given(nests())
@examples(80)
def test_unpack_restores_columns_bit_for_bit(nest):
    columns = tree.flatten(nest)
    packed = pack_columns(columns)
    spec = packed_spec([ArraySpec(column.shape[1:], column.dtype) for column in columns])
    assert packed.shape[1:] == spec.shape and packed.dtype == spec.dtype
    packing = Packing(make_spec(nest, leading=(len(packed),)), squeeze=False)
    assert_equal_nests(unpack(tf.constant(packed), packing), nest)
    assert_equal_nests(unpack(tf.constant(packed[None]), packing), add_axes(nest, 1))
    assert_equal_nests(unpack(tf.constant(packed[None, None]), packing), add_axes(nest, 2))
    squeezed = Packing(make_spec(nest, leading=()), squeeze=True)
    assert_equal_nests(unpack(tf.constant(packed), squeezed), nest)
    for chosen in (packing, squeezed):
        assert_equal_nests(unpack_arrays(packed, chosen), nest)
    assert squeezed.row_shapes == packing.row_shapes


@pytest.mark.parametrize("dtype", DTYPES)
def test_unpack_supports_every_dtype(dtype):
    nest = {"a": np.arange(12).astype(dtype).reshape(2, 3, 2), "b": np.array([1, 0], dtype)}
    packing = Packing(make_spec(nest, leading=(2,)), squeeze=False)
    assert_equal_nests(unpack(tf.constant(pack_columns(tree.flatten(nest))), packing), nest)


@pytest.mark.slow
def test_unpack_keeps_static_shapes_in_a_dataset():
    nest = {"a": np.zeros((4, 3), np.float64), "b": np.zeros(4, np.bool_)}
    packing = Packing(make_spec(nest, leading=(4,)), squeeze=False)
    packed = pack_columns(tree.flatten(nest))
    dataset = tf.data.Dataset.from_tensors(packed).repeat(2).batch(2).map(lambda rows: unpack(rows, packing))
    assert tree.map_structure(lambda leaf: leaf.shape.as_list(), dataset.element_spec) == {
        "a": [None, 4, 3],
        "b": [None, 4],
    }


def test_packed_dtype_is_int32_only_for_4_byte_elements():
    words = [np.zeros((2, 3), np.float32), np.zeros(2, np.int64)]
    assert pack_columns(words).dtype == np.int32 and pack_columns(words).shape == (2, 5)
    mixed = [*words, np.zeros((2, 7), np.float16)]
    assert pack_columns(mixed).dtype == np.uint8 and pack_columns(mixed).shape == (2, 34)


# --- description in the signature


def trajectory_item_spec(length=2, *, nested=True):
    return item_signature(trajectory_spec(load([episode(3, terminal=True, nested=nested)]).step_spec), length)


@pytest.mark.parametrize("length", [2, None])
def test_find_packing_reads_signatures_of_a_server(length):
    rows = trajectory_item_spec(length)
    row = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), rows)
    packings = {"rows": Packing(rows, False), "row": Packing(row, True)}
    plain = {"plain": rows, "without": None, "named": tf.TensorSpec([2], tf.float32, name="rlds2reverb.other")}
    signatures = {**{name: packed_signature(packing) for name, packing in packings.items()}, **plain}
    tables = [TableConfig(name).build(signature) for name, signature in signatures.items()]
    server = reverb.Server(tables, port=None)
    infos = server.localhost_client().server_info(timeout=10)
    server.stop()
    for name, packing in packings.items():
        assert find_packing(infos[name].signature) == packing
        assert find_packing(infos[name].signature).item_spec._fields == trajectory.Trajectory._fields
    assert [find_packing(infos[name].signature) for name in plain] == [None] * 3


def test_packed_signature_has_the_shape_of_packed_rows():
    spec = {"a": tf.TensorSpec([5, 3], tf.float32), "b": tf.TensorSpec([5], tf.int64)}
    for dtype, size, expected in ((tf.int64, 5, tf.int32), (tf.bool, 13, tf.uint8)):
        spec["b"] = tf.TensorSpec([5], dtype)
        signature = packed_signature(Packing(spec, squeeze=False))
        assert (signature.shape.as_list(), signature.dtype) == ([5, size], expected)
    assert packed_signature(Packing({"a": tf.TensorSpec([3], tf.float32)}, squeeze=True)).shape.as_list() == [3]


@pytest.mark.parametrize(
    "damage",
    [
        lambda name: name[:-9],
        lambda name: name.replace(".rows.", "."),
        lambda name: name.replace(".rows.", ".rows.x."),
        lambda name: name[:60] + ("A" if name[60] != "A" else "B") + name[61:],
        lambda name: "rlds2reverb.packed.",
        lambda name: "rlds2reverb.packed.rows.",
        lambda name: "rlds2reverb.packed.rows.ü",
        lambda name: "rlds2reverb.packed.rows." + base64.urlsafe_b64encode(zlib.compress(b"\xff\xff")).decode(),
    ],
)
def test_find_packing_raises_when_the_name_is_damaged(damage):
    signature = packed_signature(Packing(trajectory_item_spec(), squeeze=False))
    broken = tf.TensorSpec(signature.shape, signature.dtype, name=damage(signature.name))
    with pytest.raises(ValueError, match="the packing in the table's signature is damaged"):
        find_packing(broken)


# --- through a server


def test_packed_items_are_sampled_bit_for_bit():
    all_steps = [episode(6, terminal=True, nested=True), episode(3, terminal=False, start=50, nested=True)]
    signature = packed_signature(Packing(trajectory_item_spec(3), squeeze=False))
    fifo = Selector("fifo")
    server = reverb.Server([TableConfig("items", fifo, fifo, max_times_sampled=1).build(signature)], port=None)
    report = ingest(all_steps, server, "items", adder=TrajectoryWindows(3), layout="packed")
    address = f"localhost:{server.port}"
    dataset = reverb.TrajectoryDataset.from_table_signature(address, "items", 1, rate_limiter_timeout_ms=200)
    packing = find_packing(server.localhost_client().server_info(timeout=10)["items"].signature)
    got = [unpack(sample.data, packing) for sample in dataset]
    server.stop()
    rows = [trajectory_columns(steps) for steps in all_steps]
    expected = [
        tree.map_structure(lambda column, b=begin: column[b : b + 3], columns)
        for columns in rows
        for begin in range(len(columns.step_type) - 2)
    ]
    assert report.items == len(got) == len(expected) == 5
    for item, expected_item in zip(got, expected, strict=True):
        assert_equal_nests(item, expected_item)


def test_ingest_raises_when_the_tables_packing_differs():
    steps = episode(4, terminal=True)
    swapped = dict(steps, observation=steps["action"], action=steps["observation"])
    spec = TrajectoryWindows().item_spec(load([steps]).step_spec)
    with ReplayServer([TableConfig("items")], packed_signature(Packing(spec, squeeze=False))) as server:
        with pytest.raises(
            SpecMismatchError, match=r"item\['observation'\] is float32 \[2, 1\], but table 'items' expects"
        ):
            ingest([swapped], server.address, "items", layout="packed")
        with pytest.raises(SpecMismatchError, match="have layout 'columns', but table 'items' expects 'packed'"):
            ingest([steps], server.address, "items")
    with ReplayServer([TableConfig("items")], spec) as server:
        with pytest.raises(SpecMismatchError, match="have layout 'packed', but table 'items' expects 'columns'"):
            ingest([steps], server.address, "items", layout="packed")
