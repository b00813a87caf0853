"""Chains of adders."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from rlds2reverb.types.items import ItemBatch
from rlds2reverb.types.specs import Nest

from .adder import ItemAdder, rows_as_items
from .column_adder import episodes_as_items
from .initial_priorities import PRIORITY, InitialPriorities, PrioritizedItems
from .n_step import NStep
from .places import columns_step_spec
from .tf_data import map_to_rows


def compose(*adders: ItemAdder) -> ItemAdder:
    """Returns an adder that applies several in order, each to the rows of the preceding one; the last cuts the items.

    If one of several adders is an `InitialPriorities`, the items come with their priorities; see that class.

    Raises:
      ValueError: If there are no adders, an adder that must be last is not, or there are two InitialPriorities.
      TypeError: If an argument is not an `ItemAdder`.
    """
    if not adders:
        raise ValueError("compose requires at least one adder, got none")
    for adder in adders:
        if not isinstance(adder, ItemAdder):
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
    priorities = cast(InitialPriorities, flat.pop(positions[0])) if positions else None
    flat[1:] = [adder.following(before) for before, adder in itertools.pairwise(flat)]
    return _Chain(tuple(flat), priorities, *positions)


@dataclass(frozen=True)
class _Chain(ItemAdder):
    """Adders applied in order, at least one.

    The items of datasets, and all specs, are those without `priorities`. To convert episodes, these are computed as an
    additional column, which is removed from the items.

    Attributes:
      adders: the adders, in order.
      priorities: the adder that computes the priorities of the items; None for none.
      position: the number of adders before it.
    """

    adders: tuple[ItemAdder, ...]
    priorities: InitialPriorities | None = None
    position: int = 0

    def __post_init__(self) -> None:
        for name in ("squeeze", "must_be_last", "crosses_episodes", "item_length"):
            object.__setattr__(self, name, getattr(self.adders[-1], name))

    @property
    def parts(self) -> tuple[ItemAdder, ...]:
        """The adders that `compose` made the chain from."""
        added = () if self.priorities is None else (self.priorities,)
        return (*self.adders[: self.position], *added, *self.adders[self.position :])

    @property
    def supports_batches(self) -> bool:
        """Implements `ItemAdder.supports_batches`."""
        return all(adder.supports_batches for adder in self.parts)

    def row_spec(self, step_spec: Nest) -> Nest:
        """Implements `ItemAdder.row_spec`."""
        for number, adder in enumerate(self.adders):
            if number == self.position and self.priorities is not None:
                self.priorities.row_spec(step_spec)  # Raises if steps have no field that the priorities require.
            step_spec = adder.row_spec(step_spec)
        return step_spec

    def transform(self, columns: Nest, num_steps: Any) -> tuple[Nest, Any]:
        """Implements `ItemAdder.transform`."""
        for adder in self.adders:
            columns, num_steps = adder.transform(columns, num_steps)
        return columns, num_steps

    def cut(self, columns: Nest, num_steps: np.ndarray) -> ItemBatch:
        """Implements `ItemAdder.cut`."""
        steps, priorities = columns, self.priorities
        n_step = next((adder for adder in self.adders[self.position :] if isinstance(adder, NStep)), None)
        for number, adder in enumerate(self.adders):
            if number == self.position and priorities is not None:
                columns, num_steps = priorities.add_column(columns, num_steps, n_step)
            if adder.must_be_last:
                break
            columns, num_steps = adder.transform(columns, num_steps)
            if adder is n_step and priorities is not None:
                columns = priorities.convert_column(columns, n_step)
        if self.position == len(self.adders) and priorities is not None:
            columns, num_steps = priorities.transform(columns, num_steps)
        last = self.adders[-1]
        if last.must_be_last:
            batch = last.cut(columns, num_steps)
        else:
            batch = (rows_as_items if last.squeeze else episodes_as_items)(columns, num_steps)
        if priorities is None:
            return batch
        made = batch.items.columns
        if not isinstance(made, dict) or PRIORITY not in made:
            raise ValueError(
                f"the rows of {self} have no field 'priority'; adders after InitialPriorities must keep additional "
                "fields"
            )
        names = self.row_spec(columns_step_spec(steps))
        items = PrioritizedItems(
            **{**vars(batch.items), "columns": {name: made[name] for name in made if name in names}},
            priorities=priorities.mix_priorities(batch.items),
            computed_by=priorities,
        )
        return replace(batch, items=items)

    def _convert_dataset(self, columns: Any) -> Any:
        for adder in self.adders[:-1]:
            columns = map_to_rows(adder, columns)
        return self.adders[-1]._convert_dataset(columns)
