"""An adder of transitions over chunks of actions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rlds2reverb.types import fields
from rlds2reverb.types.specs import map_structure

from .arrays import Array, arange, namespace, split_axis
from .n_step import Transitions
from .padding import MASK
from .places import Places, Take


@dataclass(frozen=True)
class ChunkTransitions(Transitions):
    """Transitions over a chunk of `n` actions, which are concatenated to one vector, `[n * A]`.

    Li, Zhou & Levine (2025), "Reinforcement Learning with Action Chunking", arXiv:2507.07969, section 4. Reward and
    discount are those of n-step transitions, and no item crosses the end of an episode. The last item ends with the
    last action, whether the episode is terminated or truncated there. The n - 1 steps after the first step of that item
    begin no items, because their chunks would be incomplete.

    Attributes:
      repeats_last: whether items start at these steps too, for behavioural cloning and flows. The last action of the
        episode is then repeated, and the policy info contains `mask`, bool `[n]`, False for the repetitions.
    """

    repeats_last: bool = False

    def count(self, num_steps: Array) -> Array:
        """Implements `ItemAdder.count`."""
        return namespace(num_steps).maximum(num_steps - (1 if self.repeats_last else self.n), 0)

    def read(self, take: Take, places: Places) -> Any:
        """Implements `ItemAdder.read`."""
        chosen, is_real = _find_chunks(places, self.n)
        xp = namespace(chosen)
        actions = take(xp.ravel(chosen), (fields.ACTION,))[fields.ACTION]

        def join(column: Array) -> Array:
            return xp.reshape(split_axis(column, chosen), (-1, self.n * math.prod(column.shape[1:])))

        item = {**super().read(take, places), fields.ACTION: map_structure(join, actions)}
        return {**item, fields.POLICY_INFO: {MASK: is_real}} if self.repeats_last else item


def _find_chunks(places: Places, length: int) -> tuple[Array, Array]:
    """Returns the rows of the actions of chunks, int64 `[N, length]`, and which of them are before the end, bool.

    After the end, the last action of the episode is repeated.
    """
    xp, last = namespace(places.number), places.last[:, None]
    rows = places.row[:, None] + arange(length, places.number)
    return xp.minimum(rows, last - 1), rows < last
