"""Estimators of the value of a policy from episodes of other policies, and their bootstrap intervals.

The estimators are weighted sums over the steps of N episodes, with w_t = rho_0 * ... * rho_{t-1} and w_0 = 1:

    estimate = sum_t sum_n w_tn * x_tn / c_t,   x_t = D_{t-1} * (r_{t-1} - Q_{t-1}) + D_t * V_t

rho_t is the ratio of the probabilities that the evaluated policy and the behaviour policy assign to a_t, D_t is the
product of the discounts of the steps before t, and c_t is N or, for self-normalised estimators, sum_n w_tn. Without
values (Q = V = 0) this is importance sampling, with values the doubly robust estimator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

#: Maximum number of resampled datasets whose sums are computed at a time.
_MAX_RESAMPLED = 100


@dataclass(frozen=True)
class Estimator:
    """The properties of an estimator.

    Attributes:
      title: name in words.
      uses_ratios: whether it requires the probabilities of both policies.
      uses_values: whether it requires values of the evaluated policy.
      is_per_decision: whether each reward is weighted by the ratios up to its step, not by those of the whole episode.
      is_self_normalized: whether sums are divided by the sum of the weights instead of the number of episodes, which
        makes the estimator biased but consistent, with a smaller variance.
    """

    title: str
    uses_ratios: bool = True
    uses_values: bool = False
    is_per_decision: bool = True
    is_self_normalized: bool = False


#: Estimators by name. is, wis, pdis, wpdis: Precup, Sutton & Singh (2000), "Eligibility traces for off-policy policy
#: evaluation". fqe: Le, Voloshin & Yue (2019), arXiv:1903.08738. dr: Jiang & Li (2016), arXiv:1511.03722. wdr: Thomas &
#: Brunskill (2016), arXiv:1604.00923.
ESTIMATORS = {
    "model": Estimator("rollouts in models", uses_ratios=False),
    "fqe": Estimator("fitted Q evaluation", uses_ratios=False, uses_values=True),
    "dr": Estimator("doubly robust", uses_values=True),
    "wdr": Estimator("weighted doubly robust", uses_values=True, is_self_normalized=True),
    "wpdis": Estimator("weighted per-decision importance sampling", is_self_normalized=True),
    "pdis": Estimator("per-decision importance sampling"),
    "wis": Estimator("weighted importance sampling", is_per_decision=False, is_self_normalized=True),
    "is": Estimator("importance sampling", is_per_decision=False),
}


def pad(columns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the steps `[..., R]` of consecutive episodes as float64 `[..., N, T]`, with zeros after each episode.

    Args:
      columns: numbers `[..., R]`, with R the sum of `lengths`.
      lengths: int64 `[N]`, the number of steps of each episode.
    """
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    padded = np.zeros((*columns.shape[:-1], *mask.shape))
    padded[..., mask] = columns
    return padded


def importance_weights(log_ratios: np.ndarray, estimator: Estimator) -> np.ndarray:
    """Computes the weights w_0 .. w_T of each episode.

        w_t = rho_0 * ... * rho_{t-1}; without per-decision weights w_T for all t

    After the end of an episode, the weights stay as they are. Those of self-normalised estimators are divided by the
    maximum over the episodes at each step, which changes no estimate and avoids overflows.

    Args:
      log_ratios: float64 `[N, T]`, log rho, 0 after the end of an episode; -inf where the evaluated policy never takes
        the action.
      estimator: the estimator.

    Returns:
      float64 `[N, T + 1]`, at least 0.
    """
    logs = np.concatenate([np.zeros((len(log_ratios), 1)), np.cumsum(log_ratios, axis=1)], axis=1)
    if not estimator.is_per_decision:
        logs = np.broadcast_to(logs[:, -1:], logs.shape)
    if estimator.is_self_normalized:
        top = logs.max(axis=0)
        logs = logs - np.where(np.isfinite(top), top, 0.0)
    with np.errstate(over="ignore"):
        return np.exp(logs)


