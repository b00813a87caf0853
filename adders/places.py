"""The places of items in the steps of episodes, and what reads the steps there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from rlds2reverb.types.short_repr import short_repr
from rlds2reverb.types.specs import Nest, leaves, map_structure

from .arrays import Array, arange, namespace, repeat

#: Returns the steps at rows int64 `[N]`, as far as some fields are concerned; all fields if None.
Take = Callable[[Array, Sequence[str] | None], dict[str, Any]]


class Places(NamedTuple):
    """The places of some items, int64 `[N]` each.

    Attributes:
      first: the row of the first step of each item's episode.
      last: the row of its last step.
      number: the number of the item among those of its episode, from 0.
    """

    first: Array
    last: Array
    number: Array

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def row(self) -> Array:
        """The row of the step with the number of the item."""
        return self.first + self.number


def find_places(num_steps: Array, counts: Array) -> Places:
    """Returns the places of all items of episodes whose steps are concatenated.

    Args:
      num_steps: int64 `[E]`, the number of steps of each episode.
      counts: int64 `[E]`, the number of items of each episode.
    """
    xp = namespace(num_steps)
    ends = xp.cumsum(num_steps)
    number = arange(xp.sum(counts), counts) - repeat(xp.cumsum(counts) - counts, counts)
    return Places(repeat(ends - num_steps, counts), repeat(ends - 1, counts), number)


def take_from(columns: dict[str, Nest]) -> Take:
    """Returns a function that reads columns, which are arrays or tensors."""

    def take(rows: Array, names: Sequence[str] | None = None) -> dict[str, Nest]:
        if isinstance(rows, np.ndarray):
            if _are_all(rows, len(leaves(columns)[0][1])):
                return {name: columns[name] for name in names or columns}
            return {name: map_structure(lambda column: column[rows], columns[name]) for name in names or columns}
        import tensorflow as tf

        return {
            name: tree.map_structure(lambda column: tf.gather(column, rows), columns[name]) for name in names or columns
        }

    return take


def columns_step_spec(columns: Nest) -> Nest:
    """Returns the `tf.TensorSpec`s of one step of columns `[N, ...]`, which are tensors, arrays or their specs."""
    import tensorflow as tf

    return tree.map_structure(
        lambda column: tf.TensorSpec(column.shape[1:], tf.string if column.dtype == object else column.dtype), columns
    )


def _are_all(rows: np.ndarray, num_rows: int) -> bool:
    """Returns whether rows are all rows in order, so that nothing needs to be copied."""
    return 0 < len(rows) == num_rows and rows[0] == 0 and bool((rows[1:] == rows[:-1] + 1).all())
