"""A `tf.data` stream of batches, with importance weights, from a table on one or more servers.

Items may have a fixed size (windows, transitions) or a varying length (episodes, which are padded and masked). Items in
the packed layout are unpacked.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import reverb
import tensorflow as tf
import tree

from rlds2reverb._arguments import require_count, require_timeout
from rlds2reverb._encoding.packing import Packing, unpack
from rlds2reverb._internals.dataset_errors import TranslatedDataset
from rlds2reverb._internals.tensorflow import scan, with_autograph, without_autograph, without_autotuning
from rlds2reverb._server.clients import Server
from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.sample_info import SampleInfo
from rlds2reverb.specs import Nest
from rlds2reverb.tables import MAX_PRIORITY

from . import importance
from .importance import Beta, LinearSchedule
from .interleaving import OnStalled, interleave_streams
from .server_tables import ServerTables

#: Called as `on_server_lost(address, reason)` when a server stops returning samples, possibly from another thread.
OnServerLost: TypeAlias = Callable[[str, str], None]

_BETA = LinearSchedule()
#: With one chunk per server, a fifth of the batches from two servers at full speed contain items of only one of them;
#: with four chunks per server, hardly any do.
_CHUNKS_PER_SERVER = 4
#: Number of chunks per server after which a server without any does not count for the others.
_RECENT_CHUNKS = 16
#: Factor by which earlier chunks count less with each further one.
_COUNT_DECAY = 1 - 1 / 256


class _Padded(NamedTuple):
    """Items of varying length: the nest of their padded columns, and their lengths, int32 `[...]`."""

    data: Any
    lengths: Any


def warn_server_lost(address: str, reason: str) -> None:
    """Warns that a server has stopped returning samples."""
    warnings.warn(
        f"no samples from {address}; continuing with the other servers: {reason}", RuntimeWarning, stacklevel=2
    )


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
    on_server_lost: OnServerLost = warn_server_lost,
) -> tf.data.Dataset:
    """Returns an endless dataset of batches of a table's items.

    Several servers are sampled as if their tables were one: in the long run, each contributes in proportion to the
    size of its table or, for prioritized tables, to the sum of its priorities with their exponent. Samples in excess of
    that are dropped. A server that is much slower than the others, or does not answer, does not delay them: they then
    contribute more. Tables whose items can be used up, or whose rate limiters count samples, contribute equally if all
    servers keep up.

    A single batch contains the items that arrived first, so a server may contribute all of them or none. The importance
    weights account for the actual contributions. If a batch contains no items of a server (because it is one of the
    first batches, or that server is much slower), it represents the tables of the other servers only. Use
    `mixed_dataset` to fix the contributions to every batch.

    If a server returns no samples for `timeout_secs`, `on_server_lost` is called and the others continue. The server
    takes part again once it is back; gRPC retries every few seconds. If no server returns any samples, iterating
    raises a `ServerUnavailableError` that gives the reason: no server answers, or the table's rate limiter is waiting
    for items. (A TensorFlow graph that reads the dataset raises a `tf.errors.OpError`; see `errors.translate_error`.)
    Only the time counts that the consumer, or prefetching, waits for a batch. If a table may run dry while the
    consumer is busy elsewhere, set `timeout_secs` to more than the consumer may take.

    Up to `max_in_flight * num_workers + batch_size * (prefetch + num_workers)` items are sampled ahead on each server;
    their priorities and probabilities are those at the time of sampling. In the server's own process, Reverb samples
    the tables directly, without gRPC, which is several times as fast.

    Args:
      servers: one or more servers: an address `HOST:PORT`, a port of this machine, a `ReplayServer`, or Reverb's own
        `Client` or `Server`; a `ShardedReplayServer`; or `HOST:PORT,HOST:PORT`.
      table: the name of the table. On several servers, the tables must have one signature and must either all sample
        at random (the weights compensate for different samplers) or all in a fixed order (the weights are then 1).
      batch_size: number of items per batch, at least the number of servers.
      beta: exponent of the importance weights: a number in [0, 1], or a function of the batch number (int64 `[]`,
        from 0 in each iterator). The default increases from 0.4 to 1 over 100,000 batches.
      min_priority: the lowest priority above 0 in the table: a number, a scalar `tf.Variable`, or a TensorFlow function
        without arguments. The weights are then divided by the maximum of the table instead of that of the batch.
      max_in_flight: number of samples that each worker requests ahead. 64 to 512 are fast; smaller values give more
        up-to-date priorities.
      num_workers: number of streams of samples from each server; use 1 for a queue, to keep its order.
      prefetch: number of batches to prepare ahead.
      timeout_secs: maximum time to wait for a server's table information, and for samples.
      on_server_lost: function called as `on_server_lost(address, reason)` when a server stops returning samples while
        others continue, possibly from another thread; warns by default.

    Returns:
      A dataset of `reverb.ReplaySample`: `info` is a `SampleInfo`, `data` the nest of an item, `[batch_size, ...]`.
      Items of varying length are padded with zeros to the longest in the batch; see `info.mask`.

    Raises:
      ServerUnavailableError: If no server answers in time.
      SpecMismatchError: If the tables of several servers have different signatures.
      ValueError: If the table does not exist or has no signature, only some of several tables sample at random,
        `min_priority` is passed for tables in a fixed order, or a number is out of its range.
    """
    require_count("batch_size", batch_size)
    require_count("max_in_flight", max_in_flight)
    require_count("num_workers", num_workers)
    require_count("prefetch", prefetch)
    require_timeout(timeout_secs)
    importance.require_beta(beta)
    importance.require_min_priority(min_priority, highest=MAX_PRIORITY)
    tables = ServerTables.fetch(servers, table, timeout_secs=timeout_secs)
    num_servers = len(tables.clients)
    if tables.in_order and min_priority is not None:
        raise ValueError(
            f"min_priority has no effect on table {table!r}, which is sampled in a fixed order, so that all weights "
            "are 1; leave it out"
        )
    if batch_size < num_servers:
        raise ValueError(f"batch_size must be at least the number of servers, {num_servers}, got {batch_size}")
    for server in tables.unreachable:
        on_server_lost(tables.addresses[server], "it does not answer")
    num_chunks = choose_num_chunks(batch_size, num_servers)
    chunks = _sample_chunks(
        tables,
        batch_size // num_chunks,
        max_in_flight=max_in_flight,
        num_workers=num_workers,
        timeout_secs=timeout_secs,
        on_server_lost=on_server_lost,
    )
    if num_servers > 1 and not tables.in_order and not tables.may_run_dry:
        chunks = _balance_servers(chunks, tables.exponents)
    batches = _join_chunks(chunks, num_chunks).enumerate()
    compute_weights = _make_weight_function(tables, beta, min_priority)

    @without_autograph
    def finish(number: tf.Tensor, batch: tuple[tf.Tensor, reverb.ReplaySample]) -> reverb.ReplaySample:
        return _finish_batch(number, *batch, batch_size, tables.packing, compute_weights)

    return TranslatedDataset(without_autotuning(batches.map(finish).prefetch(prefetch)))


def _sample_chunks(
    tables: ServerTables,
    chunk_size: int,
    *,
    max_in_flight: int,
    num_workers: int,
    timeout_secs: float,
    on_server_lost: OnServerLost,
) -> tf.data.Dataset:
    """Returns a dataset of chunks of `chunk_size` items of one server each, as (server int32 `[]`, sample)."""
    # Several readers are faster than one reader with several workers, but do not keep the order of a queue, and each
    # fills a chunk of its own, which takes long if samples are scarce.
    num_readers = 1 if tables.in_order or tables.may_run_dry else num_workers

    def sample_server(server: tf.Tensor) -> tf.data.Dataset:
        stream = reverb.TrajectoryDataset(
            tf.gather(tf.constant(tables.addresses), server),
            tables.table,
            dtypes=tree.map_structure(lambda leaf: leaf.dtype, tables.signature),
            shapes=tree.map_structure(lambda leaf: leaf.shape, tables.signature),
            max_in_flight_samples_per_worker=max_in_flight,
            num_workers_per_iterator=num_workers // num_readers,
        )
        return _cut_into_chunks(stream, chunk_size)

    return interleave_streams(
        sample_server,
        len(tables.clients),
        timeout_secs=timeout_secs,
        on_stalled=_make_stall_handler(tables, on_server_lost, waited_secs=timeout_secs),
        num_readers=num_readers,
        # When a stream starts, Reverb waits up to half a minute for an unreachable server, and cannot be interrupted.
        is_ready=tables.is_reachable,
        stalled_at_start=tables.unreachable,
    )


@without_autograph
def _balance_servers(chunks: tf.data.Dataset, exponents: Sequence[float]) -> tf.data.Dataset:
    """Drops chunks such that the remaining ones of each server are in proportion to its table's total priority.

    A chunk is kept unless its server has contributed more than its share of the last few hundred chunks. Totals are
    those of the newest chunks. A server without chunks for a while does not count, so that it does not delay the others
    for long.
    """
    num_servers = len(exponents)
    initial = (
        tf.zeros(num_servers, tf.float64),  # Total priority of each server.
        tf.zeros(num_servers, tf.float64),  # Number of recently kept chunks of each server.
        tf.zeros(num_servers, tf.int64),  # Number of the last chunk of each server, kept or not.
        tf.constant(0, tf.int64),  # Number of chunks.
    )

    def choose(state: Any, chunk: Any) -> Any:
        totals, counts, last, number = state
        server, info = chunk[0], chunk[1].info
        is_own = tf.range(num_servers) == server
        exponent = tf.gather(tf.constant(exponents, tf.float64), server)
        total = importance.total_priority(info.probability[0], tf.cast(info.priority[0], tf.float64), exponent)
        totals, last = tf.where(is_own, total, totals), tf.where(is_own, number, last)
        is_recent = number - last <= _RECENT_CHUNKS * num_servers
        total_of_recent = tf.reduce_sum(tf.where(is_recent, totals, 0.0))
        share = tf.where(total_of_recent > 0, total / total_of_recent, 1.0)
        num_kept = tf.reduce_sum(tf.where(is_recent, counts, 0.0))
        is_kept = tf.gather(counts, server) <= share * num_kept + 1
        kept_counts = counts * _COUNT_DECAY + tf.cast(is_own, tf.float64)
        return (totals, tf.where(is_kept, kept_counts, counts), last, number + 1), (is_kept, chunk)

    chosen = scan(chunks, initial, choose).filter(lambda is_kept, chunk: is_kept)
    return chosen.map(lambda is_kept, chunk: chunk)


def choose_num_chunks(batch_size: int, num_servers: int) -> int:
    """Returns the number of equal chunks per batch, each from one server, such that servers rarely have none."""
    if num_servers == 1:
        return 1
    divisors = [number for number in range(num_servers, batch_size + 1) if batch_size % number == 0]
    return next((number for number in divisors if number >= _CHUNKS_PER_SERVER * num_servers), batch_size)


def _cut_into_chunks(stream: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Cuts a stream into chunks of `size` items, which are padded if their lengths vary."""
    spec = stream.element_spec.data
    if all(leaf.shape.is_fully_defined() for leaf in tree.flatten(spec)):
        return stream.batch(size, drop_remainder=True)
    timed = _find_timed_leaf(spec, axis=0)

    def add_length(sample: reverb.ReplaySample) -> reverb.ReplaySample:
        length = () if timed is None else tf.shape(tree.flatten(sample.data)[timed])[0]
        return reverb.ReplaySample(sample.info, _Padded(sample.data, length))

    return stream.map(add_length).padded_batch(size, drop_remainder=True)


