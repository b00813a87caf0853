"""Adders whose items are TF-Agents trajectories: fixed-length windows, and whole episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import tree

from rlds2reverb._arguments import require_count, require_one_of
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode
from rlds2reverb.items import ItemBatch, Items
from rlds2reverb.specs import Nest
from rlds2reverb.tables import item_signature
from rlds2reverb.trajectories import LAST, DiscountSource, require_discount_source, trajectory_columns, trajectory_spec

#: What happens where an episode ends; see `TrajectoryWindows`.
Padding = Literal["none", "short", "tile"]
PADDINGS: tuple[Padding, ...] = get_args(Padding)

MAX_LENGTH = 1_000_000


@dataclass(frozen=True)
class TrajectoryWindows:
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
        """Returns the windows of a valid episode; see `items.EpisodeAdder`."""
        return self.convert_batch(EpisodeBatch([episode])).items

    def convert_batch(self, batch: EpisodeBatch) -> ItemBatch:
        """Returns the windows of several valid episodes; see `items.EpisodeBatchAdder`."""
        rows = trajectory_columns(batch.steps, discount_source=self.discount_source)
        return self._convert_rows(rows, batch.num_steps)

    def convert_rows(self, rows: Nest) -> Items:
        """Returns the windows over the trajectories `[N, ...]` of one episode."""
        return self._convert_rows(rows, np.array([len(tree.flatten(rows)[0])])).items

    def _convert_rows(self, rows: Nest, num_rows: np.ndarray) -> ItemBatch:
        """Returns the windows over the trajectories `[R, ...]` of episodes that have `num_rows` of them each.

        For example, episodes of 3 and 2 rows and windows of 2, with stride 1: `num_items` is [2, 1]; the windows have
        the numbers 0, 1 and 0 in their episodes, which begin at the rows 0, 0 and 3, so that `starts` is 0, 1, 3.
        """
        wanted = num_rows
        if self.padding == "tile":
            wanted = np.where(num_rows > 0, num_rows + self.length - 1, 0)
        elif self.padding == "short":
            wanted = np.where(num_rows > 0, np.maximum(num_rows, self.length), 0)
        if (wanted > num_rows).any():
            rows = _with_boundary_rows(rows, num_rows, wanted - num_rows)
        num_items = np.maximum(wanted - self.length + self.stride, 0) // self.stride
        first_rows, first_items = (np.cumsum(counts) - counts for counts in (wanted, num_items))
        numbers = np.arange(num_items.sum()) - np.repeat(first_items, num_items)
        starts = np.repeat(first_rows, num_items) + numbers * self.stride
        return ItemBatch(Items(rows, starts, np.full(len(starts), self.length, np.int64)), wanted, num_items)

    def item_spec(self, step_spec: Nest) -> Nest:
        """Returns the `tf.TensorSpec`s `[length, ...]` of one item."""
        return item_signature(trajectory_spec(step_spec), self.length)


@dataclass(frozen=True)
class TrajectoryEpisodes:
    """One item an episode: all its trajectories `[N, ...]`, the boundary row included, of varying length.

    Attributes:
      discount_source: see `trajectories.transition_discounts`.
    """

    discount_source: DiscountSource = "product"

    def __post_init__(self) -> None:
        require_discount_source(self.discount_source)

    def __call__(self, episode: Episode) -> Items:
        """Returns a valid episode as one item; see `items.EpisodeAdder`."""
        return self.convert_batch(EpisodeBatch([episode])).items

    def convert_batch(self, batch: EpisodeBatch) -> ItemBatch:
        """Returns several valid episodes, each as one item; see `items.EpisodeBatchAdder`."""
        rows = trajectory_columns(batch.steps, discount_source=self.discount_source)
        ends = np.cumsum(batch.num_steps)
        items = Items(rows, ends - batch.num_steps, batch.num_steps)
        return ItemBatch(items, batch.num_steps, np.ones(len(ends), np.int64))

    def item_spec(self, step_spec: Nest) -> Nest:
        """Returns the `tf.TensorSpec`s `[None, ...]` of one item."""
        return item_signature(trajectory_spec(step_spec), None)


def _with_boundary_rows(rows: Nest, num_rows: np.ndarray, num_added: np.ndarray) -> Nest:
    """Returns the rows of episodes, each followed by added rows of zeros with the step types LAST, FIRST."""
    places = np.arange(num_rows.sum()) + np.repeat(np.cumsum(num_added) - num_added, num_rows)

    def spread(column: np.ndarray) -> np.ndarray:
        widened = np.zeros((num_rows.sum() + num_added.sum(), *column.shape[1:]), column.dtype)
        widened[places] = column
        return widened

    step_type = np.full(num_rows.sum() + num_added.sum(), LAST)
    step_type[places] = rows.step_type
    return tree.map_structure(spread, rows)._replace(step_type=step_type)
