"""A `tf.data` dataset of the batches of `sample`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlds2reverb._internals.python_datasets import make_dataset, translate_error as translate_error
from rlds2reverb.client import Server
from rlds2reverb.experience import to_experience as to_experience

from .batches import DEFAULT_BETA, OnServerLost, SamplePlan, warn_server_lost
from .importance import Beta

if TYPE_CHECKING:
    import tensorflow as tf


def sample_dataset(
    servers: Server | Sequence[Server],
    table: str,
    batch_size: int,
    *,
    beta: Beta = DEFAULT_BETA,
    min_priority: Any = None,
    max_in_flight: int = 256,
    num_workers: int = 2,
    prefetch: int = 1,
    timeout_secs: float = 30.0,
    on_server_lost: OnServerLost = warn_server_lost,
) -> tf.data.Dataset:
    """Returns an endless dataset of batches of a table's items.

    See `sample` for how several servers are sampled, and for what happens if one is lost. The dataset is a thin wrapper
    of `sample`; each iterator has streams of its own. Iterating eagerly raises the errors of `sample`. (A TensorFlow
    graph that reads the dataset raises a `tf.errors.OpError`; see `translate_error`.)

    The dataset keeps `prefetch` batches more than `sample` does.

    Args:
      servers: see `sample`, as for the other arguments.
      table: the name of the table.
      batch_size: number of items per batch, at least the number of servers.
      beta: exponent of the importance weights: a number in [0, 1], or a function of the batch number.
      min_priority: the lowest priority above 0 in the table, or None.
      max_in_flight: number of samples that each worker requests ahead.
      num_workers: number of streams of samples from each server.
      prefetch: number of batches to prepare ahead, twice: as arrays and as tensors.
      timeout_secs: maximum time to wait for a server's table information, and for samples.
      on_server_lost: function called as `on_server_lost(address, reason)` when a server stops returning samples.

    Returns:
      A dataset of `ReplaySample`: `info` is a `SampleInfo`, `data` the nest of an item, `[batch_size, ...]`.
      Items of varying length are padded with zeros to the longest in the batch; see `info.mask`.

    Raises:
      ServerUnavailableError: If no server answers in time.
      SpecMismatchError: If the tables of several servers have different signatures.
      ValueError: If the table does not exist or has no signature, only some of several tables sample at random,
        `min_priority` is passed for tables in a fixed order, or a number is out of its range.
    """
    plan = SamplePlan(
        servers,
        table,
        batch_size,
        beta=beta,
        min_priority=min_priority,
        max_in_flight=max_in_flight,
        num_workers=num_workers,
        prefetch=prefetch,
        timeout_secs=timeout_secs,
        on_server_lost=on_server_lost,
    )
    return make_dataset(plan.open, plan.element_spec, prefetch=prefetch)
