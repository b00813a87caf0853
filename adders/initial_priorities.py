"""The priorities with which items begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np
import tensorflow as tf

from rlds2reverb import fields
from rlds2reverb._arguments import require_count, require_number, require_one_of
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode
from rlds2reverb.items import ItemBatch, Items
from rlds2reverb.specs import Nest

from .batches import is_last_transition, of_steps, steps_left
from .column_adder import ColumnAdder, spec_of_columns, spec_of_elements
from .n_step import NStep
from .padding import MASK
from .returns import td_errors
from .steps import require_single_rewards, transitions, with_added
from .values import ValueFn, require_values, values_of

PRIORITY = "priority"

#: The value of each observation, on the way from the steps to the rows of NStep.
_VALUE = "value_for_priority"

#: What a priority is taken from; see `InitialPriorities`.
KINDS = ("constant", "return", "td", "max")


@dataclass(frozen=True)
class InitialPriorities(ColumnAdder):
    """Computes the priorities that items begin with, each from the item as it will be trained on.

        'constant':  p_t = constant
        'return':    p_t = (return of the episode - lowest) / (highest - lowest), within [eps, 1]
        'td', 'max': p_t = |delta_t| + eps, delta_t of n steps as in `returns.td_errors`

    The TD error is that of prioritized replay (Schaul et al. 2016, eq. 1 with p = |delta| + eps). A row of `NStep` has
    the error of its own target, with NStep's gamma:

        delta = reward + gamma * discount * V(next_observation) - V(observation)

    (with discount_power 'm' without the gamma). An item of several rows, steps or those of NStep, has, as in R2D2
    (Kapturowski et al. 2019, sec. 2.3),

        p = eta * max_t p_t + (1 - eta) * mean_t p_t

    over its real rows that are not the last of an episode; 'max' is eta = 1. All are raw: Reverb applies the exponent
    itself.

    Give the same object twice to `ingest`, in the adder, which computes the priorities, and as `priority=`, which
    hands them to the table: `ingest(source, server, adder=compose(p, NStep(3, 0.99)), priority=p)`. In `compose`
    it may stand anywhere, and it changes neither the items nor their spec: the priorities are computed with the items
    of an episode and come with them (`PrioritizedItems`), so that no column of a table holds them, and the keys of
    items do not depend on them. A data set of items, without Reverb, has no priorities.

    Alone it is an adder whose item is a whole episode, a dict of columns `[N, ...]`: the steps' fields and `priority`,
    float32, at least 0, one for each step.

    Both ends of an episode: the first step is like any. A terminated episode ends with value 0, a truncated one with
    the value of its final observation. The last step, where nothing is done, has eps with 'td' and 'max'.

    Attributes:
      kind: 'constant', 'return', 'td' or 'max'.
      constant: the priority of 'constant', in [0, 1e12].
      lowest, highest: the returns that 'return' takes for 0 and 1.
      gamma: in [0, 1], for 'td' and 'max' of steps.
      n: steps of the TD error, for 'td' and 'max' of steps: those that the learner's targets have.
      eta: the share of the largest, in [0, 1].
      eps: added, so that everything can be sampled; in [1e-12, 1].
      value_fn: see `GAE`; None if the values are the column `value`.
    """

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
            raise ValueError(f"returns go from {self.lowest} to {self.highest}, expected the second above the first")
        require_number("eps", self.eps, 1e-12, 1)
        require_number("gamma", self.gamma, 0, 1)
        require_count("n", self.n)
        require_number("eta", self.eta, 0, 1)

    def row_spec(self, step_spec: Nest) -> Nest:
        """See `ColumnAdder.row_spec`."""
        require_single_rewards(step_spec, "InitialPriorities")
        if self.kind in ("td", "max"):
            require_values(step_spec, self.value_fn, f"InitialPriorities({self.kind!r})")
        return with_added(step_spec, "InitialPriorities", **{PRIORITY: tf.TensorSpec((), tf.float32)})

    def batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """See `ColumnAdder.batch_rows`."""
        return {**columns, PRIORITY: self._of_steps(columns, num_steps)}, num_steps

    @property
    def takes_batches(self) -> bool:
        """See `ColumnAdder.takes_batches`; networks, and sums of rewards, may round in other ways in batches."""
        return super().takes_batches and self.value_fn is None and self.kind != "return"

    def _of_steps(self, columns: Nest, num_steps: tf.Tensor) -> tf.Tensor:
        rewards, discounts = transitions(columns)
        num_rows = tf.shape(columns[fields.IS_LAST])[0]
        if self.kind == "constant":
            return tf.fill([num_rows], tf.constant(self.constant, tf.float32))
        if self.kind == "return":
            share = (tf.reduce_sum(tf.cast(rewards, tf.float64)) - self.lowest) / (self.highest - self.lowest)
            return tf.fill([num_rows], tf.cast(tf.clip_by_value(share, self.eps, 1), tf.float32))
        left = steps_left(num_steps)
        values = values_of(columns, self.value_fn)
        errors = td_errors(
            rewards,
            discounts,
            values=values[:-1],
            next_values=values[1:],
            is_last=is_last_transition(left, rewards),
            n=self.n,
            gamma=self.gamma,
        )
        return self._of_errors(of_steps(errors, left))

    def _of_errors(self, errors: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.abs(errors) + self.eps, tf.float32)

    def __call__(self, episodes: Any, items: Items | None = None) -> Any:
        """See `ColumnAdder`; and with an episode's items their priorities, float64 `[M]`, as `ingest` asks for them.

        Raises:
          ValueError: if the items were made without this object, or with another.
        """
        if items is None:
            return super().__call__(episodes)
        if isinstance(items, PrioritizedItems):
            if items.by != self:
                raise ValueError(
                    f"the items have the priorities of {items.by}, expected those of {self}; give the same "
                    "InitialPriorities to compose and as priority="
                )
            return items.priorities
        if not isinstance(items.columns, dict) or PRIORITY not in items.columns:
            raise ValueError(
                "the items have no priorities: put the InitialPriorities into the adder too, with "
                "compose(priorities, ...)"
            )
        return self._of_items(items)

    def _of_items(self, items: Items) -> np.ndarray:
        """Returns the mixtures of the rows' priorities, which are in a column."""
        own = items.columns[PRIORITY].astype(np.float64)
        nowhere = np.zeros(len(own), bool)
        counted = items.columns.get(MASK, ~nowhere) & ~items.columns.get(fields.IS_LAST, nowhere)
        eta = 1.0 if self.kind == "max" else self.eta
        return np.where(_any(counted, items), _mixed(own, counted, items, eta), _mixed(own, ~nowhere, items, eta))


