"""Limits on the number of steps of an episode that keep the bootstrap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlds2reverb._arguments import require_count
from rlds2reverb.specs import Nest

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
    """Returns the shortest time limit in an environment, rlds2reverb's or Gymnasium's; None if there is none.

    Environments that end their episodes themselves are not recognised.
    """
    limits = [_read_limit(layer) for _, _, layer in _walk(env)]
    return min((limit for limit in limits if limit is not None), default=None)


def set_time_limit(env: Environment, duration: int) -> TimeLimit:
    """Returns an environment whose episodes end after `duration` steps, in place of the time limits inside of it.

    Args:
      env: an environment that is not batched; the time limits inside of it are removed.
      duration: see `TimeLimit`.

    Raises:
      ValueError, TypeError: See `TimeLimit`.
    """
    outer, name = None, ""
    for layer_name, inner, layer in _walk(env):
        if isinstance(layer, GymnasiumEnvironment):
            layer.duration = None
        if _read_limit(layer) is None:
            outer, name = layer, layer_name
        elif outer is None:
            env = inner
        else:
            setattr(outer, name, inner)
    return TimeLimit(env, duration)


def _walk(env: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields each layer of an environment from the outside, after the name and the value of the next one in it."""
    while env is not None:
        # Not `getattr`, because wrappers have the attributes of what they wrap.
        parts = getattr(env, "__dict__", {})
        name = next((name for name in ("env", "gym") if parts.get(name) is not None), "")
        inner = parts.get(name)
        yield name, inner, env
        env = inner


def _read_limit(layer: Any) -> int | None:
    if isinstance(layer, (TimeLimit, GymnasiumEnvironment)):
        return layer.duration
    is_gymnasium = type(layer).__name__ == "TimeLimit"
    return getattr(layer, "_max_episode_steps", None) if is_gymnasium else None
