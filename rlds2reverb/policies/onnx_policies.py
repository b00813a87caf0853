"""Policies in ONNX files: loaded, and called with arrays, by onnxruntime instead of TensorFlow."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.system.installation import install_command
from rlds2reverb.types.short_repr import short_repr
from rlds2reverb.types.specs import ArraySpec, Nest, leaves, map_structure, numpy_dtype_of, path_name

from .policy_inputs import read_batch, replace_target_return, require_stateless, take_rows

#: Name of the graph's first output, and prefix of the others: the names of the state's inputs follow it.
ACTION, NEXT = "action", "next_"
#: Names of the entries of the file's metadata.
_OBSERVATION_SPEC, _ACTION_SPEC, _STATE_SPEC = "observation_spec", "action_spec", "state_spec"
_TRAIN_STEP, _INITIAL = "train_step", "initial"
#: A key in the name of an input such as `observation['images']['front']`.
_KEYS = re.compile(r"\[('[^']*'|\d+)\]")
#: Parts of a time step, besides the observation, that are inputs of the graph if the policy has a state.
_STEP_DTYPES = {"step_type": np.int32, "reward": np.float32, "discount": np.float32}


def is_onnx_file(path: str | Path) -> bool:
    """Returns whether a path is that of a file, or has the suffix of one."""
    return Path(path).suffix == ".onnx" or Path(path).is_file()


def make_metadata(observation_spec: Nest, action_spec: Any, initial_state: Nest, train_step: int) -> dict[str, str]:
    """Returns the metadata that `OnnxPolicy` reads: the specs as JSON, and the number of updates.

    Args:
      observation_spec: nest of specs, without the batch axis. The name of a field is that of its input in the graph.
      action_spec: spec of the only action.
      initial_state: nest of arrays, without the batch axis: the policy state before the first step.
      train_step: number of updates; -1 if unknown.
    """
    fields, state = (
        [{"name": path_name(path, root), "path": path, **_describe_array(spec)} for path, spec in leaves(nest)]
        for root, nest in (("observation", observation_spec), ("state", initial_state))
    )
    described = {_OBSERVATION_SPEC: fields, _ACTION_SPEC: _describe_array(action_spec), _STATE_SPEC: state}
    return {name: json.dumps(value) for name, value in {**described, _TRAIN_STEP: train_step}.items()}


def describe_policy(
    path: str | Path, *, action_bounds: tuple[Any, Any] | None = None, train_step: int = -1, **metadata: str
) -> None:
    """Adds to an ONNX file of any program what `load_policy` reads from its metadata.

        torch.onnx.export(policy, (observation,), path, input_names=["observation"], output_names=["action"],
                          dynamic_axes={"observation": {0: "batch"}, "action": {0: "batch"}}, dynamo=False)
        describe_policy(path, action_bounds=(-2, 2))

    The inputs are `observation`, or the fields of a nested one such as `observation['images']['front']`; the first
    output is `action`. All of them have a batch axis, and the environment's units.

    Args:
      path: the file.
      action_bounds: minimum and maximum of actions, numbers or arrays; None if unknown.
      train_step: number of updates.
      **metadata: further entries, such as `algorithm`.

    Raises:
      ImportError: If onnx is not installed.
      ValueError: If an input or output has a different name, or a shape that is not fixed apart from the batch.
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError(f"ONNX files are described by onnx ({error}); run {install_command('onnx')}") from error
    model, session = onnx.load(str(path)), _open_session(path)
    inputs = {value.name: _read_value(value, path) for value in session.get_inputs()}
    fields = {tuple(ast.literal_eval(part) for part in _KEYS.findall(name)): spec for name, spec in inputs.items()}
    names = [path_name(keys, "observation") for keys in fields]
    output = session.get_outputs()[0]
    if names != list(inputs) or output.name != ACTION:
        raise ValueError(
            f"{path} must have inputs 'observation' or \"observation['name']\" and the output 'action', got "
            f"{', '.join(inputs)} and {output.name}"
        )
    action = _read_value(output, path)
    if action_bounds is not None:
        shape = tuple(size or 0 for size in action.shape)
        low, high = (np.broadcast_to(np.asarray(bound, action.dtype), shape) for bound in action_bounds)
        action = ArraySpec(action.shape, action.dtype, minimum=low, maximum=high)
    onnx.helper.set_model_props(model, {**metadata, **make_metadata(_nest(fields), action, (), train_step)})
    onnx.save(model, str(path))


