"""The choice of one of several policies by running episodes: its cost, and the value of the chosen policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlds2reverb._arguments import require_count, require_number


def simulate_selection(
    returns: Sequence[ArrayLike],
    *,
    num_episodes: int = 100,
    num_policies: int | None = None,
    num_trials: int = 1000,
    exploration: float = 1.0,
    seed: int = 0,
) -> np.ndarray:
    """Simulates a bandit that chooses one of several policies, and returns how good its choice is after each episode.

        returns = [evaluate("Hopper-v5", run.policy, 50).returns for run in experiment.runs.values()]
        print(simulate_selection(returns)[[0, 9, 99]])

    Only users who can find the best policy benefit from it. Jackson et al. (2025, arXiv:2504.11453) therefore count the
    episodes that finding it takes. In each trial, episode t runs the policy with the highest upper confidence bound
    (UCB1, Auer, Cesa-Bianchi & Fischer 2002),

        mean_i + exploration * sigma * sqrt(ln t / n_i),

    where n_i is the number of its episodes up to now, mean_i the mean of their returns, and sigma the standard
    deviation of all recorded returns. Policies without an episode come first, in random order. A policy's return is one
    of its recorded ones. The choice after an episode is the policy with the highest mean_i.

    Args:
      returns: recorded returns of each policy, float [M_i] with M_i >= 1.
      num_episodes: number of episodes T of a trial.
      num_policies: number of policies that each trial chooses from, sampled without replacement; None for all.
      num_trials: number of trials.
      exploration: factor of the confidence bounds, >= 0; UCB1 has sqrt(2).
      seed: random seed.

    Returns:
      float64 [T], mean recorded return of the policy chosen after 1, 2, ..., T episodes, averaged over the trials.

    Raises:
      ValueError: If there are no policies, if one has no or invalid returns, or if a number is out of range.
    """
    recorded = [np.asarray(values, np.float64) for values in returns]
    if not recorded or any(values.ndim != 1 or not values.size or not np.isfinite(values).all() for values in recorded):
        raise ValueError("returns must contain a vector of at least one finite return for each policy")
    require_count("num_episodes", num_episodes)
    require_count("num_trials", num_trials)
    require_number("exploration", exploration, 0, float("inf"))
    size = len(recorded) if num_policies is None else num_policies
    require_count("num_policies", size)
    if size > len(recorded):
        raise ValueError(f"num_policies must be at most {len(recorded)}, the number of policies, got {size}")

    random = np.random.default_rng(seed)
    policies = random.permuted(np.tile(np.arange(len(recorded)), (num_trials, 1)), axis=1)[:, :size]
    flat, lengths = np.concatenate(recorded), np.array([values.size for values in recorded])
    starts, means = np.cumsum(lengths) - lengths, np.array([values.mean() for values in recorded])
    counts, sums, trials = np.zeros(policies.shape), np.zeros(policies.shape), np.arange(len(policies))
    chosen = np.empty(num_episodes)
    for episode in range(num_episodes):
        divisors = np.maximum(counts, 1)
        width = exploration * flat.std() * np.sqrt(np.log(episode + 1) / divisors)
        arms = np.where(counts > 0, sums / divisors + width, np.inf).argmax(axis=1)
        policy = policies[trials, arms]
        sums[trials, arms] += flat[starts[policy] + random.integers(lengths[policy])]
        counts[trials, arms] += 1
        best = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf).argmax(axis=1)
        chosen[episode] = means[policies[trials, best]].mean()
    return chosen
