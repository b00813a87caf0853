"""Adders of chunks of actions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.specs import map_structure

from .adder import ItemAdder
from .arrays import Array, arange, namespace, split_axis
from .n_step import Transitions
from .padding import MASK, pad
from .places import Places, Take
from .windows import require_no_mask


@dataclass(frozen=True)
class ActionChunks(ItemAdder):
    """The observation of a step with the next actions, as policies predict several actions at once.

    Zhao et al. (2023), "Learning fine-grained bimanual manipulation with low-cost hardware", section 4.

    Item: observation; `action`, `[length, ...]`, from the action of this step on; `mask`, bool `[length]`, False for
    the zeros after the last action of the episode; and `field_names`. An item starts at each step that has
    an action, the last one of a truncated episode included if no observation follows it.

    Attributes:
      length: number of actions, at least 1.
      field_names: further fields of the step, such as 'language_instruction'.
    """

    length: int
    field_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_count("length", self.length)
        require_no_mask(self.field_names, (fields.ACTION, MASK))

    @property
    def uses_all_actions(self) -> bool:
        """Implements `ItemAdder.uses_all_actions`."""
        return True

    def read(self, take: Take, places: Places) -> Any:
        """Implements `ItemAdder.read`."""
        chosen, is_real = _find_chunks(places, self.length)
        xp = namespace(is_real)
        actions = pad(take(xp.ravel(chosen), (fields.ACTION,)), xp.ravel(is_real))
        first = take(places.row, (fields.OBSERVATION, *self.field_names))
        return {**first, **map_structure(lambda column: split_axis(column, chosen), actions), MASK: is_real}


@dataclass(frozen=True)
class ChunkTransitions(Transitions):
    """Transitions over a chunk of `n` actions, which are concatenated to one vector, `[n * A]`.

    Li, Zhou & Levine (2025), "Reinforcement Learning with Action Chunking", arXiv:2507.07969, section 4. Reward and
    discount are those of n-step transitions, and no item crosses the end of an episode. The last item ends with the
    last action, whether the episode is terminated or truncated there. The n - 1 steps after the first step of that item
    begin no items, because their chunks would be incomplete.

    Attributes:
      repeats_last: whether items start at these steps too, for behavioural cloning. The last action of the episode is
        then repeated, and the policy info contains `mask`, bool `[n]`, False for the repetitions.
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
