"""Policies, of an agent or loaded from disk, called with batches of a fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SpecMismatchError


def load_policy(path: str | Path) -> Any:
    """Loads a policy that TF-Agents' `PolicySaver` saved, for `Evaluator.evaluate`.

    Args:
      path: directory of the SavedModel.

    Raises:
      ValueError: If there is no SavedModel, or it does not contain a policy.
    """
    import tensorflow as tf

    try:
        policy = tf.saved_model.load(str(path))
    except OSError as error:
        raise ValueError(f"{path} does not contain a SavedModel ({str(error).splitlines()[0]})") from error
    if not hasattr(policy, "action") or not hasattr(policy, "get_initial_state"):
        raise ValueError(f"{path} must contain a policy saved by PolicySaver, got a SavedModel without a policy")
    return policy


class BatchedPolicy:
    """A policy with its specs, called with batches of a fixed size."""

    def __init__(self, policy: Any, batch_size: int):
        """Reads the specs; the policy is traced when it first acts.

        Args:
          policy: a TF-Agents `TFPolicy`, or the return value of `load_policy`.
          batch_size: number of rows in a batch.

        Raises:
          TypeError: If `policy` is not a policy.
          SpecMismatchError: If the policy was saved for a different batch size.
        """
        import tensorflow as tf

        self.policy, self._batch_size = policy, batch_size
        self._is_saved_with_batch_size = False
        if hasattr(policy, "time_step_spec"):
            self._time_step_spec, self.action_spec = policy.time_step_spec, policy.action_spec
        else:
            time_step, self.action_spec = _read_saved_specs(policy, batch_size)
            self._is_saved_with_batch_size = time_step.step_type.shape[0] is not None
            self._time_step_spec = tf.nest.map_structure(_remove_batch_axis, time_step)
        self.observation_spec, self.reward_spec = self._time_step_spec.observation, self._time_step_spec.reward
        self._graph_function: Any = None

    def initial_state(self) -> Any:
        """Returns the policy state before the first step; `()` for stateless policies."""
        if self._is_saved_with_batch_size:
            return self.policy.get_initial_state()
        return self.policy.get_initial_state(batch_size=self._batch_size)

    def act(
        self,
        step_types: np.ndarray,
        rewards: np.ndarray,
        discounts: np.ndarray,
        observations: Sequence[np.ndarray],
        *,
        state: Any,
        seed: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:
        """Returns actions `[N, ...]`, whose memory may be TensorFlow's, and the next policy state.

        Args:
          step_types: int32 `[N]`.
          rewards: `[N, ...]`.
          discounts: float `[N]`.
          observations: the leaves of the observations, arrays `[N, ...]` of the policy's dtypes.
          state: the policy state.
          seed: int32 `[2]`, for policies that accept a tensor as seed; None for TensorFlow's own seeds. Either always
            or never pass one.
        """
        import tensorflow as tf

        spec, seeds = self._time_step_spec, [] if seed is None else [seed]
        rewards, discounts = rewards.astype(spec.reward.dtype.name), discounts.astype(spec.discount.dtype.name)
        arrays = [step_types, rewards, discounts, *observations, *seeds]
        tensors = [*map(tf.constant, arrays), *tf.nest.flatten(state)]
        if self._graph_function is None:
            self._graph_function = self._trace(tensors, state, has_seed=seed is not None)
        action, *next_state = self._graph_function(*tensors)
        return action.numpy(), tf.nest.pack_sequence_as(state, next_state)

    def _trace(self, tensors: Sequence[Any], state: Any, *, has_seed: bool) -> Any:
        """Returns a function of flat tensors, which is several times as fast to call as one of nests."""
        import tensorflow as tf

        spec = self._time_step_spec
        num_observations = len(tf.nest.flatten(spec.observation))

        def act(step_type: Any, reward: Any, discount: Any, *others: Any) -> list[Any]:
            observation = tf.nest.pack_sequence_as(spec.observation, others[:num_observations])
            time_step = spec._replace(step_type=step_type, reward=reward, discount=discount, observation=observation)
            options = {"seed": others[num_observations]} if has_seed else {}
            policy_state = tf.nest.pack_sequence_as(state, others[num_observations + has_seed :])
            step = self.policy.action(time_step, policy_state, **options)
            return [*tf.nest.flatten(step.action), *tf.nest.flatten(step.state)]

        # Like TF-Agents' own `common.function`, which does not convert policies either.
        return tf.function(act, autograph=False).get_concrete_function(*map(tf.TensorSpec.from_tensor, tensors))


def _read_saved_specs(policy: Any, batch_size: int) -> tuple[Any, Any]:
    """Returns the specs of a batch of time steps and of a single action of a loaded policy."""
    import tensorflow as tf

    functions = getattr(getattr(policy, "action", None), "concrete_functions", None)
    if not functions or not hasattr(policy, "get_initial_state"):
        raise TypeError(
            f"policy must be a TF-Agents TFPolicy or a policy saved by PolicySaver, got a {type(policy).__name__}"
        )
    time_step = functions[0].structured_input_signature[0][0]
    saved_size = time_step.step_type.shape[0]
    if saved_size not in (None, batch_size):
        raise SpecMismatchError(
            f"the policy was saved for batches of {saved_size}, but {batch_size} episodes are evaluated; save it with "
            f"PolicySaver(policy, batch_size=None), or evaluate {saved_size} episodes"
        )
    return time_step, tf.nest.map_structure(_remove_batch_axis, functions[0].structured_outputs.action)


def _remove_batch_axis(spec: Any) -> Any:
    import tensorflow as tf

    return tf.TensorSpec(spec.shape[1:], spec.dtype)
