"""A stream of NumPy batches, with importance weights, from a table on one or more servers.

Items may have a fixed size (windows, transitions) or a varying length (episodes, which are padded and masked). Items in
the packed layout are unpacked.

How a batch gets here: threads read blocks of items of each server and queue them (`BlockStreams`); `next` takes blocks
in the thread of the caller, drops those in excess of a server's share, joins the others, and computes their weights.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeAlias

import numpy as np
import tree

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.system.closing import Closing
from rlds2reverb.types.arguments import require_count, require_timeout, take_arguments
from rlds2reverb.types.sample_info import ReplaySample, SampleInfo, note_repeated_items
from rlds2reverb.types.specs import to_tensor_spec
from rlds2reverb.types.tables import MAX_PRIORITY

from ..client import Server
from ..wire.packing import unpack_arrays
from . import importance
from .importance import Beta, LinearSchedule
from .sampled_blocks import INFO_DTYPES, Block, join_columns
from .server_tables import ServerTables
from .streams import BlockStreams

#: Called as `on_server_lost(address, reason)` when a server stops returning samples, possibly from another thread.
OnServerLost: TypeAlias = Callable[[str, str], None]

DEFAULT_BETA = LinearSchedule()
#: With one block per server, a fifth of the batches from two servers at full speed contain items of only one of them;
#: with four blocks per server, hardly any do.
_BLOCKS_PER_SERVER = 4
#: Number of blocks per server after which a server without any does not count for the others.
_RECENT_BLOCKS = 16
#: Factor by which earlier blocks count less with each further one.
_COUNT_DECAY = 1 - 1 / 256


def warn_server_lost(address: str, reason: str) -> None:
    """Warns that a server has stopped returning samples."""
    warnings.warn(
        f"no samples from {address}; continuing with the other servers: {reason}", RuntimeWarning, stacklevel=2
    )


@dataclass(eq=False)
class SamplePlan:
    """The arguments of `sample`, checked, and an iterable whose iterators each open streams of their own.

    It has an `element_spec`, so that a `learners.StreamingDataset` can read it.
    """

    servers: Server | Sequence[Server]
    table: str
    batch_size: int
    _: KW_ONLY
    beta: Beta = DEFAULT_BETA
    min_priority: Any = None
    max_in_flight: int = 256
    num_workers: int = 2
    prefetch: int = 1
    timeout_secs: float = 30.0
    on_server_lost: OnServerLost = warn_server_lost

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_in_flight", "num_workers", "prefetch"):
            require_count(name, getattr(self, name))
        require_timeout(self.timeout_secs)
        importance.require_beta(self.beta)
        importance.require_min_priority(self.min_priority, highest=MAX_PRIORITY)
        self.tables = tables = ServerTables.fetch(self.servers, self.table, timeout_secs=self.timeout_secs)
        num_servers = len(tables.addresses)
        if tables.in_order and self.min_priority is not None:
            raise ValueError(
                f"min_priority has no effect on table {self.table!r}, which is sampled in a fixed order, so that all "
                "weights are 1; leave it out"
            )
        if self.batch_size < num_servers:
            raise ValueError(f"batch_size must be at least the number of servers, {num_servers}, got {self.batch_size}")
        for server in tables.unreachable:
            self.on_server_lost(tables.addresses[server], "it does not answer")
        self.num_blocks = choose_num_blocks(self.batch_size, num_servers)

    def open(self) -> SampleIterator:
        """Starts the streams, and returns an iterator over their batches."""
        # Each stream fills a separate block, which takes long if samples are scarce.
        is_single = self.tables.in_order or self.tables.may_run_dry
        streams = BlockStreams(
            self.tables,
            block_size=self.batch_size // self.num_blocks,
            max_blocks=self.prefetch * self.num_blocks,
            max_in_flight=self.max_in_flight,
            num_streams=1 if is_single else self.num_workers,
            timeout_secs=self.timeout_secs,
            on_stalled=self._report,
        )
        return SampleIterator(self, streams)

    __iter__ = open

    @property
    def element_spec(self) -> ReplaySample:
        """The nest of `tf.TensorSpec` of a batch."""
        import tensorflow as tf

        tables, size = self.tables, self.batch_size
        item_spec = tables.signature if tables.packing is None else tables.packing.item_spec
        data = to_tensor_spec(item_spec, leading=(size,))
        info = {name: tf.TensorSpec((size,), dtype) for name, dtype in INFO_DTYPES.items()}
        mask = () if find_timed_leaf(tables.signature) is None else tf.TensorSpec((size, None), tf.bool)
        weight, server = tf.TensorSpec((size,), tf.float32), tf.TensorSpec((size,), tf.int32)
        return ReplaySample(SampleInfo(**info, weight=weight, server=server, mask=mask), data)

    def _report(self, servers: Sequence[int]) -> None:
        """Reports servers that return no samples."""
        reasons = self.tables.explain_missing_samples(servers, waited_secs=self.timeout_secs)
        for server, reason in zip(servers, reasons, strict=True):
            self.on_server_lost(self.tables.addresses[server], reason)

    def compute_weights(self, info: dict[str, np.ndarray], servers: np.ndarray, batch_number: int) -> np.ndarray:
        """Returns the importance weights of a batch, float32 `[B]`."""
        tables = self.tables
        if tables.in_order:
            return np.ones(len(servers), np.float32)
        probabilities, sizes = importance.combine_servers(
            info["probability"], info["table_size"], servers, num_servers=len(tables.addresses)
        )
        lowest = None
        if self.min_priority is not None:
            smallest = self.min_priority() if callable(self.min_priority) else self.min_priority
            exponents = np.array(tables.exponents)[servers]
            lowest = importance.lowest_probabilities(
                probabilities, info["priority"], np.asarray(smallest, np.float64), exponents
            )
        exponent = importance.evaluate_beta(self.beta, np.int64(batch_number))
        return importance.importance_weights(probabilities, sizes, exponent, lowest_probabilities=lowest)


@take_arguments(SamplePlan)
def sample(plan: SamplePlan) -> SampleIterator:  # noqa: D417 - The arguments are those of the plan.
    """Returns an endless iterator over batches of a table's items, as NumPy arrays.

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
    takes part again once it is back. If no server returns any samples, `next` raises a `ServerUnavailableError` that
    gives the reason: no server answers, or the table's rate limiter is waiting for items. Another call of `next` waits
    again. Time counts while a batch is missing, whether or not the consumer waits for it: if a table may run dry while
    the consumer is busy elsewhere, set `timeout_secs` to more than the consumer may take.

    Up to `max_in_flight * num_workers + batch_size * (prefetch + num_workers)` items are sampled ahead on each server,
    and `3 * batch_size * num_workers` more if it serves finished batches of small items; their priorities and
    probabilities are those at the time of sampling.

    Args:
      servers: one or more servers: an address `HOST:PORT`, a port of this machine, a `ReplayServer`, or Reverb's own
        `Client` or `Server`; a `ShardedReplayServer`; or `HOST:PORT,HOST:PORT`.
      table: the name of the table. On several servers, the tables must have one signature and must either all sample
        at random (the weights compensate for different samplers) or all in a fixed order (the weights are then 1).
      batch_size: number of items per batch, at least the number of servers.
      beta: exponent of the importance weights: a number in [0, 1], or a function of the batch number (an integer from 0
        in each iterator) that returns one, also as a tensor. The default increases from 0.4 to 1 over 100,000 batches.
      min_priority: the lowest priority above 0 in the table: a number, a scalar `tf.Variable`, or a function without
        arguments. The weights are then divided by the maximum of the table instead of that of the batch.
      max_in_flight: number of samples that each worker requests ahead. 64 to 512 are fast; smaller values give more
        up-to-date priorities.
      num_workers: number of streams of samples from each server; a table in a fixed order, or one that may return fewer
        samples than requested, has one stream.
      prefetch: number of batches to prepare ahead.
      timeout_secs: maximum time to wait for a server's table information, and for samples.
      on_server_lost: function called as `on_server_lost(address, reason)` when a server stops returning samples while
        others continue, possibly from another thread; warns by default.

    Returns:
      An iterator over `ReplaySample`: `info` is a `SampleInfo`, `data` the nest of an item, `[batch_size, ...]`. Items
      of varying length are padded with zeros to the longest in the batch; see `info.mask`. Iterating raises a
      `SpecMismatchError` for an item that is damaged or does not match the table's signature.

    Raises:
      ServerUnavailableError: If no server answers in time.
      SpecMismatchError: If the tables of several servers have different signatures.
      ValueError: If the table does not exist or has no signature, only some of several tables sample at random,
        `min_priority` is passed for tables in a fixed order, or a number is out of its range.
    """
    return plan.open()


class SampleIterator(Closing, Iterator[ReplaySample]):
    """An endless iterator over the batches of `sample`. Its threads end with `close`, or when it is no longer used."""

    def __init__(self, plan: SamplePlan, streams: BlockStreams):
        """Takes over the streams."""
        self._plan, self._streams = plan, streams
        has_shares = len(plan.tables.addresses) > 1 and not plan.tables.in_order and not plan.tables.may_run_dry
        self._balance = ServerBalance(plan.tables.exponents) if has_shares else None
        self._num_batches = 0
        self._blocks: list[tuple[int, Block]] = []
        self._finalizer = weakref.finalize(self, streams.close)
        self._finalizer.atexit = False  # Other threads may still read when the interpreter exits.

    def close(self) -> None:
        """Cancels all calls at once. Idempotent; `next` raises `StopIteration` from then on."""
        self._finalizer()

    def __next__(self) -> ReplaySample:
        while len(self._blocks) < self._plan.num_blocks:
            self._blocks.append(self._take_block())
        blocks, self._blocks = self._blocks, []
        batch = self._make_batch([server for server, _ in blocks], [block for _, block in blocks])
        self._num_batches += 1
        return batch

    def _take_block(self) -> tuple[int, Block]:
        while taken := self._streams.get():
            server, block = taken
            if self._balance is None or self._balance.keep(server, block.info[1][0], block.info[3][0]):
                return server, block
        tables, waited_secs = self._plan.tables, self._plan.timeout_secs
        reasons = tables.explain_missing_samples(range(len(tables.addresses)), waited_secs=waited_secs)
        raise ServerUnavailableError("; ".join(reasons))

    def _make_batch(self, servers: Sequence[int], blocks: Sequence[Block]) -> ReplaySample:
        """Joins blocks, adds weights and the mask, and unpacks the items."""
        tables = self._plan.tables
        pairs = zip(INFO_DTYPES, zip(*(block.info for block in blocks), strict=True), strict=True)
        info = {name: np.concatenate(parts) for name, parts in pairs}
        columns = [join_columns(parts) for parts in zip(*(block.columns for block in blocks), strict=True)]
        timed = find_timed_leaf(tables.signature)
        mask: Any = ()
        if timed is not None:
            lengths = np.array([len(item) for block in blocks for item in block.columns[timed]])
            mask = np.arange(columns[timed].shape[1]) < lengths[:, None]
        packing = tables.packing
        data = unpack_arrays(columns[0], packing) if packing else tree.unflatten_as(tables.signature, columns)
        owners = np.repeat(np.array(servers, np.int32), len(blocks[0].info[0]))
        note_repeated_items(len(owners), int(info["table_size"].max()) * len(servers))
        weights = self._plan.compute_weights(info, owners, self._num_batches)
        return ReplaySample(SampleInfo(**info, weight=weights, server=owners, mask=mask), data)


class ServerBalance:
    """Chooses blocks such that those of each server are in proportion to its table's total priority.

    A block is kept unless its server has contributed more than its share of the last few hundred blocks. Totals are
    those of the newest blocks. A server without blocks for a while does not count, so that it does not delay the others
    for long.
    """

    def __init__(self, exponents: Sequence[float]):
        """Sets the priority exponent of each server's sampler."""
        num_servers = len(exponents)
        self._exponents = exponents
        self._totals, self._counts = np.zeros(num_servers), np.zeros(num_servers)
        self._last = np.zeros(num_servers, np.int64)
        self._number = 0

    def keep(self, server: int, probability: float, priority: float) -> bool:
        """Returns whether a server's next block is kept, from the probability and priority of one of its items."""
        total = importance.total_priority(probability, priority, self._exponents[server])
        self._totals[server], self._last[server] = total, self._number
        is_recent = self._number - self._last <= _RECENT_BLOCKS * len(self._totals)
        total_of_recent = self._totals[is_recent].sum()
        share = total / total_of_recent if total_of_recent > 0 else 1.0
        is_kept = bool(self._counts[server] <= share * self._counts[is_recent].sum() + 1)
        if is_kept:
            self._counts *= _COUNT_DECAY
            self._counts[server] += 1
        self._number += 1
        return is_kept


def choose_num_blocks(batch_size: int, num_servers: int) -> int:
    """Returns the number of equal blocks per batch, each from one server, such that servers rarely have none."""
    numbers = range(_BLOCKS_PER_SERVER * num_servers, batch_size + 1)
    return 1 if num_servers == 1 else next((number for number in numbers if batch_size % number == 0), batch_size)


def find_timed_leaf(signature: Any) -> int | None:
    """Returns the index of the first leaf whose time axis has a varying length, in the order of `tree.flatten`."""
    leaves = enumerate(tree.flatten(signature))
    return next((index for index, leaf in leaves if leaf.shape and leaf.shape[0] is None), None)
