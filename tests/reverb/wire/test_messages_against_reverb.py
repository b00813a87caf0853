"""Tests that the bulk writer and Reverb's own writer store the same samples, items and chunks."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import reverb
import tensorflow as tf
from decoding import assert_same_columns, chunk_column, item_columns
from reference_impls import assert_equal_nests, episode, read_items
from reverb.cc import schema_pb2

from rlds2reverb.adders.trajectory_windows import TrajectoryEpisodes, TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.ingestion import IngestOptions, ingest
from rlds2reverb.reverb.wire import encoder
from rlds2reverb.types.items import Items
from rlds2reverb.types.tables import Selector, TableConfig
from rlds2reverb.types.trajectories import trajectory_columns, trajectory_spec


@dataclass(frozen=True)
class Steps:
    """An adder for every second step, as squeezed items without a time axis."""

    def __call__(self, episode):
        rows = trajectory_columns(episode.steps)
        starts = np.arange(0, len(rows.step_type), 2)
        return Items(rows, starts, np.ones(len(starts), np.int64), squeeze=True)

    def item_spec(self, step_spec):
        return trajectory_spec(step_spec)


def make_image_episodes():
    """Returns two episodes with compressible images, and with float64, bool and empty fields."""
    all_steps = [episode(7, terminal=True), episode(5, terminal=False, start=40)]
    for steps in all_steps:
        position = steps["reward"].astype(np.uint8)
        steps["observation"] = {
            "image": np.tile(position[:, None, None, None], (1, 16, 16, 3)),
            "position": steps["observation"].astype(np.float64) / 3,
            "touch": steps["observation"] > 0,
            "nothing": np.zeros((len(position), 0), np.int16),
        }
    return all_steps


def make_nested_episodes():
    return [episode(length, terminal=length % 2 > 0, start=10 * length, nested=True) for length in (5, 1, 30, 64)]


#: For each table: the function that returns its episodes, and the adder.
CASES = {
    "windows": (make_nested_episodes, TrajectoryWindows(3)),
    "strided": (make_nested_episodes, TrajectoryWindows(4, 3)),
    "apart": (make_nested_episodes, TrajectoryWindows(2, 5)),
    "tiled": (make_nested_episodes, TrajectoryWindows(5, padding="tile")),
    "episodes": (make_nested_episodes, TrajectoryEpisodes()),
    "steps": (make_nested_episodes, Steps()),
    "images": (make_image_episodes, TrajectoryWindows(2)),
    "large": (make_nested_episodes, TrajectoryEpisodes()),
}
WRITERS = ("reverb", "bulk")


def priority(episode, items):
    """Returns a different priority for each item."""
    return episode.index * 100 + np.arange(len(items)) + 0.25


def fill_server(writer, folder):
    fifo = Selector("fifo")
    tables = [
        TableConfig(name, fifo, fifo, max_times_sampled=1).build(adder.item_spec(load(make_episodes()).step_spec))
        for name, (make_episodes, adder) in CASES.items()
    ]
    server = reverb.Server(tables, port=None, checkpointer=reverb.checkpointers.DefaultCheckpointer(str(folder)))
    for name, (make_episodes, adder) in CASES.items():
        with pytest.MonkeyPatch.context() as patch:
            if name == "large":  # This requires several chunks per item, and several messages per batch.
                patch.setattr(encoder, "MAX_CHUNK_BYTES", 500)
                patch.setattr(encoder, "MAX_REQUEST_BYTES", 1000)
            report = ingest(
                make_episodes(), server, name, adder=adder, priority=priority, options=IngestOptions(writer=writer)
            )
        assert (report.writer, report.warnings) == (writer, ())
    return server


def read_messages(path, kind):
    """Returns the messages of a file of a checkpoint."""
    return [kind.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path), compression_type="ZLIB")]


@dataclass
class ServerContents:
    """The contents of a server: items by table in the order of their priorities, chunks by key, and samples."""

    items: dict
    chunks: dict
    samples: dict


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """Provides the contents of a checkpoint and of the tables, by writer."""
    out = {}
    for writer in WRITERS:
        server = fill_server(writer, tmp_path_factory.mktemp(writer))
        checkpoint = Path(server.localhost_client().checkpoint())
        items = read_messages(checkpoint / "items.tfrecord", schema_pb2.PrioritizedItem)
        chunks = read_messages(checkpoint / "chunks.tfrecord", schema_pb2.ChunkData)
        out[writer] = ServerContents(
            {name: sorted((i for i in items if i.table == name), key=lambda i: i.priority) for name in CASES},
            {chunk.chunk_key: chunk for chunk in chunks},
            {name: read_items(f"localhost:{server.port}", name) for name in CASES},
        )
        server.stop()
    return out


def expected_items(name):
    """Yields the priority, start and length of each item of a table."""
    make_episodes, adder = CASES[name]
    for source_episode in load(make_episodes()):
        items = adder(source_episode)
        yield from zip(priority(source_episode, items), items.starts, items.lengths, strict=True)


@pytest.mark.parametrize("name", CASES)
def test_both_writers_store_the_same_items(contents, name):
    reference, bulk = (contents[writer].samples[name] for writer in WRITERS)
    assert len(bulk) == len(reference) == len(list(expected_items(name))) > 0
    for item, expected_item in zip(bulk, reference, strict=True):
        assert_equal_nests(item, expected_item)


@pytest.mark.parametrize("name", CASES)
def test_both_writers_store_the_same_item_metadata(contents, name):
    reference, bulk = (contents[writer].items[name] for writer in WRITERS)
    expected = [message for message, _, _ in expected_items(name)]
    assert [item.priority for item in bulk] == [item.priority for item in reference] == expected
    for item, expected_item in zip(bulk, reference, strict=True):
        assert (item.table, item.times_sampled) == (expected_item.table, expected_item.times_sampled) == (name, 0)
        assert item.HasField("inserted_at") and expected_item.HasField("inserted_at")
        sides = item.flat_trajectory.columns, expected_item.flat_trajectory.columns
        squeezes = [[column.squeeze for column in columns] for columns in sides]
        assert squeezes[0] == squeezes[1]
        lengths = [[sum(part.length for part in column.chunk_slices) for column in columns] for columns in sides]
        assert lengths[0] == lengths[1] and len(set(lengths[0])) == 1
        assert {field.name for field, _ in item.ListFields()} == {field.name for field, _ in expected_item.ListFields()}


@pytest.mark.parametrize("name", CASES)
def test_both_writers_store_the_same_data_in_chunks(contents, name):
    reference, bulk = (contents[writer] for writer in WRITERS)
    for item, expected_item in zip(bulk.items[name], reference.items[name], strict=True):
        assert_same_columns(item_columns(item, bulk.chunks), item_columns(expected_item, reference.chunks))


@pytest.mark.parametrize("writer", WRITERS)
def test_chunk_fields_match_the_chunk_contents(contents, writer):
    chunks = contents[writer].chunks
    used = {
        part.chunk_key: part.index
        for items in contents[writer].items.values()
        for item in items
        for column in item.flat_trajectory.columns
        for part in column.chunk_slices
    }
    assert used.keys() == chunks.keys()
    for chunk in chunks.values():
        columns = [chunk_column(chunk, index) for index in range(len(chunk.data.tensors))]
        span = chunk.sequence_range
        assert not chunk.delta_encoded and not span.sparse
        assert chunk.data_tensors_len == len(columns) > used[chunk.chunk_key]
        assert chunk.data_uncompressed_size == sum(column.nbytes for column in columns)
        assert {len(column) for column in columns} == {span.end - span.start + 1}


def test_both_writers_set_the_same_chunk_fields(contents):
    fields = [
        {field.name for chunk in contents[writer].chunks.values() for field, _ in chunk.ListFields()}
        for writer in WRITERS
    ]
    assert fields[0] == fields[1]


def test_large_item_has_several_chunks(contents):
    longest = contents["bulk"].items["large"][-1]
    for column in longest.flat_trajectory.columns:
        assert len(column.chunk_slices) > 5 and all(part.length for part in column.chunk_slices)


def test_writers_store_columns_in_different_chunks(contents):
    """The tests above compare different chunks: a chunk of Reverb's writer has one column, others have all of them."""
    sizes = [{len(chunk.data.tensors) for chunk in contents[writer].chunks.values()} for writer in WRITERS]
    assert sizes[0] == {1} and min(sizes[1]) > 1