def _find_timed_leaf(nest: Nest, *, axis: int) -> int | None:
    """Returns the index of the first leaf whose time axis has a varying length, in the order of `tree.flatten`."""
    leaves = enumerate(tree.flatten(nest))
    return next((index for index, leaf in leaves if leaf.shape.rank > axis and leaf.shape[axis] is None), None)


def _join_chunks(chunks: tf.data.Dataset, num_chunks: int) -> tf.data.Dataset:
    """Batches chunks, padded to one length: (servers int32 `[num_chunks]`, sample `[num_chunks, ...]`)."""
    if num_chunks == 1:
        return chunks
    if isinstance(chunks.element_spec[1].data, _Padded):
        return chunks.padded_batch(num_chunks, drop_remainder=True)
    return chunks.batch(num_chunks, drop_remainder=True)


def _finish_batch(
    batch_number: tf.Tensor,
    chunk_servers: tf.Tensor,
    sample: reverb.ReplaySample,
    batch_size: int,
    packing: Packing | None,
    compute_weights: Callable[..., tf.Tensor],
) -> reverb.ReplaySample:
    """Merges the chunk and item axes of a batch, adds its weights and mask, and unpacks its items."""
    num_axes = chunk_servers.shape.rank + 1
    info, data = tree.map_structure(lambda leaf: _merge_axes(leaf, batch_size, num_axes), sample)
    servers = tf.repeat(tf.reshape(chunk_servers, [-1]), batch_size // (chunk_servers.shape.num_elements() or 1))
    servers = tf.ensure_shape(servers, [batch_size])
    mask: Any = ()
    if isinstance(data, _Padded):
        data, lengths = data
        timed = _find_timed_leaf(data, axis=1)
        mask = () if timed is None else tf.sequence_mask(lengths, tf.shape(tree.flatten(data)[timed])[1])
    if packing is not None:
        data = unpack(data, packing)
    weights = compute_weights(info, servers, batch_number)
    return reverb.ReplaySample(SampleInfo(**info._asdict(), weight=weights, server=servers, mask=mask), data)


def _merge_axes(leaf: tf.Tensor, batch_size: int, num_axes: int) -> tf.Tensor:
    shape = [batch_size, *leaf.shape[num_axes:]]
    if num_axes > 1:
        leaf = tf.reshape(leaf, tf.concat([[batch_size], tf.shape(leaf)[num_axes:]], axis=0))
    return tf.ensure_shape(leaf, shape)


def _make_weight_function(tables: ServerTables, beta: Beta, min_priority: Any) -> Callable[..., tf.Tensor]:
    """Returns a function of Reverb's sample info, the items' servers and the batch number that returns weights."""
    beta = with_autograph(beta) if callable(beta) and not isinstance(beta, LinearSchedule) else beta
    min_priority = with_autograph(min_priority) if callable(min_priority) else min_priority

    def compute_weights(info: reverb.SampleInfo, servers: tf.Tensor, batch_number: tf.Tensor) -> tf.Tensor:
        if tables.in_order:
            return tf.ones_like(info.probability, tf.float32)
        probabilities, sizes = importance.combine_servers(
            info.probability, info.table_size, servers, num_servers=len(tables.clients)
        )
        lowest = None
        if min_priority is not None:
            smallest = tf.cast(min_priority() if callable(min_priority) else min_priority, tf.float64)
            exponents = tf.gather(tf.constant(tables.exponents, tf.float64), servers)
            lowest = importance.lowest_probabilities(probabilities, info.priority, smallest, exponents)
        exponent = importance.evaluate_beta(beta, batch_number)
        return importance.importance_weights(probabilities, sizes, exponent, lowest_probabilities=lowest)

    return compute_weights


def _make_stall_handler(tables: ServerTables, on_server_lost: OnServerLost, *, waited_secs: float) -> OnStalled:
    """Returns a function that reports servers that return no samples, or raises if no server does."""

    def report(servers: Sequence[int]) -> None:
        reasons = tables.explain_missing_samples(servers, waited_secs=waited_secs)
        for server, reason in zip(servers, reasons, strict=True):
            on_server_lost(tables.addresses[server], reason)

    def on_stalled(servers: Sequence[int], all_stalled: bool) -> None:
        if all_stalled:
            reasons = tables.explain_missing_samples(range(len(tables.clients)), waited_secs=waited_secs)
            raise ServerUnavailableError("; ".join(reasons))
        # Querying a server that is gone takes seconds, for which the other servers should not have to wait.
        threading.Thread(target=report, args=(servers,), daemon=True).start()

    return on_stalled
