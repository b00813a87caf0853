"""Environments that are brought back to a state in the middle, or at the end, of an episode."""

import numpy as np
import pytest
from counting import Counting

from rlds2reverb.envs import BatchedEnvironment, GymnasiumEnvironment, ParallelEnvironment, Wrapper
from rlds2reverb.envs.seeded_episodes import EpisodeProgress, SeededEpisodes, make_episode_seed


class Seeds(Counting):
    """Remembers the seeds of its episodes of 2 steps."""

    def __init__(self):
        super().__init__(2)
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        return super().reset(seed=seed)


def make_one(env):
    return env


def make_batch(env):
    return BatchedEnvironment([env])


def make_parallel(env):
    return ParallelEnvironment([lambda: env], num_workers=0)


@pytest.mark.parametrize("place", [make_one, Wrapper, make_batch, make_parallel])
@pytest.mark.parametrize(("num_actions", "expected"), [(0, [0, 1, 2, 0]), (1, [1, 2, 0, 1]), (2, [2, 0, 1, 2])])
def test_steps_after_the_start_continue_the_episode_or_begin_the_next_one(place, num_actions, expected):
    gym, start = Seeds(), EpisodeProgress(5, (1,) * num_actions)
    env = place(SeededEpisodes(GymnasiumEnvironment(gym), 7, 3, start=start))
    action = np.ones(1, int) if env.batched else 1
    steps = [env.reset(), *(env.step(action) for _ in expected[1:])]
    assert [int(np.squeeze(step.step_type)) for step in steps] == expected
    assert gym.seeds == [make_episode_seed(7, 3, 5), make_episode_seed(7, 3, 6)]
