"""The batches of a training run: items in memory, or a table whose priorities are updated."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rlds2reverb.learners.feeds import Feed, InMemoryDataset, StreamingDataset

from rlds2reverb import PriorityWriter, ReplayServer, Selector, TableConfig, ingest, packed_signature
from rlds2reverb._encoding.packing import Packing
from rlds2reverb._writing.report import IngestWarning
from rlds2reverb.client import split_servers
from rlds2reverb.sampling import LinearSchedule, SamplePlan
from rlds2reverb.sources import Source

from .config import TrainingConfig
from .data import TrainingData

#: Prioritized replay (Schaul et al. 2016, table 3, proportional): exponent of the priorities, and exponent of the
#: importance weights at the beginning and at the end of a run.
PRIORITY_EXPONENT = 0.6
FIRST_BETA, LAST_BETA = 0.4, 1.0
_TABLE = "replay"
#: Number of batches to prepare ahead.
PREFETCH = 4


@dataclass(frozen=True)
class Batches:
    """The batches of a run.

    Attributes:
      feed: the feed of the learner.
      priorities: the priority sink of the learner; None for uniform sampling.
      replay: the `ReplayServer` with the items, which the learner saves in its checkpoints; None if the server does not
        belong to the run, or its priorities do not change.
      resize: function that returns a feed of the same items with a different batch size.
      fill: function that writes the items of the dataset to the run's own server, and does nothing without one. To be
        called before the first batch, unless a checkpoint with the items was loaded.
    """

    feed: Feed
    resize: Callable[[int], Feed]
    priorities: PriorityWriter | None = None
    replay: ReplayServer | None = None
    fill: Callable[[], None] = lambda: None


@contextmanager
def open_batches(data: TrainingData, config: TrainingConfig) -> Iterator[Batches]:
    """Opens the batches of a run; at the end, releases their iterators, closes connections and stops its server.

    Uniform batches of a dataset are sampled from memory. Prioritized ones come from a table with proportional
    priorities (exponent 0.6) on a server of the run's own; the exponent of the importance weights grows from 0.4 to 1
    over the run. If the data are a table, its server is sampled.

    Args:
      data: the data, from `open_data`, to be closed after the batches.
      config: the options of the run.
    """
    with ExitStack() as stack:
        if data.items is not None:
            size = config.batch_size or 1  # A configuration always has one.
            feed = InMemoryDataset(data.items, size, seed=config.seed)
            yield Batches(feed, feed.resize)
        elif data.episodes is not None:
            server = stack.enter_context(_start_server(data.episodes, data.adder))
            batches = _open_table(server, _TABLE, config, stack, is_own=True)
            yield replace(batches, fill=partial(_fill, server, data.episodes, data.adder))
        elif data.table is not None:
            served = data.table
            yield _open_table(served.server, served.table, config, stack, is_own=data.owns_server)


def _open_table(server: Any, table: str, config: TrainingConfig, stack: ExitStack, *, is_own: bool) -> Batches:
    size = config.batch_size or 1

    def open_feed(size: int) -> StreamingDataset:
        feed = StreamingDataset(SamplePlan(server, table, size, beta=0.0, prefetch=PREFETCH))
        stack.callback(feed.close)
        return feed

    if config.sampler == "uniform":
        return Batches(open_feed(size), open_feed)
    lost = _warn_priorities_lost if len(split_servers(server)) > 1 else None
    writer = stack.enter_context(PriorityWriter(server, table, new_items_first=True, on_server_lost=lost))
    samples = SamplePlan(server, table, size, beta=1.0, prefetch=PREFETCH)
    feed = StreamingDataset(samples, beta=LinearSchedule(FIRST_BETA, LAST_BETA, config.steps))
    stack.callback(feed.close)
    return Batches(feed, open_feed, writer, server if is_own else None)


def _warn_priorities_lost(address: str, reason: str) -> None:
    warnings.warn(
        f"new priorities for {address} are lost; continuing with the other servers: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


def _start_server(episodes: Source, adder: Any) -> ReplayServer:
    """Starts a server with an empty table for the items of some episodes; for this machine only if that is possible."""
    signature = packed_signature(Packing(adder.item_spec(episodes.step_spec), getattr(adder, "squeeze", False)))
    tables = [TableConfig(_TABLE, sampler=Selector("prioritized", PRIORITY_EXPONENT))]
    try:
        return ReplayServer(tables, signature, isolate=True)
    except OSError:
        return ReplayServer(tables, signature)


def _fill(server: ReplayServer, episodes: Source, adder: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IngestWarning)
        ingest(episodes, server, _TABLE, adder=adder, layout="packed", resume=False)
