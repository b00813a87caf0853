"""Small environments with goals, lives, nested observations and several rewards."""

import gymnasium
import numpy as np

from rlds2reverb.envs import BoundedArraySpec, Environment, restart, transition
from rlds2reverb.types.specs import ArraySpec


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


class Ring(gymnasium.Env):
    """Twenty cells in a circle, and five tasks as in OGBench: the goal is five cells away clockwise, within 8 steps."""

    observation_space = gymnasium.spaces.Box(-2, 2, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    num_cells = 20

    def __init__(self):
        self.task_infos = [{"task_name": f"task{number}", "start": 4.0 * number} for number in range(1, 6)]

    @classmethod
    def observe(cls, cell):
        angle = 2 * np.pi * np.asarray(cell) / cls.num_cells
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.task_id = (options or {}).get("task_id", 1)
        self.cell, self.num_steps = self.task_infos[self.task_id - 1]["start"], 0
        self.goal = self.cell - 5
        return self.observe(self.cell), {"goal": self.observe(self.goal)}

    def step(self, action):
        self.cell, self.num_steps = self.cell + float(action[0]), self.num_steps + 1
        is_reached = np.abs(self.observe(self.cell) - self.observe(self.goal)).max() < 0.3
        info = {"success": float(is_reached)}
        return self.observe(self.cell), float(is_reached), bool(is_reached), self.num_steps == 8, info


def make_ring_episodes(number=200, seed=0):
    """Returns episodes in a `Ring`: 85 % of them go 18 cells counterclockwise, the others 10 cells clockwise."""
    rng = np.random.default_rng(seed)
    episodes = []
    for start in rng.integers(Ring.num_cells, size=number):
        length, direction = (18, 1) if rng.random() < 0.85 else (10, -1)
        observations = Ring.observe(start + direction * np.arange(length + 1)).astype(np.float32)
        actions = np.full((length, 1), direction, np.float32)
        episodes.append(
            {
                "observations": observations,
                "actions": actions,
                "rewards": np.zeros(length, np.float32),
                "terminated": False,
            }
        )
    return episodes
