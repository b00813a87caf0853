"""Adders whose items are TF-Agents trajectories: windows of fixed length and whole episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from rlds2reverb.errors import ArgumentError
from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count, require_one_of
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.items import ItemBatch, Items
from rlds2reverb.types.specs import Nest, map_structure
from rlds2reverb.types.trajectories import (
    FIRST,
    LAST,
    MID,
    DiscountSource,
    make_trajectory,
    require_discount_source,
    step_types,
    trajectory_spec,
    transition_discounts,
)

from .arrays import Array, cast, keep_where, namespace
from .padding import MASK, pad
from .places import Places, Take
from .window_adder import ContextAdder, Ranges, WindowAdder, unpadded

#: How the end of an episode is padded; see `TrajectoryWindows`.
Padding = Literal["none", "short", "tile"]
PADDINGS: tuple[Padding, ...] = get_args(Padding)

MAX_LENGTH = 1_000_000


class _TrajectoryAdder(WindowAdder):
    """The base class of adders whose rows are those of `trajectories.trajectory_columns`."""

    discount_source: DiscountSource

    def row_spec(self, step_spec: Nest) -> Nest:
        """Implements `ItemAdder.row_spec`."""
        return trajectory_spec(step_spec)

    def read_rows(self, take: Take, rows: Array, is_real: Array, places: Places) -> Any:
        """Implements `WindowAdder.read_rows`."""
        return _pad_with_boundaries(_read_trajectories(take, rows, places, self.discount_source), is_real)

    def convert_batch(self, batch: EpisodeBatch) -> ItemBatch | None:
        """Implements `rlds2reverb.types.items.EpisodeBatchAdder`."""
        for episode in batch.episodes:
            self._require_known_end(episode)
        return super().convert_batch(batch)

    def _convert_episode(self, episode: Episode) -> Items:
        self._require_known_end(episode)
        return super()._convert_episode(episode)

    def _require_known_end(self, episode: Episode) -> None:
        """Raises `ArgumentError` if a learner would bootstrap from an unknown observation."""
        if self.discount_source == "next_terminal" and episode.unknown_final_observation and not episode.is_terminal:
            raise ArgumentError(
                f"must be 'product' or 'step', because episode {episode.index} is truncated, and its final observation "
                "is unknown",
                about="discount_source",
                value=self.discount_source,
            )


@dataclass(frozen=True)
class TrajectoryWindows(_TrajectoryAdder):
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

    @property
    def item_length(self) -> int:  # type: ignore[override]
        """Implements `ItemAdder.item_length`."""
        return self.length

    def count(self, num_steps: Array) -> Array:
        """Implements `ItemAdder.count`."""
        xp, num_rows = namespace(num_steps), num_steps
        if self.padding == "tile":
            num_rows = xp.where(num_steps > 0, num_steps + self.length - 1, 0)
        elif self.padding == "short":
            num_rows = xp.where(num_steps > 0, xp.maximum(num_steps, self.length), 0)
        return xp.maximum(num_rows - self.length + self.stride, 0) // self.stride

    def find_ranges(self, places: Places) -> Ranges:
        """Implements `WindowAdder.find_ranges`."""
        start = places.first + places.number * self.stride
        return Ranges(start, start + self.length, places.first, places.last + 1)

    def convert_rows(self, rows: Any) -> Items:
        """Returns the windows over the trajectories `[N, ...]` of one episode."""

        def read(chosen: np.ndarray, is_real: np.ndarray, places: Places) -> Any:
            return _pad_with_boundaries(map_structure(lambda column: column[chosen], rows), is_real)

        return self.cut_rows(np.array([len(rows.step_type)]), read).items


@dataclass(frozen=True)
class TrajectoryEpisodes(_TrajectoryAdder):
    """One item per episode: all its trajectories `[N, ...]` including the boundary row, of varying length.

    Attributes:
      discount_source: see `trajectories.transition_discounts`.
    """

    discount_source: DiscountSource = "product"

    def __post_init__(self) -> None:
        require_discount_source(self.discount_source)

    def count(self, num_steps: Array) -> Array:
        """Implements `ItemAdder.count`."""
        return namespace(num_steps).minimum(num_steps, 1)

    def find_ranges(self, places: Places) -> Ranges:
        """Implements `WindowAdder.find_ranges`."""
        return unpadded(places.first, places.last + 1)


@dataclass(frozen=True)
class PaddedTrajectoryWindows(ContextAdder):
    """TF-Agents trajectories of up to `length` steps from each step on, as sequence models learn from them.

    Chen et al. (2021), "Decision Transformer", arXiv:2106.01345; the authors' code, gym/experiment.py.

    An item starts at each step but the last one, which has no action and is in no item. The items at the end of an
    episode have fewer steps, which follow zeros. The policy info contains the step field `policy_info` and `mask`, bool
    `[length]`, False for the zeros.

    Attributes:
      length: maximum number of steps, at least 1.
    """

    length: int

    def read_rows(self, take: Take, rows: Array, is_real: Array, places: Places) -> Any:
        """Implements `WindowAdder.read_rows`."""
        made = pad(_read_trajectories(take, rows, places), is_real)
        types = (keep_where(is_real, kinds, MID) for kinds in (made.step_type, made.next_step_type))
        info = pad(take(rows, (fields.POLICY_INFO,))[fields.POLICY_INFO], is_real)
        names = ("step_type", "next_step_type")
        return made._replace(policy_info={**info, MASK: is_real}, **dict(zip(names, types, strict=True)))


def _read_trajectories(take: Take, rows: Array, places: Places, source: DiscountSource = "product") -> Any:
    """Returns the trajectories at some rows, `[R, ...]`; the last row of an episode is the boundary (LAST, FIRST)."""
    xp, steps = namespace(rows), take(rows, fields.STEP_FIELDS)
    following = take(xp.minimum(rows + 1, places.last), fields.FLAG_FIELDS)
    types, next_types = (
        step_types(part[fields.IS_FIRST], part[fields.IS_LAST], xp.where) for part in (steps, following)
    )
    next_types = xp.where(rows == places.last, FIRST, next_types)
    discounts = transition_discounts(steps, following, cast(steps[fields.DISCOUNT], np.float32), source, xp.where)
    return make_trajectory(steps, types, next_types, discounts, xp.where)


def _pad_with_boundaries(rows: Any, is_real: Array) -> Any:
    """Returns trajectories `[R, ...]` with boundary rows of zeros (LAST, FIRST) in rows that are not real."""
    return pad(rows, is_real)._replace(step_type=keep_where(is_real, rows.step_type, LAST))
