"""Items: what an adder makes of an episode, and what a table holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tree

from rlds2reverb.episodes import Episode
from rlds2reverb.specs import Nest


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


class ItemAdder(Protocol):
    """What `ingest` takes as `adder`: turns an episode into items, the same ones each time, and knows their spec.

    `Windows`, `WholeEpisodes` and the adders of `rlds2reverb.adders` are item adders. (`rlds2reverb.adders.Adder` is
    something else: DI-engine's functions over lists of transitions.)
    """

    def __call__(self, episode: Episode, /) -> Items:
        """Returns the items of one valid episode; there may be none."""

    def item_spec(self, step_spec: Nest) -> Nest:
        """Returns the nest of `tf.TensorSpec` of one item, for the table's signature, from a `Source.step_spec`."""
