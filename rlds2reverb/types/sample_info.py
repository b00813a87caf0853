"""The information that comes with a batch of sampled items."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np

from .short_repr import short_repr

#: The keys of an update of priorities. The first three are DI-engine's; only a batch of a mixture has the last one.
UNIQUE_ID, BUFFER_IDX, PRIORITY, DATASET_INDEX = "replay_unique_id", "replay_buffer_idx", "priority", "dataset_index"
_LOG, _NOTED_SIZES = logging.getLogger(__name__), set[int]()
UPDATE_KEYS = (UNIQUE_ID, BUFFER_IDX, PRIORITY, DATASET_INDEX)


class SampleInfo(NamedTuple):
    """The information about the items of a batch from Reverb tables, in-process buffers, or a mixture of these.

    It extends the fields of Reverb's own `SampleInfo`. A field that a source does not have is ().

    Attributes:
      key: uint64 `[B]`, the item's key in its table, or its number in its buffer, counted from the first push.
      probability: float64 `[B]`, the probability with which it was sampled from the table of its server. In a buffer,
        it is that of a single draw from all candidates; `max_use` and `with_replacement=False` can exclude some of them
        later in the batch.
      table_size: int64 `[B]`, the number of items in that table or buffer at the time.
      priority: float64 `[B]`, its priority at the time, as it was written (without the sampler's exponent).
      times_sampled: int32 `[B]`, how often it has been sampled, including this time.
      weight: float32 `[B]`, its importance weight in (0, 1]; see `reverb.sampling.importance.importance_weights`.
      server: int32 `[B]`, the index of its server, to which new priorities must be written; 0 in a buffer.
      mask: bool `[B, T]`, False for the padding of items of varying length; () if items have a fixed size.
      dataset_index: int32 `[B]`, the index of its dataset in a `mixed_dataset`, by sorted name, or the index of its
        buffer in `BufferManager.names`; () if not mixed.
      staleness: int64 `[B]`, number of learner iterations since it was collected, -1 if unknown; () on servers.
      collect_iter: int64 `[B]`, learner iteration in which it was collected, -1 if unknown; () on servers.
      slot: int64 `[B]`, the place in its buffer, DI-engine's `replay_buffer_idx`; () on servers.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any
    weight: Any
    server: Any
    mask: Any = ()
    dataset_index: Any = ()
    staleness: Any = ()
    collect_iter: Any = ()
    slot: Any = ()

    def __repr__(self) -> str:
        return short_repr(self)


def make_update(info: Any, priorities: Any) -> dict[str, Any]:
    """Returns DI-engine's dict for the `update` of priorities.

    Args:
      info: `SampleInfo` of the items, or one of Reverb.
      priorities: new priorities, `[B]`.
    """
    update = {UNIQUE_ID: np.asarray(info.key), BUFFER_IDX: getattr(info, "slot", ()), PRIORITY: priorities}
    index = getattr(info, "dataset_index", ())
    return update if isinstance(index, tuple) else {**update, DATASET_INDEX: np.asarray(index)}


def note_repeated_items(batch_size: int, num_items: int) -> None:
    """Logs, once for each size of a batch, that the batches contain items several times."""
    if batch_size > num_items and batch_size not in _NOTED_SIZES:
        _NOTED_SIZES.add(batch_size)
        sentence = "a batch of %s contains some of the %s items several times; use a smaller batch size"
        _LOG.warning(sentence, f"{batch_size:,}", f"{num_items:,}")


class ReplaySample(NamedTuple):
    """A batch of sampled items, with the fields of `reverb.ReplaySample`.

    Attributes:
      info: the `SampleInfo` of the items.
      data: the nest of an item, `[B, ...]`.
    """

    info: Any
    data: Any

    def __repr__(self) -> str:
        return short_repr(self)
