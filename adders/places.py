"""The places of items in the steps of episodes, and what reads the steps there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from rlds2reverb.types.episodes import FinalRow
from rlds2reverb.types.nest_paths import select_parts
from rlds2reverb.types.short_repr import short_repr
from rlds2reverb.types.specs import Nest, leaves, map_structure

from .arrays import Array, arange, namespace, repeat

#: Returns the steps at rows int64 `[N]`, with some fields, or parts of them ('observation.state'); all fields if None.
Take = Callable[[Array, Sequence[str] | None], dict[str, Any]]


class Places(NamedTuple):
    """The places of some items, int64 `[N]` each.

    Attributes:
      first: the row of the first step of each item's episode.
      last: the row of its last step. For adders that use all actions, the row after the last action, which is one of
        the next episode, or none, if no observation follows that action.
      last_observation: the row of its last known observation, which is before `last` if the final one is not known.
      number: the number of the item among those of its episode, from 0.
    """

    first: Array
    last: Array
    last_observation: Array
    number: Array

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def row(self) -> Array:
        """The row of the step with the number of the item."""
        return self.first + self.number


class Ends(NamedTuple):
    """The ends of episodes whose steps are concatenated, int64 `[E]` each.

    Attributes:
      num_steps: the number of rows up to `last`.
      last: see `Places`.
      last_observation: see `Places`.
    """

    num_steps: Array
    last: Array
    last_observation: Array


def find_ends(num_steps: Array, final_rows: np.ndarray | None = None) -> Ends:
    """Returns the ends of episodes.

    Args:
      num_steps: int64 `[E]`, the number of steps of each episode.
      final_rows: uint8 `[E]`, the content of the last steps, see `FinalRow`, for adders that use all actions; None for
        others, to which the last step is the final observation.
    """
    last = namespace(num_steps).cumsum(num_steps) - 1
    if final_rows is None:
        return Ends(num_steps, last, last)
    has_action = final_rows == FinalRow.ACTION
    return Ends(num_steps + has_action, last + has_action, last - (final_rows == FinalRow.PLACEHOLDER))


def find_places(num_steps: Array, ends: Ends, counts: Array) -> Places:
    """Returns the places of all items of episodes whose steps are concatenated.

    Args:
      num_steps: int64 `[E]`, the number of steps of each episode.
      ends: the ends of the episodes.
      counts: int64 `[E]`, the number of items of each episode.
    """
    xp = namespace(num_steps)
    first = xp.cumsum(num_steps) - num_steps
    number = arange(xp.sum(counts), counts) - repeat(xp.cumsum(counts) - counts, counts)
    last, last_observation = repeat(ends.last, counts), repeat(ends.last_observation, counts)
    return Places(repeat(first, counts), last, last_observation, number)


def take_from(columns: dict[str, Nest]) -> Take:
    """Returns a function that reads columns, which are arrays or tensors."""

    def take(rows: Array, names: Sequence[str] | None = None) -> dict[str, Nest]:
        chosen = select_parts(columns, names or list(columns))
        if isinstance(rows, np.ndarray):
            if _are_all(rows, len(leaves(columns)[0][1])):
                return chosen
            return map_structure(lambda column: column[rows], chosen)
        import tensorflow as tf

        return tree.map_structure(lambda column: tf.gather(column, rows), chosen)

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
