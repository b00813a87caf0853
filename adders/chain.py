"""Chains of adders."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, cast

import tensorflow as tf

from rlds2reverb import fields
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode
from rlds2reverb.items import ItemBatch, Items
from rlds2reverb.specs import Nest

from .column_adder import ColumnAdder, columns_step_spec, map_to_rows
from .initial_priorities import PRIORITY, InitialPriorities, PrioritizedItems
from .n_step import NStep
from .returns import td_errors
from .steps import add_field_specs, require_scalar_rewards
from .values import ValueFn, compute_values, require_values

#: The value of each observation, from the steps to the rows of NStep.
_VALUE = "value_for_priority"


def compose(*adders: ColumnAdder) -> ColumnAdder:
    """Returns an adder that applies several in order, each to the rows of the preceding one; the last cuts the items.

    If one of several adders is an `InitialPriorities`, the items come with their priorities; see that class.

    Raises:
      ValueError: If there are no adders, an adder that must be last is not, or there are two InitialPriorities.
      TypeError: If an argument is not a `ColumnAdder`.
    """
    if not adders:
        raise ValueError("compose requires at least one adder, got none")
    for adder in adders:
        if not isinstance(adder, ColumnAdder):
            raise TypeError(f"compose requires adders such as NStep(3, 0.99), got {adder!r}")
    for adder in adders[:-1]:
        if adder.must_be_last:
            raise ValueError(f"{type(adder).__name__} must be the last adder because it cuts episodes into items")
    flat = [part for adder in adders for part in (adder.parts if isinstance(adder, _Chain) else (adder,))]
    if len(flat) == 1:
        return flat[0]
    positions = [position for position, adder in enumerate(flat) if isinstance(adder, InitialPriorities)]
    if len(positions) > 1:
        raise ValueError(f"compose accepts at most one InitialPriorities, got {len(positions)}")
    if positions:
        priorities = cast(InitialPriorities, flat.pop(positions[0]))
        return _PrioritizedChain(tuple(flat), priorities, positions[0])
    return _Chain(tuple(flat))


@dataclass(frozen=True)
class _Chain(ColumnAdder):
    """Adders applied in order, at least one."""

    adders: tuple[ColumnAdder, ...]

    def __post_init__(self) -> None:
        last = self.adders[-1]
        for name in ("squeeze", "must_be_last", "crosses_episodes"):
            object.__setattr__(self, name, getattr(last, name))

    @property
    def parts(self) -> tuple[ColumnAdder, ...]:
        """The adders that `compose` made the chain from."""
        return self.adders

    @property
    def item_length(self) -> int | None:
        return self.adders[-1].item_length

    def row_spec(self, step_spec: Nest) -> Nest:
        for adder in self.adders:
            step_spec = adder.row_spec(step_spec)
        return step_spec

    def make_rows(self, columns: Nest) -> Nest:
        for adder in self.adders:
            columns = adder.make_checked_rows(columns)  # A preceding adder may have left no rows.
        return columns

    def make_batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        for adder in self.adders:
            columns, num_steps = adder.make_batch_rows(columns, num_steps)
        return columns, num_steps

    def cut_items(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.adders[-1].cut_items(num_rows)

    def cut_batch_items(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return self.adders[-1].cut_batch_items(num_rows)

    @property
    def supports_batches(self) -> bool:
        return all(adder.supports_batches for adder in self.adders)

    def _convert_dataset(self, columns: tf.data.Dataset) -> tf.data.Dataset:
        self.item_spec(columns_step_spec(columns.element_spec))
        for adder in self.adders[:-1]:
            columns = map_to_rows(adder, columns)
        return self.adders[-1]._convert_dataset(columns)


@dataclass(frozen=True)
class _PrioritizedChain(_Chain):
    """A chain whose items come with initial priorities.

    Items, specs and datasets are those of the chain without `InitialPriorities`. To convert episodes, a second chain
    computes the priorities as an additional column, which is removed from its items.

    Attributes:
      adders: the other adders, in order.
      priorities: the adder that computes the priorities.
      position: its position among the other adders.
    """

    priorities: InitialPriorities
    position: int

    @property
    def parts(self) -> tuple[ColumnAdder, ...]:
        return (*self.adders[: self.position], self.priorities, *self.adders[self.position :])

    @cached_property
    def _with_column(self) -> _Chain:
        """The chain whose rows have a column `priority`."""
        before, after = self.adders[: self.position], list(self.adders[self.position :])
        first: ColumnAdder = self.priorities
        n_steps = [adder for adder in after if isinstance(adder, NStep)]
        if n_steps and self.priorities.kind in ("td", "max"):
            first = _AddValues(self.priorities.value_fn)
            after[after.index(n_steps[0])] = _NStepWithPriorities(n_steps[0], self.priorities)
        return _Chain((*before, first, *after))

    def row_spec(self, step_spec: Nest) -> Nest:
        self._with_column.row_spec(step_spec)  # Raises if the steps are missing a field that the priorities require.
        return super().row_spec(step_spec)

    def convert_batch(self, batch: EpisodeBatch) -> ItemBatch | None:
        converted = self._with_column.convert_batch(batch)
        if converted is None:
            return None
        return replace(converted, items=self._remove_column(converted.items, batch.steps))

    def _convert_episode(self, episode: Episode) -> Items:
        return self._remove_column(self._with_column._convert_episode(episode), episode.steps)

    def _remove_column(self, items: Items, steps: Nest) -> PrioritizedItems:
        if not isinstance(items.columns, dict) or PRIORITY not in items.columns:
            raise ValueError(
                f"the rows of {self._with_column} have no field 'priority'; adders after InitialPriorities must keep "
                "additional fields"
            )
        names = super().row_spec(columns_step_spec(steps))
        columns = {name: nest for name, nest in items.columns.items() if name in names}
        priorities = self.priorities.mix_priorities(items)
        return PrioritizedItems(
            columns, items.starts, items.lengths, items.squeeze, priorities=priorities, computed_by=self.priorities
        )


@dataclass(frozen=True)
class _AddValues(ColumnAdder):
    """Adds the value of each observation, for `_NStepWithPriorities`."""

    value_fn: ValueFn | None = field(repr=False)

    def row_spec(self, step_spec: Nest) -> Nest:
        dtype = require_scalar_rewards(step_spec, "InitialPriorities")
        require_values(step_spec, self.value_fn, "InitialPriorities")
        return add_field_specs(step_spec, "InitialPriorities", **{_VALUE: tf.TensorSpec((), dtype)})

    def make_batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        return {**columns, _VALUE: compute_values(columns, self.value_fn)}, num_steps

    @property
    def supports_batches(self) -> bool:
        return self.value_fn is None


@dataclass(frozen=True)
class _NStepWithPriorities(ColumnAdder):
    """`NStep` whose rows have the priority of their own TD error, from the values that `_AddValues` added."""

    n_step: NStep
    priorities: InitialPriorities

    squeeze: ClassVar[bool] = True

    def row_spec(self, step_spec: Nest) -> Nest:
        spec = _remove_values(self.n_step.row_spec(step_spec))
        return add_field_specs(spec, "InitialPriorities", **{PRIORITY: tf.TensorSpec((), tf.float32)})

    def make_batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        rows, num_rows = self.n_step.make_batch_rows(columns, num_steps)
        reward = rows[fields.REWARD]
        discounts = tf.cast(self.n_step.target_discounts(rows[fields.DISCOUNT]), reward.dtype)
        errors = td_errors(reward, discounts, values=rows[_VALUE], next_values=rows[f"next_{_VALUE}"])
        return {**_remove_values(rows), PRIORITY: self.priorities.convert_errors(errors)}, num_rows

    def cut_batch_items(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return self.n_step.cut_batch_items(num_rows)

    @property
    def supports_batches(self) -> bool:
        return self.n_step.supports_batches


def _remove_values(rows: Nest) -> Nest:
    return {name: nest for name, nest in rows.items() if name not in (_VALUE, f"next_{_VALUE}")}
