"""Policies that see earlier observations as well, which they keep in their state."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, time_step

from rlds2reverb.adders.observation_history import ObservationHistory, ObservationOffsets, PartHistory, join_steps
from rlds2reverb.errors import ArgumentError
from rlds2reverb.types import fields
from rlds2reverb.types.nest_paths import find_leaves, format_path
from rlds2reverb.types.specs import leaves

from .network_inputs import is_channels_first, is_image
from .policies import WrappedPolicy


class HistoryPolicy(WrappedPolicy):
    """A policy that passes the observations of an `ObservationHistory` to another one.

    The policy state contains the last observations of each part, the oldest first, and whether they are those of this
    episode. In the first step of an episode, its observation stands for the earlier ones.
    """

    def __init__(self, policy: tf_policy.TFPolicy, time_step_spec: Any, history: ObservationHistory) -> None:
        """Sets the policy.

        Args:
          policy: policy that sees histories.
          time_step_spec: spec of the environment's time steps.
          history: the steps that it sees.
        """
        specs = dict(_list_parts(time_step_spec.observation))
        self._earlier = {part.path: -part.offsets[0] for part in history.parts if part.offsets[0] < 0}
        state = {
            "earlier": {
                path: tf.TensorSpec([count, *specs[path].shape], specs[path].dtype, path)
                for path, count in self._earlier.items()
            },
            "is_set": tf.TensorSpec([], tf.int32, "is_set"),
            **({"policy": policy.policy_state_spec} if policy.policy_state_spec else {}),
        }
        super().__init__(policy, time_step_spec, policy.action_spec, state)
        self._parts = {part.path: part for part in history.parts}

    def _action(self, time_step: time_step.TimeStep, policy_state: Any, seed: Any = None) -> policy_step.PolicyStep:
        seen, earlier = [], {}
        is_set = tf.equal(policy_state["is_set"], 1) & ~time_step.is_first()
        for path, leaf in _list_parts(time_step.observation):
            offsets, axis = self._parts[path].offsets, self._parts[path].axis
            steps = leaf[:, None]
            if path in self._earlier:
                repeated = tf.repeat(steps, self._earlier[path], axis=1)
                kept = tf.where(_align(is_set, repeated), policy_state["earlier"][path], repeated)
                steps = tf.concat([kept, steps], axis=1)
                earlier[path] = steps[:, 1:]
            chosen = tf.gather(steps, [steps.shape[1] - 1 + offset for offset in offsets], axis=1)
            seen.append(join_steps(chosen, axis) if len(offsets) > 1 else chosen[:, 0])
        observation = tf.nest.pack_sequence_as(self.time_step_spec.observation, seen)
        step = self.wrapped.action(time_step._replace(observation=observation), policy_state.get("policy", ()), seed)
        state = {"earlier": earlier, "is_set": tf.ones_like(policy_state["is_set"])}
        return step._replace(state={**state, **({"policy": step.state} if step.state else {})})


def make_history(offsets: ObservationOffsets, observation_spec: Any, *, mask: str | None = None) -> ObservationHistory:
    """Returns the steps that a policy sees of each part of its observation.

    Args:
      offsets: offsets of all parts, or of those that a dict names by their paths, such as 'observation.camera'; the
        others are those of the step itself.
      observation_spec: spec of the environment's observation, a TensorSpec or a nest of them.
      mask: name of the field with the action mask, which always is that of the step itself.

    Raises:
      ArgumentError: If there is no such part, or the observation contains tuples.
    """
    if any(not isinstance(key, str) for path, _ in leaves(observation_spec) for key in path):
        sentence = "requires an observation that is an array or a dict of arrays, got a tuple; use a mapping"
        raise ArgumentError(sentence, about="observation_offsets")
    chosen: dict[str, Sequence[int]] = {}
    parts = dict(_list_parts(observation_spec))
    for name, given in offsets.items() if isinstance(offsets, Mapping) else [(fields.OBSERVATION, offsets)]:
        try:
            found = [format_path(keys) for keys, _ in find_leaves({fields.OBSERVATION: observation_spec}, name)]
        except ValueError as error:
            raise ArgumentError(f"must name parts of the observation: {error}", about="observation_offsets") from None
        chosen |= dict.fromkeys(found, given)
    if mask is not None:
        chosen.pop(f"{fields.OBSERVATION}.{mask}", None)
    history = [
        PartHistory(path, tuple(chosen.get(path, (0,))), 0 if is_image(spec) and is_channels_first(spec.shape) else -1)
        for path, spec in parts.items()
    ]
    return ObservationHistory(tuple(history) if any(part.offsets != (0,) for part in history) else ())


def extend_spec(time_step_spec: Any, history: ObservationHistory) -> Any:
    """Returns the spec of time steps whose observations contain histories."""
    if not history.parts:
        return time_step_spec
    parts = zip(_list_parts(time_step_spec.observation), history.parts, strict=True)
    extended = [_repeat_spec(spec, part) for (_, spec), part in parts]
    return time_step_spec._replace(observation=tf.nest.pack_sequence_as(time_step_spec.observation, extended))


def extend_statistics(statistics: Any, history: ObservationHistory) -> Any:
    """Returns statistics of observations, a nest of arrays, for observations that contain histories."""
    if not history.parts:
        return statistics
    parts = zip(_list_parts(statistics), history.parts, strict=True)
    extended = [_repeat(value, part) for (_, value), part in parts]
    return tf.nest.pack_sequence_as(statistics, extended)


def keep_histories(agent: tf_agent.TFAgent, time_step_spec: Any, history: ObservationHistory) -> None:
    """Replaces the policies of an agent that sees histories by those that make them of single observations.

    Args:
      agent: the agent.
      time_step_spec: spec of the environment's time steps.
      history: the steps that the agent sees.
    """
    for name in ("_policy", "_collect_policy") if history.parts else ():
        setattr(agent, name, HistoryPolicy(getattr(agent, name), time_step_spec, history))


def _list_parts(observation: Any) -> list[tuple[str, Any]]:
    return [(format_path(path), leaf) for path, leaf in leaves({fields.OBSERVATION: observation})]


def _repeat(value: Any, part: PartHistory) -> Any:
    """Returns an array of a step, repeated as `join_steps` joins those of several steps."""
    if len(part.offsets) == 1:
        return value
    array = np.asarray(value)
    return join_steps(np.repeat(array[None, None], len(part.offsets), axis=1), part.axis)[0]


def _repeat_spec(spec: Any, part: PartHistory) -> Any:
    shape = _repeat(np.zeros(spec.shape, bool), part).shape
    if not isinstance(spec, tensor_spec.BoundedTensorSpec):
        return tf.TensorSpec(shape, spec.dtype, spec.name)
    low, high = (_repeat(np.broadcast_to(bound, spec.shape), part) for bound in (spec.minimum, spec.maximum))
    return tensor_spec.BoundedTensorSpec(shape, spec.dtype, low, high, spec.name)


def _align(mask: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.reshape(mask, [-1, *[1] * (len(like.shape) - 1)])
