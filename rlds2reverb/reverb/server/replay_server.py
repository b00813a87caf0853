"""A Reverb server with its own port and, optionally, a directory for checkpoints."""

from __future__ import annotations

import base64
import errno
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from rlds2reverb.errors import CheckpointError, ServerUnavailableError, StorageFullError
from rlds2reverb.libraries.tensorflow_internals import encode_spec
from rlds2reverb.system.full_disk import full_disk_as_error
from rlds2reverb.system.signals import defer_signals
from rlds2reverb.types.locations import expand_path
from rlds2reverb.types.specs import Nest
from rlds2reverb.types.tables import TableConfig

from ..client import Connection, batch_port, require_table, table_infos
from .checkpoint_root import CheckpointRoot
from .ports import pick_port, reserve_port
from .process import ServerProcess
from .scratch import scratch_folder
from .table_memory import require_memory

#: A new server may have to wait until calls that other servers of this process left unanswered have timed out.
_START_SECS = 60.0


class ReplayServer(AbstractContextManager["ReplayServer"]):
    """A running server. Use it as a context manager, or call `stop`.

    Reverb listens on all interfaces without authentication: anyone who reaches the port can read, write and reset the
    tables. Pass `isolate=True` if all clients are on this machine; otherwise keep the port behind a firewall.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig] | None = None,
        signature: Nest | None = None,
        *,
        directory: str | Path | None = None,
        port: int | None = None,
        checkpoint_root: str | Path | None = None,
        verify: bool = True,
        force: bool = False,
        isolate: bool = False,
        serve_batches: bool | None = None,
    ):
        """Starts a server from the newest valid checkpoint in `checkpoint_root`, else from a directory, else empty.

        Damaged and interrupted checkpoints are skipped with a `RuntimeWarning` that names them.

        Args:
          tables: configurations of the tables; None for those of the directory.
          signature: signature of the items, or None to accept any item.
          directory: directory that `ingest` wrote, which is not changed; None for empty tables.
          port: port to listen on; None chooses a free one.
          checkpoint_root: directory for checkpoints: a new one, or one that an earlier server created; None for no
            checkpoints. The newest two are kept, and the earlier one is started from if the newest is damaged.
          verify: whether a checkpoint, and the directory, must match its manifest or, without a manifest, be readable
            from end to end. It must be complete in any case.
          force: whether to start even if the items of the directory need more memory than is free.
          isolate: whether to accept connections from this machine only, at localhost, 127.0.0.1 and ::1. In a
            container, this machine is the container. It requires Linux 5.7 or root. Other machines can connect for some
            milliseconds while Reverb starts; their connections are cut off before the constructor returns.
          serve_batches: whether to also serve finished batches, which are sampled much faster. They are
            sampled in the server's process, which a malformed chunk of a hostile writer can end. None for `isolate`.

        Raises:
          ResourceInUseError: If the port or the checkpoint root is in use.
          CheckpointError: If the checkpoint root has foreign files, is damaged, or is for different tables; or if the
            directory is missing, damaged, not written by `ingest`, or has different tables.
          InsufficientMemoryError: If the items of the directory need more memory than is free.
          SpecMismatchError: If a restored table has a different signature.
          OSError: If the port cannot be isolated; the server is stopped in that case.
          ValueError: If there are no tables.
        """
        self._isolate = isolate
        self._serve_batches = isolate if serve_batches is None else serve_batches
        if not tables and (tables is not None or directory is None):
            raise ValueError("tables must contain at least one TableConfig, got none")
        with ExitStack() as stack:
            self.port = port or pick_port()
            stack.enter_context(reserve_port(self.port, serve_batches=self._serve_batches))
            path = None if checkpoint_root is None else expand_path(checkpoint_root, "checkpoint_root")
            self._root = None if path is None else CheckpointRoot(path)
            # Reverb always creates a checkpointer; its default one leaves a directory behind.
            scratch = stack.enter_context(scratch_folder())
            root = self._root or CheckpointRoot(scratch / "root")
            stack.enter_context(root.lock())
            if verify:
                with full_disk_as_error(root.path):
                    skipped = root.choose_newest_valid()
                if skipped is not None:
                    warnings.warn(skipped, RuntimeWarning, stacklevel=2)
            if directory is not None:
                root.delete_interrupted()
                if root.latest() is None:
                    written = expand_path(directory, "directory")
                    _load_directory(root, written, tables, verify=verify, force=force)
            tables = list(root.tables() or [] if tables is None else tables)
            root.store_or_require_tables(tables)
            if not verify:
                root.verify_latest(against_manifest=False)
            self._own_root, self._tables, self._signature = root, tables, signature
            self._start_reverb()
            stack.callback(lambda: self._process.stop())
            self._resources = stack.pop_all()

    def _start_reverb(self) -> None:
        """Starts Reverb's server from the newest checkpoint in the root, if there is one."""
        root, signature = self._own_root, self._signature
        #: The checkpoint that the server started from; None if it started empty.
        self.started_from = root.latest()
        description = {
            "tables": [table.as_reverb_values() for table in self._tables],
            "signature": None if signature is None else base64.b64encode(encode_spec(signature)).decode(),
            "checkpoints": str(root.checkpoints.absolute()),
            "port": self.port,
            "batch_port": batch_port(self.port) if self._serve_batches else None,
            "isolate": self._isolate,
        }
        try:
            self._process = ServerProcess(description, f"the server on port {self.port}")
        except (RuntimeError, ValueError) as error:
            if self.started_from is None:
                raise
            raise CheckpointError(f"Reverb cannot load the checkpoint {self.started_from} ({error})") from error
        try:
            infos = table_infos(self.address, timeout_secs=_START_SECS)
            for table in self._tables if signature is not None else ():
                require_table(infos, table.name, signature)
        except BaseException:
            self._process.stop()
            raise

    @property
    def client(self) -> Any:
        """A `reverb.Client` of the server, for TF-Agents' observers; requires dm-reverb in this environment."""
        from rlds2reverb.libraries.reverb_client import make_client

        return make_client(self.address)

    @property
    def address(self) -> str:
        """The address for clients on this machine, 'localhost:PORT'."""
        return f"localhost:{self.port}"

    @property
    def is_isolated(self) -> bool:
        """True if the server accepts connections from this machine only."""
        return self._isolate

    @property
    def has_checkpoints(self) -> bool:
        """True if the server has a checkpoint root."""
        return self._root is not None

    @property
    def newest_checkpoint(self) -> Path | None:
        """The newest checkpoint in the checkpoint root; None without a checkpoint or a root."""
        return None if self._root is None else self._root.latest()

    def __exit__(self, *exception: Any) -> None:
        self.stop()

    def checkpoint(self, *, timeout_secs: float = 600.0, keep: bool = True) -> Path:
        """Writes a checkpoint and its manifest, and returns the checkpoint's directory.

        Args:
          timeout_secs: maximum time to wait for the checkpoint.
          keep: whether the newest checkpoint becomes the previous one. If False, the one that is the previous one now
            is kept instead, and the newest is deleted.

        Raises:
          ValueError: If the server has no checkpoint root.
          CheckpointError: If the root has foreign files, or Reverb cannot write the checkpoint.
          ServerUnavailableError: If writing takes longer than the timeout, or the server's process has ended.
          StorageFullError: If the disk is full; the previous checkpoint is kept.
        """
        if self._root is None:
            raise ValueError("the server was started without a checkpoint root; pass checkpoint_root=DIRECTORY")
        self._root.require_no_foreign_entries()
        with defer_signals():  # Without its manifest, the next start would have to read the whole checkpoint.
            if keep:
                self._root.keep_newest()
            self._root.retire_future_names(keep=keep)
            path = self._write_checkpoint(self._root, timeout_secs)
            with full_disk_as_error(self._root.path):
                self._root.write_manifest(path)
        return path

    def _write_checkpoint(self, root: CheckpointRoot, timeout_secs: float) -> Path:
        try:
            with Connection(self.address) as connection:
                return connection.checkpoint(timeout_secs=timeout_secs)
        except ServerUnavailableError:  # The server may still be writing.
            raise ServerUnavailableError(f"waited {timeout_secs:g} s for a checkpoint in {root.path}") from None
        except CheckpointError as error:
            self.require_running()
            root.delete_interrupted()
            if "No space left" in str(error):
                message = f"no space left for a checkpoint in {root.path}; the previous one is kept: free some space"
                raise StorageFullError(errno.ENOSPC, message) from error
            raise CheckpointError(f"Reverb cannot write a checkpoint in {root.path} ({error})") from error

    def save_data(self, folder: str | Path, *, timeout_secs: float = 600.0) -> None:
        """Writes a checkpoint of the tables into its own folder; a checkpoint root is not required.

        A server with a checkpoint root writes the checkpoint there as well.

        Args:
          folder: path of the folder, created if missing; it must not contain anything else.
          timeout_secs: maximum time to wait for the checkpoint.

        Raises:
          CheckpointError, ServerUnavailableError, StorageFullError: As `checkpoint`.
        """
        copy = CheckpointRoot(expand_path(folder, "folder"))
        if copy.latest() is not None:
            raise CheckpointError(f"{folder} already contains a checkpoint; pass a new folder")
        with defer_signals(), full_disk_as_error(copy.path):
            if self._root is not None:
                self.checkpoint(timeout_secs=timeout_secs)
            else:
                self._own_root.write_manifest(self._write_checkpoint(self._own_root, timeout_secs))
            copy.start_from(self._own_root, symlink=False)
            if self._root is None:
                self._own_root.delete_all()

    def load_data(self, folder: str | Path) -> None:
        """Restarts the server, on the same port, with the tables that `save_data` wrote.

        A server with a checkpoint root keeps the loaded tables there as its newest checkpoint, and the one that was the
        newest as the previous one.

        Args:
          folder: path of the folder; it is not changed.

        Raises:
          CheckpointError: If the folder has no valid checkpoint, or one of different tables. The server keeps running
            in that case.
        """
        saved = CheckpointRoot(expand_path(folder, "folder"), create=False)
        if saved.latest() is None or saved.tables() is None:
            raise CheckpointError(f"{folder} has no checkpoint; pass a folder that was passed to save_data")
        saved.verify_latest()
        saved.store_or_require_tables(self._tables)
        with defer_signals(), full_disk_as_error(self._own_root.path):
            if self._root is not None:
                self._root.keep_newest()
            self._own_root.start_from(saved)
            self._process.stop()
            self._start_reverb()
            if self._root is None:
                self._own_root.delete_all()

    def require_running(self) -> None:
        """Raises `ServerUnavailableError` if the server's process has ended although it was not stopped."""
        self._process.require_running()

    def stop(self) -> None:
        """Stops the server and releases its port and checkpoint root."""
        self._resources.close()


def read_tables(directory: Path) -> list[TableConfig]:
    """Returns the tables of a directory that `ingest` wrote.

    Raises:
      CheckpointError: If the directory is missing or damaged.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory; write one with ingest or rlds2reverb convert --out")
    tables = CheckpointRoot(directory, create=False).tables()
    if tables is None:
        raise CheckpointError(
            f"{directory / 'rlds2reverb.json'} is missing; restore it from a copy, or write the data again"
        )
    return tables


def _load_directory(
    root: CheckpointRoot, directory: Path, tables: Sequence[TableConfig] | None, *, verify: bool, force: bool
) -> None:
    """Makes a root without checkpoints start from a directory that `ingest` wrote."""
    read_tables(directory)
    written = CheckpointRoot(directory, create=False)
    if not force:
        require_memory(written.data().get("memory_bytes", 0), str(directory))
    if tables is not None and written.latest() is not None:
        written.store_or_require_tables(tables)
    written.verify_latest(against_manifest=verify)
    root.start_from(written)
