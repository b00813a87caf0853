"""What sampling gives: a batch of columns, or dicts, and what is known of each element."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .item_spec import COLLECT_ITER, MASK, PLACE, PRIORITY, STALENESS, UNIQUE_ID, USE, WEIGHT, ItemSpec
from .staleness import UNKNOWN_ITER


class BatchInfo(NamedTuple):
    """What is known of the elements of a batch: arrays `[B]`, named as `sample` names them.

    Attributes:
      replay_unique_id: int64, the element's number, counted from the first push.
      replay_buffer_idx: int64, its place in the ring.
      IS: float64, its importance weight in (0, 1]; see `drawing.importance_weights`.
      priority: float64, at the draw.
      use: int64, how often it was sampled, this time included.
      staleness: int64, iterations since it was collected, or -1 where not known.
      collect_iter: int64, -1 where not known.
      buffer: int32, its buffer's place among the names of a manager; 0 for a buffer alone.
    """

    replay_unique_id: Any
    replay_buffer_idx: Any
    IS: Any
    priority: Any
    use: Any
    staleness: Any
    collect_iter: Any
    buffer: Any


class Batch(NamedTuple):
    """A batch: the nest of an item with columns `[B, ...]`, and what is known of its elements."""

    data: Any
    info: BatchInfo


class Drawn(NamedTuple):
    """Elements that were drawn.

    Attributes:
      spec: of the elements; None if there never was one.
      columns: of each leaf, `[B, ...]`, or `[B, T, ...]` with a time axis.
      mask: bool `[B, T]`, which steps there are; None where all are, or elements have no time axis.
      lengths: int64 `[B]`, the steps that `as_dicts` gives of each; None for all.
      info: of each element.
    """

    spec: ItemSpec | None
    columns: list[np.ndarray]
    mask: np.ndarray | None
    lengths: np.ndarray | None
    info: BatchInfo

    def batch(self) -> Batch:
        """As columns."""
        data: dict[str, Any] = {} if self.spec is None else self.spec.nest(self.columns)
        return Batch(data if self.mask is None else {**data, MASK: self.mask}, self.info)


def as_dicts(drawn: Drawn, name: str) -> list[dict[str, Any]]:
    """Elements as dicts, which share the memory of the columns.

    Args:
      drawn: the elements.
      name: of their buffer.
    """
    spec, info = drawn.spec, drawn.info
    if spec is None:
        return []
    known: dict[str, Any] = {
        UNIQUE_ID: [f"{name}_{number}" for number in info.replay_unique_id.tolist()],
        PLACE: info.replay_buffer_idx.tolist(),
        WEIGHT: info.IS.tolist(),
        PRIORITY: info.priority.tolist(),
        USE: info.use.tolist(),
        STALENESS: info.staleness.tolist(),
    }
    values: list[Any] = list(drawn.columns)
    if drawn.lengths is not None:
        lengths = drawn.lengths.tolist()
        values = [[rows[:length] for rows, length in zip(column, lengths, strict=True)] for column in values]
    elif drawn.mask is not None:
        known = {MASK: drawn.mask, **known}
    if spec.is_flat:
        keys = (*sorted(spec.rows), *known)
        items = [dict(zip(keys, own)) for own in zip(*values, *known.values())]  # noqa: B905 - a fifth of the time
    else:
        items = [spec.nest(own) for own in zip(*values, strict=True)]
        for item, own in zip(items, zip(*known.values(), strict=True), strict=True):
            item.update(zip(known, own, strict=True))
    for item, iteration in zip(items, info.collect_iter.tolist(), strict=True):
        if iteration != UNKNOWN_ITER:
            item[COLLECT_ITER] = iteration
    return items
