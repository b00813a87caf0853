"""Limits on the number of steps of an episode that keep the bootstrap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.specs import Nest

from .environment import Environment, Wrapper, require_single
from .gymnasium_environment import GymnasiumEnvironment
from .time_steps import LAST, TimeStep


class TimeLimit(Wrapper):
    """Ends episodes after `duration` steps: the step becomes LAST, and its discount does not change.

    If the episode is terminated in that same step, it stays terminated, with the discount 0. After ALF's `TimeLimit`.
    """

    def __init__(self, env: Environment, duration: int):
        """Wraps an environment.

        Args:
          env: an environment that is not batched.
          duration: maximum number of actions in an episode, at least 1.

        Raises:
          ValueError: If the duration is out of range.
          TypeError: If the environment is batched.
        """
        super().__init__(require_single(env, "TimeLimit"))
        require_count("duration", duration)
        self.duration = duration
        self._num_steps = 0

    def _reset(self) -> TimeStep:
        self._num_steps = 0
        return self.env.reset()

    def _step(self, action: Nest) -> TimeStep:
        time_step = self.env.advance(action)
        self._num_steps += 1
        if self._num_steps >= self.duration and time_step.step_type != LAST:
            return time_step._replace(step_type=LAST)
        return time_step


def find_time_limit(env: Environment) -> int | None:
    """Returns the shortest time limit in an environment, rlds2reverb's or Gymnasium's, or None.

    Environments that end their episodes themselves are not recognised.
    """
    limits = [getattr(layer, name, None) for layer, name in _walk_limits(env)]
    return min((limit for limit in limits if limit is not None), default=None)


def set_time_limit(env: Environment, duration: int) -> TimeLimit:
    """Returns an environment whose episodes end after `duration` steps, in place of the time limits inside of it.

    Args:
      env: an environment that is not batched; the time limits inside of it are lifted.
      duration: see `TimeLimit`.

    Raises:
      ValueError, TypeError: See `TimeLimit`.
    """
    for layer, name in _walk_limits(env):
        setattr(layer, name, math.inf)
    return TimeLimit(env, duration)


def _walk_limits(env: Any) -> Iterator[tuple[Any, str]]:
    """Yields each layer of an environment that may limit the time, from the outside, and the name of its attribute."""
    while env is not None:
        if isinstance(env, (TimeLimit, GymnasiumEnvironment)):
            yield env, "duration"
        elif type(env).__name__ == "TimeLimit":
            yield env, "_max_episode_steps"
        # Not `getattr`, because wrappers have the attributes of what they wrap.
        parts = getattr(env, "__dict__", {})
        env = parts.get("env", parts.get("gym"))
