"""The return from each step on."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from rlds2reverb._arguments import require_number
from rlds2reverb.specs import Nest

from .batches import is_last_transition, of_steps, steps_left
from .column_adder import ColumnAdder
from .returns import discounted_returns
from .steps import require_single_rewards, transitions, with_added

RETURN_TO_GO = "return_to_go"


@dataclass(frozen=True)
class ReturnToGo(ColumnAdder):
    """Adds `return_to_go` to every step: see `returns.returns_to_go`.

    Chen et al. (2021), "Decision Transformer", sec. 3.

    Item: a whole episode, a dict of columns `[N, ...]`: the steps' fields and this one, of the dtype of the rewards
    (float32 if these are integers).

    Both ends of an episode: the first step has the return of the episode. Terminated or truncated, what comes after
    the end is not counted, and the last step has 0.

    Attributes:
      gamma: in [0, 1]; 1 as in the paper.
    """

    gamma: float = 1.0

    def __post_init__(self) -> None:
        require_number("gamma", self.gamma, 0, 1)

    def row_spec(self, step_spec: Nest) -> Nest:
        """See `ColumnAdder.row_spec`."""
        dtype = require_single_rewards(step_spec, "ReturnToGo")
        return with_added(step_spec, "ReturnToGo", **{RETURN_TO_GO: tf.TensorSpec((), dtype)})

    def batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """See `ColumnAdder.batch_rows`."""
        left = steps_left(num_steps)
        rewards, _ = transitions(columns)
        is_last = is_last_transition(left, rewards)
        returns = discounted_returns(rewards, tf.ones_like(rewards), gamma=self.gamma, is_last=is_last)
        return {**columns, RETURN_TO_GO: of_steps(returns, left)}, num_steps
