"""Policies of absolute actions, from agents that learned actions relative to a part of the observation."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, time_step

from rlds2reverb.types.nest_paths import get_part

from .policies import WrappedPolicy


class AbsolutePolicy(WrappedPolicy):
    """A policy that undoes the operations `delta` and `absolute` of a mapping on actions.

    In each step, the state of the observation in that step is added to the action, or subtracted. Actions of a chunk
    are therefore relative to the step in which they are executed, as in the dataset. The result is clipped to the
    bounds of absolute actions, if they are known.
    """

    def __init__(self, policy: tf_policy.TFPolicy, changes: Sequence[Mapping[str, Any]]) -> None:
        """Sets the policy.

        Args:
          policy: policy of relative actions.
          changes: changes of the mapping, in order: the keys of the 'state' in a step, the indices of the 'elements',
            and the 'sign' with which the state was added. The first one has the 'bounds' of the actions before it, a
            minimum and a maximum, if they are known.
        """
        spec, self._bounds = policy.action_spec, changes[0].get("bounds")
        action_spec = tf.TensorSpec(spec.shape, spec.dtype, spec.name)  # The bounds are those of relative actions.
        if self._bounds is not None:
            action_spec = tensor_spec.BoundedTensorSpec(spec.shape, spec.dtype, *self._bounds, name=spec.name)
        super().__init__(policy, policy.time_step_spec, action_spec, policy.policy_state_spec)
        self._changes = changes

    def _action(self, time_step: time_step.TimeStep, policy_state: Any, seed: Any = None) -> policy_step.PolicyStep:
        step = self.wrapped.action(time_step, policy_state, seed)
        action, size = step.action, step.action.shape[-1]
        for change in reversed(self._changes):
            state = tf.cast(get_part(time_step.observation, change["state"][1:]), action.dtype)
            kept = state[:, : max(change["elements"]) + 1]
            padded = tf.pad(kept, [[0, 0], [0, size - kept.shape[1]]])
            is_changed = tf.reduce_sum(tf.one_hot(change["elements"], size, dtype=action.dtype), axis=0)
            action -= change["sign"] * is_changed * padded
        if self._bounds is not None:
            low, high = (tf.constant(end, action.dtype) for end in self._bounds)
            action = tf.clip_by_value(action, low, high)
        return step._replace(action=action)


def make_policies_absolute(agent: tf_agent.TFAgent, changes: Sequence[Mapping[str, Any]]) -> None:
    """Replaces the policies of an agent that learned relative actions; see `AbsolutePolicy`."""
    for name in ("_policy", "_collect_policy") if changes else ():
        setattr(agent, name, AbsolutePolicy(getattr(agent, name), changes))
