"""The adders of the trunk: windows of trajectories, and whole episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import tree

from rlds2reverb._arguments import require_count, require_one_of
from rlds2reverb.episodes import Episode
from rlds2reverb.items import Items
from rlds2reverb.specs import Nest
from rlds2reverb.tables import item_signature
from rlds2reverb.trajectories import LAST, DiscountSource, require_discount_source, trajectory_columns, trajectory_spec

#: What happens where an episode ends; see `Windows`.
Padding = Literal["none", "short", "tile"]
PADDINGS: tuple[Padding, ...] = get_args(Padding)

MAX_LENGTH = 1_000_000


@dataclass(frozen=True)
class Windows:
    """Items `[length, ...]` of consecutive trajectories, beginning at rows 0, stride, 2·stride, ... of each episode.

    The rows are those of `trajectory_columns`, the boundary row at the end included. Both ends of an episode: the
    first window begins with the first step. With padding 'none' the last one ends at or before the boundary row, and
    an episode of fewer rows than `length` has no window; with 'short' such an episode gives one window, filled up with
    boundary rows of zeros; with 'tile' every episode is followed by `length - 1` of them, so that each row begins a
    window (at stride 1). These are TF-Agents' `pad_end_of_episodes` and `tile_end_of_episodes`.

    Attributes:
      length: trajectories in an item; 2 is one transition, as TF-Agents' `AsTransition` takes it.
      stride: rows between the beginnings of items.
      padding: 'none', 'short' or 'tile'.
      discount_source: see `trajectories.transition_discounts`.
    """

    length: int = 2
    stride: int = 1
    padding: Padding = "none"
    discount_source: DiscountSource = "product"

    def __post_init__(self) -> None:
        require_count("length", self.length, 1, MAX_LENGTH)
        require_count("stride", self.stride, 1, MAX_LENGTH)
        require_one_of("padding", self.padding, PADDINGS)
        require_discount_source(self.discount_source)

    def __call__(self, episode: Episode) -> Items:
        """Returns the windows of a valid episode; see `items.ItemAdder`."""
        return self.of_rows(trajectory_columns(episode.steps, discount_source=self.discount_source))

    def of_rows(self, rows: Nest) -> Items:
        """Returns the windows over the trajectories `[N, ...]` of one episode."""
        num_rows = len(tree.flatten(rows)[0])
        padded = num_rows + self.length - 1 if self.padding == "tile" and num_rows else num_rows
        if self.padding == "short" and 0 < num_rows < self.length:
            padded = self.length
        if padded > num_rows:
            rows = _append_boundary_rows(rows, padded - num_rows)
        starts = np.arange(0, max(padded - self.length + 1, 0), self.stride, dtype=np.int64)
        return Items(rows, starts, np.full(len(starts), self.length, np.int64))

    def item_spec(self, step_spec: Nest) -> Nest:
        """Returns the `tf.TensorSpec`s `[length, ...]` of one item."""
        return item_signature(trajectory_spec(step_spec), self.length)


@dataclass(frozen=True)
class WholeEpisodes:
    """One item an episode: all its trajectories `[N, ...]`, the boundary row included, of varying length.

    Attributes:
      discount_source: see `trajectories.transition_discounts`.
    """

    discount_source: DiscountSource = "product"

    def __post_init__(self) -> None:
        require_discount_source(self.discount_source)

    def __call__(self, episode: Episode) -> Items:
        """Returns a valid episode as one item; see `items.ItemAdder`."""
        rows = trajectory_columns(episode.steps, discount_source=self.discount_source)
        return Items(rows, np.zeros(1, np.int64), np.full(1, len(rows.step_type), np.int64))

    def item_spec(self, step_spec: Nest) -> Nest:
        """Returns the `tf.TensorSpec`s `[None, ...]` of one item."""
        return item_signature(trajectory_spec(step_spec), None)


def _append_boundary_rows(rows: Nest, count: int) -> Nest:
    """Returns the rows of an episode, followed by rows of zeros with the step types LAST, FIRST."""
    zeros = tree.map_structure(lambda column: np.zeros((count, *column.shape[1:]), column.dtype), rows)
    zeros = zeros._replace(step_type=np.full(count, LAST))
    return tree.map_structure(lambda column, more: np.concatenate([column, more]), rows, zeros)
