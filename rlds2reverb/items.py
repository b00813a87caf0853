"""Items: what an adder makes of an episode, and what a table holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tree

from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode
from rlds2reverb.specs import Nest, leaves, map_structure


@dataclass(frozen=True)
class Items:
    """The items of one episode: runs of rows of its columns, which may overlap.

    Attributes:
      columns: nest of arrays `[R, ...]`.
      starts: int64 `[M]`, the first row of each item, in rising order.
      lengths: int64 `[M]`, the rows of each item, at least 1.
      squeeze: whether an item is a single row without the time axis; all lengths are then 1.
    """

    columns: Nest
    starts: np.ndarray
    lengths: np.ndarray
    squeeze: bool = False

    def __post_init__(self) -> None:
        sizes = {len(column) for column in tree.flatten(self.columns)}
        if len(sizes) != 1 or self.starts.shape != self.lengths.shape or self.starts.ndim != 1:
            raise ValueError(
                f"items have columns of {sorted(sizes)} rows, starts {self.starts.shape} and lengths "
                f"{self.lengths.shape}; expected columns of one length, and equal numbers of starts and lengths"
            )
        if not len(self.starts):
            return
        ends = self.starts + self.lengths
        if self.starts[0] < 0 or ends.max() > sizes.pop() or self.lengths.min() < 1 or (np.diff(self.starts) < 0).any():
            raise ValueError("items reach outside of their columns, are empty, or begin out of order")
        if self.squeeze and self.lengths.max() > 1:
            raise ValueError("squeezed items are of one row each, these have more")

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_rows(self) -> int:
        """The rows of the columns, `R`."""
        return len(leaves(self.columns)[0][1])

    def part(self, rows: slice, items: slice) -> Items:
        """Returns some of the items, which lie within some of the rows; both slices have a start and a stop."""
        columns = map_structure(lambda column: column[rows], self.columns)
        return Items(columns, self.starts[items] - rows.start, self.lengths[items], self.squeeze)


@dataclass(frozen=True)
class ItemBatch:
    """The items of several episodes, one after the other.

    For example, episodes of 3 and 2 rows with items of two rows each: `items` has 5 rows, starts 0, 1, 3 and lengths
    2, 2, 2; `num_rows` is [3, 2] and `num_items` [2, 1].

    Attributes:
      items: of all episodes.
      num_rows: int64 `[E]`, the rows of each episode.
      num_items: int64 `[E]`, the items of each episode.
    """

    items: Items
    num_rows: np.ndarray
    num_items: np.ndarray

    def __post_init__(self) -> None:
        found = self.items.num_rows, len(self.items)
        expected = int(self.num_rows.sum()), int(self.num_items.sum())
        if found != expected or len(self.num_rows) != len(self.num_items):
            raise ValueError(
                f"a batch has {found} rows and items, its episodes have {expected}; expected equal numbers"
            )

    @classmethod
    def of_one(cls, items: Items) -> ItemBatch:
        """Returns the items of one episode as a batch."""
        return cls(items, np.array([items.num_rows]), np.array([len(items)]))

    @property
    def first_rows(self) -> np.ndarray:
        """The first row of each episode, int64 `[E]`."""
        return np.cumsum(self.num_rows) - self.num_rows

    def of_episode(self, number: int) -> Items:
        """Returns the items of one of the episodes, counted from 0, as the adder makes them of it alone."""
        rows, items = int(self.num_rows[:number].sum()), int(self.num_items[:number].sum())
        return self.items.part(
            slice(rows, rows + int(self.num_rows[number])), slice(items, items + int(self.num_items[number]))
        )


class EpisodeAdder(Protocol):
    """What `ingest` takes as `adder`: turns an episode into items, the same ones each time, and knows their spec.

    `TrajectoryWindows`, `TrajectoryEpisodes` and the adders of `rlds2reverb.adders` are item adders. (`rlds2reverb.adders.Adder` is
    something else: DI-engine's functions over lists of transitions.)
    """

    def __call__(self, episode: Episode, /) -> Items:
        """Returns the items of one valid episode; there may be none."""

    def item_spec(self, step_spec: Nest) -> Nest:
        """Returns the nest of `tf.TensorSpec` of one item, for the table's signature, from a `Source.step_spec`."""


class EpisodeBatchAdder(EpisodeAdder, Protocol):
    """An `EpisodeAdder` that can also take several episodes at once, which is much faster where they are short."""

    def convert_batch(self, batch: EpisodeBatch, /) -> ItemBatch | None:
        """Returns the items of each episode of a batch, bit for bit those that it makes of the episode alone.

        None if it takes one episode at a time after all.
        """
