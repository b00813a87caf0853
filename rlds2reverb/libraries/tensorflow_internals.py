"""Uses of TensorFlow internals: AutoGraph, serialised specs, graphs and options of datasets, determinism."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.function import trace_type
from tensorflow.core.protobuf import struct_pb2
from tensorflow.python.autograph.core import ag_ctx, converter
from tensorflow.python.autograph.impl import api
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import config
from tensorflow.python.saved_model import nested_structure_coder
from tensorflow.python.trackable import data_structures
from tensorflow.python.types import trace

from .versions import require_tested

require_tested("tensorflow", tf.__version__, feature="reading and sampling with tf.data")

# At exit, the destructor uses modules that Python has unloaded already.
atexit.register(setattr, atomic_function.AtomicFunction, "__del__", lambda function: None)

# TensorFlow 2.15 traces the dicts of a module, such as the specs of a policy, only with the typing-extensions of
# TF-Agents: later ones, which PyTorch requires, cannot test whether such a dict has this method.
data_structures._DictWrapper.__tf_tracing_type__ = lambda self, context: trace_type.from_value(
    self.__wrapped__, context
)
trace.SupportsTracingProtocol.register(data_structures._DictWrapper)

_IGNORE_STATE = 1
_Function = TypeVar("_Function", bound=Callable[..., Any])


def without_autograph(function: _Function) -> _Function:
    """Prevents AutoGraph from converting a function, and all functions that it calls or passes to `tf.data`.

    Converting the functions of this package would take seconds in each new process, make tracing twice as slow, and
    hide errors in pages of traceback. They use TensorFlow's operations for control flow instead. Functions of users are
    converted nevertheless if they are wrapped by `with_autograph`.
    """
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


def with_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that AutoGraph converts even if its caller is `without_autograph`."""
    options = converter.ConversionOptions(recursive=True)
    enabled = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED, options=options)
    return cast(Callable[..., Any], api.convert(recursive=True, conversion_ctx=enabled)(function))


def encode_spec(spec: Any) -> bytes:
    """Serialises a nest of specs deterministically."""
    return nested_structure_coder.encode_structure(spec).SerializeToString(deterministic=True)


def decode_spec(encoded: bytes) -> Any:
    """Restores a nest of specs from the result of `encode_spec`; raises `ValueError` for other bytes."""
    try:
        return nested_structure_coder.decode_proto(struct_pb2.StructuredValue.FromString(encoded))
    except (DecodeError, nested_structure_coder.NotEncodableError) as error:
        raise ValueError(f"not an encoded nest of specs ({error})") from error


def extract_sliced_arrays(dataset: tf.Tensor) -> list[np.ndarray] | None:
    """Returns the arrays that were passed to `Dataset.from_tensor_slices`.

    Args:
      dataset: variant tensor of the dataset.

    Returns:
      The arrays `[T, ...]`, in the order of the dataset's flat elements; None for any other kind of dataset.
    """
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=dataset, external_state_policy=_IGNORE_STATE, strip_device_assignment=True
        )
    except tf.errors.OpError:  # The dataset cannot be serialised as a graph, or is too large.
        return None
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    nodes = {node.name: node for node in graph.node}
    operations = sorted({node.op for node in graph.node})
    slices = [node for node in graph.node if node.op == "TensorSliceDataset"]
    if operations != ["Const", "TensorSliceDataset", "_Retval"] or len(slices) != 1:
        return None
    tensors = [nodes[name].attr["value"].tensor for name in slices[0].input]
    return [tf.io.parse_tensor(tensor.SerializeToString(), tensor.dtype).numpy() for tensor in tensors]


def scan(dataset: tf.data.Dataset, initial_state: Any, step: Callable[..., Any]) -> tf.data.Dataset:
    """Applies `Dataset.scan`, with graphs that are released together with the dataset.

    In eager mode, TensorFlow's own method adds the graph of `step` to the default graph of the process, where it stays.
    Here it belongs to the graph of a function of the dataset. The cardinality is not known.
    """
    return tf.data.Dataset.from_tensors(0).flat_map(without_autograph(lambda _: dataset.scan(initial_state, step)))


def without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns off autotuning for a dataset whose parallelism is fixed, and for those derived from it.

    The thread that tunes waits up to a minute between two rounds. Sometimes it misses the signal to end, and then
    closing the iterator takes as long. Measuring each element takes time, too.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@contextmanager
def op_determinism() -> Iterator[None]:
    """Makes TensorFlow's operations deterministic during the context; for the whole process, and slower."""
    was_enabled = config.is_op_determinism_enabled()
    config.enable_op_determinism()
    try:
        yield
    finally:
        if not was_enabled:
            config.disable_op_determinism()
