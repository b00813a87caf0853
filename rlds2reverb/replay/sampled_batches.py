"""The results of sampling: batches of columns, lists of dicts, refusals, and `tf.data` streams of batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rlds2reverb.types.sample_info import BUFFER_IDX, PRIORITY, UNIQUE_ID, SampleInfo
from rlds2reverb.types.short_repr import short_repr

from .configs import UNKNOWN_ITER
from .item_spec import COLLECT_ITER, MASK, STALENESS, USE, WEIGHT, ItemSpec

if TYPE_CHECKING:
    import tensorflow as tf

_RETRY_SECS = 0.002


class Batch(NamedTuple):
    """A batch: the nest of an item with columns `[B, ...]`, and the information about its elements."""

    data: Any
    info: SampleInfo

    def __repr__(self) -> str:
        return short_repr(self)


@dataclass(frozen=True)
class SampleRefusal:
    """The result of a sample that was refused; always false in a condition.

    Attributes:
      reason: a sentence that names the buffer, the limit and what to do.
    """

    reason: str

    def __bool__(self) -> Literal[False]:
        return False


class SampleCheck(NamedTuple):
    """Whether a sample would be allowed now, as DI-engine's `(allowed, reason)`; true in a condition if it would be.

    Attributes:
      allowed: whether it would be allowed.
      reason: see `SampleRefusal`; empty if it is allowed.
    """

    allowed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.allowed


class Sample(NamedTuple):
    """Sampled elements before they are returned as columns or as dicts.

    Attributes:
      spec: the spec of the elements; None if nothing was ever pushed.
      columns: one array `[B, ...]` per leaf, or `[B, T, ...]` with a time axis.
      mask: bool `[B, T]`, False for padding; None if nothing can be padded.
      lengths: int64 `[B]`, number of steps per element in `to_dicts`; None for all `T`.
      info: information about the elements, without a mask and with weights in float64.
    """

    spec: ItemSpec | None
    columns: list[np.ndarray]
    mask: np.ndarray | None
    lengths: np.ndarray | None
    info: SampleInfo

    def to_batch(self) -> Batch:
        """Returns the elements as a batch of columns."""
        data: dict[str, Any] = {} if self.spec is None else self.spec.pack(self.columns)
        weight = self.info.weight.astype(np.float32)
        return Batch(data, self.info._replace(weight=weight, mask=() if self.mask is None else self.mask))

    def to_dicts(self, buffer_name: str) -> list[dict[str, Any]]:
        """Returns the elements as dicts that share the memory of the columns."""
        if self.spec is None:
            return []
        info = self.info
        extra: dict[str, Any] = {
            UNIQUE_ID: [f"{buffer_name}_{number}" for number in info.key.tolist()],
            BUFFER_IDX: info.slot.tolist(),
            WEIGHT: info.weight.tolist(),
            PRIORITY: info.priority.tolist(),
            USE: info.times_sampled.tolist(),
            STALENESS: info.staleness.tolist(),
        }
        values: list[Any] = list(self.columns)
        if self.lengths is not None:
            lengths = self.lengths.tolist()
            values = [[rows[:length] for rows, length in zip(column, lengths, strict=True)] for column in values]
        elif self.mask is not None:
            extra = {MASK: self.mask, **extra}
        if self.spec.is_flat:
            keys = (*sorted(self.spec.rows), *extra)
            items = [dict(zip(keys, row)) for row in zip(*values, *extra.values())]  # noqa: B905 - 5 times as fast
        else:
            items = [self.spec.pack(row) for row in zip(*values, strict=True)]
            for item, row in zip(items, zip(*extra.values(), strict=True), strict=True):
                item.update(zip(extra, row, strict=True))
        for item, iteration in zip(items, info.collect_iter.tolist(), strict=True):
            if iteration != UNKNOWN_ITER:
                item[COLLECT_ITER] = iteration
        return items


def stream_batches(
    sample: Callable[[], Batch | SampleRefusal], empty_batch: Batch, batch_size: int, prefetch: int, timeout_secs: float
) -> tf.data.Dataset:
    """Returns an endless dataset that calls a function for each batch; imports TensorFlow.

    Args:
      sample: function that samples a batch, and is called again if the sample is refused.
      empty_batch: batch of no elements, for structure, dtypes and shapes.
      batch_size: number of elements per batch.
      prefetch: number of batches to sample ahead.
      timeout_secs: how long to retry; then the dataset raises a `TimeoutError` with the reason of the last refusal.
    """
    from rlds2reverb.libraries.python_datasets import make_batch_spec, make_dataset

    has_failed = False

    def sample_or_wait() -> Batch:
        nonlocal has_failed
        # Prefetching continues after a failure. Waiting again would take elements that nobody reads any more.
        end = time.monotonic() + (0 if has_failed else timeout_secs)
        while isinstance(batch := sample(), SampleRefusal):
            if time.monotonic() > end:
                has_failed = True
                raise TimeoutError(f"waited {timeout_secs:g} s for a batch: {batch.reason}")
            time.sleep(_RETRY_SECS)
        has_failed = False
        return batch

    spec = make_batch_spec(empty_batch, batch_size)
    return make_dataset(lambda: iter(sample_or_wait, None), spec, prefetch=prefetch)
