"""Returns and advantages of trajectories, without a loop over their steps.

Shapes: `[T]`, `[T, ...]`, or `[B, T]` with `time_axis=1`. Index convention: `rewards[t]` follows the action taken at
`s_t` and leads to `s_{t+1}`; `discounts[t]` belongs to the same transition and is 0 where `s_{t+1}` is terminal.
Below, gamma_t stands for `gamma * discounts[t]`.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from rlds2reverb._arguments import require_count, require_number

from .recurrence import scan, windows
from .tensors import TensorLike, alike, final_value, flags_like, following_values


def discounted_returns(
    rewards: TensorLike,
    discounts: TensorLike,
    *,
    gamma: float = 1.0,
    bootstrap_value: TensorLike = 0.0,
    time_axis: int = 0,
) -> tf.Tensor:
    """The discounted sum of what follows each step.

        G_t = r_t + gamma_t * G_{t+1},  G_T = bootstrap_value

    Sutton & Barto (2018), eq. 3.9 with the discounting of eq. 14.2 (a discount for each transition).

    Args:
      rewards: float32 or float64 `[T]` (see the module), in the environment's own units.
      discounts: `[T]`, in [0, 1]; 0 where the transition ends in a terminal state, kept where it is only truncated.
      gamma: the agent's discount factor, in [0, 1].
      bootstrap_value: the value of `s_T`, a number or the shape of `rewards` without time; it has no say where
        `discounts[-1]` is 0.
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `[T]`, dtype of the rewards. Empty for an empty episode.

    Raises:
      ValueError: if shapes or dtypes differ, or gamma is outside [0, 1].
    """
    require_number("gamma", gamma, 0, 1)
    rewards, discounts = alike(time_axis, rewards=rewards, discounts=discounts)
    final = final_value(bootstrap_value, rewards, time_axis)
    factors = gamma * discounts

    def summed(rewards: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
        return scan(factors, tf.concat([rewards[:-1], rewards[-1:] + tf.math.multiply_no_nan(final, factors[-1:])], 0))

    return _along(time_axis, summed, rewards, factors)


def returns_to_go(rewards: TensorLike, *, gamma: float = 1.0, time_axis: int = 0) -> tf.Tensor:
    """The sum of the rewards from each step to the end, whatever end that is.

        R_t = r_t + gamma * R_{t+1},  R_T = 0

    Chen et al. (2021), "Decision Transformer", sec. 3, where gamma is 1.

    Args:
      rewards: float `[T]`.
      gamma: in [0, 1].
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `[T]`, dtype of the rewards.

    Raises:
      ValueError: if gamma is outside [0, 1] or the rewards are not floats.
    """
    return discounted_returns(rewards, tf.ones_like(rewards), gamma=gamma, time_axis=time_axis)


def td_errors(
    rewards: TensorLike,
    discounts: TensorLike,
    *,
    values: TensorLike,
    bootstrap_value: TensorLike | None = None,
    next_values: TensorLike | None = None,
    gamma: float = 1.0,
    time_axis: int = 0,
) -> tf.Tensor:
    """One-step temporal-difference errors.

        delta_t = r_t + gamma_t * V(s_{t+1}) - V(s_t)

    Sutton & Barto (2018), eq. 6.5.

    Args:
      rewards: float `[T]`.
      discounts: `[T]`, in [0, 1]; 0 where the transition ends in a terminal state.
      values: `[T]`, V(s_0) .. V(s_{T-1}).
      bootstrap_value: V(s_T), a number or without time; if the next value of each step is that of the step after it.
      next_values: `[T]`, V(s_{t+1}) for each step: needed where an episode is truncated inside the chunk, since
        `values[t + 1]` is then of another episode. Give one of the two.
      gamma: in [0, 1].
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `[T]`, dtype of the rewards.

    Raises:
      ValueError: if shapes or dtypes differ, gamma is outside [0, 1], or not one of the two values is given.
    """
    require_number("gamma", gamma, 0, 1)
    rewards, discounts, values = alike(time_axis, rewards=rewards, discounts=discounts, values=values)
    following = following_values(rewards, values, bootstrap_value, next_values, time_axis)
    return rewards + tf.math.multiply_no_nan(following, gamma * discounts) - values


def generalized_advantage_estimation(
    rewards: TensorLike,
    discounts: TensorLike,
    *,
    values: TensorLike,
    bootstrap_value: TensorLike | None = None,
    next_values: TensorLike | None = None,
    is_last: TensorLike | None = None,
    gamma: float,
    lambda_: float,
    time_axis: int = 0,
) -> tf.Tensor:
    """Advantages as exponentially weighted sums of TD errors.

        delta_t = r_t + gamma_t * V(s_{t+1}) - V(s_t)
        A_t     = delta_t + lambda * gamma_t * A_{t+1},  A_T = 0

    Schulman et al. (2016), "High-Dimensional Continuous Control Using Generalized Advantage Estimation", eq. 16.
    lambda 0 gives the TD errors, lambda 1 the discounted returns minus the values.

    Args:
      rewards: float `[T]`.
      discounts: `[T]`, in [0, 1]; 0 where the transition ends in a terminal state, which ends the sum as well.
      values: `[T]`, V(s_0) .. V(s_{T-1}).
      bootstrap_value: see `td_errors`.
      next_values: see `td_errors`.
      is_last: bool `[T]`, True where the transition is the last of its episode: nothing of the steps after it is
        taken in. Only needed for ends inside the chunk that are truncations, together with `next_values`.
      gamma: in [0, 1].
      lambda_: in [0, 1].
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `[T]`, dtype of the rewards. No gradient is stopped.

    Raises:
      ValueError: if shapes or dtypes differ, gamma or lambda_ are outside [0, 1], or not one of the two values is
        given.
    """
    require_number("gamma", gamma, 0, 1)
    require_number("lambda_", lambda_, 0, 1)
    rewards, discounts, values = alike(time_axis, rewards=rewards, discounts=discounts, values=values)
    following = following_values(rewards, values, bootstrap_value, next_values, time_axis)
    deltas = rewards + tf.math.multiply_no_nan(following, gamma * discounts) - values
    weights = lambda_ * gamma * discounts
    if is_last is not None:
        weights = tf.where(flags_like(is_last, rewards), tf.zeros_like(weights), weights)
    return _along(time_axis, scan, weights, deltas)


def lambda_returns(
    rewards: TensorLike,
    discounts: TensorLike,
    *,
    next_values: TensorLike,
    is_last: TensorLike | None = None,
    gamma: float,
    lambda_: float,
    time_axis: int = 0,
) -> tf.Tensor:
    """Mixtures of all n-step returns.

        G_t = r_t + gamma_t * ((1 - lambda) * V(s_{t+1}) + lambda * G_{t+1}),  G_T = V(s_T)

    Sutton & Barto (2018), eq. 12.20 (there for state values, with a discount for each transition). lambda 0 gives
    the one-step targets, lambda 1 the discounted returns.

    Args:
      rewards: float `[T]`.
      discounts: `[T]`, in [0, 1]; 0 where the transition ends in a terminal state.
      next_values: `[T]`, V(s_1) .. V(s_T).
      is_last: bool `[T]`, True where the transition is the last of its episode: there G_{t+1} is V(s_{t+1}). Only
        needed for truncations inside the chunk.
      gamma: in [0, 1].
      lambda_: in [0, 1].
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `[T]`, dtype of the rewards.

    Raises:
      ValueError: if shapes or dtypes differ, or gamma or lambda_ are outside [0, 1].
    """
    require_number("gamma", gamma, 0, 1)
    require_number("lambda_", lambda_, 0, 1)
    rewards, discounts, following = alike(time_axis, rewards=rewards, discounts=discounts, next_values=next_values)
    factors = gamma * discounts
    trace = tf.fill(tf.shape(factors), tf.constant(lambda_, factors.dtype))
    if is_last is not None:
        trace = tf.where(flags_like(is_last, rewards), tf.zeros_like(trace), trace)
    trace = _along(time_axis, _zero_at_the_end, trace)
    return _along(time_axis, scan, factors * trace, rewards + tf.math.multiply_no_nan(following, factors * (1 - trace)))


def n_step_returns(
    rewards: TensorLike, discounts: TensorLike, *, n: int, gamma: float = 1.0, time_axis: int = 0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums of at most n rewards, and what discounts the value after them.

        R_t = sum_{k=0}^{m-1} (prod_{j<k} gamma_{t+j}) * r_{t+k},   D_t = prod_{j<m} gamma_{t+j},   m = min(n, T - t)

    so that the n-step return is `R_t + D_t * V(s_{t+m})`. Sutton & Barto (2018), eq. 7.1. The windows shrink at the
    end; n of T or more gives the discounted returns.

    Args:
      rewards: float `[T]`.
      discounts: `[T]`, in [0, 1]; 0 where the transition ends in a terminal state: nothing behind it is taken in.
      n: steps, at least 1.
      gamma: in [0, 1].
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      R and D, each `[T]`, dtype of the rewards.

    Raises:
      ValueError: if shapes or dtypes differ, n is below 1, or gamma is outside [0, 1].
    """
    require_count("n", n)
    require_number("gamma", gamma, 0, 1)
    rewards, discounts = alike(time_axis, rewards=rewards, discounts=discounts)
    if time_axis == 1:
        sums, products = windows(tf.transpose(gamma * discounts), tf.transpose(rewards), n)
        return tf.transpose(sums), tf.transpose(products)
    return windows(gamma * discounts, rewards, n)


def _along(time_axis: int, function: Callable[..., tf.Tensor], *tensors: tf.Tensor) -> tf.Tensor:
    """Applies a function of `[T, ...]` tensors along the time axis."""
    if time_axis == 0:
        return function(*tensors)
    return tf.transpose(function(*[tf.transpose(tensor) for tensor in tensors]))


def _zero_at_the_end(tensor: tf.Tensor) -> tf.Tensor:
    return tf.concat([tensor[:-1], tf.zeros_like(tensor[-1:])], 0)
