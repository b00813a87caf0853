"""The bandit that chooses a policy: exact values of constant returns, a reference, and what is refused."""

import math

import numpy as np
import pytest

from rlds2reverb.training import simulate_selection


def test_choice_is_the_best_policy_once_all_have_run_if_returns_are_constant():
    expected = [2.0, 8 / 3, 3.0, 3.0, 3.0]  # Mean of the highest of one, two and all of the returns 1, 2 and 3.
    got = simulate_selection([[1.0], [2.0] * 5, [3.0] * 2], num_episodes=5, num_trials=20_000)
    np.testing.assert_allclose(got, expected, atol=0.02)
    pairs = simulate_selection([[1.0], [2.0], [3.0]], num_episodes=3, num_policies=2, num_trials=20_000)
    np.testing.assert_allclose(pairs, [2.0, 8 / 3, 8 / 3], atol=0.02)
    assert simulate_selection([[1, 3]], num_episodes=2).tolist() == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("exploration", [0.0, 1.0, 4.0])
def test_choices_match_a_loop(exploration):
    returns = [np.random.default_rng(n).normal(mean, 2, 9) for n, mean in enumerate((0.0, 0.5, 1.0))]
    sigma, random, num_trials = np.concatenate(returns).std(), np.random.default_rng(1), 4000
    expected = np.zeros(12)
    for _ in range(num_trials):
        order, seen = random.permutation(3), {0: [], 1: [], 2: []}
        for t in range(12):
            bounds = [
                np.mean(seen[n]) + exploration * sigma * math.sqrt(math.log(t + 1) / len(seen[n]))
                if seen[n]
                else math.inf
                for n in order
            ]
            policy = order[int(np.argmax(bounds))]
            seen[policy].append(random.choice(returns[policy]))
            best = max((n for n in seen if seen[n]), key=lambda n: np.mean(seen[n]))
            expected[t] += returns[best].mean() / num_trials
    got = simulate_selection(returns, num_episodes=12, num_trials=20_000, exploration=exploration)
    np.testing.assert_allclose(got, expected, atol=0.05)


@pytest.mark.parametrize(
    ("returns", "options", "message"),
    [
        ([], {}, "returns must contain"),
        ([[1.0], []], {}, "at least one finite return for each policy"),
        ([[1.0, np.nan]], {}, "finite"),
        ([[1.0], [2.0]], {"num_policies": 3}, "num_policies must be at most 2"),
        ([[1.0]], {"num_episodes": 0}, "num_episodes"),
        ([[1.0]], {"exploration": -1}, "exploration"),
    ],
)
def test_invalid_arguments_raise(returns, options, message):
    with pytest.raises(ValueError, match=message):
        simulate_selection(returns, **options)
