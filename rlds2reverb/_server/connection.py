"""The gRPC methods of a Reverb server, each with a deadline.

Reverb's Python client has no deadline for some methods and does not offer others. It also shares its connections with
all other clients of the process, so that one lost connection blocks them all for up to two minutes.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from reverb.reverb_types import TableInfo

from rlds2reverb._encoding.messages import encode_priority_updates
from rlds2reverb._internals.reverb import (
    SERVICE_PATH,
    CheckpointResponse,
    InsertStreamResponse,
    MutatePrioritiesRequest,
    SampleStreamRequest,
    SampleStreamResponse,
    ServerInfoResponse,
    to_table_info,
)
from rlds2reverb.errors import ServerUnavailableError

from .pausable_deadline import PausableDeadline

_RETRY_SECS = 0.1
_UNAVAILABLE = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)


class ServerConnection:
    """A connection to a server. Use it as a context manager, or close it."""

    def __init__(self, address: str):
        """Connects when the first call is made."""
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),  # Shares nothing with lost connections.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # Unread confirmations then wait at the server and arrive merged, in a third as many responses.
            ("grpc.http2.lookahead_bytes", 256),
            ("grpc.http2.bdp_probe", 0),
        ]
        self.address = address
        self._channel = grpc.insecure_channel(address, options=options)

    def __enter__(self) -> ServerConnection:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels all calls and closes the connection."""
        self._channel.close()

    def _unary(self, method: str) -> Any:
        return self._channel.unary_unary(SERVICE_PATH + method)

    def insert_stream(self, requests: Iterator[bytes]) -> Any:
        """Opens a stream of insertions; returns the call, an iterator of responses (see `confirmed_keys`)."""
        return self._channel.stream_stream(SERVICE_PATH + "InsertStream")(requests, wait_for_ready=False)

    def state_id(self, *, timeout_secs: float) -> str:
        """Returns an identifier of the server process's current run; it changes with every start.

        Raises:
          ServerUnavailableError: If the server does not answer in time.
        """
        state_id = self._server_info(timeout_secs).tables_state_id
        return f"{state_id.high:016x}{state_id.low:016x}"

    def table_infos(self, *, timeout_secs: float) -> dict[str, TableInfo]:
        """Returns the server's `TableInfo` by table name.

        Raises:
          ServerUnavailableError: If the server does not answer in time.
        """
        infos = self._server_info(timeout_secs).table_info
        return {info.name: to_table_info(info) for info in infos}

    def _server_info(self, timeout_secs: float) -> Any:
        deadline = PausableDeadline(timeout_secs)
        while True:
            secs = max(deadline.remaining_secs, 0.001)
            call = self._unary("ServerInfo").future(b"", timeout=secs, wait_for_ready=True)
            try:
                return ServerInfoResponse.FromString(_wait_for_result(call, deadline))
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
        self._mutate(request, timeout_secs, "update priorities", may_return=may_return)

    def delete(self, table: str, keys: Iterable[int], *, timeout_secs: float) -> None:
        """Removes items; ignores keys that are not in the table.

        Raises:
          ServerUnavailableError: If there is no answer in time.
        """
        request = MutatePrioritiesRequest(table=table, delete_keys=keys)
        self._mutate(request.SerializeToString(), timeout_secs, "delete items")

    def _mutate(self, request: bytes, timeout_secs: float, action: str, *, may_return: bool = False) -> None:
        """Sends a request. It may arrive twice if the server `may_return`, which changes nothing the second time."""
        until = time.monotonic() + timeout_secs
        while True:
            try:
                self._unary("MutatePriorities")(request, timeout=until - time.monotonic(), wait_for_ready=may_return)
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

    def sample(self, table: str, *, num_samples: int = 1, timeout_secs: float) -> Generator[Any, None, None]:
        """Takes samples and yields their parts; the first of each contains the `info`, and each some chunks (`data`).

        The server drops the request after the timeout. Closing the generator cancels the call.

        Args:
          table: name of the table.
          num_samples: number of samples.
          timeout_secs: maximum duration of the call.

        Raises:
          grpc.RpcError: if the server returns no sample in time.
        """
        request = SampleStreamRequest(table=table, num_samples=num_samples)
        request.rate_limiter_timeout.milliseconds = max(1, int(1000 * timeout_secs))
        requests = iter([request.SerializeToString()])
        call = self._channel.stream_stream(SERVICE_PATH + "SampleStream")(requests, timeout=timeout_secs)
        try:
            for response in call:
                yield from SampleStreamResponse.FromString(response).entries
        finally:
            call.cancel()

    def checkpoint(self, *, timeout_secs: float) -> Path:
        """Makes the server write a checkpoint, and returns its directory.

        Raises:
          grpc.RpcError: if the server does not write it in time.
        """
        response = self._unary("Checkpoint")(b"", timeout=timeout_secs)
        return Path(CheckpointResponse.FromString(response).checkpoint_path)


def server_state_id(address: str, *, timeout_secs: float) -> str:
    """Returns `ServerConnection.state_id` over a new connection."""
    with ServerConnection(address) as connection:
        return connection.state_id(timeout_secs=timeout_secs)


def confirmed_keys(response: bytes) -> Sequence[int]:
    """Returns the keys of the items that a response of an insert stream confirms."""
    return InsertStreamResponse.FromString(response).keys


def _wait_for_result(call: Any, deadline: PausableDeadline) -> bytes:
    """Returns the response of a call; raises `grpc.FutureTimeoutError` after the deadline."""
    while True:
        try:
            return call.result(timeout=deadline.tick_secs)
        except grpc.FutureTimeoutError:
            if deadline.remaining_secs <= 0:
                call.cancel()
                raise
