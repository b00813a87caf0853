"""Policies, of an agent or loaded from disk, called with batches of a fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.saved_policies import SavedPolicy


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
        self.policy, self._batch_size = policy, batch_size
        self._time_step_spec, self.action_spec = policy.time_step_spec, policy.action_spec
        self.observation_spec = self._time_step_spec.observation
        self._graph_function: Any = None

    def initial_state(self) -> Any:
        """Returns the policy state before the first step; `()` for stateless policies."""
        return self.policy.get_initial_state(batch_size=self._batch_size)

    def act(self, step_types: np.ndarray, observations: Sequence[np.ndarray], state: Any) -> tuple[np.ndarray, Any]:
        """Returns actions `[N, ...]` and the next policy state."""
        import tensorflow as tf

        tensors = [tf.constant(step_types), *map(tf.constant, observations), *tf.nest.flatten(state)]
        if self._graph_function is None:
            self._graph_function = self._trace(tensors, state)
        action, *next_state = self._graph_function(*tensors)
        return action.numpy(), tf.nest.pack_sequence_as(state, next_state)

    def _trace(self, tensors: Sequence[Any], state: Any) -> Any:
        """Returns a function of flat tensors, which is several times as fast to call as one of nests."""
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

        # Like TF-Agents' own `common.function`, which does not convert policies either.
        return tf.function(act, autograph=False).get_concrete_function(*map(tf.TensorSpec.from_tensor, tensors))
