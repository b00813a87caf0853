"""Uses of dm-reverb internals: its messages, gRPC methods, a destructor and log messages.

The field numbers in `_encoding.messages` are also internals of this version.
"""

from __future__ import annotations

import atexit
import ctypes
from importlib.metadata import version
from typing import Any

import reverb
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2
from reverb.reverb_types import TableInfo

from rlds2reverb._server_process.quiet import silence_reverb

from .versions import require_version

require_version("dm-reverb", version("dm-reverb"), "0.14.0")

# At exit, the destructor uses modules that Python has unloaded already.
atexit.register(setattr, reverb.Server, "__del__", lambda server: None)

#: The prefix of the paths of all gRPC methods.
SERVICE_PATH = "/deepmind.reverb.ReverbService/"

PriorityTableCheckpoint = checkpoint_pb2.PriorityTableCheckpoint
ChunkData = schema_pb2.ChunkData
PrioritizedItem = schema_pb2.PrioritizedItem

_Field = descriptor_pb2.FieldDescriptorProto
_SCHEMA = ".deepmind.reverb."

#: Messages of `reverb/cc/reverb_service.proto`, whose Python module the wheel does not contain: fields as (name,
#: number, type, repeated).
_MESSAGES: dict[str, list[tuple[str, int, Any, bool]]] = {
    "InsertStreamRequest": [
        ("chunks", 1, _SCHEMA + "ChunkData", True),
        ("items", 2, _SCHEMA + "PrioritizedItem", True),
        ("keep_chunk_keys", 3, _Field.TYPE_UINT64, True),
    ],
    "InsertStreamResponse": [("keys", 1, _Field.TYPE_UINT64, True)],
    "MutatePrioritiesRequest": [
        ("table", 1, _Field.TYPE_STRING, False),
        ("updates", 2, _SCHEMA + "KeyWithPriority", True),
        ("delete_keys", 3, _Field.TYPE_UINT64, True),
    ],
    "SampleStreamRequest": [
        ("table", 1, _Field.TYPE_STRING, False),
        ("num_samples", 2, _Field.TYPE_INT64, False),
        ("rate_limiter_timeout", 3, _SCHEMA + "Timeout", False),
    ],
    "SampleEntry": [
        ("info", 1, _SCHEMA + "SampleInfo", False),
        ("data", 2, _SCHEMA + "ChunkData", True),
        ("end_of_sequence", 3, _Field.TYPE_BOOL, False),
    ],
    "SampleStreamResponse": [("entries", 1, ".rlds2reverb.SampleEntry", True)],
    "CheckpointResponse": [("checkpoint_path", 1, _Field.TYPE_STRING, False)],
    "ServerInfoResponse": [
        ("tables_state_id", 1, _SCHEMA + "Uint128", False),
        ("table_info", 2, _SCHEMA + "TableInfo", True),
    ],
}


def _make_message_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="rlds2reverb/reverb_service.proto",
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


_CLASSES = _make_message_classes()
InsertStreamRequest = _CLASSES["InsertStreamRequest"]
InsertStreamResponse = _CLASSES["InsertStreamResponse"]
MutatePrioritiesRequest = _CLASSES["MutatePrioritiesRequest"]
SampleStreamRequest = _CLASSES["SampleStreamRequest"]
SampleStreamResponse = _CLASSES["SampleStreamResponse"]
CheckpointResponse = _CLASSES["CheckpointResponse"]
ServerInfoResponse = _CLASSES["ServerInfoResponse"]


def to_table_info(message: Any) -> TableInfo:
    """Converts a `TableInfo` message to Reverb's named tuple `TableInfo`."""
    return TableInfo.from_serialized_proto(message.SerializeToString())


def never_delete(writer: reverb.TrajectoryWriter) -> None:
    """Keeps a writer's C++ object until the process exits, since its destructor waits for a server that may be gone."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(writer._writer))


silence_reverb()
