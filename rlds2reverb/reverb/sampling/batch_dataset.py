"""A `tf.data` dataset of the batches of `sample`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds2reverb.libraries.python_datasets import make_dataset, translate_error as translate_error
from rlds2reverb.types.arguments import take_arguments
from rlds2reverb.types.experience import to_experience as to_experience

from .sample_iterator import SamplePlan

if TYPE_CHECKING:
    import tensorflow as tf


@take_arguments(SamplePlan)
def sample_dataset(plan: SamplePlan) -> tf.data.Dataset:  # noqa: D417 - The arguments are those of the plan.
    """Returns an endless dataset of batches of a table's items.

    See `sample` for how several servers are sampled, and for what happens if one is lost. The dataset is a thin wrapper
    of `sample`; each iterator opens new streams. Iterating eagerly raises the errors of `sample`. (A TensorFlow
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
    return make_dataset(plan.open, plan.element_spec, prefetch=plan.prefetch)
