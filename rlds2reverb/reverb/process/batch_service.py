"""The batch service, a gRPC service next to Reverb's own that streams finished batches of a table's items.

Reverb sends a whole chunk for each sampled item. This service samples within the server's process, where Reverb reads
the tables directly, and sends only the rows of the items, joined to one array per column.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import reverb
import tensorflow as tf
from tensorflow.python.eager import cancellation

from .messages import IdentifyResponse, SampleBatchesRequest, SampleBatchesResponse

SERVICE_NAME = "rlds2reverb.BatchService"
_SERVER_INFO = "/deepmind.reverb.ReverbService/ServerInfo"
#: Maximum number of calls at the same time; each stream of batches occupies a thread.
_MAX_CALLS = 256
_INFO_SECS = 60
#: Reverb represents unlimited differences of a rate limiter by the lowest and the largest float.
_NO_LIMIT = -1e300


class BatchService:
    """The batch service of the Reverb server on a port of this process."""

    def __init__(self, port: int):
        self._address = f"localhost:{port}"
        with grpc.insecure_channel(self._address) as channel:
            info = channel.unary_unary(_SERVER_INFO)(b"", timeout=_INFO_SECS, wait_for_ready=True)
        identity = IdentifyResponse.FromString(info)
        identity.DiscardUnknownFields()
        self._identity = identity.SerializeToString()

    def start(self, port: int) -> None:
        """Starts the service in threads of this process.

        Raises:
          RuntimeError: If the port is in use.
        """
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        server = grpc.server(
            futures.ThreadPoolExecutor(_MAX_CALLS), options=options, maximum_concurrent_rpcs=_MAX_CALLS
        )
        handlers = {
            "Identify": grpc.unary_unary_rpc_method_handler(lambda request, context: self._identity),
            "SampleBatches": grpc.unary_stream_rpc_method_handler(self._sample_batches),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE_NAME, handlers)])
        server.add_insecure_port(f"[::]:{port}")
        server.start()
        self._server = server

    def _sample_batches(self, encoded: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yields batches until the client cancels the call, or the rate limiter's timeout passes.

        Items that were sampled before the timeout are sent first, so the last batch may be smaller.
        """
        request = SampleBatchesRequest.FromString(encoded)
        info = reverb.Client(self._address).server_info(_INFO_SECS).get(request.table)
        reason = _find_obstacle(request, info)
        if reason is not None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        varies = any(size is None for spec in tf.nest.flatten(info.signature) for size in spec.shape)
        dataset = _make_dataset(self._address, request, info, varies=varies)
        manager = cancellation.CancellationManager()
        if not context.add_callback(manager.start_cancel):
            return
        read = tf.function(lambda iterator: next(iterator), autograph=False)
        iterator_spec = tf.data.IteratorSpec(dataset.element_spec)
        get_next = manager.get_cancelable_function(read.get_concrete_function(iterator_spec))
        # Nothing else may refer to the iterator: workers sample until it is deleted, or cancelled while it is read.
        batches = iter(dataset)
        while context.is_active():
            try:
                sample = get_next(batches)
            except tf.errors.OutOfRangeError:
                context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the table returned no samples in time")
            except tf.errors.CancelledError:
                return
            response = _encode(sample)
            if response is None:
                context.abort(
                    grpc.StatusCode.FAILED_PRECONDITION, f"the columns of table {request.table!r} differ in length"
                )
                return
            yield response


def _find_obstacle(request: Any, info: Any) -> str | None:
    """Returns why batches of a table cannot be sent, or None if they can.

    A cancelled stream ends only when its table returns the next items, so it must not take any that are missed.
    """
    if min(request.batch_size, request.num_workers, request.max_in_flight) < 1:
        return "batch_size, num_workers and max_in_flight must be at least 1"
    if info is None or info.signature is None:
        return f"there is no table {request.table!r} with a signature"
    limiter = info.rate_limiter_info
    if info.max_times_sampled > 0 or limiter.min_diff > _NO_LIMIT or limiter.max_diff < -_NO_LIMIT:
        return f"samples of table {request.table!r} are counted"
    for spec in tf.nest.flatten(info.signature):
        if spec.shape.rank is None or None in spec.shape[1:] or spec.dtype.as_numpy_dtype is object:
            return f"batches of {spec.dtype.name} {spec.shape} cannot be sent as one array"
    return None


def _make_dataset(address: str, request: Any, info: Any, *, varies: bool) -> tf.data.Dataset:
    """Returns a dataset of batches of a table."""
    # Several readers are faster than one reader with several workers, but they do not keep the order of a queue.
    num_readers = 1 if info.sampler_options.is_deterministic else request.num_workers

    def read(_: Any = None) -> tf.data.Dataset:
        items = reverb.TrajectoryDataset(
            address,
            request.table,
            dtypes=tf.nest.map_structure(lambda spec: spec.dtype, info.signature),
            shapes=tf.nest.map_structure(lambda spec: spec.shape, info.signature),
            max_in_flight_samples_per_worker=request.max_in_flight,
            num_workers_per_iterator=max(1, request.num_workers // num_readers),
            rate_limiter_timeout_ms=request.rate_limiter_timeout_ms or -1,
        )
        return (items.ragged_batch if varies else items.batch)(request.batch_size)

    if num_readers == 1:
        batches = read()
    else:
        batches = tf.data.Dataset.range(num_readers).interleave(
            read, cycle_length=num_readers, num_parallel_calls=num_readers, deterministic=False
        )
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.with_options(options)


def _encode(sample: Any) -> bytes | None:
    """Encodes a batch of items, of one length or of different ones; None if the columns of an item differ in length."""
    columns, lengths = [], b""
    for column in tf.nest.flatten(sample.data):
        if isinstance(column, tf.RaggedTensor):
            rows = column.row_lengths().numpy().astype("<i4").tobytes()
            if lengths not in (b"", rows):
                return None
            lengths, column = rows, column.flat_values
        columns.append(column.numpy().tobytes())
    info = sample.info
    response = SampleBatchesResponse(
        keys=info.key.numpy().tobytes(),
        priorities=info.priority.numpy().tobytes(),
        probabilities=info.probability.numpy().tobytes(),
        table_sizes=info.table_size.numpy().tobytes(),
        times_sampled=info.times_sampled.numpy().tobytes(),
        columns=columns,
        lengths=lengths,
    )
    encoded: bytes = response.SerializeToString()
    return encoded
