"""Commits: which checkpoints of several servers, the shards of one table, belong together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rlds2reverb.errors import CheckpointError
from rlds2reverb.system.sealed_files import save_json
from rlds2reverb.types.locations import shard_path

from .checkpoint_root import CheckpointRoot, load_root_file
from .replay_server import ReplayServer

_COMMIT = "commit.json"
#: Number of commits to which the servers can return: the newest, and the one before.
_NUM_COMMITS = 2


class CommitLog:
    """The last commits in the directory of all shards.

    The servers may be in one process or in several, on machines that share the directory; a single process adds
    commits. `commit.json` names the checkpoints that belong together, and is replaced once all of them are complete.
    """

    def __init__(self, directory: str | Path, num_shards: int):
        """Reads the commits, if there are any.

        Raises:
          CheckpointError: If the file is damaged, or the directory has a different number of shards.
        """
        #: Path of the file with the commits.
        self.path = Path(directory) / _COMMIT
        self._directory, self._num_shards = Path(directory), num_shards
        stored = load_root_file(self.path)
        #: The names of the checkpoints in each commit, by shard; newest commit first.
        self._commits: list[list[str]] = stored["commits"] if stored else []
        found = len(self._commits[0]) if self._commits else _count_shards(directory)
        if found not in (0, num_shards):
            raise CheckpointError(
                f"{directory} contains the checkpoints of {found} shards, but {num_shards} were requested; "
                f"pass num_shards={found}, or a new directory"
            )

    @property
    def newest(self) -> list[str | None]:
        """The names of the checkpoints in the newest commit, by shard; None for each shard if there is no commit."""
        return [*self._commits[0]] if self._commits else [None] * self._num_shards

    def add(self, names: Sequence[str]) -> None:
        """Makes complete checkpoints of all shards the newest commit; the one before is kept.

        Args:
          names: name of each shard's checkpoint.
        """
        commits = [list(names), *self._commits][:_NUM_COMMITS]
        save_json(self.path, {"commits": commits})
        self._commits = commits

    def return_to_newest(self, *, verify: bool) -> list[str]:
        """Makes all servers, which must not be running, start from the newest intact commit.

        Checkpoints that are not part of it are moved to `set_aside`. Without a commit, the servers will start empty.

        Args:
          verify: whether to check that the checkpoints are intact, and to return to the commit before if they are not.

        Returns:
          Sentences about commits and checkpoints that are not used.

        Raises:
          CheckpointError: If there are commits, but none is intact.
          ResourceInUseError: If a server is running.
        """
        roots = [CheckpointRoot(shard_path(self._directory, shard)) for shard in range(self._num_shards)]
        with ExitStack() as stack:
            for root in roots:
                stack.enter_context(root.lock())
            notes = self._drop_damaged(roots) if verify else []
            for root, name in zip(roots, self.newest, strict=True):
                notes += [
                    f"{path.name} of {root.path} is not part of the commit, and was moved to {path}"
                    for path in root.return_to(name)
                ]
        return notes

    def _drop_damaged(self, roots: Sequence[CheckpointRoot]) -> list[str]:
        """Forgets the newest commit if it is damaged, and returns a sentence about that."""
        notes = []
        while self._commits:
            try:
                for root, name in zip(roots, self._commits[0], strict=True):
                    root.verify(name)
                break
            except CheckpointError as error:
                if len(self._commits) == 1:
                    raise
                notes.append(f"{error}; all shards return to the commit before")
                del self._commits[0]
        return notes


def _count_shards(directory: str | Path) -> int:
    """Returns the number of consecutive directories of shards, in which servers may have no checkpoints yet."""
    return next(shard for shard in itertools.count() if not shard_path(directory, shard).is_dir())


def write_shard(server: ReplayServer, committed: str | None, *, timeout_secs: float = 600.0) -> str:
    """Writes a checkpoint of one shard, and returns its name; the one in the last commit is kept.

    Args:
      server: server of the shard.
      committed: name of its checkpoint in the last commit; None before the first commit.
      timeout_secs: maximum time to wait for the checkpoint.

    Raises:
      ValueError, CheckpointError, ServerUnavailableError, StorageFullError: As `ReplayServer.checkpoint`.
    """
    newest = server.newest_checkpoint
    # After an attempt that failed for another shard, the newest checkpoint is not part of a commit.
    keep = newest is not None and newest.name == committed
    return server.checkpoint(timeout_secs=timeout_secs, keep=keep).name
