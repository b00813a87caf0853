"""Tests of the declared messages against those of the installed dm-reverb and TensorFlow."""

import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor import FieldDescriptor
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2

from rlds2reverb.reverb.client import batch_address, client_messages as messages
from rlds2reverb.reverb.client.connection import encode_sample_request
from rlds2reverb.reverb.client.samples import join_parts

#: Fields that are declared as bytes, or as the number of an enum, instead of a type of TensorFlow.
SIMPLIFIED = {"signature", "tensor_shape", "dtype"}
#: Messages of services whose descriptors no package contains.
UNDESCRIBED = {
    "CheckpointResponse",
    "InsertStreamRequest",
    "InsertStreamResponse",
    "MutatePrioritiesRequest",
    "ResetRequest",
    "SampleEntry",
    "SampleStreamRequest",
    "SampleStreamResponse",
    "ServerInfoResponse",
}


def find_original(name):
    """Returns the descriptor of a message in dm-reverb, TensorFlow or protobuf."""
    outer, _, inner = name.partition("_")
    for module in (schema_pb2, checkpoint_pb2, tensor_pb2, tensor_shape_pb2, timestamp_pb2):
        if hasattr(module, outer):
            descriptor = getattr(module, outer).DESCRIPTOR
            return descriptor.nested_types_by_name[inner] if inner else descriptor
    raise LookupError(name)


@pytest.mark.parametrize("name", sorted(set(messages.CLASSES) - UNDESCRIBED))
def test_fields_have_the_numbers_and_types_of_the_original(name):
    original = find_original(name).fields_by_name
    for field in messages.CLASSES[name].DESCRIPTOR.fields:
        expected = original[field.name]
        assert (field.number, field.label) == (expected.number, expected.label)
        if field.name in SIMPLIFIED:
            kinds = {FieldDescriptor.TYPE_MESSAGE: FieldDescriptor.TYPE_BYTES}
            assert field.type == kinds.get(expected.type, FieldDescriptor.TYPE_INT32)
            continue
        assert field.type == expected.type
        if field.message_type is not None:
            package = f"{expected.message_type.file.package}."
            name_there = expected.message_type.full_name.removeprefix(package).replace(".", "_")
            assert field.message_type.name == name_there
        if expected.containing_oneof is not None:
            assert field.containing_oneof.name == expected.containing_oneof.name


def test_undeclared_fields_are_kept():
    original = schema_pb2.PrioritizedItem(key=7, deprecated_chunk_keys=[1, 2])
    copy = messages.PrioritizedItem.FromString(original.SerializeToString())
    assert schema_pb2.PrioritizedItem.FromString(copy.SerializeToString()) == original


def test_sample_in_several_parts_has_the_chunks_of_all():
    parts = [({"item": {"key": 7}}, 1, False), (None, 2, False), (None, 3, True), ({"item": {"key": 8}}, 4, True)]
    make = messages.CLASSES["SampleEntry"]
    entries = [make(info=info, data=[{"chunk_key": key}], end_of_sequence=is_end) for info, key, is_end in parts]
    joined = [(info.item.key, [chunk.chunk_key for chunk in chunks]) for info, chunks in join_parts(entries)]
    assert joined == [(7, [1, 2, 3]), (8, [4])]


def test_request_for_samples_has_the_timeout_in_milliseconds():
    request = messages.SampleStreamRequest.FromString(encode_sample_request("items", 3, timeout_secs=2.5))
    assert (request.table, request.num_samples, request.rate_limiter_timeout.milliseconds) == ("items", 3, 2500)


@pytest.mark.parametrize(("port", "expected"), [(8000, 9000), (64535, 65535), (64536, 63536), (65535, 64535)])
def test_batch_service_has_a_port_derived_from_the_servers(port, expected):
    assert batch_address(f"host:{port}") == f"host:{expected}"
