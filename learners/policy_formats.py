"""Files of policies for other programs: SavedModels, ONNX and TFLite."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from rlds2reverb.datasets.writers.atomic_output import atomic_output
from rlds2reverb.errors import ArgumentError
from rlds2reverb.policies.onnx_policies import ACTION, NEXT, OnnxPolicy, is_onnx_file, make_metadata
from rlds2reverb.policies.saved_policies import SavedPolicy, load_saved_model
from rlds2reverb.system.installation import install_command
from rlds2reverb.system.logs import hide_native_stderr
from rlds2reverb.types.arguments import require_one_of
from rlds2reverb.types.locations import expand_path
from rlds2reverb.types.nest_paths import make_ascii_names
from rlds2reverb.types.specs import leaves, path_name

from .policy_export import hide_warnings

PolicyFormat = Literal["savedmodel", "onnx", "tflite"]
#: Formats of files by their suffix.
_FORMATS: dict[str, PolicyFormat] = {".onnx": "onnx", ".tflite": "tflite"}
#: Version of ONNX's operations: that of 2022, which old runtimes support as well.
_OPSET = 17


def write_policy(
    saved_model: Path, path: str | Path, format: PolicyFormat | None = None, metadata: Mapping[str, str] | None = None
) -> Path:
    """Converts the SavedModel of a policy, or copies the ONNX file of one; see `Run.export_policy`.

    Args:
      saved_model: directory of the SavedModel, or ONNX file.
      path: file or, for the format savedmodel, directory to create.
      format: format of the file; None to follow the suffix of the path; an unknown one is an error.
      metadata: entries of an ONNX file's metadata in addition to the specs; None for none.
    """
    path = expand_path(path, "path")
    if format is None and re.fullmatch(r"\.[A-Za-z]\w*", path.suffix) and path.suffix not in _FORMATS:
        raise ArgumentError(
            f"must end with {' or '.join(_FORMATS)}, or have no suffix (SavedModel), got '{path}'; or set its format",
            about="path",
            format=...,
        )
    format = format or _FORMATS.get(path.suffix, "savedmodel")
    require_one_of("format", format, get_args(PolicyFormat))
    if is_onnx_file(saved_model) and format != "onnx":
        raise ArgumentError(f"must be 'onnx' for {saved_model}, which is an ONNX file already", about="format")
    with atomic_output(path) as partial:
        if is_onnx_file(saved_model):
            shutil.copyfile(saved_model, partial)
        elif format == "savedmodel":
            shutil.copytree(saved_model, partial)
        elif format == "onnx":
            partial.write_bytes(_convert_to_onnx(saved_model, metadata or {}))
            _require_runs(partial, saved_model)
        else:
            partial.write_bytes(_convert_to_tflite(saved_model))
    return path


def _convert_to_onnx(saved_model: Path, metadata: Mapping[str, str]) -> bytes:
    try:
        import onnx
        import onnxruntime  # noqa: F401
        import tf2onnx
    except ImportError as error:
        raise ImportError(f"the format onnx requires tf2onnx ({error}); run {install_command('onnx')}") from error
    import tensorflow as tf

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
    initial_state = tf.nest.map_structure(lambda leaf: np.asarray(leaf[0]), policy.get_initial_state(1))
    specs = make_metadata(policy.time_step_spec.observation, policy.action_spec, initial_state, policy.get_train_step())
    onnx.helper.set_model_props(model, {**metadata, **specs})
    return bytes(model.SerializeToString())


def _require_runs(path: Path, saved_model: Path) -> None:
    """Raises `ValueError` unless onnxruntime loads a file, and computes actions for a batch."""
    with _conversion("ONNX", saved_model):
        policy = OnnxPolicy(path)
        observations = [np.zeros((2, *spec.shape), spec.dtype) for _, spec in leaves(policy.observation_spec)]
        policy.act(observations, [np.zeros(2)] * 3, policy.get_initial_state(2))


def _convert_to_tflite(saved_model: Path) -> bytes:
    import tensorflow as tf

    policy = load_saved_model(saved_model)
    function, inputs = _make_function(policy, saved_model, _name_in_tflite)
    states = _name_in_tflite(policy.state_spec, "state")

    def get_initial_state(batch_size: tf.Tensor) -> dict[str, tf.Tensor]:
        return dict(zip(states, tf.nest.flatten(policy.get_initial_state(batch_size)), strict=True))

    with _conversion("TFLite", saved_model):
        module, concrete = tf.Module(), [function.get_concrete_function(*inputs)]
        module.captured = concrete[0].variables  # Without them, the file would have no signature.
        if states:
            initial = tf.function(get_initial_state, autograph=False)
            concrete.append(initial.get_concrete_function(tf.TensorSpec([], tf.int32, "batch_size")))
        return bytes(tf.lite.TFLiteConverter.from_concrete_functions(concrete, module).convert())


def _name_as_code(nest: Any, root: str) -> list[str]:
    return [path_name(path, root) for path, _ in leaves(nest)]


def _name_in_tflite(nest: Any, root: str) -> list[str]:
    return [re.sub(r"\W", "_", name) for name in make_ascii_names([(root, *path) for path, _ in leaves(nest)])]


def _make_function(
    policy: SavedPolicy, saved_model: Path, name: Callable[[Any, str], list[str]] = _name_as_code
) -> tuple[Any, list[Any]]:
    """Returns a function of the fields of a batch of observations, or of time steps and states if there are states.

    Actions are clipped to their bounds, as `SavedPolicy.predict` does. For policies without a state, time steps are
    neither first nor last ones.

    Args:
      policy: the policy.
      saved_model: its directory, for messages.
      name: function from a nest of fields and what it is, such as 'observation', to the names of the fields.

    Returns:
      The `tf.function`, whose outputs are the actions and the fields of the next state by name, and TensorSpecs
      `[None, ...]` of its inputs with their names.

    Raises:
      ValueError: If the policy is not a function of batches of any size to a single array of actions.
    """
    import tensorflow as tf

    problem = "" if policy.batch_size is None else f"was saved for batches of {policy.batch_size}"
    if len(tf.nest.flatten(policy.action_spec)) != 1:
        problem = problem or "returns several arrays per action"
    if problem:
        raise ValueError(f"the policy in {saved_model} {problem}; only the format savedmodel supports this")
    first, action_spec = policy.time_step_spec, tf.nest.flatten(policy.action_spec)[0]
    observations, states = (
        [
            tf.TensorSpec([None, *leaf.shape], leaf.dtype, field)
            for (_, leaf), field in zip(leaves(nest), name(nest, root), strict=True)
        ]
        for root, nest in (("observation", first.observation), ("state", policy.state_spec))
    )
    steps = [
        tf.TensorSpec([None, *spec.shape], spec.dtype, field)
        for field, spec in zip(first._fields[:3], first[:3], strict=True)
    ]
    groups = (observations, steps if states else [], states)

    def action(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        rows, remaining = tf.shape(inputs[0])[:1], iter(inputs)
        observation, step, state = ([next(remaining) for _ in group] for group in groups)
        step = step or [
            tf.fill(tf.concat([rows, spec.shape[1:]], 0), tf.constant(value, spec.dtype))
            for spec, value in zip(steps, (1, 0, 1), strict=True)
        ]
        time_step = type(first)(*step, tf.nest.pack_sequence_as(first.observation, observation))
        taken = policy.action(time_step, tf.nest.pack_sequence_as(policy.state_spec, state))
        (actions,) = tf.nest.flatten(taken.action)
        if actions.dtype.is_floating and hasattr(action_spec, "minimum"):
            actions = tf.clip_by_value(actions, action_spec.minimum, action_spec.maximum)
        names = [NEXT + spec.name for spec in states]
        return {ACTION: actions, **dict(zip(names, tf.nest.flatten(taken.state), strict=True))}

    return tf.function(action, autograph=False), [spec for group in groups for spec in group]


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