@dataclass(frozen=True)
class PrioritizedItems(Items):
    """The items of one episode, with the priorities that they begin with.

    Attributes:
      priorities: float64 `[M]`, at least 0.
      by: what computed them.
    """

    priorities: np.ndarray = field(default_factory=lambda: np.zeros(0))
    by: InitialPriorities | None = None

    def part(self, rows: slice, items: slice) -> PrioritizedItems:
        """See `Items.part`."""
        part = super().part(rows, items)
        return PrioritizedItems(part.columns, part.starts, part.lengths, part.squeeze, self.priorities[items], self.by)


@dataclass(frozen=True)
class Prioritized(ColumnAdder):
    """Adders one after the other, whose items come with initial priorities.

    Made by `compose`. Items, specs and data sets are those of `plain`; the priorities of an episode's items are read
    off the column that `with_column` has in addition, which is then dropped.

    Attributes:
      adders: in order, the InitialPriorities among them.
      plain: the same without the priorities.
      with_column: the same with them, as `priority` of each row.
      priorities: what computes them.
    """

    adders: tuple[ColumnAdder, ...]
    plain: ColumnAdder = field(repr=False)
    with_column: ColumnAdder = field(repr=False)
    priorities: InitialPriorities = field(repr=False)

    def __post_init__(self) -> None:
        for name in ("squeeze", "ends_chain", "crosses_episodes"):
            object.__setattr__(self, name, getattr(self.plain, name))

    @property
    def item_length(self) -> int | None:
        """See `ColumnAdder.item_length`."""
        return self.plain.item_length

    def row_spec(self, step_spec: Nest) -> Nest:
        """See `ColumnAdder.row_spec`."""
        self.with_column.row_spec(step_spec)  # raises for steps without what the priorities need
        return self.plain.row_spec(step_spec)

    def rows(self, columns: Nest) -> Nest:
        """See `ColumnAdder.rows`."""
        return self.plain.rows(columns)

    def item_bounds(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `ColumnAdder.item_bounds`."""
        return self.plain.item_bounds(num_rows)

    def convert_batch(self, batch: EpisodeBatch) -> ItemBatch | None:
        """See `ColumnAdder.convert_batch`."""
        made = self.with_column.convert_batch(batch)
        return None if made is None else replace(made, items=self._without_column(made.items, batch.steps))

    def _dataset(self, columns: tf.data.Dataset) -> tf.data.Dataset:
        self.item_spec(spec_of_elements(columns))
        return self.plain._dataset(columns)

    def _items(self, episode: Episode) -> Items:
        return self._without_column(self.with_column._items(episode), episode.steps)

    def _without_column(self, items: Items, steps: Nest) -> PrioritizedItems:
        if not isinstance(items.columns, dict) or PRIORITY not in items.columns:
            raise ValueError(
                f"the rows of {self.with_column} have no 'priority'; every adder after InitialPriorities has to "
                "keep the fields that it does not know"
            )
        names = self.plain.row_spec(spec_of_columns(steps))
        kept = {name: nest for name, nest in items.columns.items() if name in names}
        priorities = self.priorities._of_items(items)
        return PrioritizedItems(kept, items.starts, items.lengths, items.squeeze, priorities, self.priorities)


def prioritized(adders: Sequence[ColumnAdder], chain: Callable[..., ColumnAdder]) -> ColumnAdder:
    """Returns the adders as one whose items have the priorities of the `InitialPriorities` among them.

    Args:
      adders: in order, at least two, with one InitialPriorities.
      chain: makes one adder of several.
    """
    at = next(number for number, adder in enumerate(adders) if isinstance(adder, InitialPriorities))
    priorities = cast(InitialPriorities, adders[at])
    before, after = list(adders[:at]), list(adders[at + 1 :])
    steps: ColumnAdder = priorities
    n_step = next((number for number, adder in enumerate(after) if isinstance(adder, NStep)), None)
    marked = list(after)
    if n_step is not None and priorities.kind in ("td", "max"):
        steps = _Values(priorities.value_fn)
        marked[n_step] = _OfTransitions(cast(NStep, after[n_step]), priorities)
    return Prioritized(tuple(adders), chain(*before, *after), chain(*before, steps, *marked), priorities)


@dataclass(frozen=True)
class _Values(ColumnAdder):
    """Adds the value of each observation, which `_OfTransitions` takes away again."""

    value_fn: ValueFn | None = field(repr=False)

    def row_spec(self, step_spec: Nest) -> Nest:
        dtype = require_single_rewards(step_spec, "InitialPriorities")
        require_values(step_spec, self.value_fn, "InitialPriorities")
        return with_added(step_spec, "InitialPriorities", **{_VALUE: tf.TensorSpec((), dtype)})

    def batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        return {**columns, _VALUE: values_of(columns, self.value_fn)}, num_steps

    @property
    def takes_batches(self) -> bool:
        return self.value_fn is None


@dataclass(frozen=True)
class _OfTransitions(ColumnAdder):
    """`NStep` whose rows have the priority of their own TD error, of the values that `_Values` added."""

    n_step: NStep
    priorities: InitialPriorities

    squeeze: ClassVar[bool] = True

    def row_spec(self, step_spec: Nest) -> Nest:
        spec = _without_values(self.n_step.row_spec(step_spec))
        return with_added(spec, "InitialPriorities", **{PRIORITY: tf.TensorSpec((), tf.float32)})

    def batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        rows, num_rows = self.n_step.batch_rows(columns, num_steps)
        target_discounts = self.n_step.target_discounts(rows[fields.DISCOUNT])
        errors = td_errors(
            rows[fields.REWARD],
            tf.cast(target_discounts, rows[fields.REWARD].dtype),
            values=rows[_VALUE],
            next_values=rows[f"next_{_VALUE}"],
        )
        return {**_without_values(rows), PRIORITY: self.priorities._of_errors(errors)}, num_rows

    def batch_bounds(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return self.n_step.batch_bounds(num_rows)

    @property
    def takes_batches(self) -> bool:
        return self.n_step.takes_batches


def _without_values(rows: Nest) -> Nest:
    return {name: nest for name, nest in rows.items() if name not in (_VALUE, f"next_{_VALUE}")}


def _mixed(priorities: np.ndarray, counted: np.ndarray, items: Items, eta: float) -> np.ndarray:
    """`[M]`, over the rows of each item that count; they are at least 0."""
    chosen = np.where(counted, priorities, 0)
    means = _reduced(np.add, chosen, items) / np.maximum(_reduced(np.add, counted.astype(np.float64), items), 1)
    return eta * _reduced(np.maximum, chosen, items) + (1 - eta) * means


def _any(flags: np.ndarray, items: Items) -> np.ndarray:
    return _reduced(np.maximum, flags.astype(np.float64), items) > 0


def _reduced(function: np.ufunc, column: np.ndarray, items: Items) -> np.ndarray:
    """A function over the rows of each item."""
    bounds = np.stack([items.starts, items.starts + items.lengths], axis=1).reshape(-1)
    return function.reduceat(np.append(column, 0.0), bounds)[::2] if len(bounds) else np.zeros(0)
