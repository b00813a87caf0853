"""Policies that were saved to disk: loaded, and called with arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.specs import Nest, leaves

from .onnx_policies import OnnxPolicy, is_onnx_file
from .policy_inputs import list_fields, read_batch, replace_target_return, require_stateless, take_rows

#: Folder of the last policy in the directory of a training run, and name of the function that estimates values.
POLICY_FOLDER, VALUES = "policy", "values"
_SAVED_MODEL = "saved_model.pb"


def load_policy(path: str | Path) -> SavedPolicy | OnnxPolicy:
    """Loads a policy that `train`, `Run.export_policy` or TF-Agents' `PolicySaver` wrote.

        action = load_policy("runs/iql").predict(observation)

    Args:
      path: directory of a training run, for its last policy; or that of a SavedModel, such as runs/iql/best_policy; or
        an ONNX file, for which onnxruntime takes the place of TensorFlow. Other programs write ONNX files as well; see
        `describe_policy`.

    Raises:
      ValueError: If there is no SavedModel, or it does not contain a policy, or the file does not describe one.
      ImportError: If the path is an ONNX file, but onnxruntime is not installed.
    """
    found = find_policy(Path(path) / POLICY_FOLDER) or Path(path)
    return OnnxPolicy(found) if is_onnx_file(found) else load_saved_model(found)


def find_policy(path: Path) -> Path | None:
    """Returns a policy in the directory of a run: a SavedModel, or the ONNX file of this name; None without either."""
    if is_saved_model(path):
        return path
    file = path.with_name(f"{path.name}.onnx")
    return file if file.is_file() else None


def is_saved_model(folder: str | Path) -> bool:
    """Returns whether a path is the directory of a SavedModel."""
    return (Path(folder) / _SAVED_MODEL).is_file()


def load_saved_model(path: str | Path) -> SavedPolicy:
    """Loads the policy of a training run or a SavedModel; see `load_policy`."""
    import tensorflow as tf
    from tf_agents.policies.policy_saver import POLICY_SPECS_PBTXT
    from tf_agents.specs import tensor_spec

    folder = Path(path) if is_saved_model(path) else Path(path) / POLICY_FOLDER
    if not is_saved_model(folder):
        raise ValueError(
            f"{path} must be the SavedModel of a policy or a training run with one in {POLICY_FOLDER}/, but does not "
            "contain a SavedModel; train writes policies when it ends or is stopped"
        )
    try:
        model = tf.saved_model.load(str(folder))
    except OSError as error:
        raise ValueError(f"{folder} is not a valid SavedModel ({str(error).splitlines()[0]})") from error
    if not (hasattr(model, "action") and (folder / POLICY_SPECS_PBTXT).is_file()):
        raise ValueError(f"{folder} must contain a policy saved by PolicySaver, got a SavedModel without a policy")
    return SavedPolicy(model, tensor_spec.from_pbtxt_file(str(folder / POLICY_SPECS_PBTXT)))


class SavedPolicy:
    """A policy loaded from disk, for `predict`, `Evaluator`, `record_episodes` and `record_film`.

    Attributes:
      time_step_spec: spec of TF-Agents' time steps, without the batch axis.
      action_spec: spec of the actions, with their bounds.
      state_spec: nest of specs of the policy state; `()` for policies without a state.
      target_return: return that episodes aim at, for policies whose state contains it (decision_transformer); None for
        the one that was saved.
      batch_size: number of rows that the policy was saved for; None for any, as `train` saves it.
    """

    def __init__(self, model: Any, specs: Mapping[str, Any]):
        """Takes what `load_policy` has read: the SavedModel, and the specs that `PolicySaver` stored next to it."""
        from tf_agents.trajectories import TimeStep

        data, self.state_spec = specs["collect_data_spec"], specs["policy_state_spec"]
        self.target_return: float | None = None
        self._model, self.action_spec = model, data.action
        self.time_step_spec = TimeStep(data.step_type, data.reward, data.discount, data.observation)
        inputs = model.action.concrete_functions[0].structured_input_signature[0]
        self.batch_size: int | None = inputs[0].step_type.shape[0]

    def predict(self, observations: Nest) -> Nest:
        """Returns the actions for one observation or a batch of them.

        Policies of the agents of rlds2reverb take the best or most likely action, or one that is sampled with a hash of
        the observation as seed (fql), so that equal observations give equal actions. Custom agents may sample.

        Args:
          observations: nest of arrays (or lists) like the observations of the environment, each with or without a
            leading batch axis `[B]`. Floats are rounded to the policy's dtype, and other values must be representable
            in it; entries of dicts that the policy does not use are ignored.

        Returns:
          Actions in the environment's units and within its bounds, with a batch axis if the observations have one;
          discrete ones are integers.

        Raises:
          SpecMismatchError: If a field is missing, or has a different shape or kind; the message names it.
          ValueError: If a value is not finite or not representable, or if the policy has a state.
        """
        import tensorflow as tf

        require_stateless(self.state_spec)
        batch, size = self._read(observations, self.time_step_spec.observation, "observation")
        num = 1 if size is None else size
        step = (  # Step type, reward and discount.
            np.full((num, *spec.shape), value, spec.dtype.as_numpy_dtype)
            for spec, value in zip(self.time_step_spec[:3], (0, 0, 1), strict=True)
        )
        actions = self.action(type(self.time_step_spec)(*step, batch)).action
        return tf.nest.map_structure(lambda leaf, spec: take_rows(_clip(leaf, spec), size), actions, self.action_spec)

    def values(self, observations: Nest, actions: Nest) -> dict[str, np.ndarray]:
        """Returns what the agent's critics estimate for one pair of observation and action, or for a batch of them.

        The estimates are discounted sums of the rewards that the agent learned from, after `reward=`, from here on.

        Args:
          observations: see `predict`.
          actions: actions in the environment's units, with a batch axis if the observations have one.

        Returns:
          float32 `[B]` by name, or numbers for a single pair: 'q' is Q(s, a), the smallest one of an agent's critics;
          'v' is V(s), which only agents have that learn it (iql, gciql) or whose policy maximises Q (dqn and its
          variants).

        Raises:
          SpecMismatchError, ValueError: As `predict`; also if there are different numbers of both, if a discrete action
            does not exist, or if the policy was saved without values, because its agent learns none.
        """
        estimate = getattr(self._model, VALUES, None)
        if estimate is None:
            raise ValueError(
                "values requires a policy that was saved with its agent's critics: bc, discrete_bc and custom "
                "agents without estimate_values have none, those of agents with a chunk_length or observation_offsets "
                "evaluate chunks and histories, and PolicySaver, the evaluator of a Ray cluster and earlier "
                "versions of rlds2reverb do not save them; continue the run, or train an agent with critics"
            )
        observation, size = self._read(observations, self.time_step_spec.observation, "observation")
        action, num_actions = self._read(actions, self.action_spec, "action")
        if num_actions != size:
            counts = ["a single row" if count is None else f"{count} rows" for count in (size, num_actions)]
            raise SpecMismatchError(f"there must be as many actions as observations, got {counts[0]} and {counts[1]}")
        found = estimate((observation, action))  # TensorFlow returns the outputs in any order.
        return {name: take_rows(np.array(found[name]), size) for name in sorted(found)}

    def action(self, time_step: Any, policy_state: Any = ()) -> Any:
        """Returns TF-Agents' `PolicyStep` for a batch of time steps, or the same as `predict` for observations.

        Raises:
          SpecMismatchError: If the time steps do not match `time_step_spec`.
        """
        if not isinstance(time_step, type(self.time_step_spec)):
            return self.predict(time_step)
        try:
            return self._model.action(time_step, policy_state)
        except ValueError as error:
            raise SpecMismatchError(
                "action requires TF-Agents' time steps with a batch of observations "
                f"{list_fields(self.time_step_spec.observation)}, got {list_fields(time_step.observation)}; use "
                "predict(observations) for arrays"
            ) from error

    def get_initial_state(self, batch_size: int | None = None) -> Any:
        """Returns the policy state before the first step of a batch; `()` for policies without a state.

        Raises:
          ArgumentError: If there is a `target_return`, but the state does not contain it.
        """
        state = self._model.get_initial_state(*(() if self.batch_size is not None else (batch_size,)))
        return replace_target_return(state, self.target_return)

    def get_train_step(self) -> int:
        """Returns the number of updates after which the policy was saved; -1 if unknown."""
        return int(self._model.get_train_step())

    def _read(self, values: Nest, spec: Nest, name: str) -> tuple[Nest, int | None]:
        """Returns a nest of arrays `[B, ...]` of the dtypes of a spec, and B; None if the values have no batch axis."""
        import tensorflow as tf

        arrays, size = read_batch(values, leaves(spec), name)
        if self.batch_size not in (None, 1 if size is None else size):
            raise SpecMismatchError(
                f"the policy was saved for batches of {self.batch_size}, got {1 if size is None else size}; save it "
                "with PolicySaver(policy, batch_size=None)"
            )
        return tf.nest.pack_sequence_as(spec, arrays), size


def _clip(action: Any, spec: Any) -> np.ndarray:
    """Returns actions `[B, ...]` as an array, without the rounding errors that exceed their bounds."""
    array = np.array(action)
    return np.clip(array, spec.minimum, spec.maximum) if hasattr(spec, "minimum") else array
