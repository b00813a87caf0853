"""A policy in batches: saved ones are loaded, and called as those of an agent are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SpecMismatchError


def load_policy(path: str | Path) -> Any:
    """Returns a policy that TF-Agents' `PolicySaver` saved, for `Evaluator.evaluate`.

    Args:
      path: directory of the SavedModel.

    Raises:
      ValueError: if there is no SavedModel, or if it is not one of a policy.
    """
    import tensorflow as tf

    try:
        policy = tf.saved_model.load(str(path))
    except OSError as error:
        raise ValueError(f"{path} has no SavedModel of a policy ({str(error).splitlines()[0]})") from error
    if not hasattr(policy, "action") or not hasattr(policy, "get_initial_state"):
        raise ValueError(f"{path} is a SavedModel, but not of a policy; expected one that PolicySaver saved")
    return policy


class BatchedPolicy:
    """A policy with its specs, called with a batch of a fixed size: one of an agent, or one that was loaded."""

    def __init__(self, policy: Any, batch_size: int):
        """Nothing is traced yet.

        Args:
          policy: a TF-Agents `TFPolicy`, or what `load_policy` returns.
          batch_size: rows of a call.

        Raises:
          TypeError: if it is not a policy.
          SpecMismatchError: if it was saved for batches of another size.
        """
        import tensorflow as tf

        self.policy, self._batch_size = policy, batch_size
        self._is_saved_for_one_size = False
        if hasattr(policy, "time_step_spec"):
            self._time_step_spec, self.action_spec = policy.time_step_spec, policy.action_spec
        else:
            time_step, self.action_spec = _saved_specs(policy, batch_size)
            self._is_saved_for_one_size = time_step.step_type.shape[0] is not None
            self._time_step_spec = tf.nest.map_structure(_without_batch, time_step)
        self.observation_spec = self._time_step_spec.observation
        self._function: Any = None

    def initial_state(self) -> Any:
        """Returns the state of the policy before the first step; `()` of most."""
        if self._is_saved_for_one_size:
            return self.policy.get_initial_state()
        return self.policy.get_initial_state(batch_size=self._batch_size)

    def act(self, step_types: np.ndarray, observations: Sequence[np.ndarray], state: Any) -> tuple[np.ndarray, Any]:
        """Returns actions `[N, ...]` and the next state of the policy."""
        import tensorflow as tf

        tensors = [tf.constant(step_types), *map(tf.constant, observations), *tf.nest.flatten(state)]
        if self._function is None:
            self._function = self._traced(tensors, state)
        action, *next_state = self._function(*tensors)
        return action.numpy(), tf.nest.pack_sequence_as(state, next_state)

    def _traced(self, tensors: Sequence[Any], state: Any) -> Any:
        """Returns a function of flat tensors, which is called several times as fast as one of nests."""
        import tensorflow as tf

        spec, batch_size = self._time_step_spec, self._batch_size
        num_observations = len(tf.nest.flatten(spec.observation))

        def act(step_type: Any, *others: Any) -> list[Any]:
            time_step = spec._replace(
                step_type=step_type,
                reward=tf.zeros((batch_size, *spec.reward.shape), spec.reward.dtype),
                discount=tf.ones((batch_size, *spec.discount.shape), spec.discount.dtype),
                observation=tf.nest.pack_sequence_as(spec.observation, others[:num_observations]),
            )
            step = self.policy.action(time_step, tf.nest.pack_sequence_as(state, others[num_observations:]))
            return [step.action, *tf.nest.flatten(step.state)]

        return tf.function(act).get_concrete_function(*map(tf.TensorSpec.from_tensor, tensors))


def _saved_specs(policy: Any, batch_size: int) -> tuple[Any, Any]:
    """Returns the specs of batches of time steps, and of one action, of a policy that was loaded."""
    import tensorflow as tf

    functions = getattr(getattr(policy, "action", None), "concrete_functions", None)
    if not functions or not hasattr(policy, "get_initial_state"):
        raise TypeError(
            f"{type(policy).__name__} is not a policy, expected a TF-Agents TFPolicy or a SavedModel of PolicySaver"
        )
    time_step = functions[0].structured_input_signature[0][0]
    saved_for = time_step.step_type.shape[0]
    if saved_for not in (None, batch_size):
        raise SpecMismatchError(
            f"the policy was saved for batches of {saved_for}, expected any size or {batch_size}; save it with "
            f"PolicySaver(policy, batch_size=None), or evaluate {saved_for} episodes"
        )
    return time_step, tf.nest.map_structure(_without_batch, functions[0].structured_outputs.action)


def _without_batch(spec: Any) -> Any:
    import tensorflow as tf

    return tf.TensorSpec(spec.shape[1:], spec.dtype)
