"""Policies, of an agent or loaded from disk, called with batches of a fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.specs import ArraySpec

from .onnx_policies import OnnxPolicy
from .saved_policies import SavedPolicy


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
        self.policy, self._batch_size = policy, batch_size
        self._graph_function: Any = None
        self._is_onnx = isinstance(policy, OnnxPolicy)
        if self._is_onnx:
            self.observation_spec, self.action_spec = policy.observation_spec, policy.action_spec
            self.reward_spec: Any = ArraySpec((), np.dtype(np.float32))
            return
        if not hasattr(policy, "time_step_spec") or not hasattr(policy, "get_initial_state"):
            raise TypeError(
                f"policy must be a TF-Agents TFPolicy or the return value of load_policy, got a {type(policy).__name__}"
            )
        saved_size = policy.batch_size if isinstance(policy, SavedPolicy) else None
        if saved_size not in (None, batch_size):
            raise SpecMismatchError(
                f"the policy was saved for batches of {saved_size}, but {batch_size} episodes are evaluated; save it "
                f"with PolicySaver(policy, batch_size=None), or evaluate {saved_size} episodes"
            )
        self._time_step_spec, self.action_spec = policy.time_step_spec, policy.action_spec
        self.observation_spec, self.reward_spec = self._time_step_spec.observation, self._time_step_spec.reward

    def initial_state(self) -> Any:
        """Returns the policy state before the first step; `()` for stateless policies."""
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
        if self._is_onnx:
            return self.policy.act(observations, (step_types, rewards, discounts), state)
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
