"""Functions for returns and advantages of trajectories, without a loop over the steps.

Shapes: `[T]`, `[T, ...]`, or `[B, T]` with `time_axis=1`. Index convention: `rewards[t]` follows the action taken at
`s_t` and leads to `s_{t+1}`; `discounts[t]` belongs to the same transition and is 0 if `s_{t+1}` is terminal.
The results are NumPy arrays, or tensors if one of the arguments is a tensor.
Below, gamma_t stands for `gamma * discounts[t]`.
"""

from __future__ import annotations

from .array_checks import ArrayLike, make_continues, of_trajectories, select_next_values
from .arrays import Array, multiply_no_nan, namespace
from .recurrence import MAX_STEPS, compose_windows, scan, shift


@of_trajectories("rewards", "discounts", "next_values")
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
    if bootstrap_value is not None and next_values is not None:
        raise ValueError("pass either bootstrap_value or next_values, not both")
    following = namespace(rewards).zeros_like(rewards)
    if bootstrap_value is not None or next_values is not None:
        following = select_next_values(following, bootstrap_value, next_values)
    factors, continues = float(gamma) * discounts, make_continues(is_last, rewards)
    terms = rewards + multiply_no_nan(following, factors * (1 - continues))
    return scan(factors * continues, terms)


@of_trajectories("rewards")
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
    return discounted_returns(rewards, namespace(rewards).ones_like(rewards), gamma=gamma)


@of_trajectories("rewards", "discounts", "values", "next_values")
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
    following = select_next_values(values, bootstrap_value, next_values, is_last)
    factors, continues = float(gamma) * discounts, make_continues(is_last, rewards)
    if n == 1:
        return rewards + multiply_no_nan(following, factors) - values
    # If a window reaches the end of an episode, the value there is one of the window's terms. Otherwise the value after
    # its n-th step is used, which is n - 1 rows below the first.
    at_ends = multiply_no_nan(following, factors * (1 - continues))
    sums, products = compose_windows(factors * continues, rewards + at_ends, n)
    return sums + multiply_no_nan(shift(following, min(n, MAX_STEPS) - 1, 0), products) - values


@of_trajectories("rewards", "discounts", "values", "next_values")
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
    following = select_next_values(values, bootstrap_value, next_values, is_last)
    factors = float(gamma) * discounts
    deltas = rewards + multiply_no_nan(following, factors) - values
    return scan(float(lambda_) * factors * make_continues(is_last, rewards), deltas)


@of_trajectories("rewards", "discounts", "next_values")
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
    factors = float(gamma) * discounts
    trace = float(lambda_) * make_continues(is_last, rewards)
    terms = rewards + multiply_no_nan(next_values, factors * (1 - trace))
    return scan(factors * trace, terms)


@of_trajectories("rewards", "discounts")
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
    factors = float(gamma) * discounts
    if is_last is None:
        return compose_windows(factors, rewards, n)
    continues = make_continues(is_last, rewards)
    # `factors * continues` is 0 at the end of an episode, so the product of a window that reaches it is 0. Summing the
    # factors of the end steps, as if they were rewards, restores it.
    at_ends = factors * (1 - continues)
    sums, products = compose_windows(factors * continues, rewards, n)
    end_products, _ = compose_windows(factors * continues, at_ends, n)
    return sums, products + end_products
