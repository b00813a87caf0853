"""Lost lives of Atari games as ends of episodes."""

from __future__ import annotations

import numpy as np

from rlds2reverb.types.ownership import copy_arrays

from .environment import Environment, Wrapper, require_single
from .time_steps import LAST, TimeStep, restart

_ZERO = np.float32(0)


class AtariTerminalOnLifeLoss(Wrapper):
    """Terminates an episode when a life is lost; the next one continues the game with the next life.

    The step is LAST with the discount 0. The following `reset` starts an episode at the observation at which the life
    was lost, without executing an action, and resets the game only if it is over. Such episodes are used, among others,
    by Mnih et al. (2015) and Ye et al. (2021, arXiv:2111.00210).

    ALF's `AtariTerminalOnLifeLossWrapper` sets the discount to 0 in the middle of an episode. Here only LAST steps have
    the discount 0; the targets of values are the same.
    """

    intended_changes = frozenset({"adds_terminations"})

    def __init__(self, env: Environment, lives: str = "lives"):
        """Wraps an environment.

        Args:
          env: an environment that is not batched, and whose `env_info` contains the number of lives.
          lives: name of that field: 'lives' in Gymnasium's Atari environments, 'ale.lives' in those of old gym.

        Raises:
          ValueError: If `env_info` does not have the field.
          TypeError: If the environment is batched.
        """
        super().__init__(require_single(env, "AtariTerminalOnLifeLoss"))
        spec = env.env_info_spec()
        if not isinstance(spec, dict) or lives not in spec:
            raise ValueError(
                f"env_info must have the field {lives!r}, got {sorted(spec) or 'no fields'}; create the environment "
                f"with info_fields=[{lives!r}]"
            )
        self._field = lives
        self._lives = 0
        self._next_life: TimeStep | None = None

    def seed(self, seed: int) -> None:
        """Sets the seed of the wrapped environment, so that the next `reset` starts a new game."""
        self._next_life = None
        super().seed(seed)

    def _reset(self) -> TimeStep:
        if self._next_life is not None:
            time_step, self._next_life = self._next_life, None
            return time_step
        time_step = self.env.reset()
        self._lives = int(time_step.env_info[self._field])
        return time_step

    def _step(self, action: object) -> TimeStep:
        time_step = self.env.advance(action)
        lives = int(time_step.env_info[self._field])
        is_lost, self._lives = lives < self._lives, lives
        if is_lost and time_step.step_type != LAST:
            self._next_life = copy_arrays(self._restart(time_step))
        return time_step._replace(step_type=LAST, discount=_ZERO) if is_lost else time_step

    def _restart(self, time_step: TimeStep) -> TimeStep:
        """Returns the first step of an episode with the observation of a time step."""
        inner = time_step.untransformed
        ids = {"env_id": time_step.env_id, "env_info": time_step.env_info}
        first = restart(time_step.observation, self.action_spec(), reward_spec=self.reward_spec(), **ids)
        return first._replace(untransformed=self._restart(inner) if isinstance(inner, TimeStep) else ())
