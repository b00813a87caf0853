"""Rollouts in models: returns before the policy leaves the data, worked out by hand."""

import numpy as np
import pytest

from rlds2reverb.learners.dynamics_model import Prediction
from rlds2reverb.training.model_rollouts import roll_out


class Line:
    """Two models of a line: the second one ends episodes at 3. They are further apart the further the point is."""

    num_models = 2

    def predict(self, state, choice):
        following = state + choice
        discount = np.ones((2, len(state)))
        discount[1, following[:, 0] >= 3] = 0
        return Prediction(np.stack([following] * 2), np.stack([state[:, 0]] * 2), discount, state[:, 0] / 10)


def test_rollouts_stop_where_the_policy_leaves_the_data_or_the_episode_ends():
    first = np.float32([[0], [2]])
    found = roll_out(Line(), lambda state, step: np.ones_like(state), first, gamma=0.5, limit=0.45, longest=9)
    # The first model reaches 4, and its next state, 5, is not in the data; the second one ends after the step from 2.
    np.testing.assert_allclose(found.known[0], [0.5 + 2 / 4 + 3 / 8 + 4 / 16, 2 + 3 / 2 + 4 / 4])
    np.testing.assert_allclose(found.known[1], [0.5 + 2 / 4, 2])
    np.testing.assert_allclose(found.unknown, [[1 / 32, 1 / 8], [0, 0]])
    assert found.num_steps.tolist() == [[5, 3], [3, 1]] and found.has_left.tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize(("gamma", "steps"), [(0, 1), (0.5, 7), (1, 9)])
def test_rollouts_end_when_a_hundredth_of_the_discounts_is_left(gamma, steps):
    found = roll_out(
        Line(), lambda state, step: np.zeros_like(state), np.ones((1, 1), np.float32), gamma=gamma, limit=1, longest=9
    )
    assert found.num_steps.tolist() == [[steps], [steps]] and not found.has_left.any()
    np.testing.assert_allclose(found.unknown, gamma**steps)
