"""An adder of the return from each step on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from rlds2reverb.types.arguments import require_number
from rlds2reverb.types.specs import Nest

from .arrays import Array, namespace
from .column_adder import ColumnAdder
from .returns import discounted_returns
from .step_fields import (
    add_field_specs,
    count_steps_left,
    get_rewards_and_discounts,
    mark_last_transitions,
    pad_transitions_to_steps,
    require_scalar_rewards,
)

RETURN_TO_GO = "return_to_go"


@dataclass(frozen=True)
class ReturnToGo(ColumnAdder):
    """An adder of the field `return_to_go`; see `returns.returns_to_go`.

    Chen et al. (2021), "Decision Transformer", sec. 3.

    Item: a whole episode, a dict of columns `[N, ...]`: the fields of the steps and this one, with the dtype of the
    rewards (float32 for integers).

    Both ends of an episode: the first step has the return of the episode. Nothing after the end counts, whether the
    episode was terminated or truncated, and the last step has 0.

    Attributes:
      gamma: discount factor, in [0, 1]; 1 as in the paper.
    """

    runs_on_arrays: ClassVar[bool] = True
    gamma: float = 1.0

    def __post_init__(self) -> None:
        require_number("gamma", self.gamma, 0, 1)

    def row_spec(self, step_spec: Nest) -> Nest:
        """Implements `ColumnAdder.row_spec`."""
        dtype = require_scalar_rewards(step_spec, "ReturnToGo")
        return add_field_specs(step_spec, "ReturnToGo", **{RETURN_TO_GO: tf.TensorSpec((), dtype)})

    def make_batch_rows(self, columns: Nest, num_steps: Array) -> tuple[Nest, Array]:
        """Implements `ColumnAdder.make_batch_rows`."""
        left = count_steps_left(num_steps)
        rewards, _ = get_rewards_and_discounts(columns)
        ones = namespace(rewards).ones_like(rewards)
        returns = discounted_returns(rewards, ones, gamma=self.gamma, is_last=mark_last_transitions(left))
        return {**columns, RETURN_TO_GO: pad_transitions_to_steps(returns, left)}, num_steps
