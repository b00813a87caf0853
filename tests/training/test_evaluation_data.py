"""Goals of off-policy evaluation, with the rewards and returns of the data for them."""

import types

import numpy as np
import pytest

from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.evaluation_data import EvaluationData
from rlds2reverb.training.sources import open_data

NUM_TRANSITIONS = (3, 5, 1)
EPISODES = [
    {
        "observations": np.arange(num + 1, dtype=np.float32)[:, None] + 10 * episode,
        "actions": np.full((num, 1), 0.5, np.float32),
        "rewards": np.ones(num, np.float32),
        "terminated": True,
    }
    for episode, num in enumerate(NUM_TRANSITIONS)
]
POLICY = types.SimpleNamespace(run=None, name="policy", has_goals=True, require_match=lambda spec: None)
DATASET = open_data(EPISODES, TrainingConfig("gcbc", env=None, action_bounds=(-1, 1)))


def add_up(row, goal, end, gamma):
    """Returns the discounted sum of -1 per transition from a row to a goal, or to the end if it is not ahead."""
    stop = goal if row <= goal <= end else end
    return -sum(gamma**step for step in range(stop - row))


@pytest.mark.parametrize("gamma", [0.5, 1])
def test_returns_are_those_of_the_sampled_goals(gamma):
    rows = np.concatenate([first + np.arange(num) for first, num in zip((0, 4, 10), NUM_TRANSITIONS, strict=True)])
    ends = np.repeat([3, 9, 11], NUM_TRANSITIONS)
    seen = set()
    for seed in range(20):
        data = EvaluationData(POLICY, DATASET, gamma=gamma, held_out=None, seed=seed)
        assert data.starts.tolist() == rows.tolist() and data.firsts.tolist() == [0, 4, 10]
        assert data.known.tolist() == list(range(9)) and not data.is_held_out
        is_reached = data.goals == rows
        assert data.rewards.tolist() == (is_reached - 1.0).tolist()
        assert data.env_discounts.tolist() == (1.0 - is_reached).tolist()
        expected = [add_up(*place, gamma) for place in zip(rows, data.goals, ends, strict=True)]
        np.testing.assert_allclose(data.returns, expected)
        expected = [add_up(*place, gamma) for place in zip((0, 4, 10), data.first_goals, (3, 9, 11), strict=True)]
        np.testing.assert_allclose(data.first_returns, expected)
        assert {*data.goals, *data.first_goals} <= {*rows}
        seen |= {("first", *data.first_goals), ("goals", *data.goals)}
        observations = data.take(data.firsts, ("observation",), data.first_goals)["observation"]
        assert observations["observation"].tolist() == [[0], [10], [20]]
        shown = observations["goal"].ravel() // 10, observations["goal"].ravel() % 10
        assert (np.array([0, 4, 10])[shown[0].astype(int)] + shown[1]).tolist() == data.first_goals.tolist()
    assert len(seen) > 30
    again = EvaluationData(POLICY, DATASET, gamma=gamma, held_out=None, seed=19)
    assert again.goals.tolist() == data.goals.tolist() and again.first_goals.tolist() == data.first_goals.tolist()
