"""Files of policies for other programs: SavedModels, ONNX and TFLite."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from rlds2reverb._arguments import require_one_of
from rlds2reverb._system.logs import hide_native_stderr
from rlds2reverb.onnx_policies import ACTION, OnnxPolicy, make_metadata
from rlds2reverb.saved_policies import SavedPolicy, load_saved_model
from rlds2reverb.sources.atomic_output import atomic_output
from rlds2reverb.specs import leaves, path_name

from .policy_export import hide_warnings

PolicyFormat = Literal["savedmodel", "onnx", "tflite"]
#: Version of ONNX's operations: that of 2022, which old runtimes support as well.
_OPSET = 17


def write_policy(
    saved_model: Path, path: str | Path, format: PolicyFormat | None = None, metadata: Mapping[str, str] | None = None
) -> Path:
    """Converts the SavedModel of a policy; see `Run.export_policy`.

    Args:
      saved_model: directory of the SavedModel.
      path: file or, for the format savedmodel, directory to create.
      format: format of the file; None to follow the suffix of the path.
      metadata: entries of an ONNX file's metadata in addition to the specs; None for none.
    """
    path = Path(path)
    format = format or _choose_format(path)
    require_one_of("format", format, get_args(PolicyFormat))
    with atomic_output(path) as partial:
        if format == "savedmodel":
            shutil.copytree(saved_model, partial)
        elif format == "onnx":
            partial.write_bytes(_convert_to_onnx(saved_model, metadata or {}))
            _require_runs(partial, saved_model)
        else:
            partial.write_bytes(_convert_to_tflite(saved_model))
    return path


def _choose_format(path: Path) -> PolicyFormat:
    suffixes: dict[str, PolicyFormat] = {".onnx": "onnx", ".tflite": "tflite"}
    return suffixes.get(path.suffix, "savedmodel")


def _convert_to_onnx(saved_model: Path, metadata: Mapping[str, str]) -> bytes:
    try:
        import onnx
        import onnxruntime  # noqa: F401
        import tf2onnx
    except ImportError as error:
        raise ImportError(f'the format onnx requires tf2onnx ({error}); run pip install "rlds2reverb[onnx]"') from error
    policy = load_saved_model(saved_model)
    function, inputs = _make_function(policy, saved_model)
    with _conversion("ONNX", saved_model):
        model, _ = tf2onnx.convert.from_function(function, inputs, opset=_OPSET)
        # tf2onnx leaves operations that it cannot convert as they are.
        unknown = {node.op_type for node in model.graph.node if not onnx.defs.has(node.op_type, node.domain)}
        if unknown:
            raise ValueError(f"ONNX does not have the operations {', '.join(sorted(unknown))}")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    specs = make_metadata(policy.time_step_spec.observation, policy.action_spec, policy.get_train_step())
    onnx.helper.set_model_props(model, {**metadata, **specs})
    return bytes(model.SerializeToString())


def _require_runs(path: Path, saved_model: Path) -> None:
    """Raises `ValueError` unless onnxruntime loads a file, and computes actions for a batch."""
    with _conversion("ONNX", saved_model):
        policy = OnnxPolicy(path)
        policy.act([np.zeros((2, *spec.shape), spec.dtype) for _, spec in leaves(policy.observation_spec)])


def _convert_to_tflite(saved_model: Path) -> bytes:
    import tensorflow as tf

    policy = load_saved_model(saved_model)
    function, inputs = _make_function(policy, saved_model)
    inputs = [tf.TensorSpec(spec.shape, spec.dtype, re.sub(r"\W+", "_", spec.name).strip("_")) for spec in inputs]
    with _conversion("TFLite", saved_model):
        module, concrete = tf.Module(), function.get_concrete_function(*inputs)
        module.captured = concrete.variables  # Without them, the file would have no signature.
        return bytes(tf.lite.TFLiteConverter.from_concrete_functions([concrete], module).convert())


def _make_function(policy: SavedPolicy, saved_model: Path) -> tuple[Any, list[Any]]:
    """Returns a function from the fields of a batch of observations to `{"action": actions}`, and its inputs.

    Actions are clipped to their bounds, as `SavedPolicy.predict` does. Time steps are neither first nor last ones.

    Returns:
      The `tf.function`, and TensorSpecs `[None, ...]` of the fields with their paths as names.
    """
    import tensorflow as tf

    _require_convertible(policy, saved_model)
    first, action_spec = policy.time_step_spec, tf.nest.flatten(policy.action_spec)[0]
    fields = leaves(first.observation)

    def act(*observation: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.shape(observation[0])[:1]
        step_type, reward, discount = (
            tf.fill(tf.concat([rows, spec.shape], 0), tf.constant(value, spec.dtype))
            for spec, value in zip(first[:3], (1, 0, 1), strict=True)
        )
        nest = tf.nest.pack_sequence_as(first.observation, observation)
        time_step = first._replace(step_type=step_type, reward=reward, discount=discount, observation=nest)
        (action,) = tf.nest.flatten(policy.action(time_step).action)
        if action.dtype.is_floating and hasattr(action_spec, "minimum"):
            action = tf.clip_by_value(action, action_spec.minimum, action_spec.maximum)
        return {ACTION: action}

    inputs = [tf.TensorSpec([None, *spec.shape], spec.dtype, path_name(path, "observation")) for path, spec in fields]
    return tf.function(act, autograph=False), inputs


def _require_convertible(policy: SavedPolicy, saved_model: Path) -> None:
    """Raises `ValueError` for a policy that is not a function from observations to a single array of actions."""
    import tensorflow as tf

    problems = {
        "has a state": tf.nest.flatten(policy.get_initial_state(1)),
        f"was saved for batches of {policy.batch_size}": policy.batch_size is not None,
        "returns several arrays per action": len(tf.nest.flatten(policy.action_spec)) != 1,
    }
    for problem, applies in problems.items():
        if applies:
            raise ValueError(f"the policy in {saved_model} {problem}; only the format savedmodel supports this")


@contextmanager
def _conversion(format: str, saved_model: Path) -> Iterator[None]:
    """Hides the notices of converters, and raises `ValueError` if they fail, with the first line of their message."""
    try:
        with hide_warnings(), hide_native_stderr():
            yield
    except Exception as error:  # Converters raise errors of any type.
        operations = sorted(set(re.findall(r"'(tf\.\w+)' op is neither", str(error))))
        reason = str(error).splitlines()[0]
        if operations:
            reason = f"TFLite does not support {', '.join(operations)} with the policy's dtypes"
        raise ValueError(
            f"the policy in {saved_model} cannot be converted to {format} ({reason}); export it as a SavedModel, or "
            "replace these parts of the agent's policy"
        ) from error
