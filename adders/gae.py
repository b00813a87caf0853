"""An adder of advantages for every step of an episode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import tensorflow as tf

from rlds2reverb.types.arguments import require_number
from rlds2reverb.types.specs import Nest

from .arrays import Array
from .column_adder import ColumnAdder
from .returns import generalized_advantage_estimation
from .state_values import ValueFn, read_transitions, require_values
from .step_fields import add_field_specs, count_steps_left, pad_transitions_to_steps, require_scalar_rewards

ADVANTAGE, RETURN = "advantage", "return_"


@dataclass(frozen=True)
class GAE(ColumnAdder):
    """An adder of the fields `advantage` and `return_`; see `returns.generalized_advantage_estimation`.

        return_t = A_t + V(s_t)

    is the target of the value function, the lambda-return of Sutton & Barto (2018), eq. 12.20.

    Item: a whole episode, a dict of columns `[N, ...]`: the fields of the steps and these two, both with the dtype of
    the rewards (float32 for integers). For smaller items, put `StepWindows` or another adder after it with `compose`.

    Both ends of an episode: the first step is like any other. After a terminated episode the value is 0, after a
    truncated one it is the value of the final observation. At the last step, which has no action, both fields are 0.

    Attributes:
      gamma: the agent's discount factor, in [0, 1].
      lambda_: the weight of longer returns, in [0, 1].
      value_fn: function that returns the values of all observations of an episode; None to use the column `value`.
    """

    runs_on_arrays: ClassVar[bool] = True
    gamma: float
    lambda_: float
    value_fn: ValueFn | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_number("gamma", self.gamma, 0, 1)
        require_number("lambda_", self.lambda_, 0, 1)

    def row_spec(self, step_spec: Nest) -> Nest:
        """Implements `ColumnAdder.row_spec`."""
        spec = tf.TensorSpec((), require_scalar_rewards(step_spec, "GAE"))
        require_values(step_spec, self.value_fn, "GAE")
        return add_field_specs(step_spec, "GAE", **{ADVANTAGE: spec, RETURN: spec})

    def make_batch_rows(self, columns: Nest, num_steps: Array) -> tuple[Nest, Array]:
        """Implements `ColumnAdder.make_batch_rows`."""
        left, transitions = count_steps_left(num_steps), read_transitions(columns, num_steps, self.value_fn)
        advantages = generalized_advantage_estimation(**transitions, gamma=self.gamma, lambda_=self.lambda_)
        added = {ADVANTAGE: advantages, RETURN: advantages + transitions["values"]}
        padded = {name: pad_transitions_to_steps(column, left) for name, column in added.items()}
        return {**columns, **padded}, num_steps

    @property
    def supports_batches(self) -> bool:
        """False with a `value_fn`, since a network may round differently in batches of a different size."""
        return super().supports_batches and self.value_fn is None
