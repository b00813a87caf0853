"""Tests of the batch service over plain gRPC: its batches are the items that Reverb samples."""

import contextlib
import itertools
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tree
from faults import find_server, make_episodes
from properties import mark_slow_except

from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.client import server_state_id
from rlds2reverb.reverb.process.messages import IdentifyResponse, SampleBatchesRequest, SampleBatchesResponse
from rlds2reverb.reverb.server.ports import batch_port
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.wire.packing import Packing, packed_signature
from rlds2reverb.types.tables import RateLimiter, Selector, TableConfig

SERVICE = "/rlds2reverb.BatchService/"
EPISODES = make_episodes(3, 40)
INFO = {
    "keys": "<u8",
    "priorities": "<f8",
    "probabilities": "<f8",
    "table_sizes": "<i8",
    "times_sampled": "<i4",
}


@contextlib.contextmanager
def sample(server, *, table="replay", batch_size=8, timeout_secs=5.0, num_workers=2, max_in_flight=16):
    """Yields the call that streams batches."""
    request = SampleBatchesRequest(
        table=table,
        batch_size=batch_size,
        rate_limiter_timeout_ms=int(1000 * timeout_secs),
        num_workers=num_workers,
        max_in_flight=max_in_flight,
    )
    with grpc.insecure_channel(f"localhost:{batch_port(server.port)}") as channel:
        yield channel.unary_stream(SERVICE + "SampleBatches", response_deserializer=SampleBatchesResponse.FromString)(
            request.SerializeToString(), timeout=60
        )


def read_info(response):
    return {name: np.frombuffer(getattr(response, name), dtype) for name, dtype in INFO.items()}


def read_items(response, signature, *, num_items):
    """Returns the columns of a batch, by the table's signature; columns of varying length are lists of arrays."""
    columns = []
    lengths = np.frombuffer(response.lengths, "<i4")
    for spec, content in zip(tree.flatten(signature), response.columns, strict=True):
        rows = np.frombuffer(content, spec.dtype.as_numpy_dtype)
        if None in spec.shape:
            rows = np.split(rows.reshape(-1, *spec.shape[1:]), np.cumsum(lengths)[:-1])
            assert len(rows) == num_items
            columns.append(rows)
        else:
            columns.append(rows.reshape(num_items, *spec.shape))
    return columns


def read_expected(server, num_samples, table="replay"):
    """Returns the columns and the priority of each item by its key, sampled by Reverb's own client."""
    samples = server.client.sample(table, num_samples, emit_timesteps=False)
    return {sample.info.key: (tree.flatten(sample.data), sample.info.priority) for sample in samples}


def window_signature(layout):
    spec = TrajectoryWindows(2).item_spec(load(EPISODES).step_spec)
    return packed_signature(Packing(spec, squeeze=False)) if layout == "packed" else spec


def test_identity_is_that_of_the_reverb_server():
    with ReplayServer([TableConfig()], serve_batches=True) as server:
        with grpc.insecure_channel(f"localhost:{batch_port(server.port)}") as channel:
            response = channel.unary_unary(SERVICE + "Identify")(b"", timeout=60)
        state_id = IdentifyResponse.FromString(response).tables_state_id
        assert len(response) < 30
        assert f"{state_id.high:016x}{state_id.low:016x}" == server_state_id(server.address, timeout_secs=60)


@pytest.mark.parametrize(
    ("layout", "num_workers"),
    mark_slow_except([("columns", 3)], itertools.product(["packed", "columns"], [1, 3])),
)
def test_batches_are_the_items_that_reverb_samples(layout, num_workers):
    signature = window_signature(layout)
    with ReplayServer([TableConfig(sampler=Selector("uniform"))], signature, serve_batches=True) as server:
        report = ingest(EPISODES, server, layout=layout)
        expected = read_expected(server, 3000)
        assert len(expected) == report.items
        seen = set()
        with sample(server, num_workers=num_workers) as responses:
            while len(seen) < report.items:
                response = next(responses)
                info = read_info(response)
                np.testing.assert_allclose(info["probabilities"], 1 / report.items)
                assert (info["table_sizes"] == report.items).all() and (info["times_sampled"] > 0).all()
                columns = read_items(response, signature, num_items=8)
                for index, key in enumerate(info["keys"]):
                    items, priority = expected[key]
                    tree.map_structure(np.testing.assert_array_equal, [column[index] for column in columns], items)
                    assert info["priorities"][index] == priority
                    seen.add(key)


