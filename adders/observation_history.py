"""Observations that contain those of earlier steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tree

from rlds2reverb.types import fields
from rlds2reverb.types.nest_paths import format_path, merge_parts
from rlds2reverb.types.specs import Nest

from .arrays import Array, namespace, split_axis
from .places import Take

#: Offsets of the steps that a policy sees: of all parts of the observation, or of some by their paths.
ObservationOffsets = Sequence[int] | Mapping[str, Sequence[int]]


class PartHistory(NamedTuple):
    """The steps of one part of the observation that a policy sees.

    Attributes:
      path: dotted path of the part in the steps, such as 'observation.camera'.
      offsets: offsets of the steps, at most 0, in ascending order.
      axis: the axis along which the arrays of several steps are joined; numbers become a vector.
    """

    path: str
    offsets: tuple[int, ...]
    axis: int = -1


@dataclass(frozen=True)
class ObservationHistory:
    """Observations whose parts contain several steps, joined to one array, the oldest step first.

    A part `[..., D]` becomes `[..., K * D]` for K offsets, and a number a vector `[K]`, like the stacked frames of
    Mnih et al. (2015), "Human-level control through deep reinforcement learning", Methods. Where there is no earlier
    step, the first step of the episode stands for it.

    Attributes:
      parts: all parts of the observation; none if only the step itself is seen.
    """

    parts: tuple[PartHistory, ...] = ()

    @property
    def num_earlier(self) -> int:
        """The number of steps before the step itself that are read."""
        return -min((part.offsets[0] for part in self.parts), default=0)

    def extend(self, take: Take, first: Array) -> Take:
        """Returns a function that reads steps with these observations.

        Args:
          take: function that reads steps.
          first: int64 `[N]`, the first rows of the episodes of N rows; the function then reads N rows.
        """
        if not self.parts:
            return take
        groups: dict[tuple[int, ...], list[PartHistory]] = {}
        for part in self.parts:
            groups.setdefault(part.offsets, []).append(part)

        def take_histories(rows: Array, names: Sequence[str] | None) -> dict[str, Nest]:
            assert names is not None
            others = [name for name in names if name != fields.OBSERVATION]
            steps = take(rows, others) if others else {}
            for offsets, parts in groups.items() if fields.OBSERVATION in names else ():
                xp = namespace(rows)
                chosen = xp.maximum(rows[:, None] + xp.asarray(offsets, "int64"), first[:, None])
                taken = take(xp.ravel(chosen), [part.path for part in parts])
                merge_parts(steps, _join_parts(taken, chosen, parts))
            return steps

        return take_histories


#: Only the step itself is seen.
NO_HISTORY = ObservationHistory()


def _join_parts(nest: Nest, rows: Array, parts: Sequence[PartHistory]) -> Nest:
    """Returns parts that were read at rows `[N, K]` in items `[N, ...]`."""
    if rows.shape[1] == 1:
        return nest
    axes = {part.path: part.axis for part in parts}

    def join(keys: tuple[str, ...], column: Array) -> Array:
        return join_steps(split_axis(column, rows), axes[format_path(keys)])

    return tree.map_structure_with_path(join, nest)


def join_steps(column: Array, axis: int) -> Array:
    """Returns arrays of several steps, `[N, K, ...]`, joined along an axis of a step; numbers as `[N, K]`."""
    shape = column.shape[2:]
    if not len(shape):
        return column
    xp, axis = namespace(column), axis % len(shape)
    moved = xp.moveaxis(column, 1, axis + 1)
    return xp.reshape(moved, (-1, *shape[:axis], column.shape[1] * shape[axis], *shape[axis + 1 :]))
