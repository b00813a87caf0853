"""Chunks that a hostile writer sends over Reverb's raw stream: what happens to a process that trains on the table."""

import threading
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
import tree
from faults import process, receive, serve_table
from reference_impls import episode

from rlds2reverb.datasets import load
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.client import Connection, confirmed_keys
from rlds2reverb.reverb.client.client_messages import ChunkData, InsertStreamRequest, PrioritizedItem, TensorShapeProto
from rlds2reverb.reverb.sampling import sample_dataset
from rlds2reverb.reverb.wire import message_encoding as messages
from rlds2reverb.reverb.wire.packing import Packing, packed_signature
from rlds2reverb.types.specs import ArraySpec
from rlds2reverb.types.tables import item_signature
from rlds2reverb.types.trajectories import trajectory_spec

EPISODES = [episode(20, terminal=True)]
SIGNATURE = item_signature(trajectory_spec(load(EPISODES).step_spec), 2)
SIGNATURES = {"columns": SIGNATURE, "packed": packed_signature(Packing(SIGNATURE, squeeze=False))}
KEY = 1 << 60


def set_size(axis, size):
    def change(tensor):
        shape = TensorShapeProto.FromString(tensor.tensor_shape)
        shape.dim[axis].size = size
        tensor.tensor_shape = shape.SerializeToString()

    return change


def set_content(content):
    def change(tensor):
        tensor.tensor_content = content(tensor.tensor_content)

    return change


def set_dtype(tensor):
    tensor.dtype = tf.int16.as_datatype_enum


TRUNCATED = set_content(lambda content: content[: len(content) // 2])
GARBAGE = set_content(lambda content: bytes(range(255, 255 - len(content) % 200, -1)))


def make_request(signature, change):
    """Encodes an item of two rows in a chunk, and changes the tensor of its widest column."""
    leaves = tree.flatten(signature)
    specs = [ArraySpec(tuple(leaf.shape[1:]), np.dtype(leaf.dtype.as_numpy_dtype)) for leaf in leaves]
    columns = [np.full((1, 2, *spec.shape), 7, spec.dtype) for spec in specs]
    keys = np.array([KEY], np.uint64)
    chunk = ChunkData.FromString(messages.encode_chunks(keys, keys, np.array([0]), columns, specs)[0].tobytes())
    change(chunk.data.tensors[max(range(len(specs)), key=lambda column: len(specs[column].shape))])
    slices = [(keys, np.array([0]), np.array([2]))]
    item = messages.encode_items("replay", keys, np.ones(1), slices, num_columns=len(specs), squeeze=False)
    return InsertStreamRequest(chunks=[chunk], items=[PrioritizedItem.FromString(item[0].tobytes())])


def insert(port, signature, change):
    """Sends a changed item; returns once the server has confirmed it."""
    request = make_request(signature, change).SerializeToString()
    is_confirmed = threading.Event()

    def requests():
        yield request
        is_confirmed.wait(60)  # A stream that ends may lose its confirmations.

    with Connection(f"localhost:{port}") as connection:
        try:
            assert list(confirmed_keys(next(connection.insert_stream(requests())))) == [KEY]
        finally:
            is_confirmed.set()


def train(channel, port):
    """Makes three updates with batches of the table; sends the batch before each."""
    weight = tf.Variable(0.0)
    for batch in sample_dataset(port, "replay", 4, max_in_flight=4, timeout_secs=30).take(3):
        channel.send([leaf.shape.as_list() for leaf in tree.flatten(batch.data)])
        weight.assign_add(sum(tf.reduce_sum(tf.cast(leaf, tf.float32)) for leaf in tree.flatten(batch.data)))


def run_training(port):
    """Trains in a process; returns the shapes of each batch, and the exception, or the exit code if there was none."""
    with process(train, port) as (running, channel):
        batches = []
        try:
            while True:
                batches.append(receive(channel))
        except EOFError:
            running.join()
            return batches, running.exitcode
        except Exception as error:
            return batches, error


@pytest.fixture(params=["columns", "packed"])
def layout(request):
    return request.param


@pytest.fixture
def server(tmp_path, layout):
    """Provides the process and port of a server with an empty table."""
    with process(partial(serve_table, signature=SIGNATURES[layout]), tmp_path / "root") as (running, channel):
        yield running, receive(channel)


def require_survival(server, layout):
    """Deletes the hostile item and trains on valid ones."""
    running, port = server
    with Connection(f"localhost:{port}") as connection:
        connection.delete("replay", [KEY], timeout_secs=30)
    ingest(EPISODES, port, layout=layout)
    batches, exit_code = run_training(port)
    assert (len(batches), exit_code) == (3, 0) and running.is_alive()


@pytest.mark.slow
@pytest.mark.drill("F30")
@pytest.mark.parametrize(
    "change",
    [set_size(0, -1), set_size(1, -1), set_size(0, 1 << 40), set_size(1, 1 << 40), TRUNCATED, GARBAGE],
    ids=["negative_rows", "negative_width", "huge_rows", "huge_width", "truncated", "garbage"],
)
def test_damaged_items_raise(server, layout, change):
    insert(server[1], SIGNATURES[layout], change)
    batches, error = run_training(server[1])
    assert batches == [] and isinstance(error, SpecMismatchError)
    assert "an item of table 'replay' " in str(error) and "find the writer that inserted it" in str(error)
    require_survival(server, layout)


@pytest.mark.slow
@pytest.mark.drill("F30")
@pytest.mark.parametrize("change", [set_size(1, 64), set_dtype], ids=["width", "dtype"])
def test_items_that_do_not_match_the_signature_raise(server, layout, change):
    insert(server[1], SIGNATURES[layout], change)
    batches, error = run_training(server[1])
    assert batches == [] and isinstance(error, SpecMismatchError)
    assert "an item of table 'replay' does not match the table's signature: column" in str(error)
    require_survival(server, layout)
