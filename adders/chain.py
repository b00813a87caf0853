"""Adders one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from rlds2reverb.specs import Nest

from .column_adder import ColumnAdder, spec_of_elements, whole_rows
from .initial_priorities import InitialPriorities, Prioritized, prioritized


def compose(*adders: ColumnAdder) -> ColumnAdder:
    """Returns one adder after the other, each given the rows of the one before it; the last one makes the items.

    With `InitialPriorities` among several the items come with their priorities; see there.

    Raises:
      ValueError: if there are no adders, one before the last has already cut its rows into items, or there are two
        InitialPriorities.
      TypeError: if one is not an `ColumnAdder`.
    """
    if not adders:
        raise ValueError("compose got no adders, expected at least one")
    for adder in adders:
        if not isinstance(adder, ColumnAdder):
            raise TypeError(f"compose got {adder!r}, expected adders such as NStep(3, 0.99)")
    for adder in adders[:-1]:
        if adder.ends_chain:
            raise ValueError(f"{type(adder).__name__} cuts episodes into items, so that nothing can follow it")
    parts = [part for adder in adders for part in _parts(adder)]
    num_priorities = sum(isinstance(part, InitialPriorities) for part in parts)
    if num_priorities > 1:
        raise ValueError(f"compose got {num_priorities} InitialPriorities, expected at most one")
    return prioritized(parts, _chained) if num_priorities and len(parts) > 1 else _chained(*parts)


def _parts(adder: ColumnAdder) -> tuple[ColumnAdder, ...]:
    return adder.adders if isinstance(adder, (_Chain, Prioritized)) else (adder,)


def _chained(*adders: ColumnAdder) -> ColumnAdder:
    return adders[0] if len(adders) == 1 else _Chain(adders)


@dataclass(frozen=True)
class _Chain(ColumnAdder):
    adders: tuple[ColumnAdder, ...]

    def __post_init__(self) -> None:
        last = self.adders[-1]
        for name in ("squeeze", "ends_chain", "crosses_episodes"):
            object.__setattr__(self, name, getattr(last, name))

    @property
    def item_length(self) -> int | None:
        return self.adders[-1].item_length

    def row_spec(self, step_spec: Nest) -> Nest:
        for adder in self.adders:
            step_spec = adder.row_spec(step_spec)
        return step_spec

    def rows(self, columns: Nest) -> Nest:
        for adder in self.adders:
            columns = adder.checked_rows(columns)  # one before it may have left no rows
        return columns

    def batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        for adder in self.adders:
            columns, num_steps = adder.batch_rows(columns, num_steps)
        return columns, num_steps

    def item_bounds(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.adders[-1].item_bounds(num_rows)

    def batch_bounds(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return self.adders[-1].batch_bounds(num_rows)

    @property
    def takes_batches(self) -> bool:
        return all(adder.takes_batches for adder in self.adders)

    def _dataset(self, columns: tf.data.Dataset) -> tf.data.Dataset:
        self.item_spec(spec_of_elements(columns))
        for adder in self.adders[:-1]:
            columns = whole_rows(adder, columns)
        return self.adders[-1]._dataset(columns)