def _read_value(value: Any, path: str | Path) -> ArraySpec:
    """Returns the spec of an input or output of a graph, without its batch axis."""
    kind = re.fullmatch(r"tensor\((\w+)\)", value.type)
    if kind is None or kind[1] == "string" or not all(isinstance(size, int) for size in value.shape[1:]):
        raise ValueError(f"{path}: {value.name!r} must be numbers of a fixed shape, got {value.type} {value.shape}")
    if not value.shape or isinstance(value.shape[0], int):
        raise ValueError(f"{path}: {value.name!r} must have a batch axis of any size first, got {value.shape}")
    names = {"float": "float32", "double": "float64", "float16": "float16"}
    return ArraySpec(tuple(value.shape[1:]), np.dtype(names.get(kind[1], kind[1])))


class PolicyStep(NamedTuple):
    """The actions and the next state of a policy for time steps, with the fields of TF-Agents' `PolicyStep`.

    Attributes:
      action: array `[B, ...]`.
      state: nest of arrays `[B, ...]`, the next policy state.
      info: always `()`.
    """

    action: np.ndarray
    state: Nest
    info: Nest = ()

    def __repr__(self) -> str:
        return short_repr(self)


class OnnxPolicy:
    """A policy loaded from an ONNX file, for `predict`, `Evaluator`, `record_episodes` and `record_film`.

    Attributes:
      observation_spec: nest of `ArraySpec`s in dicts, in which the indices of a tuple are keys as well.
      action_spec: `ArraySpec` of the action, with its bounds if they are finite.
      state_spec: nest of `ArraySpec`s of the policy state, as that of observations; `()` for policies without a state.
      target_return: see `SavedPolicy`.
      metadata: all metadata of the file by name, such as 'algorithm'.
    """

    def __init__(self, path: str | Path):
        """Loads a file; see `load_policy`.

        Raises:
          ImportError: If onnxruntime is not installed.
          ValueError: If there is no such file, or `Run.export_policy` did not write it.
        """
        self._session = _open_session(path)
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        missing = {_OBSERVATION_SPEC, _ACTION_SPEC, _STATE_SPEC, _TRAIN_STEP} - self.metadata.keys()
        if missing:
            raise ValueError(
                f"{path} must be written by Run.export_policy or rlds2reverb export, but its metadata do not contain "
                f"{', '.join(sorted(missing))}; call describe_policy for files of other programs"
            )
        self.action_spec = _read_array(json.loads(self.metadata[_ACTION_SPEC]))
        fields, state = (json.loads(self.metadata[name]) for name in (_OBSERVATION_SPEC, _STATE_SPEC))
        self.observation_spec, self.state_spec = (
            _nest({tuple(field["path"]): _read_array(field) for field in described}) for described in (fields, state)
        )
        self._initial_state = _nest({tuple(part["path"]): np.array(part[_INITIAL], part["dtype"]) for part in state})
        self.target_return: float | None = None
        self._leaves, self._state_paths = leaves(self.observation_spec), [path for path, _ in leaves(self.state_spec)]
        self._fields = leaves({"observation": self.observation_spec})
        if self._state_paths:
            step = [((name,), ArraySpec((), np.dtype(dtype))) for name, dtype in _STEP_DTYPES.items()]
            self._fields += [*step, *leaves({"state": self.state_spec})]

    def predict(self, observations: Nest) -> np.ndarray:
        """Returns the actions for one observation or a batch of them; see `SavedPolicy.predict`.

        Raises:
          SpecMismatchError: If a field is missing, or has a different shape or kind; the message names it.
          ValueError: If a value is not finite or not representable, or if the policy has a state.
        """
        require_stateless(self.state_spec)
        arrays, size = read_batch(observations, self._leaves, "observation")
        rows: np.ndarray = take_rows(self._run(arrays)[0], size)
        return rows

    def action(self, time_step: Any, policy_state: Nest = ()) -> Any:
        """Returns the `PolicyStep` for time steps, or the same as `predict` for observations.

            time_step, state = env.reset(), policy.get_initial_state()  # env of rlds2reverb.envs.create_environment
            while not time_step.is_last():
                action, state, _ = policy.action(time_step, state)
                time_step = env.step(action)

        Args:
          time_step: TF-Agents' `TimeStep`, that of `rlds2reverb.envs`, or any object with these attributes, for one
            environment or a batch of them; or observations.
          policy_state: state returned by the last step or by `get_initial_state`, with a batch axis if the time step
            has one.

        Raises:
          SpecMismatchError, ValueError: As `predict`, for any part of the time step and the state.
        """
        if not all(hasattr(time_step, name) for name in _STEP_DTYPES):
            return self.predict(time_step)
        values = {name: getattr(time_step, name) for name in (*_STEP_DTYPES, "observation")}
        arrays, size = read_batch({**values, "state": policy_state}, self._fields, "input")
        actions, state = self._run(arrays)
        return PolicyStep(take_rows(actions, size), map_structure(lambda leaf: take_rows(leaf, size), state))

    def get_initial_state(self, batch_size: int | None = None) -> Nest:
        """Returns the policy state before the first step; see `SavedPolicy.get_initial_state`.

        Args:
          batch_size: number of rows; None for a state without a batch axis.

        Raises:
          ArgumentError: If there is a `target_return`, but the state does not contain it.
        """
        rows = () if batch_size is None else (batch_size,)
        state = map_structure(lambda leaf: np.broadcast_to(leaf, (*rows, *leaf.shape)).copy(), self._initial_state)
        return replace_target_return(state, self.target_return)

    def act(
        self, observations: Sequence[np.ndarray], step: Sequence[Any] = (), state: Nest = ()
    ) -> tuple[np.ndarray, Nest]:
        """Returns the actions `[B, ...]` and the next policy state.

        Args:
          observations: fields `[B, ...]` of the observations, in the order of their paths.
          step: step types, rewards and discounts `[B]`; ignored by policies without a state.
          state: nest of arrays `[B, ...]`, the policy state.
        """
        columns = [*observations]
        if self._state_paths:
            columns += [np.asarray(part, dtype) for part, dtype in zip(step, _STEP_DTYPES.values(), strict=True)]
            columns += [leaf for _, leaf in leaves(state)]
        return self._run(columns)

    def _run(self, columns: Sequence[np.ndarray]) -> tuple[np.ndarray, Nest]:
        """Returns the actions and the next state for the inputs of the graph, in the order of `_fields`."""
        inputs = [path_name(path[1:], path[0]) for path, _ in self._fields]
        outputs = [ACTION, *(NEXT + path_name(path, "state") for path in self._state_paths)]
        actions, *states = self._session.run(outputs, dict(zip(inputs, columns, strict=True)))
        return np.asarray(actions), _nest(dict(zip(self._state_paths, states, strict=True)))

    def get_train_step(self) -> int:
        """Returns the number of updates after which the policy was saved; -1 if unknown."""
        return int(self.metadata[_TRAIN_STEP])


