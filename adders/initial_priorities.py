"""An adder of the priorities with which items are inserted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count, require_defaults, require_number, require_one_of
from rlds2reverb.types.items import Items
from rlds2reverb.types.specs import Nest

from .arrays import Array, cast, namespace
from .column_adder import ColumnAdder
from .n_step import NStep
from .padding import MASK
from .places import columns_step_spec
from .returns import td_errors
from .state_values import ValueFn, compute_values, read_transitions, require_values
from .step_fields import (
    add_field_specs,
    count_steps_left,
    get_rewards_and_discounts,
    pad_transitions_to_steps,
    require_scalar_rewards,
)

PRIORITY = "priority"
#: The value of each observation, from the steps to the rows of NStep.
_VALUE = "value_for_priority"

#: How priorities are computed; see `InitialPriorities`.
KINDS = ("constant", "return", "td", "max")


#: The options that have an effect, by kind.
_OPTIONS = {
    "constant": ("constant",),
    "return": ("lowest", "highest", "eps"),
    "td": ("gamma", "n", "eta", "eps", "value_fn"),
    "max": ("gamma", "n", "eps", "value_fn"),
}


@dataclass(frozen=True)
class InitialPriorities(ColumnAdder):
    """The priority with which each item is inserted, computed from the item as the agent will be trained on it.

        'constant':  p_t = constant
        'return':    p_t = (return of the episode - lowest) / (highest - lowest), clipped to [eps, 1]
        'td', 'max': p_t = |delta_t| + eps, with the n-step error delta_t of `returns.td_errors`

    The TD error is that of prioritized replay (Schaul et al. 2016, eq. 1 with p = |delta| + eps). A row of `NStep` has
    the error of the item's target, with NStep's gamma:

        delta = reward + gamma * discount * V(next_observation) - V(observation)

    (without the gamma if discount_power is 'm'). The priority of an item of several rows, which may be steps or rows of
    NStep, is that of R2D2 (Kapturowski et al. 2019, sec. 2.3),

        p = eta * max_t p_t + (1 - eta) * mean_t p_t

    over its rows that are neither padding nor the last of an episode; 'max' means eta = 1. No priority includes the
    sampler's exponent, which Reverb applies itself.

    Pass the same object to `ingest` twice: in the adder, where it computes the priorities, and as `priority`, where it
    hands them to the table: `ingest(source, server, adder=compose(p, NStep(3, 0.99)), priority=p)`. It changes neither
    items nor specs, at any position in `compose`: the priorities accompany the items of an episode (`PrioritizedItems`)
    instead of forming a column, and the keys of items do not depend on them. A dataset of items, without Reverb, has no
    priorities.

    On its own it is an adder whose item is a whole episode, a dict of columns `[N, ...]`: the fields of the steps and
    `priority`, float32, at least 0, for each step.

    Both ends of an episode: the first step is like any other. After a terminated episode the value is 0, after a
    truncated one it is the value of the final observation. The last step, which has no action, has priority eps with
    'td' and 'max'.

    Attributes:
      kind: 'constant', 'return', 'td' or 'max'.
      constant: the priority for 'constant', in [0, 1e12].
      lowest, highest: the returns that 'return' maps to 0 and 1.
      gamma: discount factor for 'td' and 'max' of steps, in [0, 1].
      n: number of steps of the TD error, for 'td' and 'max' of steps; use that of the learner's targets.
      eta: weight of the maximum, in [0, 1].
      eps: minimum priority, so that every item can be sampled; in [1e-12, 1].
      value_fn: see `GAE`; None to use the column `value`.
    """

    runs_on_arrays: ClassVar[bool] = True
    kind: str = "constant"
    constant: float = 1.0
    lowest: float = 0.0
    highest: float = 1.0
    gamma: float = 0.99
    n: int = 1
    eta: float = 0.9
    eps: float = 1e-2
    value_fn: ValueFn | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, KINDS)
        require_number("constant", self.constant, 0, 1e12)
        require_number("lowest", self.lowest, -1e300, 1e300)
        require_number("highest", self.highest, -1e300, 1e300)
        if self.lowest >= self.highest:
            raise ValueError(f"highest must be above lowest, got highest={self.highest} and lowest={self.lowest}")
        require_number("eps", self.eps, 1e-12, 1)
        require_number("gamma", self.gamma, 0, 1)
        require_count("n", self.n)
        require_number("eta", self.eta, 0, 1)
        unused = [name for names in _OPTIONS.values() for name in names if name not in _OPTIONS[self.kind]]
        require_defaults(self, unused, f"for kind {self.kind!r}")

    def row_spec(self, step_spec: Nest) -> Nest:
        """Implements `ColumnAdder.row_spec`."""
        require_scalar_rewards(step_spec, "InitialPriorities")
        if self.kind in ("td", "max"):
            require_values(step_spec, self.value_fn, f"InitialPriorities({self.kind!r})")
        return add_field_specs(step_spec, "InitialPriorities", **{PRIORITY: tf.TensorSpec((), tf.float32)})

    def make_batch_rows(self, columns: Nest, num_steps: Array) -> tuple[Nest, Array]:
        """Implements `ColumnAdder.make_batch_rows`."""
        return {**columns, PRIORITY: self._compute_step_priorities(columns, num_steps)}, num_steps

    @property
    def supports_batches(self) -> bool:
        """False with a `value_fn` or for 'return', since networks and sums may round differently in batches."""
        return super().supports_batches and self.value_fn is None and self.kind != "return"

    def _compute_step_priorities(self, columns: Nest, num_steps: Array) -> Array:
        xp = namespace(num_steps)
        ones = xp.ones_like(columns[fields.IS_LAST], np.float64)
        if self.kind == "constant":
            return cast(ones * self.constant, np.float32)
        if self.kind == "return":
            rewards, _ = get_rewards_and_discounts(columns)
            scaled = (xp.sum(cast(rewards, np.float64)) - self.lowest) / (self.highest - self.lowest)
            return cast(ones * xp.clip(scaled, self.eps, 1.0), np.float32)
        errors = td_errors(**read_transitions(columns, num_steps, self.value_fn), n=self.n, gamma=self.gamma)
        return self.convert_errors(pad_transitions_to_steps(errors, count_steps_left(num_steps)))

    def add_column(self, columns: Nest, num_steps: np.ndarray, n_step: NStep | None) -> tuple[Nest, np.ndarray]:
        """Returns steps with their priority, or with the value from which `convert_column` computes that of NStep.

        Args:
          columns: the concatenated columns `[R, ...]` of some episodes.
          num_steps: int64 `[E]`, the number of steps of each episode.
          n_step: the adder that follows, if there is one.
        """
        if n_step is None or self.kind not in ("td", "max"):
            return self.transform(columns, num_steps)
        require_scalar_rewards(columns_step_spec(columns), "InitialPriorities")
        return {**columns, _VALUE: compute_values(columns, self.value_fn)}, num_steps

    def convert_column(self, rows: Nest, n_step: NStep) -> Nest:
        """Returns rows of NStep with the priority of their own TD error instead of the values of `add_column`."""
        if _VALUE not in rows:
            return rows
        rewards = rows[fields.REWARD]
        discounts = n_step.target_discounts(rows[fields.DISCOUNT]).astype(rewards.dtype)
        errors = td_errors(rewards, discounts, values=rows[_VALUE], next_values=rows[f"next_{_VALUE}"])
        kept = {name: rows[name] for name in rows if name not in (_VALUE, f"next_{_VALUE}")}
        return {**kept, PRIORITY: self.convert_errors(errors)}

    def convert_errors(self, errors: Array) -> Array:
        """Returns the priorities for TD errors, float32."""
        return cast(namespace(errors).abs(errors) + self.eps, np.float32)

    def __call__(self, episodes: Any, items: Items | None = None) -> Any:
        """Implements `ColumnAdder.__call__`. With an episode and its items, returns their priorities, float64 `[M]`.

        Raises:
          ValueError: If the items were made without this object, or with a different one.
        """
        if items is None:
            return super().__call__(episodes)
        if isinstance(items, PrioritizedItems):
            if items.computed_by != self:
                raise ValueError(
                    f"the items have priorities from {items.computed_by}, not from {self}; pass the same "
                    "InitialPriorities to compose and as priority"
                )
            return items.priorities
        if not isinstance(items.columns, dict) or PRIORITY not in items.columns:
            raise ValueError(
                "the items have no priorities; add the InitialPriorities to the adder with compose(priorities, ...)"
            )
        return self.mix_priorities(items)

    def mix_priorities(self, items: Items) -> np.ndarray:
        """Returns the priority of each item, float64 `[M]`, from the column `priority` of its rows."""
        priorities = items.columns[PRIORITY].astype(np.float64)
        all_rows = np.ones(len(priorities), bool)
        has_action = items.columns.get(MASK, all_rows) & ~items.columns.get(fields.IS_LAST, ~all_rows)
        has_any = _reduce_items(np.maximum, has_action.astype(np.float64), items) > 0
        eta = 1.0 if self.kind == "max" else self.eta
        # An item whose rows are all padding or the last of an episode has the mixture of all its rows.
        return np.where(has_any, _mix(priorities, has_action, items, eta), _mix(priorities, all_rows, items, eta))


@dataclass(frozen=True)
class PrioritizedItems(Items):
    """The items of one episode with their initial priorities.

    Attributes:
      priorities: float64 `[M]`, at least 0.
      computed_by: the adder that computed them.
    """

    priorities: np.ndarray = field(default_factory=lambda: np.zeros(0))
    computed_by: InitialPriorities | None = None

    def select(self, rows: slice, items: slice) -> PrioritizedItems:
        """Implements `Items.select`."""
        selected = super().select(rows, items)
        return PrioritizedItems(**vars(selected), priorities=self.priorities[items], computed_by=self.computed_by)


def _mix(priorities: np.ndarray, is_included: np.ndarray, items: Items, eta: float) -> np.ndarray:
    """Mixes maximum and mean over the included rows of each item, `[M]`; priorities are at least 0."""
    included = np.where(is_included, priorities, 0)
    num_included = _reduce_items(np.add, is_included.astype(np.float64), items)
    means = _reduce_items(np.add, included, items) / np.maximum(num_included, 1)
    return eta * _reduce_items(np.maximum, included, items) + (1 - eta) * means


def _reduce_items(function: np.ufunc, column: np.ndarray, items: Items) -> np.ndarray:
    """Reduces a column over the rows of each item."""
    bounds = np.stack([items.starts, items.starts + items.lengths], axis=1).reshape(-1)
    return function.reduceat(np.append(column, 0.0), bounds)[::2] if len(bounds) else np.zeros(0)
