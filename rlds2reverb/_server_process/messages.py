"""The messages of the batch service, declared in a pool of their own so that they collide with no others."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "rlds2reverb"

#: The fields of each message as (name, type, repeated), numbered from 1. The order must never change.
_MESSAGES: dict[str, list[tuple[str, Any, bool]]] = {
    "Uint128": [("high", _Field.TYPE_UINT64, False), ("low", _Field.TYPE_UINT64, False)],
    # The first field of Reverb's ServerInfoResponse.
    "IdentifyResponse": [("tables_state_id", f".{_PACKAGE}.Uint128", False)],
    "SampleBatchesRequest": [
        ("table", _Field.TYPE_STRING, False),
        ("batch_size", _Field.TYPE_INT32, False),
        ("rate_limiter_timeout_ms", _Field.TYPE_INT64, False),
        ("num_workers", _Field.TYPE_INT32, False),
        ("max_in_flight", _Field.TYPE_INT32, False),
    ],
    "SampleBatchesResponse": [
        ("keys", _Field.TYPE_BYTES, False),
        ("priorities", _Field.TYPE_BYTES, False),
        ("probabilities", _Field.TYPE_BYTES, False),
        ("table_sizes", _Field.TYPE_BYTES, False),
        ("times_sampled", _Field.TYPE_BYTES, False),
        ("columns", _Field.TYPE_BYTES, True),
        ("lengths", _Field.TYPE_BYTES, False),
    ],
}


def _make_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="rlds2reverb/batch_service.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, repeated) in enumerate(fields, 1):
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = _Field.TYPE_MESSAGE, kind
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in names.items()}


_CLASSES = _make_classes()
IdentifyResponse = _CLASSES["IdentifyResponse"]
SampleBatchesRequest = _CLASSES["SampleBatchesRequest"]
SampleBatchesResponse = _CLASSES["SampleBatchesResponse"]
