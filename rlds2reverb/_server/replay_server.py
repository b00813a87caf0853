"""A Reverb server with a port of its own and a checkpoint root of its own."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import reverb

from rlds2reverb._full_disk import full_disk_as_error
from rlds2reverb.errors import CheckpointError, ServerUnavailableError, StorageFullError
from rlds2reverb.specs import Nest
from rlds2reverb.tables import TableConfig

from .checkpoint_root import CheckpointRoot
from .clients import require_table, table_infos
from .connection import ServerConnection
from .locks import FileLock
from .memory import require_memory
from .ports import held_port, unused_port
from .scratch import scratch_folder
from .signals import signals_deferred

#: A server that has just started in this process may have to wait for calls that other servers leave unanswered.
_START_SECS = 60.0


class ReplayServer:
    """A running server. Use it as a context manager, or call `stop`.

    Reverb listens on all interfaces and asks nobody who they are: whoever reaches the port can read, write and reset
    the tables. Keep it behind a firewall.
    """

    def __init__(
        self,
        configs: Sequence[TableConfig] | None,
        signature: Nest | None = None,
        *,
        port: int | None = None,
        data: str | Path | None = None,
        checkpoint_root: str | Path | None = None,
        verify: bool = True,
        force: bool = False,
        keep_previous: bool = True,
    ):
        """Starts the server, from the newest good checkpoint of the root if there is one, else from the data.

        What it passed over for that, because it is damaged or was cut off, one `RuntimeWarning` names.

        Args:
          configs: the tables; None for the tables of `data`.
          signature: of their items, or None to take anything.
          port: None for a free one.
          data: a directory that `ingest` wrote. It stays as it is.
          checkpoint_root: a new directory, or one that an earlier server made; None for no checkpoints.
          force: whether to load data that need more memory than there is.
          verify: whether a checkpoint has to match its manifest, or to be readable from end to end if it has none; it
            has to be complete in any case.
          keep_previous: whether to keep the checkpoint before the newest, and to start from it where the newest is
            damaged. The root then takes the space of two checkpoints, which writing one takes in any case.

        Raises:
          ResourceInUseError: if another server listens there. (Two would both start, and split the traffic.)
          CheckpointError: if data or root are not ours, or damaged or for other tables.
          InsufficientMemoryError: if the data need more memory than there is.
          SpecMismatchError: if a restored table has another signature.
        """
        if configs is not None and not configs:
            raise ValueError("a server needs at least one table, got none")
        if configs is None and data is None:
            raise ValueError("a server needs tables, or data that say which; got neither")
        with ExitStack() as stack:
            self.port = port or unused_port()
            stack.enter_context(held_port(self.port))
            self._root = None if checkpoint_root is None else CheckpointRoot(Path(checkpoint_root))
            # Reverb always makes a checkpointer, by default one that leaves a directory behind.
            scratch = stack.enter_context(scratch_folder())
            root = self._root or CheckpointRoot(scratch / "root")
            stack.enter_context(FileLock(root.path / "rlds2reverb.lock", f"{checkpoint_root} is in use"))
            self._keep_previous = keep_previous
            if verify:
                _choose_checkpoint(root, fall_back=keep_previous)
            if data is not None:
                root.delete_cut_off()
            if data is not None and root.latest() is None:
                begin_from(root, Path(data), configs, verify=verify, force=force)
            configs = list(root.tables() or [] if configs is None else configs)
            root.require_tables(configs)
            if not verify:
                root.verify_latest(manifest_too=False)
            tables = [config.build(signature) for config in configs]
            #: The checkpoint that it began from; None if it began empty.
            self.started_from = root.latest()
            checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root.checkpoints))
            try:
                self._server = reverb.Server(tables, port=self.port, checkpointer=checkpointer)
            except (RuntimeError, ValueError) as error:
                if root.latest() is None:
                    raise
                raise CheckpointError(f"Reverb cannot load the checkpoint {root.latest()} ({error})") from error
            stack.callback(self._server.stop)
            self.client = reverb.Client(self.address)
            infos = table_infos(self.client, timeout_secs=_START_SECS)
            if signature is not None:
                for config in configs:
                    require_table(infos, config.name, signature)
            self._resources = stack.pop_all()

    @property
    def address(self) -> str:
        """Where clients on this machine find it."""
        return f"localhost:{self.port}"

    @property
    def has_checkpoints(self) -> bool:
        """Whether it was started with a checkpoint root."""
        return self._root is not None

    def __enter__(self) -> ReplayServer:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.stop()

    def checkpoint(self, *, timeout_secs: float = 600.0) -> Path:
        """Writes a checkpoint and its manifest, and returns the checkpoint's directory.

        Raises:
          ValueError: if the server has no checkpoint root.
          CheckpointError: if something foreign lies in the root, or the checkpoint is not there afterwards.
          ServerUnavailableError: if it takes longer than the time-out.
        """
        if self._root is None:
            raise ValueError("the server was started without a checkpoint root; give checkpoint_root=DIRECTORY")
        self._root.require_own()
        with signals_deferred():  # a kill between Reverb's checkpoint and our manifest costs the next start some time
            if self._keep_previous:
                self._root.keep_newest()
            path = self._written(self._root, timeout_secs)
            with full_disk_as_error(self._root.path):
                self._root.write_manifest(path)
        return path

    def _written(self, root: CheckpointRoot, timeout_secs: float) -> Path:
        try:
            with ServerConnection(self.address) as connection:
                return connection.checkpoint(timeout_secs=timeout_secs)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:  # it may still be writing
                raise ServerUnavailableError(f"waited {timeout_secs:g} s for a checkpoint in {root.path}") from None
            root.delete_cut_off()
            if "No space left" in str(error.details()):
                message = f"no space left for a checkpoint in {root.path}; the one before is kept: free some"
                raise StorageFullError(errno.ENOSPC, message) from error
            raise CheckpointError(f"Reverb cannot write a checkpoint in {root.path} ({error.details()})") from error

    def stop(self) -> None:
        """Stops the server and gives port and root back."""
        self._resources.close()


def _choose_checkpoint(root: CheckpointRoot, *, fall_back: bool) -> None:
    with full_disk_as_error(root.path):
        passed_over = root.choose_newest_good(fall_back=fall_back)
    if passed_over is not None:
        warnings.warn(passed_over, RuntimeWarning, stacklevel=3)


def stored_tables(data: Path) -> list[TableConfig]:
    """Returns the tables of a directory that `ingest` wrote.

    Raises:
      CheckpointError: if there is no such directory, or it is damaged.
    """
    if not data.is_dir():
        raise CheckpointError(f"{data} is not a directory; write one with ingest (rlds2reverb convert --out {data})")
    tables = CheckpointRoot(data, make=False).tables()
    if tables is None:
        raise CheckpointError(
            f"{data / 'rlds2reverb.json'} is missing; restore it from a copy, or write the data again"
        )
    return tables


def begin_from(
    root: CheckpointRoot, data: Path, configs: Sequence[TableConfig] | None, *, verify: bool, force: bool
) -> None:
    """Gives a root without checkpoints the one of a directory that `ingest` wrote.

    Raises:
      CheckpointError: if there is no such directory, it is damaged, or has other tables than are asked for.
      InsufficientMemoryError: if it needs more memory than there is, unless forced.
    """
    stored_tables(data)
    written = CheckpointRoot(data, make=False)
    if not force:
        require_memory(written.described().get("memory_bytes", 0), str(data))
    if configs is not None and written.latest() is not None:
        written.require_tables(configs)
    written.verify_latest(manifest_too=verify)
    root.begin_like(written)
