"""Differential tests: batches of `sample` equal those of `reverb.TrajectoryDataset` on the same tables, bit for bit."""

import time

import numpy as np
import pytest
import reverb
import tensorflow as tf
import tree
from properties import mark_slow_except
from reference_impls import episode, rlds_dataset
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb import ReplayServer, TableConfig, TrajectoryEpisodes, TrajectoryWindows, ingest, load
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.reverb.sampling import sample
from rlds2reverb.reverb.wire.packing import Packing, packed_signature, unpack
from rlds2reverb.rlds_to_reverb import push_rlds_to_reverb
from rlds2reverb.types.tables import Selector

CONFIG = TableConfig("items", Selector("uniform"))
EPISODES = [episode(length, terminal=True, start=10.0 * length, nested=True) for length in (7, 4, 5)]
SOURCE = load(EPISODES)
RANDOM = np.random.default_rng(0)
DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
#: A row of each dtype, with and without axes; noise, which is not compressible, and zeros, which are.
ROWS = {
    **{f"{dtype}{rank}": ((2, 3)[:rank], dtype) for dtype in DTYPES for rank in range(3)},
    "noise": ((500,), "float32"),
    "zeros": ((500,), "float64"),
    "nothing": ((0,), "float32"),
}


def make_rows(num_rows):
    """Returns columns of `ROWS`, of which integers grow so that they can be encoded as differences."""
    rows = {}
    for name, (shape, dtype) in ROWS.items():
        numbers = RANDOM.integers(0, 100, (num_rows, *shape)) + np.arange(num_rows).reshape(-1, *[1] * len(shape))
        rows[name] = (0 * numbers if name == "zeros" else numbers / 7 if "float" in dtype else numbers).astype(dtype)
    return rows


def make_signature(num_rows, *, names=ROWS):
    return {name: tf.TensorSpec((num_rows, *ROWS[name][0]), ROWS[name][1]) for name in names}


def read_with_reverb(address, num_samples):
    """Returns the columns of each item, by key."""
    dataset = reverb.TrajectoryDataset.from_table_signature(address, "items", max_in_flight_samples_per_worker=10)
    items = {}
    for item in dataset.take(num_samples):
        items[int(item.info.key)] = [np.asarray(leaf) for leaf in tree.flatten(item.data)]
    return items


def require_equal(server, *, packing=None):
    """Checks the items of a table, and that every one of them is sampled."""
    num_items = table_infos(server)["items"].current_size
    expected = read_with_reverb(server.address, 50 * num_items)
    assert len(expected) == num_items
    seen = set()
    with sample(server, "items", 10) as batches:
        while seen != set(expected):
            batch = next(batches)
            leaves = tree.flatten(batch.data)
            for row, key in enumerate(batch.info.key.tolist()):
                item = expected[key]
                if packing is not None:
                    item = [np.asarray(leaf) for leaf in tree.flatten(unpack(tf.constant(item[0]), packing))]
                for leaf, column in zip(leaves, item, strict=True):
                    part = leaf[(row, *map(slice, column.shape))]
                    assert leaf.dtype == column.dtype and part.shape == column.shape
                    assert part.tobytes() == column.tobytes()
                    assert np.count_nonzero(leaf[row]) == np.count_nonzero(column)  # The padding is 0.
                seen.add(key)
            if not isinstance(batch.info.mask, tuple):
                assert (batch.info.mask.sum(1) == [len(expected[key][0]) for key in batch.info.key.tolist()]).all()


@pytest.mark.parametrize("layout", mark_slow_except(["packed"], ["columns", "packed"]))
@pytest.mark.parametrize(
    "adder",
    [TrajectoryWindows(2), pytest.param(TrajectoryEpisodes(), marks=pytest.mark.slow)],
    ids=["windows", "episodes"],
)
def test_items_of_ingest_are_equal(layout, adder):
    spec = adder.item_spec(SOURCE.step_spec)
    packing = Packing(spec, squeeze=False) if layout == "packed" else None
    with ReplayServer([CONFIG], spec if packing is None else packed_signature(packing)) as server:
        ingest(SOURCE, server, "items", adder=adder, layout=layout)
        require_equal(server, packing=packing)