def test_items_of_varying_length_are_sent_one_after_another():
    signature = {"id": tf.TensorSpec([], tf.int32), "rows": tf.TensorSpec([None, 2], tf.float32)}
    with ReplayServer([TableConfig(sampler=Selector("fifo"), max_size=4)], signature, serve_batches=True) as server:
        write_varying(server, signature, [3, 1, 5, 0])
        with sample(server, batch_size=4) as responses:
            response = next(responses)
        ids, rows = read_items(response, signature, num_items=4)
        assert [len(item) for item in rows] == np.frombuffer(response.lengths, "<i4").tolist()
        for number, item in zip(ids.tolist(), rows, strict=True):
            assert len(item) == [3, 1, 5, 4][number]
            np.testing.assert_array_equal(item, number + np.arange(2 * len(item)).reshape(-1, 2))


def write_varying(server, signature, lengths):
    with server.client.trajectory_writer(10) as writer:
        for number, length in enumerate(lengths):
            for row in range(length or 4):
                step = {"id": np.int32(number), "rows": np.float32([2 * row + number, 2 * row + 1 + number])}
                writer.append(step)
            rows = writer.history["rows"][-(length or 4) :]
            writer.create_item("replay", 1.0, {"id": writer.history["id"][-1], "rows": rows})
            writer.flush(0, timeout_ms=5000)


def test_columns_of_different_lengths_are_refused():
    signature = {"a": tf.TensorSpec([None], tf.float32), "b": tf.TensorSpec([None], tf.float32)}
    with ReplayServer([TableConfig(sampler=Selector("uniform"))], signature, serve_batches=True) as server:
        with server.client.trajectory_writer(4) as writer:
            for value in range(3):
                writer.append({"a": np.float32(value), "b": np.float32(value)})
            writer.create_item("replay", 1.0, {"a": writer.history["a"][-2:], "b": writer.history["b"][-1:]})
            writer.flush(0, timeout_ms=5000)
        with sample(server) as responses:
            assert_refused(responses, "the columns of table 'replay' differ in length")


def assert_refused(responses, message, code=grpc.StatusCode.FAILED_PRECONDITION):
    with pytest.raises(grpc.RpcError) as raised:
        next(responses)
    assert raised.value.code() is code and message in raised.value.details()


def test_invalid_requests_are_refused():
    strings, deep = {"a": tf.TensorSpec([2], tf.string)}, {"a": tf.TensorSpec([2, None], tf.int8)}
    for signature, options, message in [
        (None, {}, "there is no table 'replay' with a signature"),
        (strings, {"table": "other"}, "there is no table 'other' with a signature"),
        (strings, {}, r"batches of string (2,) cannot be sent"),
        (deep, {}, r"batches of int8 (2, None) cannot be sent"),
        (deep, {"batch_size": 0}, "must be at least 1"),
        (deep, {"num_workers": 0}, "must be at least 1"),
    ]:
        with (
            ReplayServer([TableConfig()], signature, serve_batches=True) as server,
            sample(server, **options) as responses,
        ):
            assert_refused(responses, message)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_stream_ends_after_the_timeout_of_the_rate_limiter(num_workers):
    config = TableConfig(sampler=Selector("uniform"), rate_limiter=RateLimiter(size=1000))
    signature = window_signature("columns")
    with ReplayServer([config], signature, serve_batches=True) as server:
        ingest(EPISODES, server)
        with sample(server, num_workers=num_workers, timeout_secs=0.2) as responses:
            assert_refused(responses, "no samples in time", grpc.StatusCode.DEADLINE_EXCEEDED)


@pytest.mark.parametrize(
    "config",
    [
        TableConfig.queue("replay", 100),
        TableConfig(max_times_sampled=2),
        TableConfig(rate_limiter=RateLimiter.parse("sample_to_insert_ratio:2:10:20")),
        TableConfig(rate_limiter=RateLimiter.parse("max_samples_per_insert:2:10")),
    ],
)
def test_tables_whose_samples_are_counted_are_refused(config):
    with (
        ReplayServer([config], tf.TensorSpec([], tf.float32), serve_batches=True) as server,
        sample(server) as responses,
    ):
        assert_refused(responses, "samples of table 'replay' are counted")


@pytest.mark.slow
def test_many_streams_end_with_their_calls():
    signature = window_signature("packed")
    with ReplayServer([TableConfig(sampler=Selector("uniform"))], signature, serve_batches=True) as server:
        ingest(EPISODES, server, layout="packed")
        pid = find_server(server.port)
        for _ in range(20):
            with sample(server) as responses:
                assert len(next(responses).keys) == 64
                responses.cancel()
        deadline = time.monotonic() + 30
        while (threads := count_threads(pid)) > 150 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert threads <= 150


def count_threads(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(next(line for line in status if line.startswith("Threads:")).split()[1])
