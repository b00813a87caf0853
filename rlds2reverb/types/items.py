"""Items, the elements of a table, and the adders that convert episodes to items."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import tree

from .episode_batches import EpisodeBatch
from .episodes import Episode
from .short_repr import short_repr
from .specs import Nest, leaves, map_structure


@dataclass(frozen=True)
class Items:
    """The items of one episode: possibly overlapping ranges of rows of its columns.

    Attributes:
      columns: nest of arrays `[R, ...]`.
      starts: int64 `[M]`, the first row of each item, in ascending order.
      lengths: int64 `[M]`, the number of rows of each item, at least 1.
      squeeze: whether an item is a single row without a time axis; all lengths are then 1.
      packed: matrix `[R, W]` of whose memory the columns are views, see `pack_columns`; None if they are not packed.
    """

    columns: Nest
    starts: np.ndarray
    lengths: np.ndarray
    squeeze: bool = False
    packed: np.ndarray | None = field(default=None, repr=False, compare=False)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        sizes = {len(column) for column in tree.flatten(self.columns)}
        if len(sizes) != 1 or self.starts.shape != self.lengths.shape or self.starts.ndim != 1:
            raise ValueError(
                "items must have columns of equal length, and as many starts as lengths, got columns of "
                f"{sorted(sizes)} rows, starts {self.starts.shape} and lengths {self.lengths.shape}"
            )
        if not len(self.starts):
            return
        ends = self.starts + self.lengths
        if self.starts[0] < 0 or ends.max() > sizes.pop() or self.lengths.min() < 1 or (np.diff(self.starts) < 0).any():
            raise ValueError("items must lie within their columns, have at least one row, and be in ascending order")
        if self.squeeze and self.lengths.max() > 1:
            raise ValueError(f"squeezed items must have one row each, got {self.lengths.max()}")

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_rows(self) -> int:
        """The number of rows of the columns, `R`."""
        return len(leaves(self.columns)[0][1])

    def select(self, rows: slice, items: slice) -> Items:
        """Returns some of the items, which must lie within `rows`; both slices need a start and a stop."""
        columns = map_structure(lambda column: column[rows], self.columns)
        return Items(columns, self.starts[items] - rows.start, self.lengths[items], self.squeeze)


@dataclass(frozen=True)
class ItemBatch:
    """The concatenated items of several episodes.

    For example, two episodes of 3 and 2 rows, cut into items of two rows: `items` has 5 rows, starts 0, 1, 3 and
    lengths 2, 2, 2; `num_rows` is [3, 2] and `num_items` is [2, 1].

    Attributes:
      items: the items of all episodes.
      num_rows: int64 `[E]`, the number of rows of each episode.
      num_items: int64 `[E]`, the number of items of each episode.
    """

    items: Items
    num_rows: np.ndarray
    num_items: np.ndarray

    __repr__ = short_repr

    def __post_init__(self) -> None:
        got = self.items.num_rows, len(self.items)
        expected = int(self.num_rows.sum()), int(self.num_items.sum())
        if got != expected or len(self.num_rows) != len(self.num_items):
            raise ValueError(f"(rows, items) of a batch must be {expected}, the totals of its episodes, got {got}")

    @classmethod
    def from_items(cls, items: Items) -> ItemBatch:
        """Returns the items of one episode as a batch."""
        return cls(items, np.array([items.num_rows]), np.array([len(items)]))

    @property
    def first_rows(self) -> np.ndarray:
        """The first row of each episode, int64 `[E]`."""
        return np.cumsum(self.num_rows) - self.num_rows

    def episode_items(self, index: int) -> Items:
        """Returns the items of the episode at `index`, as the adder returns them for that episode alone."""
        counts = self.num_rows, self.num_items
        rows, items = (slice(int(count[:index].sum()), int(count[: index + 1].sum())) for count in counts)
        return self.items.select(rows, items)


class EpisodeAdder(Protocol):
    """The type of `ingest`'s argument `adder`: a deterministic function from an episode to items, with their spec.

    `TrajectoryWindows`, `TrajectoryEpisodes` and the adders of `rlds2reverb.adders` have this type. (DI-engine's
    `rlds2reverb.adders.di_engine.Adder`, a set of functions over lists of transitions, does not.)
    """

    def __call__(self, episode: Episode, /) -> Items:
        """Returns the items of one valid episode; there may be none."""

    def item_spec(self, step_spec: Nest) -> Nest:
        """Returns the nest of `tf.TensorSpec`s of one item, for the table's signature, given a `Source.step_spec`."""


class EpisodeBatchAdder(EpisodeAdder, Protocol):
    """An `EpisodeAdder` that can also convert several episodes at once, which is much faster if they are short."""

    def convert_batch(self, batch: EpisodeBatch, /) -> ItemBatch | None:
        """Returns the items of each episode, bit for bit as for it alone; None if batches are not supported."""
