"""The gRPC methods of a Reverb server, over a connection of our own and with a deadline.

Reverb's Python client lacks some of them, or gives them no deadline, and shares its connections with all others of the
process. Message layouts are those of `reverb/cc/reverb_service.proto`, whose Python module is not in the wheel.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from reverb.cc import schema_pb2
from reverb.reverb_types import TableInfo

_SERVICE = "/deepmind.reverb.ReverbService/"
#: Between two questions to a server whose connection broke.
_PAUSE_SECS = 0.1
_Field = descriptor_pb2.FieldDescriptorProto
_SCHEMA = ".deepmind.reverb."

#: Our names for Reverb's messages: fields as (name, number, type, repeated).
_MESSAGES: dict[str, list[tuple[str, int, Any, bool]]] = {
    "InsertStreamRequest": [
        ("chunks", 1, _SCHEMA + "ChunkData", True),
        ("items", 2, _SCHEMA + "PrioritizedItem", True),
        ("keep_chunk_keys", 3, _Field.TYPE_UINT64, True),
    ],
    "InsertStreamResponse": [("keys", 1, _Field.TYPE_UINT64, True)],
    "MutatePrioritiesRequest": [
        ("table", 1, _Field.TYPE_STRING, False),
        ("delete_keys", 3, _Field.TYPE_UINT64, True),
    ],
    "ServerInfoResponse": [
        ("tables_state_id", 1, _SCHEMA + "Uint128", False),
        ("table_info", 2, _SCHEMA + "TableInfo", True),
    ],
}


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="rlds2reverb/service.proto",
        package="rlds2reverb",
        syntax="proto3",
        dependency=[schema_pb2.DESCRIPTOR.name],
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            if isinstance(kind, str):
                message.field.add(name=field, number=number, type=_Field.TYPE_MESSAGE, type_name=kind, label=label)
            else:
                message.field.add(name=field, number=number, type=kind, label=label)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"rlds2reverb.{name}")) for name in _MESSAGES
    }


_CLASSES = _messages()
InsertStreamRequest = _CLASSES["InsertStreamRequest"]


class ServerUnavailable(ConnectionError):
    """A Reverb server did not answer, or did not take items, within the deadline; trying again may help."""


class ServerRestarted(ConnectionError):
    """Another server answers at the address than before: what the earlier one had confirmed may be gone."""


class Service:
    """A connection to a server. Every call takes a deadline, in seconds. A context manager."""

    def __init__(self, address: str):
        """Connects when the first call is made."""
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),  # nothing is shared with connections that have been lost
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # Confirmations that we have not read wait at the server and come as one: a third as many responses.
            ("grpc.http2.lookahead_bytes", 256),
            ("grpc.http2.bdp_probe", 0),
        ]
        self._address = address
        self._channel = grpc.insecure_channel(address, options=options)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all calls and the connection."""
        self._channel.close()

    def insert_stream(self, requests: Iterator[bytes]) -> Any:
        """Opens a stream of insertions: a call that gives the keys that each response confirms (`confirmed_keys`)."""
        return self._channel.stream_stream(_SERVICE + "InsertStream")(requests, wait_for_ready=False)

    def state_id(self, *, timeout_secs: float) -> str:
        """What changes with every start of a server.

        Raises:
          ServerUnavailable: if it does not answer in time.
        """
        state_id = self._server_info(timeout_secs).tables_state_id
        return f"{state_id.high:016x}{state_id.low:016x}"

    def table_infos(self, *, timeout_secs: float) -> dict[str, TableInfo]:
        """What the server says of its tables, by name.

        Raises:
          ServerUnavailable: if it does not answer in time.
        """
        infos = self._server_info(timeout_secs).table_info
        return {info.name: TableInfo.from_serialized_proto(info.SerializeToString()) for info in infos}

    def _server_info(self, timeout_secs: float) -> Any:
        call = self._channel.unary_unary(_SERVICE + "ServerInfo")
        end = time.monotonic() + timeout_secs
        while True:
            try:
                response = call(b"", timeout=max(end - time.monotonic(), 0.001), wait_for_ready=True)
                return _CLASSES["ServerInfoResponse"].FromString(response)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE and time.monotonic() + _PAUSE_SECS < end:
                    time.sleep(_PAUSE_SECS)
                    continue
                late = error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
                reason = "" if late else f" ({error.code().name})"
                raise ServerUnavailable(
                    f"no Reverb server answered at {self._address} within {timeout_secs:g} s{reason}; "
                    "start it (rlds2reverb serve), or check host and port"
                ) from None

    def delete(self, table: str, keys: Iterable[int], *, timeout_secs: float) -> None:
        """Removes items; keys that are not there are ignored.

        Raises:
          grpc.RpcError: if it is not done in time.
        """
        request = _CLASSES["MutatePrioritiesRequest"](table=table, delete_keys=keys)
        self._channel.unary_unary(_SERVICE + "MutatePriorities")(request.SerializeToString(), timeout=timeout_secs)


def server_state_id(address: str, *, timeout_secs: float) -> str:
    """As `Service.state_id`, over a connection of its own."""
    with Service(address) as service:
        return service.state_id(timeout_secs=timeout_secs)


def confirmed_keys(response: bytes) -> Sequence[int]:
    """The keys of items that a response of an insert stream confirms."""
    return _CLASSES["InsertStreamResponse"].FromString(response).keys
