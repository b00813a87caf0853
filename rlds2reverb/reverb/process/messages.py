"""Declaration of gRPC messages, and those of the batch service.

Messages are declared in a descriptor pool of their own, so that they collide with those of no other library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "rlds2reverb"


def declare_messages(declarations: str) -> dict[str, Any]:
    """Returns the classes of messages by name.

    Args:
      declarations: lines 'name: fields', of which an indented line continues the one before. The fields are
        'number name type', separated by commas; '*' marks a repeated field and 'group/' a member of a oneof.
    """
    messages = dict(line.split(": ") for line in declarations.replace("\n  ", " ").splitlines() if line)
    file = descriptor_pb2.FileDescriptorProto(name="rlds2reverb/messages.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields.split(","):
            _add_field(message, field, messages)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in messages
    }


def _add_field(message: Any, declaration: str, messages: Mapping[str, str]) -> None:
    number, name, kind = declaration.split()
    group, _, name = name.rpartition("/")
    field = message.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    if kind in messages:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    if group:
        if not message.oneof_decl:
            message.oneof_decl.add(name=group)
        field.oneof_index = 0


#: The field of `IdentifyResponse` is the first one of Reverb's `ServerInfoResponse`.
_MESSAGES = """
Uint128: 1 high uint64, 2 low uint64
IdentifyResponse: 1 tables_state_id Uint128
SampleBatchesRequest: 1 table string, 2 batch_size int32, 3 rate_limiter_timeout_ms int64, 4 num_workers int32,
  5 max_in_flight int32
SampleBatchesResponse: 1 keys bytes, 2 priorities bytes, 3 probabilities bytes, 4 table_sizes bytes,
  5 times_sampled bytes, 6 columns *bytes, 7 lengths bytes
"""
_CLASSES = declare_messages(_MESSAGES)
IdentifyResponse = _CLASSES["IdentifyResponse"]
SampleBatchesRequest = _CLASSES["SampleBatchesRequest"]
SampleBatchesResponse = _CLASSES["SampleBatchesResponse"]
