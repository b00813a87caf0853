"""Several Reverb servers whose tables are shards of one table, with checkpoints that belong together."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from rlds2reverb.errors import CheckpointError
from rlds2reverb.system.signals import defer_signals
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.locations import expand_path, shard_path
from rlds2reverb.types.specs import Nest
from rlds2reverb.types.tables import TableConfig

from .commits import CommitLog, write_shard
from .replay_server import ReplayServer
from .shards import find_shards


class ShardedReplayServer(AbstractContextManager["ShardedReplayServer"]):
    """Running servers in this process with shards of the same tables. Use it as a context manager, or call `stop`.

    `ingest`, `sample_dataset` and `PriorityWriter` accept it in place of a server: each episode is written to one of
    the servers, and samples come from all of them. To spread the load over several machines, start a `ReplayServer`
    for one shard on each of them instead, and pass the list of their addresses.

    A checkpoint of all shards is one commit: `commit.json` names the checkpoints that belong together, and is replaced
    once all of them are complete. After a crash in between, all servers start from the last commit. If one of its
    checkpoints is damaged, all servers start from the commit before.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig] | None = None,
        signature: Nest | None = None,
        *,
        num_shards: int | None = None,
        directory: str | Path | None = None,
        port: int | None = None,
        checkpoint_root: str | Path | None = None,
        verify: bool = True,
        force: bool = False,
        isolate: bool = False,
        serve_batches: bool | None = None,
    ):
        """Starts the servers from the last commit in `checkpoint_root`, else from directories, else empty.

        Args:
          tables: configurations of the tables of each server; `max_size` and rate limiters apply to each shard.
          signature: signature of the items, or None to accept any item.
          num_shards: number of servers; None for that of the directory.
          directory: directory with the directories `shard_0`, `shard_1`, ..., as `rlds2reverb convert --shards` writes
            it; None for empty tables.
          port: port of the first server, and those after it for the others; None chooses free ones.
          checkpoint_root: directory for checkpoints; None for no checkpoints.
          verify: see `ReplayServer`.
          force: see `ReplayServer`.
          isolate: see `ReplayServer`.
          serve_batches: see `ReplayServer`.

        Raises:
          CheckpointError: If no commit is intact, the root has a different number of shards, or the directory has no
            shards, or one is missing or damaged.
          InsufficientMemoryError, ResourceInUseError, SpecMismatchError, OSError, ValueError: As for `ReplayServer`.
        """
        shards = None if directory is None else find_shards(directory)
        if shards == []:
            raise CheckpointError(f"{directory} has no shard_0; write it with convert --shards, or ingest into a list")
        num_servers = (num_shards or 0) if shards is None else len(shards)
        require_count("num_shards", num_servers)
        root = None if checkpoint_root is None else expand_path(checkpoint_root, "checkpoint_root")
        self._commits = None if root is None else CommitLog(root, num_servers)
        if self._commits is not None:
            for note in self._commits.return_to_newest(verify=verify):
                warnings.warn(note, RuntimeWarning, stacklevel=2)
        with ExitStack() as stack:
            #: The servers, in the order of the shards.
            self.servers: list[ReplayServer] = []
            for shard in range(num_servers):
                server = ReplayServer(
                    tables,
                    signature,
                    directory=None if shards is None else shards[shard],
                    port=None if port is None else port + shard,
                    checkpoint_root=None if root is None else shard_path(root, shard),
                    verify=verify,
                    force=force,
                    isolate=isolate,
                    serve_batches=serve_batches,
                )
                self.servers.append(stack.enter_context(server))
            self._resources = stack.pop_all()

    @property
    def address(self) -> str:
        """The addresses of the servers for clients on this machine, 'localhost:PORT,localhost:PORT'."""
        return ",".join(server.address for server in self.servers)

    @property
    def is_isolated(self) -> bool:
        """True if the servers accept connections from this machine only."""
        return all(server.is_isolated for server in self.servers)

    @property
    def has_checkpoints(self) -> bool:
        """True if the servers have a checkpoint root."""
        return self._commits is not None

    def __exit__(self, *exception: Any) -> None:
        self.stop()

    def checkpoint(self, *, timeout_secs: float = 600.0) -> Path:
        """Writes a checkpoint of every server, and then the commit; returns the path of `commit.json`.

        Raises:
          ValueError: If there is no checkpoint root.
          CheckpointError, ServerUnavailableError, StorageFullError: As `ReplayServer.checkpoint`; the last commit is
            kept.
        """
        if self._commits is None:
            raise ValueError("the servers were started without a checkpoint root; pass checkpoint_root=DIRECTORY")
        with defer_signals():
            pairs = zip(self.servers, self._commits.newest, strict=True)
            self._commits.add([write_shard(server, name, timeout_secs=timeout_secs) for server, name in pairs])
        return self._commits.path

    def save_data(self, folder: str | Path, *, timeout_secs: float = 600.0) -> None:
        """Writes a checkpoint of each server into its own directory in a folder; see `ReplayServer.save_data`."""
        for shard, server in enumerate(self.servers):
            server.save_data(shard_path(folder, shard), timeout_secs=timeout_secs)

    def load_data(self, folder: str | Path) -> None:
        """Restarts each server with the tables that `save_data` wrote; see `ReplayServer.load_data`."""
        for shard, server in enumerate(self.servers):
            server.load_data(shard_path(folder, shard))

    def require_running(self) -> None:
        """Raises `ServerUnavailableError` if the process of a server has ended although it was not stopped."""
        for server in self.servers:
            server.require_running()

    def stop(self) -> None:
        """Stops the servers and releases their ports and directories."""
        self._resources.close()
