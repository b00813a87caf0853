"""Functions for returns and advantages of trajectories, without a loop over the steps.

Shapes: `[T]`, `[T, ...]`, or `[B, T]` with `time_axis=1`. Index convention: `rewards[t]` follows the action taken at
`s_t` and leads to `s_{t+1}`; `discounts[t]` belongs to the same transition and is 0 if `s_{t+1}` is terminal.
The results are NumPy arrays, or tensors if one of the arguments is a tensor.
Below, gamma_t stands for `gamma * discounts[t]`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tree

from rlds2reverb.types.arguments import require_count, require_number

from .array_checks import ArrayLike, make_continues, select_next_values, to_matching_arrays
from .arrays import Array, multiply_no_nan, namespace, without_warnings
from .recurrence import MAX_STEPS, compose_windows, scan, shift


@without_warnings
def discounted_returns(
    rewards: ArrayLike,
    discounts: ArrayLike,
    *,
    gamma: float = 1.0,
    bootstrap_value: ArrayLike | None = None,
    next_values: ArrayLike | None = None,
    is_last: ArrayLike | None = None,
    time_axis: int = 0,
) -> Array:
    """Returns the discounted sum of the rewards from each step to the end of its episode.

        G_t = r_t + gamma_t * G_{t+1},  G_T = bootstrap_value

    Sutton & Barto (2018), eq. 3.9 with the discounting of eq. 14.2 (a discount for each transition). After the last
    step of an episode, G_{t+1} is next_values[t], or 0 without them.

    Args:
      rewards: float32 or float64 `[T]` (see the module), in the environment's own units.
      discounts: `[T]`, in [0, 1]; 0 if the transition ends in a terminal state, unchanged if it is only truncated.
      gamma: the agent's discount factor, in [0, 1].
      bootstrap_value: the value of `s_T`, a number or of the shape of `rewards` without time, 0 by default; unused if
        `discounts[-1]` is 0. With is_last, the value after an episode truncated inside the chunk is 0.
      next_values: `[T]`, V(s_{t+1}) for each step, instead of bootstrap_value. Only those after the end of an episode
        or of the chunk are used.
      is_last: bool `[T]`, True if the transition is the last of its episode, so that later steps are ignored. Only
        needed for truncations inside the chunk.
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `[T]`, dtype of the rewards. Empty for an empty episode.

    Raises:
      ValueError: If shapes or dtypes differ, gamma is outside [0, 1], or both kinds of values are passed.
    """
    require_number("gamma", gamma, 0, 1)
    rewards, discounts = to_matching_arrays(
        time_axis, others=(bootstrap_value, next_values, is_last), rewards=rewards, discounts=discounts
    )
    if bootstrap_value is not None and next_values is not None:
        raise ValueError("pass either bootstrap_value or next_values, not both")
    if bootstrap_value is None and next_values is None:
        bootstrap_value = 0.0
    following = select_next_values(
        rewards, namespace(rewards).zeros_like(rewards), bootstrap_value, next_values, time_axis
    )
    factors, continues = float(gamma) * discounts, make_continues(is_last, rewards, time_axis)
    terms = rewards + multiply_no_nan(following, factors * (1 - continues))
    return apply_along(time_axis, scan, factors * continues, terms)


def returns_to_go(rewards: ArrayLike, *, gamma: float = 1.0, time_axis: int = 0) -> Array:
    """Returns the discounted sum of the rewards from each step to the end, which may be a truncation.

        R_t = r_t + gamma * R_{t+1},  R_T = 0

    Chen et al. (2021), "Decision Transformer", sec. 3, where gamma is 1.

    Args:
      rewards: float `[T]`.
      gamma: the agent's discount factor, in [0, 1].
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `[T]`, dtype of the rewards.

    Raises:
      ValueError: If gamma is outside [0, 1] or the rewards are not floats.
    """
    (rewards,) = to_matching_arrays(time_axis, rewards=rewards)
    return discounted_returns(rewards, namespace(rewards).ones_like(rewards), gamma=gamma, time_axis=time_axis)


@without_warnings
def td_errors(
    rewards: ArrayLike,
    discounts: ArrayLike,
    *,
    values: ArrayLike,
    bootstrap_value: ArrayLike | None = None,
    next_values: ArrayLike | None = None,
    is_last: ArrayLike | None = None,
    n: int = 1,
    gamma: float = 1.0,
    time_axis: int = 0,
) -> Array:
    """Returns temporal-difference errors over one or n steps.

        delta_t = r_t + gamma_t * V(s_{t+1}) - V(s_t)
        delta_t = R_t + D_t * V(s_{t+m}) - V(s_t)   over n steps, with R, D and m of `n_step_returns`

    Sutton & Barto (2018), eq. 6.5 and 7.1.

    Args:
      rewards: float `[T]`.
      discounts: `[T]`, in [0, 1]; 0 if the transition ends in a terminal state.
      values: `[T]`, V(s_0) .. V(s_{T-1}).
      bootstrap_value: V(s_T), a number or of the shape without time, if each step is followed by the next one.
      next_values: `[T]`, V(s_{t+1}) for each step, instead of bootstrap_value. Required if an episode is truncated
        inside the chunk, since `values[t + 1]` then belongs to a different episode.
      is_last: bool `[T]`, True if the transition is the last of its episode, where windows of n steps end; requires
        `next_values`. Makes no difference for one step.
      n: number of steps, at least 1.
      gamma: the agent's discount factor, in [0, 1].
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `[T]`, dtype of the rewards.

    Raises:
      ValueError: If shapes or dtypes differ, n is below 1, gamma is outside [0, 1], not exactly one of the two
        values is passed, or is_last without next_values.
    """
    require_count("n", n)
    require_number("gamma", gamma, 0, 1)
    rewards, discounts, values = to_matching_arrays(
        time_axis, others=(bootstrap_value, next_values, is_last), rewards=rewards, discounts=discounts, values=values
    )
    following = select_next_values(rewards, values, bootstrap_value, next_values, time_axis, is_last)
    factors, continues = float(gamma) * discounts, make_continues(is_last, rewards, time_axis)
    if n == 1:
        return rewards + multiply_no_nan(following, factors) - values
    compute_targets = functools.partial(_compute_n_step_targets, n)
    return apply_along(time_axis, compute_targets, rewards, factors, following, continues) - values


def _compute_n_step_targets(n: int, rewards: Array, factors: Array, following: Array, continues: Array) -> Array:
    """Returns `R_t + D_t * V(s_{t+m})`.

    If a window reaches the end of an episode, the value there is one of the window's terms. Otherwise the value after
    its n-th step is used, which is n - 1 rows below the first.
    """
    at_ends = multiply_no_nan(following, factors * (1 - continues))
    sums, products = compose_windows(factors * continues, rewards + at_ends, n)
    return sums + multiply_no_nan(shift(following, min(n, MAX_STEPS) - 1, 0), products)


@without_warnings
def generalized_advantage_estimation(
    rewards: ArrayLike,
    discounts: ArrayLike,
    *,
    values: ArrayLike,
    bootstrap_value: ArrayLike | None = None,
    next_values: ArrayLike | None = None,
    is_last: ArrayLike | None = None,
    gamma: float,
    lambda_: float,
    time_axis: int = 0,
) -> Array:
    """Returns advantages as exponentially weighted sums of TD errors.

        delta_t = r_t + gamma_t * V(s_{t+1}) - V(s_t)
        A_t     = delta_t + lambda * gamma_t * A_{t+1},  A_T = 0

    Schulman et al. (2016), "High-Dimensional Continuous Control Using Generalized Advantage Estimation", eq. 16.
    lambda 0 gives the TD errors, lambda 1 the discounted returns minus the values.

    Args:
      rewards: float `[T]`.
      discounts: `[T]`, in [0, 1]; 0 if the transition ends in a terminal state, which ends the sum as well.
      values: `[T]`, V(s_0) .. V(s_{T-1}).
      bootstrap_value: see `td_errors`.
      next_values: see `td_errors`.
      is_last: bool `[T]`, True if the transition is the last of its episode, so that later steps are ignored; requires
        `next_values`. Only needed for truncations inside the chunk.
      gamma: the agent's discount factor, in [0, 1].
      lambda_: the weight of longer returns, in [0, 1].
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `[T]`, dtype of the rewards. No gradient is stopped.

    Raises:
      ValueError: If shapes or dtypes differ, gamma or lambda_ are outside [0, 1], not exactly one of the two
        values is passed, or is_last without next_values.
    """
    require_number("gamma", gamma, 0, 1)
    require_number("lambda_", lambda_, 0, 1)
    rewards, discounts, values = to_matching_arrays(
        time_axis, others=(bootstrap_value, next_values, is_last), rewards=rewards, discounts=discounts, values=values
    )
    following = select_next_values(rewards, values, bootstrap_value, next_values, time_axis, is_last)
    factors = float(gamma) * discounts
    deltas = rewards + multiply_no_nan(following, factors) - values
    weights = float(lambda_) * float(gamma) * discounts * make_continues(is_last, rewards, time_axis)
    return apply_along(time_axis, scan, weights, deltas)


@without_warnings
def lambda_returns(
    rewards: ArrayLike,
    discounts: ArrayLike,
    *,
    next_values: ArrayLike,
    is_last: ArrayLike | None = None,
    gamma: float,
    lambda_: float,
    time_axis: int = 0,
) -> Array:
    """Returns exponentially weighted means of all n-step returns.

        G_t = r_t + gamma_t * ((1 - lambda) * V(s_{t+1}) + lambda * G_{t+1}),  G_T = V(s_T)

    Sutton & Barto (2018), eq. 12.20 (there for state values, with a discount for each transition). lambda 0 gives
    the one-step targets, lambda 1 the discounted returns.

    Args:
      rewards: float `[T]`.
      discounts: `[T]`, in [0, 1]; 0 if the transition ends in a terminal state.
      next_values: `[T]`, V(s_1) .. V(s_T).
      is_last: bool `[T]`, True if the transition is the last of its episode, where G_{t+1} is V(s_{t+1}). Only needed
        for truncations inside the chunk.
      gamma: the agent's discount factor, in [0, 1].
      lambda_: the weight of longer returns, in [0, 1].
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      `[T]`, dtype of the rewards.

    Raises:
      ValueError: If shapes or dtypes differ, or gamma or lambda_ are outside [0, 1].
    """
    require_number("gamma", gamma, 0, 1)
    require_number("lambda_", lambda_, 0, 1)
    rewards, discounts, following = to_matching_arrays(
        time_axis, others=(is_last,), rewards=rewards, discounts=discounts, next_values=next_values
    )
    factors = float(gamma) * discounts
    trace = float(lambda_) * make_continues(is_last, rewards, time_axis)
    terms = rewards + multiply_no_nan(following, factors * (1 - trace))
    return apply_along(time_axis, scan, factors * trace, terms)


@without_warnings
def n_step_returns(
    rewards: ArrayLike,
    discounts: ArrayLike,
    *,
    n: int,
    is_last: ArrayLike | None = None,
    gamma: float = 1.0,
    time_axis: int = 0,
) -> tuple[Array, Array]:
    """Returns discounted sums of at most n rewards, and the discounts of the values after them.

        R_t = sum_{k=0}^{m-1} (prod_{j<k} gamma_{t+j}) * r_{t+k},   D_t = prod_{j<m} gamma_{t+j},   m = min(n, T - t)

    so that the n-step return is `R_t + D_t * V(s_{t+m})`. Sutton & Barto (2018), eq. 7.1. T is the end of the episode
    or of the chunk, and the windows shrink there; n of T or more gives the discounted returns. At the end of a
    truncated episode D_t keeps the discount of its final observation: `s_{t+m}` is that observation, not a step of the
    next episode. (`td_errors` with the same n includes this value.)

    Args:
      rewards: float `[T]`.
      discounts: `[T]`, in [0, 1]; 0 if the transition ends in a terminal state, so that later steps are ignored.
      n: number of steps, at least 1.
      is_last: bool `[T]`, True if the transition is the last of its episode, where windows end. Only needed for
        truncations inside the chunk.
      gamma: the agent's discount factor, in [0, 1].
      time_axis: 0, or 1 for `[B, T]`.

    Returns:
      R and D, each `[T]`, dtype of the rewards.

    Raises:
      ValueError: If shapes or dtypes differ, n is below 1, or gamma is outside [0, 1].
    """
    require_count("n", n)
    require_number("gamma", gamma, 0, 1)
    rewards, discounts = to_matching_arrays(time_axis, others=(is_last,), rewards=rewards, discounts=discounts)
    factors = float(gamma) * discounts
    if is_last is None:
        return apply_along(time_axis, functools.partial(compose_windows, n=n), factors, rewards)
    continues = make_continues(is_last, rewards, time_axis)
    # `factors * continues` is 0 at the end of an episode, so the product of a window that reaches it is 0. Summing the
    # factors of the end steps, as if they were rewards, restores it.
    at_ends = factors * (1 - continues)
    sums, products = apply_along(time_axis, functools.partial(compose_windows, n=n), factors * continues, rewards)
    end_products, _ = apply_along(time_axis, functools.partial(compose_windows, n=n), factors * continues, at_ends)
    return sums, products + end_products


def apply_along(time_axis: int, function: Callable[..., Any], *arrays: Array) -> Any:
    """Applies a function of `[T, ...]` arrays along the given time axis."""
    if time_axis == 0:
        return function(*arrays)
    transpose = namespace(arrays[0]).transpose
    return tree.map_structure(transpose, function(*map(transpose, arrays)))
