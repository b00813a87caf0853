"""A small Gymnasium environment whose numbers reveal the step, and which fails on request."""

import os
import time

import gymnasium
import numpy as np


class Counting(gymnasium.Env):
    """Observations count the steps of the episode; rewards are 10, 11, 12, and so on.

    Args:
      length: number of steps of an episode.
      terminates: whether episodes are terminated rather than truncated.
      failure: 'raise', 'kill' or 'hang'; None to work.
      fails_at: the step that fails in every episode.
    """

    observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, length=20, *, terminates=True, failure=None, fails_at=5):
        self.length, self.terminates, self.failure, self.fails_at = length, terminates, failure, fails_at
        self.num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return np.zeros(2, np.float32), {"count": 0}

    def step(self, action):
        self.num_steps += 1
        if self.failure and self.num_steps == self.fails_at:
            fail(self.failure)
        is_over = self.num_steps == self.length
        observation = np.full(2, self.num_steps, np.float32)
        reward = 9.0 + self.num_steps
        return (
            observation,
            reward,
            is_over and self.terminates,
            is_over and not self.terminates,
            {"count": self.num_steps},
        )


def fail(failure):
    """Fails as requested."""
    if failure == "raise":
        raise RuntimeError("the simulator exploded")
    if failure == "kill":
        os.kill(os.getpid(), 9)
    time.sleep(1000)