@pytest.mark.parametrize("kind", mark_slow_except(["episode"], ["trajectory", "episode"]))
def test_items_of_tf_agents_observers_are_equal(kind):
    adder = TrajectoryWindows(2) if kind == "trajectory" else TrajectoryEpisodes()
    with ReplayServer([CONFIG], adder.item_spec(SOURCE.step_spec)) as server:
        client = reverb.Client(server.address)
        if kind == "trajectory":
            observer = reverb_utils.ReverbAddTrajectoryObserver(client, "items", sequence_length=2)
        else:
            observer = reverb_utils.ReverbAddEpisodeObserver(client, "items", max_sequence_length=10)
        push_rlds_to_reverb(rlds_dataset(EPISODES), observer)
        observer.close()
        require_equal(server)


@pytest.mark.slow
@pytest.mark.parametrize("chunk_length", [1, 3, None])
def test_items_of_trajectory_writers_are_equal(chunk_length):
    rows = make_rows(9)
    with ReplayServer([CONFIG], make_signature(4)) as server:
        with reverb.Client(server.address).trajectory_writer(9) as writer:
            for row in range(9):
                writer.append({name: column[row] for name, column in rows.items()})
                if row == 0 and chunk_length is not None:
                    for name in rows:
                        writer.configure((name,), num_keep_alive_refs=9, max_chunk_length=chunk_length)
                if row >= 3:
                    writer.create_item("items", 1.0, {name: writer.history[name][-4:] for name in rows})
            writer.flush()
        require_equal(server)


def test_squeezed_and_shifted_columns_are_equal():
    names = ("float321", "int642", "bool0")
    signature = {
        "now": tf.TensorSpec((2,), tf.float32),
        "later": tf.TensorSpec((2, 2, 3), tf.int64),
        "flags": tf.TensorSpec((None,), tf.bool),
    }
    rows = make_rows(8)
    with ReplayServer([CONFIG], signature) as server:
        with reverb.Client(server.address).trajectory_writer(8) as writer:
            for row in range(8):
                writer.append({name: rows[name][row] for name in names})
                if row >= 3:
                    now, later, flags = (writer.history[name] for name in names)
                    item = {"now": now[-3], "later": later[-2:], "flags": flags[-1 - row % 3 :]}
                    writer.create_item("items", 1.0, item)
            writer.flush()
        require_equal(server)


@pytest.mark.parametrize("delta_encoded", mark_slow_except([True], [False, True]))
def test_items_of_legacy_writers_are_equal(delta_encoded):
    rows = make_rows(7)
    with ReplayServer([CONFIG], make_signature(3)) as server:
        client = reverb.Client(server.address)
        with client.writer(7, delta_encoded=delta_encoded, chunk_length=4) as writer:
            for row in range(7):
                writer.append({name: column[row] for name, column in rows.items()})
                if row >= 2:
                    writer.create_item("items", 3, 1.0)
        while table_infos(server)["items"].current_size < 5:  # This writer does not wait for the server.
            time.sleep(0.01)
        require_equal(server)


def test_items_of_structured_writers_are_equal():
    from reverb import structured_writer

    names = ("int321", "float640")
    rows = make_rows(8)
    step = {name: tf.TensorSpec(ROWS[name][0], ROWS[name][1]) for name in names}
    pattern = structured_writer.pattern_from_transform(step, lambda ref: {name: ref[name][-3:] for name in names})
    config = structured_writer.create_config(pattern, "items")
    with ReplayServer([CONFIG], make_signature(3, names=names)) as server:
        writer = reverb.Client(server.address).structured_writer([config])
        for row in range(8):
            writer.append({name: rows[name][row] for name in names})
        writer.flush()
        require_equal(server)


def test_strings_are_equal():
    signature = {"text": tf.TensorSpec((2, 2), tf.string), "none": tf.TensorSpec((None,), tf.string)}
    with ReplayServer([CONFIG], signature) as server:
        with reverb.Client(server.address).trajectory_writer(3) as writer:
            for row in range(3):
                writer.append({"text": np.array([b"x" * 200 * row, b""], object), "none": np.array(b"y", object)})
                if row:
                    text, none = writer.history["text"], writer.history["none"]
                    writer.create_item("items", 1.0, {"text": text[-2:], "none": none[-row:]})
            writer.flush()
        expected = read_with_reverb(server.address, 20)
        with sample(server, "items", 4) as batches:
            batch = next(batches)
    for row, key in enumerate(batch.info.key.tolist()):
        none, text = expected[key]
        assert batch.data["text"][row].tolist() == text.tolist()
        assert batch.data["none"][row].tolist() == [*none.tolist(), b""][: batch.data["none"].shape[1]]
