"""Tests of sampling from a service of finished batches next to a Reverb server, played by a fake one."""

import contextlib
from concurrent import futures

import grpc
import numpy as np
import pytest
import reverb
import tensorflow as tf
from numbers_served import NUMBER, write_numbers

from rlds2reverb import TableConfig
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.reverb.client import Connection, batch_port
from rlds2reverb.reverb.process.messages import IdentifyResponse, SampleBatchesRequest, SampleBatchesResponse
from rlds2reverb.reverb.sampling import sample
from rlds2reverb.types.tables import Selector


def make_response(keys, columns, **fields):
    """Encodes a batch whose items have the priority 2, probability 0.5 and so on."""
    count = len(keys)
    return SampleBatchesResponse(
        keys=np.array(keys, np.uint64).tobytes(),
        priorities=np.full(count, 2.0).tobytes(),
        probabilities=np.full(count, 0.5).tobytes(),
        table_sizes=np.full(count, 7, np.int64).tobytes(),
        times_sampled=np.full(count, 3, np.int32).tobytes(),
        columns=[column.tobytes() for column in columns],
        **fields,
    ).SerializeToString()


@contextlib.contextmanager
def serve_batches(port, *, state_id, responses):
    """Runs a service that sends these responses to each call and then ends it with the timeout; yields the requests."""
    requests = []
    high, low = int(state_id[:16], 16), int(state_id[16:], 16)
    identity = IdentifyResponse(tables_state_id={"high": high, "low": low}).SerializeToString()

    def sample_batches(request, context):
        requests.append(SampleBatchesRequest.FromString(request))
        yield from responses
        if isinstance(responses, tuple):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "these items cannot be sent")
        context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no samples in time")

    handlers = {
        "Identify": grpc.unary_unary_rpc_method_handler(lambda request, context: identity),
        "SampleBatches": grpc.unary_stream_rpc_method_handler(sample_batches),
    }
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("rlds2reverb.BatchService", handlers)])
    server.add_insecure_port(f"localhost:{port}")
    server.start()
    try:
        yield requests
    finally:
        server.stop(0)


@contextlib.contextmanager
def serve(signature, responses, *, numbers=None, state_id=None):
    """Runs a plain Reverb server and the service; yields the server and the service's requests."""
    server = reverb.Server([TableConfig("items", Selector("uniform")).build(signature)], port=None)
    try:
        write_numbers(server.localhost_client(), numbers or {})
        if state_id is None:
            with Connection(server) as connection:
                state_id = connection.state_id(timeout_secs=10)
        with serve_batches(batch_port(server.port), state_id=state_id, responses=responses) as requests:
            yield server, requests
    finally:
        server.stop()


def test_batches_are_those_of_the_service():
    values = np.arange(4, dtype=np.float32)
    with serve(NUMBER, [make_response([5, 6, 7, 8], [values])]) as (server, requests):
        with sample(server, "items", 4, max_in_flight=9, timeout_secs=20) as batches:
            info, data = next(batches)
    assert data.tolist() == [0, 1, 2, 3] and info.key.tolist() == [5, 6, 7, 8]
    assert info.priority.tolist() == [2] * 4 and info.probability.tolist() == [0.5] * 4
    assert info.table_size.tolist() == [7] * 4 and info.times_sampled.tolist() == [3] * 4
    request = requests[0]
    assert (request.table, request.batch_size, request.num_workers, request.max_in_flight) == ("items", 16, 1, 9)
    assert request.rate_limiter_timeout_ms == 20_000


def test_smaller_last_batches_are_joined():
    responses = [make_response([1, 2], [np.array([1, 2], np.float32)])]
    with serve(NUMBER, responses) as (server, _), sample(server, "items", 3, num_workers=1) as batches:
        assert [next(batches).data.tolist() for _ in range(2)] == [[1, 2, 1], [2, 1, 2]]


def test_items_of_varying_length_are_padded_and_masked():
    signature = {"a": tf.TensorSpec((None, 2), tf.int32), "b": tf.TensorSpec((None,), tf.float64)}
    rows = np.arange(6, dtype=np.int32).reshape(3, 2), np.arange(3.0)
    response = make_response([1, 2], rows, lengths=np.array([1, 2], np.int32).tobytes())
    with serve(signature, [response]) as (server, _), sample(server, "items", 2) as batches:
        info, data = next(batches)
    assert info.mask.tolist() == [[True, False], [True, True]]
    assert data["a"].tolist() == [[[0, 1], [0, 0]], [[2, 3], [4, 5]]] and data["b"].tolist() == [[0, 0], [1, 2]]


def test_samples_are_read_from_reverb_if_the_service_refuses():
    with serve(NUMBER, (), numbers={1: 1.0}) as (server, requests):
        with sample(server, "items", 2, num_workers=1) as batches:
            assert next(batches).data.tolist() == [1, 1]
        assert len(requests) == 1


def test_service_of_another_server_is_not_used():
    with serve(NUMBER, [], numbers={1: 1.0}, state_id="0" * 32) as (server, requests):
        with sample(server, "items", 2) as batches:
            assert next(batches).data.tolist() == [1, 1]
        assert not requests


@pytest.mark.parametrize(
    "response",
    [make_response([1, 2], []), make_response([1, 2], [np.zeros(3, np.float32)]), make_response([1], [np.zeros(2)])],
)
def test_damaged_batches_raise(response):
    with serve(NUMBER, [response]) as (server, _), sample(server, "items", 2) as batches:
        with pytest.raises(SpecMismatchError, match="a batch of table 'items' is damaged"):
            next(batches)
