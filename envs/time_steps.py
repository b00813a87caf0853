"""Time steps: what an environment returns for each action, and their conversion to TF-Agents' and RLDS's forms.

| step type | discount | the previous value bootstraps from it | its own value is learned | meaning    |
|-----------|----------|---------------------------------------|--------------------------|------------|
| FIRST     | 1        | no                                    | yes                      | start      |
| MID       | 1        | yes                                   | yes                      |            |
| LAST      | 0        | no                                    | no                       | terminated |
| LAST      | 1        | yes                                   | no                       | timed out  |

A LAST step with `has_failed` never happened: its environment was lost, and the step stands in for the one that is
missing. The episode ended, truncated, at the observation before it. The step is no part of transitions and returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.types.short_repr import short_repr
from rlds2reverb.types.specs import ArraySpec, Nest, map_structure

from .env_specs import BoundedArraySpec, make_zeros

FIRST, MID, LAST = np.int32(0), np.int32(1), np.int32(2)
_ONE, _ZERO, _ENV_0, _FALSE = np.float32(1), np.float32(0), np.int32(0), np.bool_(False)
#: Spec of rewards that are one number.
SCALAR_REWARD = ArraySpec((), np.dtype(np.float32))


class TimeStep(NamedTuple):
    """One step of an environment, or of B environments, whose arrays then have a leading axis B.

    The names are those of ALF's `TimeStep`.

    Attributes:
      step_type: int32 []; FIRST, MID or LAST (0, 1, 2).
      reward: float32 [...], the reward of `prev_action`; zeros in the first step.
      discount: float32 [] in [0, 1]; 0 if the episode was terminated, and unchanged if it was only truncated.
      observation: nest of arrays.
      prev_action: nest of arrays, the action that led here; zeros, or the closest values in bounds, in the first step.
      env_id: int32 [], index of the environment in its batch.
      untransformed: the time step before any transformation of its observation or reward; `()` if there was none.
      env_info: nest of arrays with further values of the environment, or `()`.
      has_failed: bool [], whether the step was made up because the environment was lost, which `ParallelEnvironment`
        survives: the step is LAST, its reward 0, its observation and discount those of the last real step, and
        `prev_action` was not executed.
    """

    step_type: Any
    reward: Any
    discount: Any
    observation: Nest
    prev_action: Nest
    env_id: Any = _ENV_0
    untransformed: Any = ()
    env_info: Nest = ()
    has_failed: Any = _FALSE

    def __repr__(self) -> str:
        return short_repr(self)

    def is_first(self) -> Any:
        """Returns whether this is the first step of an episode; bool [] or [B]."""
        return self.step_type == FIRST

    def is_mid(self) -> Any:
        """Returns whether this is neither the first nor the last step of an episode; bool [] or [B]."""
        return self.step_type == MID

    def is_last(self) -> Any:
        """Returns whether this is the last step of an episode; bool [] or [B]."""
        return self.step_type == LAST

    def is_terminated(self) -> Any:
        """Returns whether the episode ended here in a terminal state; bool [] or [B]."""
        return (self.step_type == LAST) & (self.discount == 0)

    def is_truncated(self) -> Any:
        """Returns whether the episode was cut off here, for example by a time limit; bool [] or [B]."""
        return (self.step_type == LAST) & (self.discount != 0)

    def bootstraps(self) -> Any:
        """Returns whether the target of the previous value contains the value of this step; bool [] or [B]."""
        return (self.step_type != FIRST) & (self.discount != 0)

    def is_learned(self) -> Any:
        """Returns whether the value of this step is learned, for which it needs a successor; bool [] or [B]."""
        return self.step_type != LAST


#: Creates a `TimeStep` from a tuple of all its values, twice as fast as the constructor.
new_time_step: Callable[[tuple[Any, ...]], TimeStep] = functools.partial(tuple.__new__, TimeStep)


def restart(
    observation: Nest,
    action_spec: Nest,
    *,
    reward_spec: ArraySpec = SCALAR_REWARD,
    env_id: Any = _ENV_0,
    env_info: Nest = (),
    batch_size: int | None = None,
) -> TimeStep:
    """Returns the first step of an episode.

    Args:
      observation: nest of arrays, with a leading axis B in a batch.
      action_spec: nest of specs of one action.
      reward_spec: spec of one reward.
      env_id: int32 [] or [B].
      env_info: nest of arrays.
      batch_size: B; None without a batch.
    """
    leading = () if batch_size is None else (batch_size,)
    step_type, discount, has_failed = (_fill(value, leading) for value in (FIRST, _ONE, _FALSE))
    reward, action = make_zeros(reward_spec, leading)[()], make_zeros(action_spec, leading)
    return TimeStep(step_type, reward, discount, observation, action, env_id, (), env_info, has_failed)


def transition(
    observation: Nest, prev_action: Nest, reward: Any, *, discount: Any = 1.0, env_id: Any = _ENV_0, env_info: Nest = ()
) -> TimeStep:
    """Returns a step in the middle of an episode.

    Args:
      observation: nest of arrays.
      prev_action: nest of arrays, the action that led to the observation.
      reward: float [...], the reward of that action; [B, ...] in a batch, and always with the axes of the reward spec.
      discount: float [] or [B], in [0, 1].
      env_id: int32 [] or [B].
      env_info: nest of arrays.
    """
    return _make(MID, observation, prev_action, reward, discount, env_id, env_info)


def termination(
    observation: Nest, prev_action: Nest, reward: Any, *, env_id: Any = _ENV_0, env_info: Nest = ()
) -> TimeStep:
    """Returns the last step of an episode that ended in a terminal state: its discount is 0."""
    return _make(LAST, observation, prev_action, reward, 0.0, env_id, env_info)


def truncation(
    observation: Nest, prev_action: Nest, reward: Any, *, discount: Any = 1.0, env_id: Any = _ENV_0, env_info: Nest = ()
) -> TimeStep:
    """Returns the last step of an episode that was cut off: its discount stays that of the environment."""
    return _make(LAST, observation, prev_action, reward, discount, env_id, env_info)


def _make(
    step_type: Any, observation: Nest, prev_action: Nest, reward: Any, discount: Any, env_id: Any, env_info: Nest
) -> TimeStep:
    leading = np.shape(env_id)
    reward = np.array(reward, np.float32)[()]  # A scalar instead of an array without axes.
    discount = np.broadcast_to(np.float32(discount), leading).copy() if leading else np.float32(discount)
    has_failed = _fill(_FALSE, leading)
    return TimeStep(
        _fill(step_type, leading), reward, discount, observation, prev_action, env_id, (), env_info, has_failed
    )


def _fill(value: Any, leading: tuple[int, ...]) -> Any:
    return np.full(leading, value) if leading else value


def keep_untransformed(before: TimeStep, after: TimeStep) -> TimeStep:
    """Returns a transformed time step that refers to the one before the first transformation.

    Args:
      before: the time step that was transformed, possibly the result of earlier transformations.
      after: the result.
    """
    return after._replace(untransformed=before.untransformed or before)


def make_time_step_spec(
    observation_spec: Nest, action_spec: Nest, reward_spec: ArraySpec = SCALAR_REWARD, env_info_spec: Nest = ()
) -> TimeStep:
    """Returns the specs of the time steps of one environment; `untransformed` is `()`."""
    step_type = BoundedArraySpec((), np.dtype(np.int32), 0, 2)
    discount = BoundedArraySpec((), np.dtype(np.float32), 0.0, 1.0)
    env_id, has_failed = ArraySpec((), np.dtype(np.int32)), ArraySpec((), np.dtype(bool))
    return TimeStep(
        step_type, reward_spec, discount, observation_spec, action_spec, env_id, (), env_info_spec, has_failed
    )


def to_tf_agents(time_step: TimeStep) -> Any:
    """Converts a time step to TF-Agents' `TimeStep`, which has its first four fields, and thus no `has_failed`."""
    from tf_agents.trajectories import time_step as ts

    return ts.TimeStep(time_step.step_type, time_step.reward, time_step.discount, time_step.observation)


