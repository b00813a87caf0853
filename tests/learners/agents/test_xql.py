"""XQL's values: a soft maximum of rewards that few actions of the data have, where IQL's stay near the mean."""

import numpy as np
import pytest
import tensorflow as tf
from agent_data import SMALL_SPECS, run_updates, to_transition

from rlds2reverb.learners.agents import make_agent


def test_loss_of_large_td_errors_is_linear():
    agent = make_agent("xql", *SMALL_SPECS, hidden_sizes=(4,))
    losses = agent.td_loss(tf.constant([0.0, -2.0, 20.0, -30.0]))
    np.testing.assert_allclose(losses, [0, 2, 200, 400])


@pytest.mark.slow
def test_values_are_a_soft_maximum_over_the_actions_of_the_data():
    """In one-step episodes, a tenth of the actions have a reward of 1, and all others none."""
    size, rng = 2000, np.random.default_rng(0)
    observation = rng.uniform(-1, 1, (size, 2)).astype(np.float32)
    is_good = rng.permutation(size) < size // 10
    action = np.where(is_good, 0.6, -0.6)[:, None].astype(np.float32)
    data = {"observation": observation, "action": action, "reward": is_good.astype(np.float32)}
    data |= {"discount": np.zeros(size, np.float32), "next_observation": observation}

    def learn(name, **hyperparameters):
        """Returns the mean value of the observations after 1,500 updates."""
        fast = dict.fromkeys(("actor_learning_rate", "critic_learning_rate", "value_learning_rate"), 3e-3)
        agent = make_agent(
            name, *SMALL_SPECS, hidden_sizes=(32, 32), target_update_rate=0.05, **fast, **hyperparameters
        )
        run_updates(agent, to_transition(data), 1500)
        return float(np.mean(agent.estimate_values(observation, action)["v"]))

    expected = 0.2 * np.log(0.1 * np.exp(1 / 0.2) + 0.9)  # 0.55
    assert learn("xql", loss_temperature=0.2) == pytest.approx(expected, abs=0.08)
    assert learn("iql", expectile=0.7) == pytest.approx(0.7 * 0.1 / (0.7 * 0.1 + 0.3 * 0.9), abs=0.08)  # 0.21
