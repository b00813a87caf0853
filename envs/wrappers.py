"""Wrappers that change the time steps or actions of an environment. Their names are those of ALF's wrappers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.ownership import copy_arrays
from rlds2reverb.types.specs import ArraySpec, Nest

from .env_specs import BoundedArraySpec, make_zeros
from .environment import Environment, RandomWrapper, Wrapper, require_single
from .time_steps import LAST, SCALAR_REWARD, TimeStep, keep_untransformed


class ActionRepeat(Wrapper):
    """Executes each action several times, and returns the sum of the rewards.

    The repetition ends with the episode. The discount is that of the last step, so that both ends of episodes are kept.
    """

    intended_changes = frozenset({"sums_rewards"})

    def __init__(self, env: Environment, times: int):
        """Wraps an environment.

        Args:
          env: an environment that is not batched.
          times: how often each action is executed, at least 1.

        Raises:
          ValueError: If `times` is out of range.
          TypeError: If the environment is batched.
        """
        super().__init__(require_single(env, "ActionRepeat"))
        require_count("times", times)
        self._times = times

    def _step(self, action: Nest) -> TimeStep:
        time_step = self.env.advance(action)
        reward = time_step.reward
        for _ in range(self._times - 1):
            if time_step.step_type == LAST:
                break
            time_step = self.env.advance(action)
            reward = reward + time_step.reward
        return time_step._replace(reward=reward)


class NonEpisodicAgent(Wrapper):
    """Hides terminations from the agent: the discount of terminal steps becomes that of the other steps.

    Episodes still end, with LAST steps, but an agent bootstraps from all of their values. Truncated episodes do not
    change.
    """

    intended_changes = frozenset({"hides_terminations"})

    def __init__(self, env: Environment, discount: float = 1.0):
        """Wraps an environment, batched or not.

        Args:
          env: the environment.
          discount: discount that replaces 0, in (0, 1].

        Raises:
          ValueError: If the discount is out of range.
        """
        super().__init__(env)
        if not 0 < discount <= 1:
            raise ValueError(f"discount must be in (0, 1], got {discount}")
        self._discount = np.float32(discount)

    def _step(self, action: Nest) -> TimeStep:
        time_step = self.env.advance(action)
        discount = np.where(time_step.discount == 0, self._discount, time_step.discount)[()]
        return time_step._replace(discount=discount)


class RandomFirstEpisodeLength(RandomWrapper):
    """Truncates the first episodes after random numbers of steps, so that the episodes of a batch do not end together.

    The truncated step is LAST, and its discount does not change. A termination in that same step stays one.
    """

    def __init__(self, env: Environment, max_length: int, num_episodes: int = 1, *, seed: int = 0):
        """Wraps an environment.

        Args:
          env: an environment that is not batched.
          max_length: the lengths are uniform in [1, max_length].
          num_episodes: number of episodes that are truncated.
          seed: seed of the lengths; `seed(...)` replaces it.

        Raises:
          ValueError: If a number is out of range.
          TypeError: If the environment is batched.
        """
        super().__init__(require_single(env, "RandomFirstEpisodeLength"), seed)
        require_count("max_length", max_length)
        require_count("num_episodes", num_episodes)
        self._max_length, self._num_left = max_length, num_episodes
        self._num_steps = self._length = 0

    def _reset(self) -> TimeStep:
        self._num_steps = 0
        self._length = int(self._random.integers(1, self._max_length, endpoint=True)) if self._num_left else 0
        self._num_left = max(self._num_left - 1, 0)
        return self.env.reset()

    def _step(self, action: Nest) -> TimeStep:
        time_step = self.env.advance(action)
        self._num_steps += 1
        return time_step._replace(step_type=LAST) if self._num_steps == self._length else time_step


class ScalarReward(Wrapper):
    """Replaces several rewards by their weighted sum."""

    def __init__(self, env: Environment, weights: Sequence[float] | None = None):
        """Wraps an environment, batched or not, whose rewards are vectors.

        Args:
          env: the environment.
          weights: one weight per reward; None for the first reward alone.

        Raises:
          ValueError: If the number of weights is not that of the rewards.
        """
        super().__init__(env)
        if weights is None:
            weights = np.eye(1, make_zeros(env.reward_spec()).size)[0]
        self._weights = np.array(weights, np.float32)
        if self._weights.shape != env.reward_spec().shape:
            raise ValueError(
                f"weights must have one number for each reward, shape {env.reward_spec().shape}, got shape "
                f"{self._weights.shape}"
            )

    def reward_spec(self) -> ArraySpec:
        """Returns the spec of a single number."""
        return SCALAR_REWARD

    def _transform_time_step(self, time_step: TimeStep) -> TimeStep:
        reward = np.asarray(time_step.reward @ self._weights, np.float32)[()]
        return keep_untransformed(time_step, time_step._replace(reward=reward))


class ActionObservation(Wrapper):
    """Adds the previous action to the observation, which becomes `{"observation": ..., "prev_action": ...}`.

    In the first step of an episode the previous action is zero, or the closest value within the bounds.
    """

    def observation_spec(self) -> Nest:
        """Returns the specs of the observation and of the action."""
        return {"observation": self.env.observation_spec(), "prev_action": self.env.action_spec()}

    def _transform_time_step(self, time_step: TimeStep) -> TimeStep:
        observation = {"observation": time_step.observation, "prev_action": copy_arrays(time_step.prev_action)}
        return keep_untransformed(time_step, time_step._replace(observation=observation))


#: Maximum size of the table of `DiscreteAction`.
_MAX_ACTIONS = 1_000_000


class DiscreteAction(Wrapper):
    """Replaces continuous actions by integers, each of which stands for a combination of evenly spaced values."""

    def __init__(self, env: Environment, num_bins: int):
        """Wraps an environment.

        Args:
          env: an environment, batched or not, whose actions are floats [A] with finite bounds.
          num_bins: number of values per dimension, at least 2: from the lower to the upper bound. There are num_bins**A
            actions, at most a million; the last dimension changes fastest.

        Raises:
          ValueError: If there are too few bins or too many actions, or the bounds are not finite.
          TypeError: If the actions are of a different kind.
        """
        super().__init__(env)
        require_count("num_bins", num_bins, 2)
        spec: Any = env.action_spec()
        if not isinstance(spec, BoundedArraySpec) or spec.dtype.kind != "f" or len(spec.shape) != 1:
            raise TypeError(f"DiscreteAction requires actions that are floats [A], got {spec}")
        if not (np.isfinite(spec.minimum).all() and np.isfinite(spec.maximum).all()):
            raise ValueError(f"DiscreteAction requires an environment whose actions have finite bounds, got {spec}")
        if num_bins ** len(spec.minimum) > _MAX_ACTIONS:
            raise ValueError(
                f"num_bins ** A must be at most {_MAX_ACTIONS:,} actions, got {num_bins} ** {len(spec.minimum)}; use "
                "fewer bins"
            )
        values = [np.linspace(low, high, num_bins) for low, high in zip(spec.minimum, spec.maximum, strict=True)]
        self._actions = np.array(list(itertools.product(*values)), spec.dtype)

    def action_spec(self) -> BoundedArraySpec:
        """Returns the spec of an integer."""
        return BoundedArraySpec((), np.dtype(np.int64), 0, len(self._actions) - 1)

    def _reset(self) -> TimeStep:
        time_step = self.env.reset()
        return time_step._replace(prev_action=np.zeros_like(time_step.step_type, np.int64)[()])

    def _step(self, action: Nest) -> TimeStep:
        return self.env.advance(self._actions.take(action, 0))._replace(prev_action=action)
