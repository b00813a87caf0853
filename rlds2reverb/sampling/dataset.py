"""Sampling a table, on one server or several, as a `tf.data` stream of batches with importance weights.

Layouts of items: of one size (windows, transitions), of varying length (episodes, padded, with a mask), and packed
ones, which come out unpacked.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import reverb
import tensorflow as tf
import tree

from rlds2reverb._arguments import require_timeout
from rlds2reverb._encoding.packing import Packing, unpack
from rlds2reverb._server.clients import Server
from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.specs import Nest
from rlds2reverb.tables import MAX_PRIORITY

from . import importance
from .importance import Beta, LinearSchedule
from .interleaving import OnSilent, interleaved
from .server_tables import ServerTables

#: Called with the address of a server that gives nothing any more, and why; not always from the thread that iterates.
OnServerLost: TypeAlias = Callable[[str, str], None]

_BETA = LinearSchedule()
#: With one part a server, a fifth of the batches lacks one of two servers at full speed; with four hardly any does.
_PARTS_PER_SERVER = 4


class SampleInfo(NamedTuple):
    """What is known of the items of a batch: the fields of Reverb's own `SampleInfo`, and more.

    Attributes:
      key: uint64 `[B]`, of the item in its table.
      probability: float64 `[B]`, with which it was drawn from the table of its server.
      table_size: int64 `[B]`, items in the table of its server at that time.
      priority: float64 `[B]`, its priority at that time, as it was written (without the sampler's exponent).
      times_sampled: int32 `[B]`, this time included.
      weight: float32 `[B]`, the importance weight; see `importance.importance_weights`.
      server: int32 `[B]`, which of the servers has it; priorities are to be written there.
      mask: bool `[B, T]`, false where an item of varying length was padded; () where items are of one size.
      part: int32 `[B]`, which part of a `mixed_dataset` has it: its place among the sorted names; () without parts.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any
    weight: Any
    server: Any
    mask: Any = ()
    part: Any = ()


class _Timed(NamedTuple):
    """Items of varying length: their nests, padded, and their lengths, int32 `[...]`."""

    data: Any
    lengths: Any


def warn_of_dead(address: str, reason: str) -> None:
    """Warns of a server that gives nothing any more."""
    warnings.warn(f"no samples from {address}, the other servers go on: {reason}", RuntimeWarning, stacklevel=2)


def to_experience(sample: reverb.ReplaySample) -> tuple[Any, SampleInfo]:
    """The pair (data, info) that TF-Agents' learners take: `sample_dataset(...).map(to_experience)`.

    A table gives back trajectories as named tuples of that name; learners want TF-Agents' own.
    """
    from tf_agents.trajectories import Trajectory

    data = sample.data
    return (Trajectory(*data) if getattr(data, "_fields", None) == Trajectory._fields else data), sample.info


def sample_dataset(
    servers: Server | Sequence[Server],
    table: str,
    batch_size: int,
    *,
    beta: Beta = _BETA,
    min_priority: Any = None,
    max_in_flight: int = 256,
    num_workers: int = 2,
    prefetch: int = 1,
    timeout_secs: float = 30.0,
    on_server_lost: OnServerLost = warn_of_dead,
) -> tf.data.Dataset:
    """Batches of a table's items, without an end; packed items come out unpacked.

    Several servers are sampled equally in the long run, as long as all keep up; where one does not, the others fill in.
    A single batch has the items that were there first: its share of a server may be anything from none to all. The
    weights take the shares of the batch as they are. A batch without an item of some server (among the first ones, or
    where that server is much slower) stands for the tables of the others only. For shares that are exact in every
    batch see `mixed_dataset`. A server that gives nothing for the length of
    the time-out is reported; the others go on, and it takes part again when it is back (gRPC tries every few seconds).
    When none gives anything, iterating raises `tf.errors.OpError` with a sentence that says why: no server answers, or
    the table's rate limiter waits for items. Only time counts in which a batch is waited for,
    by the consumer or ahead of it: where a table runs dry while the consumer is away, give more than that takes.

    Up to `max_in_flight * num_workers + batch_size * (prefetch + num_workers)` samples are drawn ahead, on each
    server; their priorities and probabilities are those of the time when they were drawn. In the process of the server
    itself Reverb samples its tables directly, without gRPC, which is several times as fast.

    Args:
      servers: a server or several; see `clients.connect`.
      table: its name; on several servers, tables of one signature, of any samplers that draw at random (the weights
        make up for what differs), or all of samplers that give items in an order of their own (weights are then 1).
      batch_size: items in a batch, at least one for each server.
      beta: exponent of the importance weights: a number in [0, 1], or a function of the batch's number (int64 `[]`,
        from 0 in each iterator), such as the default: from 0.4 to 1 over 100,000 batches.
      min_priority: the lowest priority above 0 in the table: a number, a scalar `tf.Variable`, or a function without
        arguments in TensorFlow. Weights are then divided by the largest of the table instead of that of the batch.
      max_in_flight: samples that each worker asks for ahead; 64 to 512 are fast. Less for priorities that are newer.
      num_workers: streams of samples from each server; 1 for a queue, whose order is to be kept.
      prefetch: batches that are made ready ahead.
      timeout_secs: how long to wait for a server to say what it has, and for samples.
      on_server_lost: called with the address of a server that gives nothing any more and the reason; the default warns.

    Returns:
      Data set of `reverb.ReplaySample`: `info` a `SampleInfo`, `data` the nest of an item, `[batch_size, ...]`. Items
      of varying length are padded with zeros to the longest of the batch; `info.mask` says where.

    Raises:
      ServerUnavailableError: if no server answers in time.
      SpecMismatchError: if the tables of several servers have different signatures.
      ValueError: if there is no such table, it has no signature, only some of several servers' tables draw at random,
        or a number is out of its range.
    """
    counts = (("batch_size", batch_size), ("max_in_flight", max_in_flight), ("num_workers", num_workers))
    for name, value in (*counts, ("prefetch", prefetch)):
        if value < 1:
            raise ValueError(f"{name} is {value}, expected at least 1")
    require_timeout(timeout_secs)
    importance.require_beta(beta)
    importance.require_min_priority(min_priority, highest=MAX_PRIORITY)
    server_tables = ServerTables.of(servers, table, timeout_secs=timeout_secs)
    if batch_size < len(server_tables.clients):
        raise ValueError(
            f"batch_size is {batch_size}, expected at least one item for each of {len(server_tables.clients)} servers"
        )
    # Several readers are faster than several workers of one, but each fills a batch of its own, in no order.
    num_readers = 1 if server_tables.in_order or server_tables.scarce else num_workers
    num_parts = parts_of(batch_size, len(server_tables.clients))
    for number in server_tables.silent:
        on_server_lost(server_tables.addresses[number], "it does not answer")

    def parts_from(number: tf.Tensor) -> tf.data.Dataset:
        stream = reverb.TrajectoryDataset(
            tf.gather(tf.constant(server_tables.addresses), number),
            table,
            dtypes=tree.map_structure(lambda leaf: leaf.dtype, server_tables.signature),
            shapes=tree.map_structure(lambda leaf: leaf.shape, server_tables.signature),
            max_in_flight_samples_per_worker=max_in_flight,
            num_workers_per_iterator=num_workers // num_readers,
        )
        return _in_parts(stream, batch_size // num_parts)

    parts = interleaved(
        parts_from,
        len(server_tables.clients),
        timeout_secs=timeout_secs,
        on_silent=_reporter(server_tables, on_server_lost, waited_secs=timeout_secs),
        num_readers=num_readers,
        # Reverb waits half a minute for a server that does not answer when a stream begins, and cannot be stopped.
        ready=server_tables.answers,
        silent_from_start=server_tables.silent,
    )
    weigh = _weigher(server_tables, beta, min_priority)
    batches = _joined(parts, num_parts).enumerate()
    finished = batches.map(
        lambda at, batch: _finished(at, batch[0], batch[1], batch_size, server_tables.packing, weigh)
    )
    return finished.prefetch(prefetch)


def parts_of(batch_size: int, num_servers: int) -> int:
    """How many parts of one size, each from one server, make a batch: some for each server, so that none is missing."""
    if num_servers == 1:
        return 1
    divisors = [number for number in range(num_servers, batch_size + 1) if batch_size % number == 0]
    return next((number for number in divisors if number >= _PARTS_PER_SERVER * num_servers), batch_size)


def _in_parts(stream: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Cuts a stream into parts of `size` items, padded if their lengths vary."""
    spec = stream.element_spec.data
    if all(leaf.shape.is_fully_defined() for leaf in tree.flatten(spec)):
        return stream.batch(size, drop_remainder=True)
    timed = _timed_leaf(spec, axis=0)

    def measured(sample: reverb.ReplaySample) -> reverb.ReplaySample:
        length = () if timed is None else tf.shape(tree.flatten(sample.data)[timed])[0]
        return reverb.ReplaySample(sample.info, _Timed(sample.data, length))

    return stream.map(measured).padded_batch(size, drop_remainder=True)


def _timed_leaf(nest: Nest, *, axis: int) -> int | None:
    """Which leaf (the first) has a time axis of varying length, in the order of `tree.flatten`."""
    leaves = enumerate(tree.flatten(nest))
    return next((at for at, leaf in leaves if leaf.shape.rank > axis and leaf.shape[axis] is None), None)


def _joined(parts: tf.data.Dataset, num_parts: int) -> tf.data.Dataset:
    """Several parts in one: (servers int32 `[num_parts]`, sample `[num_parts, ...]`), padded to one length."""
    if num_parts == 1:
        return parts
    if isinstance(parts.element_spec[1].data, _Timed):
        return parts.padded_batch(num_parts, drop_remainder=True)
    return parts.batch(num_parts, drop_remainder=True)


def _finished(
    at: tf.Tensor,
    servers: tf.Tensor,
    sample: reverb.ReplaySample,
    batch_size: int,
    packing: Packing | None,
    weigh: Callable[..., tf.Tensor],
) -> reverb.ReplaySample:
    """A batch of the parts of one: the axes of part and item made one, items weighed and unpacked."""
    part_axes = servers.shape.rank + 1
    info, data = tree.map_structure(lambda leaf: _merged(leaf, batch_size, part_axes), sample)
    owners = tf.repeat(tf.reshape(servers, [-1]), batch_size // (servers.shape.num_elements() or 1))
    owners = tf.ensure_shape(owners, [batch_size])
    mask: Any = ()
    if isinstance(data, _Timed):
        data, lengths = data
        timed = _timed_leaf(data, axis=1)
        mask = () if timed is None else tf.sequence_mask(lengths, tf.shape(tree.flatten(data)[timed])[1])
    if packing is not None:
        data = unpack(data, packing)
    extended = SampleInfo(**info._asdict(), weight=weigh(info, owners, at), server=owners, mask=mask)
    return reverb.ReplaySample(extended, data)


def _merged(leaf: tf.Tensor, batch_size: int, axes: int) -> tf.Tensor:
    merged = tf.reshape(leaf, tf.concat([[batch_size], tf.shape(leaf)[axes:]], axis=0)) if axes > 1 else leaf
    return tf.ensure_shape(merged, [batch_size, *leaf.shape[axes:]])


def _weigher(server_tables: ServerTables, beta: Beta, min_priority: Any) -> Callable[..., tf.Tensor]:
    """A function of Reverb's sample info, items' servers and the batch's number that gives weights."""

    def weigh(info: reverb.SampleInfo, owners: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
        if server_tables.in_order:
            return tf.ones_like(info.probability, tf.float32)
        probabilities, sizes = importance.over_servers(
            info.probability, info.table_size, owners, num_servers=len(server_tables.clients)
        )
        lowest = None
        if min_priority is not None:
            smallest = tf.cast(min_priority() if callable(min_priority) else min_priority, tf.float64)
            exponents = tf.gather(tf.constant(server_tables.exponents, tf.float64), owners)
            lowest = importance.lowest_probabilities(probabilities, info.priority, smallest, exponents)
        exponent = importance.beta_at(beta, at)
        return importance.importance_weights(probabilities, sizes, exponent, lowest_probabilities=lowest)

    return weigh


def _reporter(server_tables: ServerTables, on_server_lost: OnServerLost, *, waited_secs: float) -> OnSilent:
    """Returns what is called about servers that give nothing: it reports them, or raises if there is no other."""

    def report(numbers: Sequence[int]) -> None:
        reasons = server_tables.why_nothing_sampled(numbers, waited_secs=waited_secs)
        for number, reason in zip(numbers, reasons, strict=True):
            on_server_lost(server_tables.addresses[number], reason)

    def on_silent(numbers: Sequence[int], all_silent: bool) -> None:
        if all_silent:
            everyone = range(len(server_tables.clients))
            raise ServerUnavailableError(
                "; ".join(server_tables.why_nothing_sampled(everyone, waited_secs=waited_secs))
            )
        # Asking a server that is gone takes seconds, for which the others need not wait.
        threading.Thread(target=report, args=(numbers,), daemon=True).start()

    return on_silent
