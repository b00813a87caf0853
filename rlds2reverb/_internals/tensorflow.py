"""What we use of TensorFlow beyond its public interface: the codec of specs, the graph of a data set, a clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import struct_pb2
from tensorflow.python.saved_model import nested_structure_coder

from .versions import require_version

require_version("tensorflow", tf.__version__, "2.15.1")

_IGNORE_STATE = 1


def encode_spec(spec: Any) -> bytes:
    """Returns a nest of specs as bytes, the same ones each time."""
    return nested_structure_coder.encode_structure(spec).SerializeToString(deterministic=True)


def decode_spec(encoded: bytes) -> Any:
    """Returns the nest of specs that `encode_spec` was given; raises `ValueError` for other bytes."""
    try:
        return nested_structure_coder.decode_proto(struct_pb2.StructuredValue.FromString(encoded))
    except (DecodeError, nested_structure_coder.NotEncodableError) as error:
        raise ValueError(f"not an encoded nest of specs ({error})") from error


def sliced_arrays(dataset: tf.Tensor) -> list[np.ndarray] | None:
    """Returns the arrays that a `Dataset.from_tensor_slices` was made of.

    Args:
      dataset: the data set as a variant.

    Returns:
      The arrays `[T, ...]`, in the order of the data set's flat elements; None if the data set does anything else.
    """
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=dataset, external_state_policy=_IGNORE_STATE, strip_device_assignment=True
        )
    except tf.errors.OpError:  # a kind of data set that has no graph, or too large for one
        return None
    graph = graph_pb2.GraphDef.FromString(serialized.numpy())
    nodes = {node.name: node for node in graph.node}
    operations = sorted({node.op for node in graph.node})
    slices = [node for node in graph.node if node.op == "TensorSliceDataset"]
    if operations != ["Const", "TensorSliceDataset", "_Retval"] or len(slices) != 1:
        return None
    tensors = [nodes[name].attr["value"].tensor for name in slices[0].input]
    return [tf.io.parse_tensor(tensor.SerializeToString(), tensor.dtype).numpy() for tensor in tensors]


def clock(tick_secs: float) -> tf.data.Dataset:
    """Returns a data set without an end that gives an int64 every `tick_secs` seconds, and can be destroyed at once."""
    beats = tf.data.Dataset.range(np.iinfo(np.int64).max)
    slept = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(beats),
        sleep_microseconds=tf.constant(int(1e6 * tick_secs), tf.int64),
        output_types=[tf.int64],
        output_shapes=[()],
    )
    return tf.data.experimental.from_variant(slept, beats.element_spec)
