"""Sampling a table as a `tf.data` stream of batches, whatever the layout of its items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import reverb
import tensorflow as tf
import tree

from rlds2reverb.packing import packing_of, unpack
from rlds2reverb.writing import (
    Server,
    ServerUnavailable,
    connect,
    require_timeout,
    table_infos,
    why_nothing_sampled,
)

_MAX_IN_FLIGHT = 256
_NUM_WORKERS = 2


def sample_dataset(
    server: Server,
    table: str,
    batch_size: int,
    *,
    max_in_flight: int = _MAX_IN_FLIGHT,
    num_workers: int = _NUM_WORKERS,
    timeout_secs: float = 30.0,
) -> tf.data.Dataset:
    """Batches of a table's items, without an end; packed items come out unpacked.

    Where the table's rate limiter gives no sample for the length of the time-out (it holds too few items, or too few
    were inserted since), iterating raises `tf.errors.OpError` with a sentence that says so.

    Args:
      server: see `writing.connect`.
      table: its name; its items have to be of one size.
      batch_size: items in a batch.
      max_in_flight: samples that each worker asks for ahead.
      num_workers: streams of samples.
      timeout_secs: how long to wait for the server to say what it has, and for a sample.

    Returns:
      Data set of `reverb.ReplaySample`: `info` `[batch_size]`, `data` the nest of an item, `[batch_size, ...]`.

    Raises:
      ServerUnavailable: if the server does not answer in time.
      ValueError: if there is no such table, it has no signature, or a number is out of its range.
    """
    for name, value in (("batch_size", batch_size), ("max_in_flight", max_in_flight), ("num_workers", num_workers)):
        if value < 1:
            raise ValueError(f"{name} is {value}, wanted at least 1")
    require_timeout(timeout_secs)
    client = connect(server)
    infos = table_infos(client, timeout_secs=timeout_secs)
    if table not in infos:
        raise ValueError(f"the server has no table {table!r}; it has {', '.join(sorted(infos)) or 'none'}")
    signature = infos[table].signature
    if signature is None:
        raise ValueError(f"table {table!r} has no signature; serve it with one (--like, or ReplayServer's signature)")
    packing = packing_of(signature)
    dataset = reverb.TrajectoryDataset(
        client.server_address,
        table,
        dtypes=tree.map_structure(lambda leaf: leaf.dtype, signature),
        shapes=tree.map_structure(lambda leaf: leaf.shape, signature),
        max_in_flight_samples_per_worker=max_in_flight,
        num_workers_per_iterator=num_workers,
        rate_limiter_timeout_ms=int(1000 * timeout_secs),
    ).batch(batch_size, drop_remainder=True)
    if packing is not None:
        dataset = dataset.map(lambda sample: reverb.ReplaySample(sample.info, unpack(sample.data, packing)))

    def fail() -> Iterator[Any]:
        raise ServerUnavailable(why_nothing_sampled(client, table, timeout_secs))
        yield

    return dataset.concatenate(tf.data.Dataset.from_generator(fail, output_signature=dataset.element_spec))
