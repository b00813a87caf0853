"""A connection to a Reverb server: its gRPC methods, each with a deadline, and the service of batches next to it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.errors import CheckpointError, ServerUnavailableError
from rlds2reverb.system.closing import Closing
from rlds2reverb.types.arguments import require_timeout

from ..process.messages import IdentifyResponse, SampleBatchesRequest
from ..wire.message_encoding import encode_priority_updates
from .client_messages import (
    BATCH_SERVICE,
    REVERB_SERVICE,
    CheckpointResponse,
    InsertStreamResponse,
    MutatePrioritiesRequest,
    ResetRequest,
    SampleStreamRequest,
    SampleStreamResponse,
    ServerInfoResponse,
)
from .pausable_deadline import PausableDeadline
from .samples import decode_column, join_parts
from .servers import Server, batch_address, find_address
from .table_info import TableInfo

_RETRY_SECS = 0.1
_UNAVAILABLE = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # Shares nothing with lost connections.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
#: Unread confirmations then wait at the server and arrive merged, in a third as many responses.
_SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 256), ("grpc.http2.bdp_probe", 0))


class Connection(Closing):
    """A connection to a server. Use it as a context manager, or close it, which cancels its calls.

    Calls raise a `ServerUnavailableError` if the server does not answer in time, or the connection breaks.
    """

    def __init__(self, server: Server, *, small_window: bool = False):
        """Connects when the first call is made.

        Args:
          server: the server; see `find_address`.
          small_window: whether responses wait at the server until they are read, as is best for confirmations.
        """
        self.address = find_address(server)
        options = [*_OPTIONS, *(_SMALL_WINDOW if small_window else ())]
        self._channel = grpc.insecure_channel(self.address, options=options)
        #: The channel to the service of batches, once it is needed.
        self._batches: grpc.Channel | None = None

    def close(self) -> None:
        """Cancels all calls and closes the connection."""
        self._channel.close()
        if self._batches is not None:
            self._batches.close()

    def _unary(self, method: str) -> Any:
        return self._channel.unary_unary(REVERB_SERVICE + method)

    def insert_stream(self, requests: Iterator[bytes]) -> Any:
        """Opens a stream of insertions; returns the call, an iterator of responses (see `confirmed_keys`)."""
        return self._channel.stream_stream(REVERB_SERVICE + "InsertStream")(requests, wait_for_ready=False)

    def state_id(self, *, timeout_secs: float) -> str:
        """Returns an identifier of the server process's current run; it changes with every start.

        Raises:
          ServerUnavailableError: If the server does not answer in time.
        """
        return self.server_state(timeout_secs=timeout_secs)[0]

    def table_infos(self, *, timeout_secs: float) -> dict[str, TableInfo]:
        """Returns the server's `TableInfo` by table name.

        Raises:
          ServerUnavailableError: If the server does not answer in time.
        """
        return self.server_state(timeout_secs=timeout_secs)[1]

    def server_state(self, *, timeout_secs: float) -> tuple[str, dict[str, TableInfo]]:
        """Returns the `state_id` and the `table_infos` of the same run of the server.

        Raises:
          ServerUnavailableError: If the server does not answer in time, or what answers is not a Reverb server.
        """
        answer = self._server_info(timeout_secs)
        try:
            message = ServerInfoResponse.FromString(answer)
            infos = {info.name: TableInfo.from_message(info) for info in message.table_info}
        except (DecodeError, ValueError) as error:
            raise ServerUnavailableError(
                f"what answers at {self.address} is not a Reverb server that rlds2reverb understands ({error}); check "
                "host and port"
            ) from None
        return _format_id(message.tables_state_id), infos

    def _server_info(self, timeout_secs: float) -> bytes:
        deadline = PausableDeadline(timeout_secs)
        while True:
            secs = max(deadline.remaining_secs, 0.001)
            call = self._unary("ServerInfo").future(b"", timeout=secs, wait_for_ready=True)
            try:
                return _wait_for_result(call, deadline)
            except grpc.FutureTimeoutError:
                reason = ""
            except grpc.RpcError as error:
                # The connection broke, or this process was stopped.
                if error.code() in _UNAVAILABLE and deadline.remaining_secs > _RETRY_SECS:
                    time.sleep(_RETRY_SECS)
                    continue
                reason = "" if error.code() in _UNAVAILABLE else f" ({error.code().name})"
            raise ServerUnavailableError(
                f"no Reverb server answered at {self.address} within {timeout_secs:g} s{reason}; "
                "start one, or check host and port"
            )

    def update_priorities(
        self, table: str, keys: np.ndarray, priorities: np.ndarray, *, timeout_secs: float, may_return: bool = False
    ) -> None:
        """Changes the priorities of items; ignores keys that are not in the table.

        Args:
          table: name of the table.
          keys: uint64 `[M]`; for a repeated key the last priority wins.
          priorities: float64 `[M]`.
          timeout_secs: seconds to wait for the answer.
          may_return: whether to wait, within this time, for a server that is gone to return.

        Raises:
          ServerUnavailableError: If there is no answer in time.
        """
        request = encode_priority_updates(table, keys, priorities)
        self._call("MutatePriorities", request, timeout_secs, "update priorities", may_return=may_return)

    def delete(self, table: str, keys: Iterable[int], *, timeout_secs: float) -> None:
        """Removes items; ignores keys that are not in the table.

        Raises:
          ServerUnavailableError: If there is no answer in time.
        """
        request = MutatePrioritiesRequest(table=table, delete_keys=keys)
        self._call("MutatePriorities", request.SerializeToString(), timeout_secs, "delete items")

    def _call(self, method: str, request: bytes, timeout_secs: float, action: str, *, may_return: bool = False) -> None:
        """Sends a request. It may arrive twice if the server `may_return`, which changes nothing the second time."""
        until = time.monotonic() + timeout_secs
        while True:
            try:
                self._unary(method)(request, timeout=until - time.monotonic(), wait_for_ready=may_return)
                return
            except grpc.RpcError as error:
                code = error.code()
                if may_return and code is grpc.StatusCode.UNAVAILABLE and time.monotonic() < until - _RETRY_SECS:
                    time.sleep(_RETRY_SECS)
                    continue
                if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise ServerUnavailableError(
                        f"waited {timeout_secs:g} s for {self.address} to {action}; if it has ended, start it again"
                    ) from None
                raise ServerUnavailableError(
                    f"{self.address} did not {action} ({code.name}: {error.details()}); start the server again"
                ) from None

    def reset(self, table: str, *, timeout_secs: float) -> None:
        """Removes all items of a table, and resets its rate limiter.

        Raises:
          ServerUnavailableError: If there is no answer in time.
        """
        self._call("Reset", ResetRequest(table=table).SerializeToString(), timeout_secs, f"reset table {table!r}")

    def sample(self, table: str, *, num_samples: int = 1, timeout_secs: float) -> Generator[Any, None, None]:
        """Takes samples and yields their parts; the first of each contains the `info`, and each some chunks (`data`).

        The server drops the request after the timeout. Closing the generator cancels the call.

        Args:
          table: name of the table.
          num_samples: number of samples.
          timeout_secs: maximum duration of the call.

        Raises:
          ServerUnavailableError: If the server returns no sample in time.
          ValueError: If a sample is damaged.
        """
        request = encode_sample_request(table, num_samples, timeout_secs=timeout_secs)
        call = self.sample_stream(iter([request]), timeout_secs=timeout_secs)
        try:
            for response in call:
                yield from SampleStreamResponse.FromString(response).entries
        except DecodeError as error:
            raise ValueError(f"a sample of table {table!r} at {self.address} is damaged ({error})") from None
        except grpc.RpcError as error:
            raise ServerUnavailableError(
                f"waited {timeout_secs:g} s for {num_samples} samples of table {table!r} at {self.address} "
                f"({error.code().name})"
            ) from None
        finally:
            call.cancel()

    def sample_item(self, table: str, *, timeout_secs: float) -> tuple[Any, list[np.ndarray]]:
        """Takes one sample, and returns its `SampleInfo` message and its columns.

        Raises:
          ServerUnavailableError: If the server returns no sample in time.
          ValueError: If the sample is damaged.
        """
        with closing(self.sample(table, num_samples=1, timeout_secs=timeout_secs)) as entries:
            info, chunks = next(join_parts(entries))
            by_key = {chunk.chunk_key: chunk for chunk in chunks}
            return info, [decode_column(column, by_key) for column in info.item.flat_trajectory.columns]

    def sample_stream(self, requests: Iterator[bytes], *, timeout_secs: float | None = None) -> Any:
        """Opens a stream of samples; returns the call, an iterator of `SampleStreamResponse` as bytes.

        Args:
          requests: requests as `encode_sample_request` returns them; the stream is over once they are answered.
          timeout_secs: maximum duration of the call, or None.
        """
        return self._channel.stream_stream(REVERB_SERVICE + "SampleStream")(requests, timeout=timeout_secs)

    def serves_batches(self, state_id: str, *, timeout_secs: float) -> bool:
        """Returns whether the service of batches next to the server answers, and belongs to this run of it."""
        try:
            response = self._batch_channel().unary_unary(BATCH_SERVICE + "Identify")(b"", timeout=timeout_secs)
            return _format_id(IdentifyResponse.FromString(response).tables_state_id) == state_id
        except (grpc.RpcError, DecodeError):  # Another program may use that port.
            return False

    def batch_stream(self, table: str, batch_size: int, *, timeout_secs: float, max_in_flight: int) -> Any:
        """Opens an endless stream of batches; returns the call, an iterator of `SampleBatchesResponse` as bytes.

        Args:
          table: name of the table.
          batch_size: number of items per batch.
          timeout_secs: seconds without samples after which the stream ends with `DEADLINE_EXCEEDED`.
          max_in_flight: number of samples that the server's single worker requests ahead.
        """
        request = SampleBatchesRequest(table=table, batch_size=batch_size, num_workers=1, max_in_flight=max_in_flight)
        request.rate_limiter_timeout_ms = max(1, int(1000 * timeout_secs))
        return self._batch_channel().unary_stream(BATCH_SERVICE + "SampleBatches")(request.SerializeToString())

    def _batch_channel(self) -> grpc.Channel:
        if self._batches is None:
            self._batches = grpc.insecure_channel(batch_address(self.address), options=_OPTIONS)
        return self._batches

    def checkpoint(self, *, timeout_secs: float) -> Path:
        """Makes the server write a checkpoint, and returns its directory.

        Raises:
          CheckpointError: If the server cannot write it.
          ServerUnavailableError: If the server does not write it in time.
        """
        try:
            response = self._unary("Checkpoint")(b"", timeout=timeout_secs)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ServerUnavailableError(f"waited {timeout_secs:g} s for {self.address} to checkpoint") from None
            raise CheckpointError(str(error.details())) from error
        return Path(CheckpointResponse.FromString(response).checkpoint_path)


def encode_sample_request(table: str, num_samples: int, *, timeout_secs: float) -> bytes:
    """Encodes a request for samples, which the server drops if it has to wait longer than the timeout for one."""
    request = SampleStreamRequest(table=table, num_samples=num_samples)
    request.rate_limiter_timeout.milliseconds = max(1, int(1000 * timeout_secs))
    return bytes(request.SerializeToString())


def server_state_id(server: Server, *, timeout_secs: float) -> str:
    """Returns `Connection.state_id` over a new connection."""
    with Connection(server) as connection:
        return connection.state_id(timeout_secs=timeout_secs)


def table_infos(server: Server, *, timeout_secs: float = 10.0) -> dict[str, TableInfo]:
    """Returns `Connection.table_infos` over a new connection.

    Raises:
      ServerUnavailableError: If there is no answer within the timeout.
    """
    require_timeout(timeout_secs)
    with Connection(server) as connection:
        return connection.table_infos(timeout_secs=timeout_secs)


def confirmed_keys(response: bytes) -> Sequence[int]:
    """Returns the keys of the items that a response of an insert stream confirms."""
    return InsertStreamResponse.FromString(response).keys


def _format_id(message: Any) -> str:
    return f"{message.high:016x}{message.low:016x}"


def _wait_for_result(call: Any, deadline: PausableDeadline) -> bytes:
    """Returns the response of a call; raises `grpc.FutureTimeoutError` after the deadline."""
    while True:
        try:
            return call.result(timeout=deadline.tick_secs)
        except grpc.FutureTimeoutError:
            if deadline.remaining_secs <= 0:
                call.cancel()
                raise
