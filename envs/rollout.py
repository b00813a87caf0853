"""A policy in a batch of environments: the loop that steps them, and the episodes that its time steps form."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlds2reverb.types import fields
from rlds2reverb.types.ownership import copy_arrays
from rlds2reverb.types.specs import Nest, map_structure

from ._env_process import EnvironmentFailedError
from .batched_environment import stack
from .env_specs import read_reward
from .environment import Environment
from .time_steps import FIRST, LAST, TimeStep

#: Name of the step field with `TimeStep.env_info`.
ENV_INFO = "env_info"
#: Returns the actions `[B, ...]` for the time steps of B environments, of which some are used; the function describes
#: the step of an environment, for messages.
Act = Callable[[TimeStep, np.ndarray, Callable[[int], str]], Nest]


class Rollout:
    """A policy in B environments, as an iterator over their time steps, which does not end by itself.

    A time step that has failed never happened: it ends its episode at the last real observation, and is not counted.
    Environments get their own copies of the actions, and `prev_action` of the time steps is what the policy chose, so
    that environments may change their actions in place. It has no meaning in first steps.

    Attributes:
      is_used: bool [B], the environments whose observations and actions are checked; all unless the caller changes it.
      is_transition: bool [B], whether the last time step completed a transition: false in first and failed steps, and
        in environments that have only one episode, which has ended.
      lengths: int64 [B], number of transitions of the running episode of each environment.
      returns: float64 [B, ...], their sums of rewards.
    """

    def __init__(
        self,
        env: Environment,
        act: Act,
        *,
        name: str,
        place: str = "environment {env}, episode {episode}, step {step}",
        call: Callable[[Callable[[], TimeStep]], TimeStep] = lambda function: function(),
        survives_failures: bool = False,
    ):
        """Does not step the environments yet.

        Args:
          env: a batch of B environments.
          act: the policy; see `Act`.
          name: name of the environment, for messages.
          place: description of the step of an environment in messages, with the numbers in braces.
          call: function that calls the environments, for example in a thread with a timeout.
          survives_failures: whether the iterator continues after a step that has failed, instead of raising an error.
        """
        self._env, self._act, self._name, self._place = env, act, name, place
        self._call, self._survives_failures = call, survives_failures
        size = env.batch_size or 1
        self._reward_shape: Any = (size, *env.reward_spec().shape)
        self._episodes = np.full(size, -1)
        self._has_ended = np.ones(size, bool)  # Or not begun; the environments may reuse the arrays of time steps.
        self.is_used, self.is_transition = np.ones(size, bool), np.zeros(size, bool)
        self.lengths, self.returns = np.zeros(size, np.int64), np.zeros(self._reward_shape)
        self._time_step: TimeStep | None = None

    def __iter__(self) -> Rollout:
        return self

    def __next__(self) -> TimeStep:
        """Returns the first time steps, or those that follow the policy's next actions.

        Raises:
          EnvironmentFailedError: If a step has failed, unless the rollout survives that.
          SpecMismatchError: If the rewards do not match their spec.
          Exception: Any error of the policy or of the environments.
        """
        previous = self._time_step
        if previous is None:
            time_step = self._call(self._env.reset)
        else:
            action = self._act(previous, self.is_used, self.locate)
            time_step = self._call(functools.partial(self._env.advance, copy_arrays(action)))
            time_step = time_step._replace(prev_action=action)
        time_step = time_step._replace(has_failed=np.broadcast_to(time_step.has_failed, len(self.is_used)))
        if np.shape(time_step.reward) != self._reward_shape:
            time_step = time_step._replace(reward=read_reward(time_step.reward, self._reward_shape, self._name))
        self._count(time_step)
        self._time_step = time_step
        return time_step

    def locate(self, env: int) -> str:
        """Returns the place of the next action of an environment, for messages."""
        return self._place.format(env=env, episode=self._episodes[env], step=self.lengths[env])

    def _count(self, time_step: TimeStep) -> None:
        is_first, has_failed = time_step.step_type == FIRST, time_step.has_failed
        if has_failed.any() and not self._survives_failures:
            raise EnvironmentFailedError(
                f"{self._name} has failed ({self.locate(int(np.argmax(has_failed)))}); fix the environment"
            )
        self.is_transition = ~is_first & ~has_failed & ~self._has_ended
        self._has_ended = time_step.step_type == LAST
        self.lengths[is_first], self.returns[is_first] = 0, 0
        self._episodes += is_first
        self.lengths += self.is_transition
        self.returns[self.is_transition] += time_step.reward[self.is_transition]


class EpisodeSteps:
    """Consecutive time steps of one episode, as copies that neither policy nor environment owns.

    Attributes:
      time_steps: the time steps, not batched. The first one only counts by its observation.
      begins_episode: whether the first one is the first of the episode.
    """

    def __init__(self, time_steps: Sequence[TimeStep] = (), *, begins_episode: bool = True):
        self.time_steps, self.begins_episode = list(time_steps), begins_episode

    @property
    def num_transitions(self) -> int:
        """The number of pairs of adjacent time steps."""
        return max(len(self.time_steps) - 1, 0)

    def add(self, time_step: TimeStep) -> None:
        """Adds a copy of the next time step."""
        self.time_steps.append(copy_arrays(time_step._replace(untransformed=())))

    def drop(self, num_steps: int) -> EpisodeSteps:
        """Returns the time steps without the first `num_steps`."""
        return EpisodeSteps(self.time_steps[num_steps:], begins_episode=self.begins_episode and not num_steps)

    def to_rlds(self, *, is_complete: bool = True, has_env_info: bool = False) -> dict[str, Nest]:
        """Returns the RLDS steps, which `time_steps.to_rlds_step` defines one by one.

        Args:
          is_complete: whether the episode ends with the last time step, in a terminal state if its discount is 0, and
            otherwise truncated.
          has_env_info: whether to add the field 'env_info', whose row t belongs to observation t.
        """
        track = self.time_steps
        last, following = track[-1], track[1:]
        zeros = map_structure(np.zeros_like, {fields.ACTION: last.prev_action, fields.REWARD: last.reward})
        place = np.arange(len(track))
        is_last = (place == len(track) - 1) & is_complete
        steps = {
            fields.OBSERVATION: stack([step.observation for step in track]),
            fields.ACTION: stack([*(step.prev_action for step in following), zeros[fields.ACTION]]),
            fields.REWARD: stack([*(step.reward for step in following), zeros[fields.REWARD]]),
            fields.DISCOUNT: np.array([*(step.discount for step in following), last.discount], np.float32),
            fields.IS_FIRST: (place == 0) & self.begins_episode,
            fields.IS_LAST: is_last,
            fields.IS_TERMINAL: is_last & bool(last.is_terminated()),
        }
        return {**steps, ENV_INFO: stack([step.env_info for step in track])} if has_env_info else steps