def from_tf_agents(time_step: Any, prev_action: Nest, *, env_id: Any = _ENV_0, env_info: Nest = ()) -> TimeStep:
    """Converts TF-Agents' `TimeStep`, which does not contain the previous action.

    Args:
      time_step: a `tf_agents.trajectories.TimeStep` of arrays.
      prev_action: nest of arrays, the action that led to it.
      env_id: int32 [] or [B].
      env_info: nest of arrays.
    """
    step_type, reward, discount, observation = time_step
    has_failed = _fill(_FALSE, np.shape(env_id))
    return TimeStep(step_type, reward, discount, observation, prev_action, env_id, (), env_info, has_failed)


def to_rlds_step(time_step: TimeStep, next_time_step: TimeStep | None) -> dict[str, Any]:
    """Converts a time step to an RLDS step, whose action and reward are those that follow its observation.

    Args:
      time_step: the time step, not batched.
      next_time_step: the time step that follows; None after the last step of an episode, whose action is zero. If it
        has failed, `time_step` is the last one, and truncated.

    Returns:
      A dict with the fields observation, action, reward, discount, is_first, is_last and is_terminal. The discount of a
      step is that of the next time step; that of the last step is its own.

    Raises:
      ValueError: If `next_time_step` is missing, or is the first step of an episode, before the episode has ended; or
        if `time_step` has failed, so that it is no step of the episode.
    """
    if time_step.has_failed:
        raise ValueError("time_step must be a step that happened, got one with has_failed; leave it out")
    is_last = bool(time_step.is_last() or (next_time_step is not None and next_time_step.has_failed))
    if not is_last and (next_time_step is None or bool(next_time_step.is_first())):
        raise ValueError("next_time_step must be the next step of the episode, which has not ended; pass it")
    following = None if is_last else next_time_step
    if following is None:
        zeros = map_structure(np.zeros_like, (time_step.prev_action, time_step.reward))
        following = time_step._replace(prev_action=zeros[0], reward=zeros[1])
    return {
        "observation": time_step.observation,
        "action": following.prev_action,
        "reward": following.reward,
        "discount": following.discount,
        "is_first": bool(time_step.is_first()),
        "is_last": is_last,
        "is_terminal": bool(time_step.is_terminated()),
    }
