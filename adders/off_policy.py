"""Targets for trajectories of another policy than the one that is learned, without a loop over their steps.

Shapes, indices and gamma_t are those of `returns`. `ratios[t]` is pi(a_t | s_t) / mu(a_t | s_t), for pi, the policy
that is learned, and mu, the one that acted.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from rlds2reverb._arguments import require_number

from .recurrence import scan, shifted
from .returns import along
from .tensors import TensorLike, alike, continues, following_values


class VTrace(NamedTuple):
    """What `v_trace` returns.

    Attributes:
      targets: `[T]`, v_t, what the value function learns.
      advantages: `[T]`, what the policy gradient of a_t is multiplied by, with rho_t in it.
    """

    targets: tf.Tensor
    advantages: tf.Tensor


def v_trace(
    rewards: TensorLike,
    discounts: TensorLike,
    *,
    values: TensorLike,
    ratios: TensorLike,
    bootstrap_value: TensorLike | None = None,
    next_values: TensorLike | None = None,
    is_last: TensorLike | None = None,
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
    return with the value behind it (eq. 2).

    Args:
      rewards: see `returns.td_errors`.
      discounts: see `returns.td_errors`.
      values: see `returns.td_errors`.
      ratios: `[T]`, at least 0; `exp(log pi - log mu)` of the actions that were taken.
      bootstrap_value: see `returns.td_errors`.
      next_values: see `returns.td_errors`.
      is_last: see `returns.generalized_advantage_estimation`; behind such a transition v is the next value.
      gamma: in [0, 1].
      lambda_: in [0, 1].
      clip_rho: at least clip_c; the larger it is, the closer is the fixed point to the value of pi.
      clip_c: at least 0; the smaller it is, the lower the variance and the slower the learning. The fixed point is the
        same.
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `VTrace`, both of the dtype of the rewards. No gradient is stopped.

    Raises:
      ValueError: if shapes or dtypes differ, a number is out of its range, not one of the two values is given, or
        is_last without next_values.
    """
    require_number("gamma", gamma, 0, 1)
    require_number("lambda_", lambda_, 0, 1)
    require_number("clip_c", clip_c, 0)
    require_number("clip_rho", clip_rho, clip_c)
    rewards, discounts, values, ratios = alike(
        time_axis, rewards=rewards, discounts=discounts, values=values, ratios=ratios
    )
    following = following_values(rewards, values, bootstrap_value, next_values, time_axis, is_last)
    factors, goes_on = gamma * discounts, continues(is_last, rewards, time_axis)
    rhos, traces = tf.minimum(ratios, clip_rho), lambda_ * tf.minimum(ratios, clip_c)
    deltas = rhos * (rewards + tf.math.multiply_no_nan(following, factors) - values)
    corrections = along(time_axis, scan, factors * traces * goes_on, deltas)
    after = following + tf.math.multiply_no_nan(along(time_axis, _next, corrections), goes_on)
    return VTrace(values + corrections, rhos * (rewards + tf.math.multiply_no_nan(after, factors) - values))


def retrace(
    rewards: TensorLike,
    discounts: TensorLike,
    *,
    values: TensorLike,
    next_values: TensorLike,
    ratios: TensorLike,
    is_last: TensorLike | None = None,
    gamma: float,
    lambda_: float,
    time_axis: int = 0,
) -> tf.Tensor:
    """Returns Retrace(lambda) targets of the action values.

        delta_t = r_t + gamma_t * E_pi[Q(s_{t+1}, .)] - Q(s_t, a_t),   c_t = lambda * min(1, ratios_t)
        Q_t     = Q(s_t, a_t) + delta_t + gamma_t * c_{t+1} * (Q_{t+1} - Q(s_{t+1}, a_{t+1}))

    Munos et al. (2016), "Safe and Efficient Off-Policy Reinforcement Learning", eq. 3 with the c_t that is given below
    it for Retrace(lambda). The first step of a sum has no trace: its action is given. lambda 0 gives the one-step
    targets.

    Args:
      rewards: see `returns.lambda_returns`.
      discounts: see `returns.lambda_returns`.
      values: `[T]`, Q(s_t, a_t) of the actions that were taken.
      next_values: `[T]`, the mean of Q(s_{t+1}, .) over the actions of pi.
      ratios: `[T]`, at least 0; `ratios[t]` is of the action taken at s_t, so that `ratios[0]` is not used.
      is_last: see `returns.lambda_returns`.
      gamma: in [0, 1].
      lambda_: in [0, 1].
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `[T]`, dtype of the rewards. No gradient is stopped.

    Raises:
      ValueError: if shapes or dtypes differ, or gamma or lambda_ are outside [0, 1].
    """
    require_number("gamma", gamma, 0, 1)
    require_number("lambda_", lambda_, 0, 1)
    rewards, discounts, values, following, ratios = alike(
        time_axis, rewards=rewards, discounts=discounts, values=values, next_values=next_values, ratios=ratios
    )
    factors, goes_on = gamma * discounts, continues(is_last, rewards, time_axis)
    deltas = rewards + tf.math.multiply_no_nan(following, factors) - values
    next_traces = lambda_ * tf.minimum(along(time_axis, _next, ratios), 1)
    return values + along(time_axis, scan, factors * tf.math.multiply_no_nan(next_traces, goes_on), deltas)


def _next(tensor: tf.Tensor) -> tf.Tensor:
    return shifted(tensor, 1, 0)