def _open_session(path: str | Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(f"ONNX files require onnxruntime ({error}); run {install_command('onnxruntime')}") from error
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}; write one with Run.export_policy or rlds2reverb export")
    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # The errors of onnxruntime have no other base class.
        raise ValueError(f"{path} is not a valid ONNX file ({str(error).splitlines()[0]})") from error


def _describe_array(spec: Any) -> dict[str, Any]:
    """Returns a spec as JSON values, without bounds that are not finite; or an array, with its values as 'initial'."""
    described = {"dtype": numpy_dtype_of(spec).name, "shape": list(spec.shape)}
    bounds = {name: getattr(spec, name, None) for name in ("minimum", "maximum")}
    if all(bound is not None and np.isfinite(bound).all() for bound in bounds.values()):
        described |= {name: np.asarray(bound).tolist() for name, bound in bounds.items()}
    return described | ({_INITIAL: spec.tolist()} if isinstance(spec, np.ndarray) else {})


def _read_array(described: dict[str, Any]) -> ArraySpec:
    dtype = np.dtype(described["dtype"])
    bounds = {name: np.asarray(described[name], dtype) for name in ("minimum", "maximum") if name in described}
    return ArraySpec(tuple(described["shape"]), dtype, **bounds)


def _nest(fields: Mapping[tuple[Any, ...], Any]) -> Nest:
    """Returns the nest of dicts in which each leaf has its path; the leaf itself for the empty path, `()` for none."""
    if not fields or () in fields:
        return fields.get((), ())
    nest: dict[Any, Any] = {}
    for path, leaf in fields.items():
        nest.setdefault(path[0], {})[path[1:]] = leaf
    return {key: _nest(inner) for key, inner in nest.items()}
