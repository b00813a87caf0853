"""The signatures of tables as nests of arrays' specs, decoded without TensorFlow."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from rlds2reverb.types.specs import ArraySpec, Nest

from ..process.messages import declare_messages
from .message_encoding import numpy_dtype

#: The parts of `StructuredValue` in TensorFlow's `struct.proto` of which signatures consist.
_MESSAGES = """
Value: 33 kind/spec Spec, 35 kind/bounded Spec, 51 kind/list Values, 52 kind/tuple Values, 53 kind/dict Pairs,
  54 kind/named_tuple NamedTuple
Values: 1 values *Value
Pairs: 1 fields *Pair
Pair: 1 key string, 2 value Value
NamedTuple: 1 name string, 2 fields *Pair
Spec: 1 name string, 2 shape Shape, 3 dtype int32
Shape: 2 dim *Dim, 3 unknown_rank bool
Dim: 1 size int64
"""
_CLASSES = declare_messages(_MESSAGES)


@dataclass(frozen=True)
class NamedSpec(ArraySpec):
    """An `ArraySpec` with the name of the tensor, which packed items have; specs are equal without it."""

    name: str = field(default="", compare=False, kw_only=True)


def decode_signature(encoded: bytes) -> Nest:
    """Returns the nest of `NamedSpec` of a serialised `StructuredValue`; strings have dtype object.

    Raises:
      ValueError: If it is not a nest of the specs of tensors.
    """
    try:
        return _decode(_CLASSES["Value"].FromString(encoded))
    except DecodeError as error:
        raise ValueError(f"not an encoded nest of specs ({error})") from error


def _decode(value: Any) -> Nest:
    kind = value.WhichOneof("kind")
    content = getattr(value, kind or "spec")
    if kind in ("list", "tuple"):
        parts = [_decode(part) for part in content.values]
        return parts if kind == "list" else tuple(parts)
    if kind in ("dict", "named_tuple"):
        fields = {pair.key: _decode(pair.value) for pair in content.fields}
        return fields if kind == "dict" else collections.namedtuple(content.name, fields)(**fields)
    if kind is None or content.shape.unknown_rank:
        raise ValueError("not a nest of the specs of tensors with a known number of axes")
    shape = tuple(None if dim.size < 0 else dim.size for dim in content.shape.dim)
    return NamedSpec(shape, numpy_dtype(content.dtype), name=content.name)
