"""The learner of a cluster: its data come from replay servers, and its policy goes to a table."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlds2reverb import PriorityWriter
from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.learners import Learner
from rlds2reverb.learners.comm_learner import BaseCommLearner
from rlds2reverb.learners.feeds import Feed, JoinedFeed, StreamingDataset
from rlds2reverb.reverb.sampling import LinearSchedule, SamplePlan

from ..data import FIRST_BETA, LAST_BETA, PREFETCH
from ..online import TABLE
from .caller import Caller
from .coordinator import LearnOrder

_LOG = logging.getLogger(__name__)
OFFLINE_TABLE, COLLECTED_TABLE = "offline", TABLE
_POLL_SECS = 0.2
#: Number of updates between two orders.
_NUM_UPDATES = 100
#: Maximum time without any replay server: Ray has to place the process on another machine, and load its checkpoint.
_REPLAY_SECS = 600.0


@dataclass(frozen=True)
class ReplayTables:
    """The tables that batches come from.

    Attributes:
      has_offline: whether the replay servers have the items of a dataset.
      offline_servers: addresses of other servers with the dataset, and `offline_table` its name there; empty if none.
      num_offline_updates: number of updates on the dataset alone, before collected items are used.
      collected_ratio: share of collected items in later batches; 0 if nothing is collected.
      is_prioritized: whether the items of the dataset are sampled by priority, and get new priorities.
      num_updates: total number of updates, after which importance weights are fully applied.
    """

    has_offline: bool
    offline_servers: tuple[str, ...] = ()
    offline_table: str = OFFLINE_TABLE
    num_offline_updates: int = 0
    collected_ratio: float = 0.0
    is_prioritized: bool = False
    num_updates: int = 1

    def split(self, batch_size: int, step: int) -> tuple[int, int]:
        """Returns the numbers of offline and of collected items in the batch after `step` updates."""
        if not self.has_offline:
            return 0, batch_size
        if not self.collected_ratio or step < self.num_offline_updates:
            return batch_size, 0
        num_collected = min(max(round(batch_size * self.collected_ratio), 1), batch_size)
        return batch_size - num_collected, num_collected


class ReverbCommLearner(BaseCommLearner):
    """A learner on the items of replay servers, at the pace that the coordinator sets.

    The policy goes to the coordinator. If that does not answer, the learner continues, and sends it the next policy. If
    a replay server is lost, it continues with the others, and with the new one once Ray has restarted it.
    """

    def __init__(self, call: Caller, tables: ReplayTables):
        """Sets the coordinator and the tables.

        Args:
          call: function that calls the coordinator.
          tables: the tables that batches come from.
        """
        super().__init__()
        self._call, self._tables = call, tables
        self._shards: dict[int, str] = {}
        self._step = self._batch_size = 0
        self._writer: PriorityWriter | None = None

    # --- Data

    def get_data(self, batch_size: int) -> Feed:
        """Returns the batches of the replay servers that run; waits until there is one.

        Raises:
          ServerUnavailableError: If no replay server with items is found in time.
        """
        self._batch_size = batch_size
        return self._wait_for_feed()

    def _wait_for_feed(self) -> Feed:
        until = time.monotonic() + _REPLAY_SECS
        while True:
            self._shards = self._call("shards")
            try:
                return self._open_feed()
            except ServerUnavailableError as error:
                if time.monotonic() > until or self.is_closed:
                    raise ServerUnavailableError(f"waited {_REPLAY_SECS:g} s for replay servers: {error}") from error
            time.sleep(_POLL_SECS)

    def _open_feed(self) -> Feed:
        tables, own = self._tables, list(self._shards.values())
        num_offline, num_collected = tables.split(self._batch_size, self._step)
        feeds = []
        if num_offline:
            feeds.append(self._open_table(tables.offline_servers or own, tables.offline_table, num_offline))
        if num_collected:
            feeds.append(self._open_table(own, COLLECTED_TABLE, num_collected))
        return feeds[0] if len(feeds) == 1 else JoinedFeed(feeds)

    def _open_table(self, servers: Sequence[str], table: str, size: int) -> StreamingDataset:
        if not servers:
            raise ServerUnavailableError("no replay server has reported to the coordinator")
        tables = self._tables
        options: dict[str, Any] = {"prefetch": PREFETCH, "on_server_lost": _log_server_lost}
        if not (tables.is_prioritized and table == tables.offline_table):
            return StreamingDataset(SamplePlan(list(servers), table, size, beta=0.0, **options))
        samples = SamplePlan(list(servers), table, size, beta=1.0, **options)
        return StreamingDataset(samples, beta=LinearSchedule(FIRST_BETA, LAST_BETA, tables.num_updates))

    def _change_data(self, learner: Learner) -> None:
        """Trains on the current servers from now on; priorities that the former ones did not accept are lost."""
        feed = self._wait_for_feed()
        try:
            learner.flush_priorities()
        except ServerUnavailableError as error:
            _LOG.warning("%s; the priorities of its last items are lost", error)
        learner.replace_dataset(feed, priorities=self._open_writer())

    def _open_writer(self) -> PriorityWriter | None:
        """Returns a new writer of priorities for the replay servers; None if they do not change."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._tables.is_prioritized:
            servers = list(self._tables.offline_servers or self._shards.values())
            table = self._tables.offline_table
            self._writer = PriorityWriter(servers, table, new_items_first=True, on_server_lost=_log_server_lost)
        return self._writer

    # --- Training

    def _create_learner(self, task_info: Mapping[str, Any]) -> Learner:
        self._step = 0
        learner = super()._create_learner(task_info)
        learner.run.writes_evaluations = False  # The evaluator does.
        return learner

    def _train(self, learner: Learner, num_iterations: int) -> None:
        split = None
        while learner.step < num_iterations and not learner.stop_reason:
            order: LearnOrder = self._call("order_updates", learner.step)
            self._step, until = learner.step, min(order.until, num_iterations, learner.step + _NUM_UPDATES)
            if learner.step < self._tables.num_offline_updates:
                until = min(until, self._tables.num_offline_updates)
            new_split = self._tables.split(self._batch_size, learner.step)
            if order.is_stopped:
                learner.stop("the run was stopped")
                break
            if until <= learner.step:
                time.sleep(_POLL_SECS)
                continue
            if split != new_split or order.shards != self._shards:
                split = new_split
                self._change_data(learner)
            try:
                learner.advance(until)
            except ServerUnavailableError as error:
                _LOG.warning("%s; waiting for the replay servers", error)
                split = None

    # --- The policy and learn info

    def send_policy(self, state: dict[str, Any]) -> None:
        """Sends the policy to the coordinator; logs a warning if that fails."""
        try:
            self._call("report_policy", state["step"], state["variables"])
        except (ServerUnavailableError, RuntimeError) as error:
            _LOG.warning("the policy was not sent: %s", error)

    def send_learn_info(self, info: dict[str, Any]) -> None:
        """Reports the progress to the coordinator; logs a warning if that fails."""
        try:
            self._call("report_learn_info", info)
        except (ServerUnavailableError, RuntimeError) as error:
            _LOG.warning("learn info was not sent: %s", error)

    def close(self) -> None:
        """Closes the learner, and its connections."""
        super().close()
        if self._writer is not None:
            self._writer.close()


def _log_server_lost(address: str, reason: str) -> None:
    _LOG.warning("no answer from %s; continuing with the other servers: %s", address, reason)
