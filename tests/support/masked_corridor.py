"""An environment with Discrete and MultiDiscrete observations, whose legal actions change, and logs of it."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

NUM_CELLS = 5


class MaskedCorridor(gymnasium.Env):
    """Five cells: actions 0 and 1 go left and right, action 2 stays. Walls are illegal, and staying is in cell 2 only."""

    observation_space = Dict(
        {"cell": Discrete(NUM_CELLS, start=1), "clock": MultiDiscrete([2, 3]), "legal": Box(0, 1, (3,), np.int8)}
    )
    action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell, self.num_steps = 0, 0
        return self.observe(), {}

    def observe(self):
        legal = np.array([self.cell > 0, self.cell < NUM_CELLS - 1, self.cell == 2], np.int8)
        clock = np.array([self.num_steps % 2, self.num_steps % 3])
        return {"cell": np.int64(self.cell + 1), "clock": clock, "legal": legal}

    def step(self, action):
        if not self.observe()["legal"][action]:
            raise ValueError(f"the action {action} is illegal in cell {self.cell}")
        self.cell += (-1, 1, 0)[action]
        self.num_steps += 1
        return self.observe(), float(self.cell), False, self.num_steps == 6, {}


def record_corridor(num_episodes=8):
    """Returns logs of random legal actions."""
    random, logs = np.random.default_rng(0), []
    for _ in range(num_episodes):
        env = MaskedCorridor()
        observations, actions, rewards, truncated = [env.reset()[0]], [], [], False
        while not truncated:
            actions.append(random.choice(np.flatnonzero(observations[-1]["legal"])))
            observation, reward, _, truncated, _ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
        columns = {name: np.stack([row[name] for row in observations]) for name in observations[0]}
        logs.append({"observations": columns, "actions": np.array(actions), "rewards": np.array(rewards, np.float32)})
    return [{**log, "terminated": False} for log in logs]
