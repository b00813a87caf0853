"""Policies that predict chunks of actions, and execute them one by one."""

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, time_step

from .policies import WrappedPolicy


class ChunkPolicy(WrappedPolicy):
    """A policy that executes the first actions of a chunk without looking at the observations between them.

    Zhao et al. (2023), "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", section 4; Li, Zhou &
    Levine (2025), "Reinforcement Learning with Action Chunking", arXiv:2507.07969, section 4. The policy state contains
    the chunk and the number of its actions that are left to execute. A new chunk is predicted if none is left, and in
    the first step of an episode.
    """

    def __init__(self, policy: tf_policy.TFPolicy, action_spec: Any, execution_horizon: int) -> None:
        """Sets the policy.

        Args:
          policy: stateless policy, whose action is a chunk: the next actions, concatenated.
          action_spec: BoundedTensorSpec [A] of a single action.
          execution_horizon: number of actions of a chunk to execute, at most its length.
        """
        chunk = tf.TensorSpec([execution_horizon, *action_spec.shape], action_spec.dtype, "chunk")
        state = {"chunk": chunk, "num_left": tf.TensorSpec([], tf.int32, "num_left")}
        super().__init__(policy, policy.time_step_spec, action_spec, state)
        self._horizon = execution_horizon

    def _action(self, time_step: time_step.TimeStep, policy_state: Any, seed: Any = None) -> policy_step.PolicyStep:
        (predicted,) = tf.nest.flatten(self.wrapped.action(time_step, (), seed).action)
        predicted = tf.reshape(predicted, [tf.shape(predicted)[0], -1, *self.action_spec.shape])
        chunk, num_left = policy_state["chunk"], policy_state["num_left"]
        is_done = tf.equal(num_left, 0) | time_step.is_first()
        chunk = tf.where(is_done[:, None, None], predicted[:, : self._horizon], chunk)
        num_left = tf.where(is_done, self._horizon, num_left)
        action = tf.gather(chunk, self._horizon - num_left, batch_dims=1)
        return policy_step.PolicyStep(action, {"chunk": chunk, "num_left": num_left - 1}, ())


def make_chunk_spec(action_spec: Any, length: int) -> tensor_spec.BoundedTensorSpec:
    """Returns the spec of chunks, [length * A], of actions with the BoundedTensorSpec [A]."""
    low, high = (
        np.tile(np.broadcast_to(bound, action_spec.shape), length)
        for bound in (action_spec.minimum, action_spec.maximum)
    )
    return tensor_spec.BoundedTensorSpec([len(low)], action_spec.dtype, low, high, name=action_spec.name)


def execute_chunks(agent: tf_agent.TFAgent, action_spec: Any, execution_horizon: int) -> None:
    """Replaces the policies of an agent of chunks, see `make_chunk_spec`, by those of single actions.

    Args:
      agent: the agent, whose policies are stateless.
      action_spec: BoundedTensorSpec [A] of a single action.
      execution_horizon: see `ChunkPolicy`.
    """
    for name in ("_policy", "_collect_policy"):
        setattr(agent, name, ChunkPolicy(getattr(agent, name), action_spec, execution_horizon))