def estimator_terms(
    rewards: np.ndarray, discounts: np.ndarray, q_values: np.ndarray | float = 0.0, values: np.ndarray | float = 0.0
) -> np.ndarray:
    """Computes the terms x_0 .. x_T of each episode; see the module.

    A terminal step has the discount 0, so nothing follows it. A truncated episode ends with the term D_T * V(s_T): with
    values, the estimate includes what would have followed, and without values nothing.

    Args:
      rewards: float64 `[N, T]`, 0 after the end of an episode.
      discounts: float64 `[N, T]`, gamma times the environment's discounts; 0 after the end of an episode.
      q_values: float64 `[..., N, T]`, Q(s_t, a_t) of the evaluated policy, 0 after the end of an episode.
      values: float64 `[..., N, T + 1]`, V(s_t) of the evaluated policy, 0 after the last observation of an episode.

    Returns:
      float64 `[..., N, T + 1]`.
    """
    products = np.concatenate([np.ones((len(discounts), 1)), np.cumprod(discounts, axis=1)], axis=1)
    gains = products[:, :-1] * (rewards - q_values)
    baselines = np.broadcast_to(products * values, (*gains.shape[:-1], products.shape[1]))
    return np.concatenate([baselines[..., :1], gains + baselines[..., 1:]], axis=-1)


def average(weights: np.ndarray, terms: np.ndarray, counts: np.ndarray, *, is_self_normalized: bool) -> np.ndarray:
    """Computes the estimate of datasets in which each episode occurs `counts` times.

    A step at which all weights are 0 contributes nothing.

    Args:
      weights: float64 `[N, T + 1]`.
      terms: float64 `[N, T + 1]`.
      counts: float64 `[B, N]`.
      is_self_normalized: see `Estimator`.

    Returns:
      float64 `[B]`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        products = np.where(terms == 0, 0.0, weights * terms)
        if not is_self_normalized:
            return counts @ products.sum(axis=1) / counts.sum(axis=1)
        totals = counts @ weights
        return np.divide(counts @ products, totals, out=np.zeros_like(totals), where=totals > 0).sum(axis=1)


def estimate_with_interval(
    weights: np.ndarray,
    terms: np.ndarray,
    *,
    is_self_normalized: bool = False,
    confidence: float = 0.9,
    num_resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, tuple[float, float]]:
    """Computes the mean estimate of an ensemble, and a percentile bootstrap interval over episodes.

    Efron & Tibshirani (1993), "An introduction to the bootstrap", section 13.3: the episodes are resampled with
    replacement, with the values of one of K members of the ensemble in turn. The uncertainty of the values enters as a
    random number that is added to each resampled estimate, s * sqrt(1 + 1 / K) * t: s is the sample standard deviation
    of the members' estimates, and t has Student's distribution with K - 1 degrees of freedom, because a few members do
    not determine s well. The members must have learned from different bootstrap samples of the episodes.

    Args:
      weights: float64 `[N, T + 1]`, see `importance_weights`.
      terms: float64 `[K, N, T + 1]`, see `estimator_terms`.
      is_self_normalized: see `Estimator`.
      confidence: probability in (0, 1) that the interval is meant to cover.
      num_resamples: number of resampled datasets.
      seed: random seed of the resampling.

    Returns:
      The estimate, and the lower and upper end of the interval.
    """
    options = {"is_self_normalized": is_self_normalized}
    members = np.array([average(weights, part, np.ones((1, len(weights))), **options)[0] for part in terms])
    size, estimate = len(members), float(members.mean())
    rng, resampled = np.random.default_rng(seed), []
    for part, member in zip(terms, members, strict=True):
        for counts in _resample(rng, len(weights), -(-num_resamples // size)):
            resampled.append(average(weights, part, counts, **options) - member + estimate)
    estimates = np.concatenate(resampled)
    if size > 1:
        estimates += members.std(ddof=1) * np.sqrt(1 + 1 / size) * rng.standard_t(size - 1, len(estimates))
    tail = (1 - confidence) / 2
    low, high = np.quantile(estimates, [tail, 1 - tail])
    return estimate, (float(low), float(high))


def _resample(rng: np.random.Generator, num_episodes: int, num_resamples: int) -> Iterator[np.ndarray]:
    """Yields how often each episode occurs in resampled datasets, float64 `[B, N]`, in several parts."""
    for first in range(0, num_resamples, _MAX_RESAMPLED):
        size = min(_MAX_RESAMPLED, num_resamples - first)
        yield rng.multinomial(num_episodes, np.full(num_episodes, 1 / num_episodes), size).astype(np.float64)


def effective_sample_size(weights: np.ndarray) -> float:
    """Computes the number of equally weighted episodes whose mean has the variance of the weighted mean.

        (sum_n w_n)^2 / sum_n w_n^2

    Kong (1992), "A note on importance sampling using standardized weights".

    Args:
      weights: float64 `[N]`, the weights of whole episodes, at least 0.

    Returns:
      A number from 1 to N; 0 if all weights are 0.
    """
    scaled = weights / max(weights.max(initial=0.0), np.finfo(np.float64).tiny)
    return float(scaled.sum() ** 2 / np.square(scaled).sum()) if scaled.any() else 0.0
