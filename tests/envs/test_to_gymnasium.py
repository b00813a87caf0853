"""Environments that return time steps as Gymnasium's environments."""

import gymnasium
import numpy as np
import pytest
from counting import Counting
from gymnasium.utils.env_checker import check_env
from installed import find_installed
from properties import mark_slow_except

from rlds2reverb.envs import BatchedEnvironment, GymnasiumEnvironment, suite_gym, to_gymnasium


@pytest.mark.parametrize("name", mark_slow_except({"CartPole-v1", "Pendulum-v1", "FrozenLake-v1"}, find_installed()))
@pytest.mark.filterwarnings("ignore:.*WARN")
def test_gymnasium_validates_converted_environments(name):
    env = to_gymnasium(suite_gym.load(name))
    check_env(env, skip_render_check=True)
    env.close()


@pytest.mark.parametrize("terminates", [True, False])
def test_episodes_end_as_in_the_original(terminates):
    env = to_gymnasium(GymnasiumEnvironment(Counting(3, terminates=terminates), info_fields=["count"]))
    observation, info = env.reset(seed=1)
    assert observation.tolist() == [0, 0] and info == {"count": 0}
    steps = [env.step(np.int64(1)) for _ in range(3)]
    assert [(reward, *ends) for _, reward, *ends, _ in steps] == [
        (10.0, False, False),
        (11.0, False, False),
        (12.0, terminates, not terminates),
    ]
    assert steps[-1][-1] == {"count": 3} and steps[-1][0].tolist() == [3, 3]
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"has ended or was interrupted; call reset\(\)"):
        env.step(np.int64(1))


def test_batches_raise():
    with pytest.raises(TypeError, match="env must not be batched; convert the environments of the batch one by one"):
        to_gymnasium(BatchedEnvironment([GymnasiumEnvironment(Counting(3))]))
