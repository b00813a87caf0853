"""Small environments with goals, lives, nested observations and several rewards."""

import gymnasium
import numpy as np

from rlds2reverb.envs import BoundedArraySpec, Environment, restart, transition
from rlds2reverb.specs import ArraySpec


class LineWithLives(gymnasium.Env):
    """A position on a line; every third step costs one of three lives, and the game is over after the last."""

    observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return self._observe()

    def step(self, action):
        self.num_steps += 1
        observation, info = self._observe()
        return observation, 1.0, info["lives"] == 0, False, info

    def _observe(self):
        return np.array([self.num_steps], np.float32), {"lives": 3 - self.num_steps // 3}


class Nested(gymnasium.Env):
    """Observations are `{"robot": ({"joints": floats}, integer), "image": uint8}` and count the steps."""

    observation_space = gymnasium.spaces.Dict(
        {
            "robot": gymnasium.spaces.Tuple(
                [
                    gymnasium.spaces.Dict({"joints": gymnasium.spaces.Box(-10, 10, (2,), np.float32)}),
                    gymnasium.spaces.Discrete(20),
                ]
            ),
            "image": gymnasium.spaces.Box(0, 255, (2, 2, 1), np.uint8),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return self._observe(), {}

    def step(self, action):
        self.num_steps += 1
        return self._observe(), 1.0, False, self.num_steps == 6, {}

    def _observe(self):
        joints = np.array([self.num_steps, -self.num_steps], np.float32)
        return {"robot": ({"joints": joints}, self.num_steps), "image": np.full((2, 2, 1), self.num_steps, np.uint8)}


class TwoRewards(Environment):
    """Endless; the rewards are 1 and the number of the step."""

    def __init__(self):
        super().__init__()
        self.num_steps = 0

    def observation_spec(self):
        return ArraySpec((1,), np.dtype(np.float32))

    def action_spec(self):
        return BoundedArraySpec((), np.dtype(np.int64), 0, 2)

    def reward_spec(self):
        return ArraySpec((2,), np.dtype(np.float32))

    def seed(self, seed):
        self.num_steps = 0

    def _reset(self):
        return restart(np.zeros(1, np.float32), self.action_spec(), reward_spec=self.reward_spec())

    def _step(self, action):
        self.num_steps += 1
        return transition(np.ones(1, np.float32), action, [1.0, self.num_steps])
