"""Advantages for every step of an episode."""

from __future__ import annotations

from dataclasses import dataclass, field

import tensorflow as tf

from rlds2reverb._arguments import require_number
from rlds2reverb.specs import Nest

from .batches import is_last_transition, of_steps, steps_left
from .column_adder import ColumnAdder
from .returns import generalized_advantage_estimation
from .steps import require_single_rewards, transitions, with_added
from .values import ValueFn, require_values, values_of

ADVANTAGE, RETURN = "advantage", "return_"


@dataclass(frozen=True)
class GAE(ColumnAdder):
    """Adds `advantage` and `return_` to every step: see `returns.generalized_advantage_estimation`.

        return_t = A_t + V(s_t)

    the target of the value function, the lambda-return of Sutton & Barto (2018), eq. 12.20.

    Item: a whole episode, a dict of columns `[N, ...]`: the steps' fields and the two, both of the dtype of the
    rewards (float32 if these are integers). Put `StepWindows` or another adder behind it with `compose` for smaller ones.

    Both ends of an episode: the first step is like any. A terminated episode ends with value 0, a truncated one with
    the value of its final observation. At the last step, where nothing is done any more, both are 0.

    Attributes:
      gamma: the agent's discount factor, in [0, 1].
      lambda_: in [0, 1].
      value_fn: gives the values of all observations of an episode at once; None if they are the column `value`.
    """

    gamma: float
    lambda_: float
    value_fn: ValueFn | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_number("gamma", self.gamma, 0, 1)
        require_number("lambda_", self.lambda_, 0, 1)

    def row_spec(self, step_spec: Nest) -> Nest:
        """See `ColumnAdder.row_spec`."""
        dtype = require_single_rewards(step_spec, "GAE")
        require_values(step_spec, self.value_fn, "GAE")
        return with_added(step_spec, "GAE", **{ADVANTAGE: tf.TensorSpec((), dtype), RETURN: tf.TensorSpec((), dtype)})

    def batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """See `ColumnAdder.batch_rows`."""
        left = steps_left(num_steps)
        rewards, discounts = transitions(columns)
        values = values_of(columns, self.value_fn)
        advantages = generalized_advantage_estimation(
            rewards,
            discounts,
            values=values[:-1],
            next_values=values[1:],
            is_last=is_last_transition(left, rewards),
            gamma=self.gamma,
            lambda_=self.lambda_,
        )
        returns = advantages + values[:-1]
        return {**columns, ADVANTAGE: of_steps(advantages, left), RETURN: of_steps(returns, left)}, num_steps

    @property
    def takes_batches(self) -> bool:
        """See `ColumnAdder.takes_batches`; a network may round in other ways in batches of another size."""
        return super().takes_batches and self.value_fn is None
