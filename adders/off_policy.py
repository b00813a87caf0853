"""Functions for targets from trajectories of a different policy than the learned one, without a loop over the steps.

Shapes, indices and gamma_t are those of `returns`. `ratios[t]` is pi(a_t | s_t) / mu(a_t | s_t), where pi is the
learned policy and mu the one that acted.
"""

from __future__ import annotations

from typing import NamedTuple

from rlds2reverb.types.arguments import require_number
from rlds2reverb.types.short_repr import short_repr

from .array_checks import ArrayLike, make_continues, of_trajectories, select_next_values
from .arrays import Array, multiply_no_nan, namespace
from .recurrence import scan, shift


class VTrace(NamedTuple):
    """The result of `v_trace`.

    Attributes:
      targets: `[T]`, v_t, the targets of the value function.
      advantages: `[T]`, the factors of the policy gradient of a_t, including rho_t.
    """

    targets: Array
    advantages: Array

    def __repr__(self) -> str:
        return short_repr(self)


@of_trajectories("rewards", "discounts", "values", "ratios", "next_values")
def v_trace(
    rewards: ArrayLike,
    discounts: ArrayLike,
    *,
    values: ArrayLike,
    ratios: ArrayLike,
    bootstrap_value: ArrayLike | None = None,
    next_values: ArrayLike | None = None,
    is_last: ArrayLike | None = None,
    gamma: float,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    time_axis: int = 0,
) -> VTrace:
    """Returns V-trace targets, and the advantages for the policy gradient.

        rho_t   = min(clip_rho, ratios_t),   c_t = lambda * min(clip_c, ratios_t)
        delta_t = rho_t * (r_t + gamma_t * V(s_{t+1}) - V(s_t))
        v_t     = V(s_t) + delta_t + gamma_t * c_t * (v_{t+1} - V(s_{t+1})),   v_T = V(s_T)
        A_t     = rho_t * (r_t + gamma_t * v_{t+1} - V(s_t))

    Espeholt et al. (2018), "IMPALA", section 4.1: eq. 1 by the recursion of remark 1, with the lambda of remark 2; and
    section 4.2 for A_t. On data of the policy itself, with lambda 1 and clip_c of at least 1, v_t is the discounted
    return including the bootstrap value (eq. 2).

    Args:
      rewards: see `returns.td_errors`.
      discounts: see `returns.td_errors`.
      values: see `returns.td_errors`.
      ratios: `[T]`, at least 0; `exp(log pi - log mu)` of the actions taken.
      bootstrap_value: see `returns.td_errors`.
      next_values: see `returns.td_errors`.
      is_last: see `returns.generalized_advantage_estimation`; after such a transition, v is the next value.
      gamma: the agent's discount factor, in [0, 1].
      lambda_: the weight of longer returns, in [0, 1].
      clip_rho: upper limit of rho, at least clip_c. Larger values move the fixed point closer to the value of pi.
      clip_c: upper limit of the traces, at least 0. Smaller values reduce the variance and slow down learning, without
        changing the fixed point.
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `VTrace`, both of the dtype of the rewards. No gradient is stopped.

    Raises:
      ValueError: If shapes or dtypes differ, a number is out of its range, not exactly one of the two values is
        passed, or is_last without next_values.
    """
    require_number("clip_c", clip_c, 0)
    require_number("clip_rho", clip_rho, clip_c)
    following = select_next_values(values, bootstrap_value, next_values, is_last)
    factors, continues = float(gamma) * discounts, make_continues(is_last, rewards)
    xp = namespace(ratios)
    rhos, traces = xp.minimum(ratios, float(clip_rho)), float(lambda_) * xp.minimum(ratios, float(clip_c))
    deltas = rhos * (rewards + multiply_no_nan(following, factors) - values)
    corrections = scan(factors * traces * continues, deltas)
    after = following + multiply_no_nan(shift(corrections, 1, 0), continues)
    return VTrace(values + corrections, rhos * (rewards + multiply_no_nan(after, factors) - values))


@of_trajectories("rewards", "discounts", "values", "next_values", "ratios")
def retrace(
    rewards: ArrayLike,
    discounts: ArrayLike,
    *,
    values: ArrayLike,
    next_values: ArrayLike,
    ratios: ArrayLike,
    is_last: ArrayLike | None = None,
    gamma: float,
    lambda_: float,
    time_axis: int = 0,
) -> Array:
    """Returns Retrace(lambda) targets of action values.

        delta_t = r_t + gamma_t * E_pi[Q(s_{t+1}, .)] - Q(s_t, a_t),   c_t = lambda * min(1, ratios_t)
        Q_t     = Q(s_t, a_t) + delta_t + gamma_t * c_{t+1} * (Q_{t+1} - Q(s_{t+1}, a_{t+1}))

    Munos et al. (2016), "Safe and Efficient Off-Policy Reinforcement Learning", eq. 3 with the c_t of Retrace(lambda),
    which is defined below it. The first step of a sum has no trace, because Q(s_t, a_t) is conditioned on its action.
    lambda 0 gives the one-step targets.

    Args:
      rewards: see `returns.lambda_returns`.
      discounts: see `returns.lambda_returns`.
      values: `[T]`, Q(s_t, a_t) of the actions taken.
      next_values: `[T]`, the mean of Q(s_{t+1}, .) over the actions of pi.
      ratios: `[T]`, at least 0; `ratios[t]` belongs to the action taken at s_t, so `ratios[0]` is unused.
      is_last: see `returns.lambda_returns`.
      gamma: the agent's discount factor, in [0, 1].
      lambda_: the weight of longer returns, in [0, 1].
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `[T]`, dtype of the rewards. No gradient is stopped.

    Raises:
      ValueError: If shapes or dtypes differ, or gamma or lambda_ are outside [0, 1].
    """
    factors, continues = float(gamma) * discounts, make_continues(is_last, rewards)
    deltas = rewards + multiply_no_nan(next_values, factors) - values
    next_traces = float(lambda_) * namespace(ratios).minimum(shift(ratios, 1, 0), 1.0)
    return values + scan(factors * multiply_no_nan(next_traces, continues), deltas)
