"""Adders whose items are TF-Agents trajectories: windows of fixed length and whole episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import tree

from rlds2reverb._arguments import require_count, require_one_of
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import ArgumentError
from rlds2reverb.items import ItemBatch, Items
from rlds2reverb.specs import Nest
from rlds2reverb.tables import item_signature
from rlds2reverb.trajectories import LAST, DiscountSource, require_discount_source, trajectory_columns, trajectory_spec

#: How the end of an episode is padded; see `TrajectoryWindows`.
Padding = Literal["none", "short", "tile"]
PADDINGS: tuple[Padding, ...] = get_args(Padding)

MAX_LENGTH = 1_000_000


@dataclass(frozen=True)
class TrajectoryWindows:
    """Items `[length, ...]` of consecutive trajectories, starting at rows 0, stride, 2·stride, ... of each episode.

    The rows are those of `trajectory_columns`, including the boundary row at the end. Both ends of an episode: the
    first window starts with the first step. With padding 'none', the last window ends at or before the boundary row,
    and an episode with fewer rows than `length` has no window. With 'short', such an episode has one window, padded
    with boundary rows of zeros. With 'tile', `length - 1` boundary rows are appended to every episode, so that each
    row starts a window (if `stride` is 1). 'short' and 'tile' correspond to TF-Agents' `pad_end_of_episodes` and
    `tile_end_of_episodes`.

    Attributes:
      length: number of trajectories per item; 2 is one transition, as TF-Agents' `AsTransition` expects it.
      stride: number of rows between the starts of consecutive items.
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
        return self._convert_rows(_make_rows(batch, self.discount_source), batch.num_steps)

    def convert_rows(self, rows: Nest) -> Items:
        """Returns the windows over the trajectories `[N, ...]` of one episode."""
        return self._convert_rows(rows, np.array([len(tree.flatten(rows)[0])])).items

    def _convert_rows(self, rows: Nest, num_rows: np.ndarray) -> ItemBatch:
        """Returns the windows over the concatenated trajectories `[R, ...]` of episodes with `num_rows` rows each.

        For example, for two episodes of 3 and 2 rows, length 2 and stride 1, `num_items` is [2, 1]. The three windows
        have positions 0, 1 and 0 in their episodes, which start at rows 0, 0 and 3, so `starts` is 0, 1, 3.
        """
        padded_rows = num_rows
        if self.padding == "tile":
            padded_rows = np.where(num_rows > 0, num_rows + self.length - 1, 0)
        elif self.padding == "short":
            padded_rows = np.where(num_rows > 0, np.maximum(num_rows, self.length), 0)
        if (padded_rows > num_rows).any():
            rows = _append_boundary_rows(rows, num_rows, padded_rows - num_rows)
        num_items = np.maximum(padded_rows - self.length + self.stride, 0) // self.stride
        first_rows, first_items = (np.cumsum(counts) - counts for counts in (padded_rows, num_items))
        positions = np.arange(num_items.sum()) - np.repeat(first_items, num_items)
        starts = np.repeat(first_rows, num_items) + positions * self.stride
        return ItemBatch(Items(rows, starts, np.full(len(starts), self.length, np.int64)), padded_rows, num_items)

    def item_spec(self, step_spec: Nest) -> Nest:
        """Returns the `tf.TensorSpec`s `[length, ...]` of one item."""
        return item_signature(trajectory_spec(step_spec), self.length)


@dataclass(frozen=True)
class TrajectoryEpisodes:
    """One item per episode: all its trajectories `[N, ...]` including the boundary row, of varying length.

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
        rows = _make_rows(batch, self.discount_source)
        ends = np.cumsum(batch.num_steps)
        items = Items(rows, ends - batch.num_steps, batch.num_steps)
        return ItemBatch(items, batch.num_steps, np.ones_like(ends))

    def item_spec(self, step_spec: Nest) -> Nest:
        """Returns the `tf.TensorSpec`s `[None, ...]` of one item."""
        return item_signature(trajectory_spec(step_spec), None)


def _make_rows(batch: EpisodeBatch, discount_source: DiscountSource) -> Any:
    """Returns the trajectories of some episodes; raises `ArgumentError` if they would bootstrap from unknown states."""
    if discount_source == "next_terminal":
        for episode in batch.episodes:
            if episode.unknown_final_observation and not episode.is_terminal:
                raise ArgumentError(
                    f"must be 'product' or 'step', because episode {episode.index} is truncated, and its final "
                    "observation is unknown",
                    about="discount_source",
                    value=discount_source,
                )
    return trajectory_columns(batch.steps, discount_source=discount_source)


def _append_boundary_rows(rows: Nest, num_rows: np.ndarray, num_added: np.ndarray) -> Nest:
    """Appends `num_added` rows of zeros with step types LAST, FIRST to each episode."""
    positions = np.arange(num_rows.sum()) + np.repeat(np.cumsum(num_added) - num_added, num_rows)
    total = num_rows.sum() + num_added.sum()

    def scatter(column: np.ndarray) -> np.ndarray:
        padded = np.zeros((total, *column.shape[1:]), column.dtype)
        padded[positions] = column
        return padded

    step_type = np.full(total, LAST)
    step_type[positions] = rows.step_type
    return tree.map_structure(scatter, rows)._replace(step_type=step_type)
