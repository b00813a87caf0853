"""Policies in ONNX files: loaded, and called with arrays, by onnxruntime instead of TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.policy_inputs import read_batch, take_rows
from rlds2reverb.specs import ArraySpec, Nest, leaves, numpy_dtype_of, path_name

#: Names of the graph's only output, and of the entries of the file's metadata that contain the specs.
ACTION, OBSERVATION_SPEC, ACTION_SPEC = "action", "observation_spec", "action_spec"
_TRAIN_STEP = "train_step"


def is_onnx_file(path: str | Path) -> bool:
    """Returns whether a path is that of a file, or has the suffix of one."""
    return Path(path).suffix == ".onnx" or Path(path).is_file()


def make_metadata(observation_spec: Nest, action_spec: Any, train_step: int) -> dict[str, str]:
    """Returns the metadata that `OnnxPolicy` reads: the specs as JSON, and the number of updates.

    Args:
      observation_spec: nest of specs, without the batch axis. The name of a field is that of its input in the graph.
      action_spec: spec of the only action.
      train_step: number of updates; -1 if unknown.
    """
    fields = [
        {"name": path_name(path, "observation"), "path": path, **_describe_array(spec)}
        for path, spec in leaves(observation_spec)
    ]
    texts = {OBSERVATION_SPEC: json.dumps(fields), ACTION_SPEC: json.dumps(_describe_array(action_spec))}
    return texts | {_TRAIN_STEP: str(train_step)}


class OnnxPolicy:
    """A policy loaded from an ONNX file, for `predict`, `Evaluator`, `record_episodes` and `record_film`.

    Attributes:
      observation_spec: nest of `ArraySpec`s in dicts, in which the indices of a tuple are keys as well.
      action_spec: `ArraySpec` of the action, with its bounds if they are finite.
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
        missing = {OBSERVATION_SPEC, ACTION_SPEC, _TRAIN_STEP} - self.metadata.keys()
        if missing:
            raise ValueError(
                f"{path} must be written by Run.export_policy or rlds2reverb export, but its metadata do not contain "
                f"{', '.join(sorted(missing))}"
            )
        self.action_spec = _read_array(json.loads(self.metadata[ACTION_SPEC]))
        fields = json.loads(self.metadata[OBSERVATION_SPEC])
        self.observation_spec = _nest({tuple(field["path"]): _read_array(field) for field in fields})
        self._leaves = leaves(self.observation_spec)

    def predict(self, observations: Nest) -> np.ndarray:
        """Returns the actions for one observation or a batch of them; see `SavedPolicy.predict`.

        Raises:
          SpecMismatchError: If a field is missing, or has a different shape or kind; the message names it.
          ValueError: If a value is not finite or not representable.
        """
        arrays, size = read_batch(observations, self._leaves, "observation")
        rows: np.ndarray = take_rows(self.act(arrays), size)
        return rows

    #: The name of the function in a SavedModel.
    action = predict

    def act(self, observations: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the actions `[B, ...]` for the fields of observations `[B, ...]`, in the order of their paths."""
        names = [path_name(path, "observation") for path, _ in self._leaves]
        (actions,) = self._session.run([ACTION], dict(zip(names, observations, strict=True)))
        return np.asarray(actions)

    def get_train_step(self) -> int:
        """Returns the number of updates after which the policy was saved; -1 if unknown."""
        return int(self.metadata[_TRAIN_STEP])


def _open_session(path: str | Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(f'ONNX files require onnxruntime ({error}); run pip install "rlds2reverb[onnx]"') from error
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}; write one with Run.export_policy or rlds2reverb export")
    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # The errors of onnxruntime have no other base class.
        raise ValueError(f"{path} is not a valid ONNX file ({str(error).splitlines()[0]})") from error


def _describe_array(spec: Any) -> dict[str, Any]:
    """Returns a spec as JSON values; bounds that are not finite, which JSON does not have, are left out."""
    described = {"dtype": numpy_dtype_of(spec).name, "shape": list(spec.shape)}
    bounds = {name: np.asarray(getattr(spec, name, np.inf)) for name in ("minimum", "maximum")}
    if all(np.isfinite(bound).all() for bound in bounds.values()):
        described |= {name: bound.tolist() for name, bound in bounds.items()}
    return described


def _read_array(described: dict[str, Any]) -> ArraySpec:
    dtype = np.dtype(described["dtype"])
    bounds = {name: np.asarray(described[name], dtype) for name in ("minimum", "maximum") if name in described}
    return ArraySpec(tuple(described["shape"]), dtype, **bounds)


def _nest(fields: dict[tuple[Any, ...], ArraySpec]) -> Nest:
    """Returns the nest of dicts in which each spec has its path; the spec itself for the empty path."""
    if () in fields:
        return fields[()]
    nest: dict[Any, Any] = {}
    for path, spec in fields.items():
        nest.setdefault(path[0], {})[path[1:]] = spec
    return {key: _nest(inner) for key, inner in nest.items()}
