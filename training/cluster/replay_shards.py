"""The replay servers of a cluster as the coordinator knows them, and the checkpoints that they write together."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rlds2reverb.reverb.server.commits import CommitLog

#: Time after which a process that does not report is considered lost.
ALIVE_SECS = 20.0


class ShardCheckpoint(NamedTuple):
    """The last checkpoint of a replay server.

    Attributes:
      request: the request that it answers; '' if none, because the server has started from it.
      name: its name; None if the server started empty, and has not written one.
      num_inserted: number of items that were inserted before it.
    """

    request: str
    name: str | None
    num_inserted: int


class ShardReport(NamedTuple):
    """The state of a replay server.

    Attributes:
      address: its address.
      sizes: number of items by table.
      num_inserted: number of items that were inserted into all tables since its process was started.
      checkpoint: its last checkpoint.
    """

    address: str
    sizes: Mapping[str, int]
    num_inserted: int
    checkpoint: ShardCheckpoint


class ReplayOrder(NamedTuple):
    """The next step of a replay server.

    Attributes:
      request: the checkpoint to write, unless its last one answers this request already; '' for none.
      committed: name of its checkpoint in the last commit, which it must keep; None before the first commit.
      is_stopped: whether to end.
    """

    request: str
    committed: str | None
    is_stopped: bool


class ReplayShards:
    """The reports of the replay servers, and the commits of their checkpoints.

    At intervals, all of them are requested to write a checkpoint; once each has reported one for this request, these
    are committed. A server that is restarted in the meantime answers the same request again, with a later checkpoint:
    before it replaces an uncommitted checkpoint, it has reported that it has not answered yet, so that a commit never
    names a checkpoint that is gone.
    """

    def __init__(self, root: str | Path, num_shards: int, checkpoint_secs: float):
        """Reads the last commits.

        Args:
          root: directory of the checkpoints of all shards.
          num_shards: number of replay servers.
          checkpoint_secs: seconds between two commits.

        Raises:
          CheckpointError: As `CommitLog`.
        """
        self._log, self._num_shards, self._checkpoint_secs = CommitLog(root, num_shards), num_shards, checkpoint_secs
        self._reports: dict[int, ShardReport] = {}
        self._report_secs: dict[int, float] = {}
        self._request, self._committed_request, self._committed_secs = "", "", time.monotonic()

    def report(self, shard: int, report: ShardReport, *, is_ending: bool) -> ReplayOrder:
        """Records the report of a replay server, commits if it was the last one missing, and returns its order.

        Args:
          shard: index of the server.
          report: its state.
          is_ending: whether nothing else is inserted, so that the servers end after a last commit.
        """
        self._reports[shard], self._report_secs[shard] = report, time.monotonic()
        if self._request and self._have_all_answered():
            self._log.add([str(self._reports[index].checkpoint.name) for index in range(self._num_shards)])
            self._committed_request, self._committed_secs, self._request = self._request, time.monotonic(), ""
        is_due = is_ending or time.monotonic() - self._committed_secs > self._checkpoint_secs
        if not self._request and is_due and self._has_changes():
            self._request = uuid.uuid4().hex
        is_stopped = is_ending and not self._request and len(self._reports) == self._num_shards
        return ReplayOrder(self._request, self._log.newest[shard], is_stopped)

    def commit(self, request: str) -> bool:
        """Returns whether a commit has answered a request; if not, makes the servers answer it.

        Args:
          request: a new name; the same one in repeated calls.
        """
        if self._committed_request != request:
            self._request = self._request or request
        return self._committed_request == request

    def _have_all_answered(self) -> bool:
        answers = [report.checkpoint.request for report in self._reports.values()]
        return answers == [self._request] * self._num_shards

    def _has_changes(self) -> bool:
        """Returns whether items were inserted after the last commit."""
        return any(
            report.num_inserted != report.checkpoint.num_inserted or report.checkpoint.name != self._log.newest[shard]
            for shard, report in self._reports.items()
        )

    def addresses(self) -> dict[int, str]:
        """Returns the addresses of the servers that have reported within the last seconds, by shard."""
        now = time.monotonic()
        reports = sorted(self._reports.items())
        return {shard: report.address for shard, report in reports if now - self._report_secs[shard] < ALIVE_SECS}

    def sizes(self) -> dict[str, int]:
        """Returns the number of items of all servers, by table."""
        sizes: Counter[str] = Counter()
        for report in self._reports.values():
            sizes.update(report.sizes)
        return dict(sizes)
