"""Environments for tests of worker processes.

A worker imports the module of its environments. This one imports neither pytest nor Hypothesis, which would take longer
than everything else that a worker does.
"""

import os

import gymnasium
import numpy as np
from counting import Counting, fail

from rlds2reverb.envs import GymnasiumEnvironment, TimeLimit


class Faulty(Counting):
    """Fails once: at construction, in the second reset, or in the fourth step of the first episode.

    Args:
      place: 'step', 'reset', 'construction', which is preceded by a failed step, or 'start'.
      kind: 'raise', 'kill', 'hang' or 'exit'.
      folder: folder for files that outlive the process.
    """

    def __init__(self, place, kind, folder):
        super().__init__(6)
        self.place, self.kind, self.folder, self.num_resets = place, kind, folder, 0
        if place == "start" or (place == "construction" and (folder / "step").exists()):
            self._fail_once("construction")

    def _fail_once(self, name, kind=None):
        if not (self.folder / name).exists():
            (self.folder / name).touch()
            fail_as(kind or self.kind)

    def reset(self, *, seed=None, options=None):
        self.num_resets += 1
        if self.place == "reset" and self.num_resets == 2:
            self._fail_once("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.num_steps == 3 and self.place in ("step", "construction"):
            self._fail_once("step", "kill" if self.place == "construction" else None)
        return super().step(action)


def fail_as(kind):
    if kind == "exit":
        os._exit(3)
    fail(kind)


class Interrupted(Counting):
    """Raises `KeyboardInterrupt` once, in the third step."""

    def step(self, action):
        if self.num_steps == 2 and not self.failure:
            self.failure = "done"
            self.fails_at = 1000
            raise KeyboardInterrupt
        return super().step(action)


class Nested(gymnasium.Env):
    """Nested observations and actions."""

    observation_space = gymnasium.spaces.Dict(
        {"position": gymnasium.spaces.Box(-9, 9, (2,), np.float64), "level": gymnasium.spaces.Discrete(100)}
    )
    action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(3)])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1, 1, 2)
        return {"position": self.position, "level": 0}, {}

    def step(self, action):
        self.position = np.clip(self.position + action[0] * self.np_random.uniform(), -9, 9)
        is_over = bool(self.np_random.uniform() < 0.1)
        return {"position": self.position, "level": int(action[1])}, 1.5, is_over, False, {"speed": float(action[0][0])}


def make_nested():
    return TimeLimit(GymnasiumEnvironment(Nested(), info_fields=["speed"]), 12)
