"""One test for each use of TensorFlow internals."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.libraries import tensorflow_internals as internals
from rlds2reverb.types.specs import ArraySpec, to_tensor_spec


def absolute(number):
    if number < 0:  # A condition of Python, which only AutoGraph converts.
        return -number
    return number


def test_without_autograph_leaves_conditions_unconverted():
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        tf.function(internals.without_autograph(absolute))(tf.constant(-2))


def test_with_autograph_converts_a_function_that_is_called_without_autograph():
    converted = internals.with_autograph(absolute)
    graph = tf.function(internals.without_autograph(lambda number: converted(number)))
    assert int(graph(tf.constant(-2))) == 2 and int(graph(tf.constant(3))) == 3


def test_encoded_specs_are_deterministic_and_restored():
    spec = {"b": (tf.TensorSpec([2, None], tf.float32, "x"),), "a": [tf.TensorSpec([], tf.string)]}
    encoded = internals.encode_spec(spec)
    assert encoded == internals.encode_spec(dict(reversed(spec.items())))
    assert internals.decode_spec(encoded) == spec
    with pytest.raises(ValueError, match="not an encoded nest of specs"):
        internals.decode_spec(b"\xff\x01")


def test_encoded_specs_are_equal_in_all_versions():
    """Tables that one version has filled are read by the others."""
    encoded = internals.encode_spec({"a": tf.TensorSpec([2], tf.float32)})
    assert encoded.hex() == "aa03120a100a0161120b8a02081204120208021801"


def test_sliced_arrays_are_extracted_from_a_dataset():
    arrays = {"a": np.arange(6).reshape(3, 2), "b": np.array([b"x", b"y", b"z"])}
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    extracted = internals.extract_sliced_arrays(tf.data.experimental.to_variant(dataset))
    for actual, expected in zip(extracted, arrays.values(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert internals.extract_sliced_arrays(tf.data.experimental.to_variant(dataset.batch(2))) is None


def test_op_determinism_is_restored_after_the_context():
    from tensorflow.python.framework import config

    assert not config.is_op_determinism_enabled()
    with internals.op_determinism():
        assert config.is_op_determinism_enabled()
        with internals.op_determinism():
            pass
        assert config.is_op_determinism_enabled()
    assert not config.is_op_determinism_enabled()


def test_specs_with_bounds_are_those_of_tf_agents():
    from tf_agents.specs import BoundedTensorSpec

    spec = to_tensor_spec(ArraySpec((2,), np.dtype(np.float32), minimum=-1.0, maximum=1.0))
    assert isinstance(spec, BoundedTensorSpec) and spec.minimum.tolist() == -1.0


@pytest.mark.slow
def test_process_ends_without_errors_of_destructors():
    program = """
import rlds2reverb.libraries.tensorflow_internals
import tensorflow as tf
function = tf.function(lambda x: x + 1)
function(tf.constant(1))
globals()["kept"] = function.get_concrete_function(tf.constant(1))
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert process.returncode == 0 and "Exception ignored" not in process.stderr


def test_dicts_of_modules_are_traced_as_dicts_for_any_typing_extensions():
    module = tf.Module()
    module.spec = {"state": tf.TensorSpec([2], tf.float32)}
    assert type(module.spec) is not dict
    assert isinstance(module.spec, internals.trace.SupportsTracingProtocol)
    from_value = internals.trace_type.from_value
    assert from_value(module.spec) == from_value({"state": tf.TensorSpec([2], tf.float32)})
