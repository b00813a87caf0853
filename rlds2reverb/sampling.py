"""Sampling a table as a `tf.data` stream of batches, whatever the layout of its items."""

from __future__ import annotations

import reverb
import tensorflow as tf
import tree

from rlds2reverb.packing import packing_of, unpack
from rlds2reverb.writing import Server, connect, table_infos

_MAX_IN_FLIGHT = 256
_NUM_WORKERS = 2


def sample_dataset(
    server: Server,
    table: str,
    batch_size: int,
    *,
    max_in_flight: int = _MAX_IN_FLIGHT,
    num_workers: int = _NUM_WORKERS,
    timeout_secs: float = 10.0,
) -> tf.data.Dataset:
    """Batches of a table's items, for ever; packed items come out unpacked.

    Args:
      server: see `writing.connect`.
      table: its name; its items have to be of one size.
      batch_size: items in a batch.
      max_in_flight: samples that each worker asks for ahead.
      num_workers: streams of samples.
      timeout_secs: how long to wait for the server to say what it has.

    Returns:
      Data set of `reverb.ReplaySample`: `info` `[batch_size]`, `data` the nest of an item, `[batch_size, ...]`.

    Raises:
      ServerUnavailable: if the server does not answer in time.
      ValueError: if there is no such table, it has no signature, or a number is out of its range.
    """
    for name, value in (("batch_size", batch_size), ("max_in_flight", max_in_flight), ("num_workers", num_workers)):
        if value < 1:
            raise ValueError(f"{name} is {value}, wanted at least 1")
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
    ).batch(batch_size, drop_remainder=True)
    if packing is None:
        return dataset
    return dataset.map(lambda sample: reverb.ReplaySample(sample.info, unpack(sample.data, packing)))
