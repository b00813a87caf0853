"""A limit on the number of steps of an episode that keeps the bootstrap."""

from __future__ import annotations

from rlds2reverb._arguments import require_count
from rlds2reverb.specs import Nest

from .environment import Environment, Wrapper, require_single
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
