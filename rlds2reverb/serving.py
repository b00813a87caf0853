"""A Reverb server with a port of its own and a checkpoint root of its own."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import portpicker
import reverb

from rlds2reverb.checkpoints import CheckpointError, CheckpointRoot
from rlds2reverb.specs import Nest
from rlds2reverb.tables import TableConfig
from rlds2reverb.writing import ServerUnavailable, require_table, table_infos


class PortInUse(OSError):
    """Another server listens on the port, or holds its lock."""


class ReplayServer:
    """A running server. Use it as a context manager, or call `stop`.

    Reverb listens on all interfaces and asks nobody who they are: whoever reaches the port can read, write and reset
    the tables. Keep it behind a firewall.
    """

    def __init__(
        self,
        configs: Sequence[TableConfig],
        signature: Nest | None = None,
        *,
        port: int | None = None,
        checkpoint_root: str | Path | None = None,
        verify: bool = True,
    ):
        """Starts the server, from the newest checkpoint of the root if there is one.

        Args:
          configs: the tables.
          signature: of their items, or None to take anything.
          port: None for a free one.
          checkpoint_root: a new directory, or one that an earlier server made; None for no checkpoints.
          verify: whether a checkpoint has to match its manifest; it has to be complete in any case.

        Raises:
          PortInUse: if another server listens there. (Two would both start, and split the traffic.)
          CheckpointError: if the root is not ours, or its checkpoint is damaged or for other tables.
          SpecMismatch: if a restored table has another signature.
        """
        if not configs:
            raise ValueError("a server needs at least one table, got none")
        self._root = None
        with ExitStack() as stack:
            self.port = port or portpicker.pick_unused_port()
            stack.enter_context(_port_lock(self.port))
            require_free_port(self.port)
            if checkpoint_root is not None:
                self._root = CheckpointRoot(Path(checkpoint_root))
                stack.enter_context(_Lock(self._root.path / "rlds2reverb.lock", f"{checkpoint_root} is in use"))
                self._root.require_tables(configs)
                self._root.verify_latest(manifest_too=verify)
                checkpointer = reverb.checkpointers.DefaultCheckpointer(str(self._root.checkpoints))
            else:
                # Reverb always makes a checkpointer, by default one that leaves a directory behind.
                scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="rlds2reverb-"))
                checkpointer = reverb.checkpointers.DefaultCheckpointer(scratch)
            tables = [config.build(signature) for config in configs]
            try:
                self._server = reverb.Server(tables, port=self.port, checkpointer=checkpointer)
            except (RuntimeError, ValueError) as error:
                if self._root is None:
                    raise
                raise CheckpointError(f"Reverb cannot load the checkpoint in {checkpoint_root} ({error})") from error
            stack.callback(self._server.stop)
            self.client = reverb.Client(self.address)
            infos = table_infos(self.client)
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
          ServerUnavailable: if it takes longer than the time-out.
        """
        if self._root is None:
            raise ValueError("the server was started without a checkpoint root; give checkpoint_root=DIRECTORY")
        self._root.require_own()
        with _signals_deferred():  # between Reverb's checkpoint and our manifest nothing may end the process
            path = Path(_within(timeout_secs, self.client.checkpoint, f"a checkpoint in {self._root.path}"))
            self._root.write_manifest(path)
        return path

    def stop(self) -> None:
        """Stops the server and gives port and root back."""
        self._resources.close()


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Holds Ctrl-C and SIGTERM back until the end; only the main thread of a process can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda got, frame: arrived.append(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for got in arrived:
            signal.raise_signal(got)


def _within(timeout_secs: float, call: Callable[[], Any], what: str) -> Any:
    """The result of a call that has no deadline of its own; it goes on in the background when ours has passed."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = call()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_secs)
    if thread.is_alive():
        raise ServerUnavailable(f"waited {timeout_secs:g} s for {what}")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


def require_free_port(port: int) -> None:
    """Raises `PortInUse` if anything listens on the port, on any interface; `ValueError` if it is no port."""
    if not 0 < port < 65536:
        raise ValueError(f"port is {port}, wanted 1 to 65535")
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # no IPv6 on this machine
            continue
        with probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except PermissionError as error:
                raise PortInUse(f"port {port} may not be used ({error.strerror}); choose one above 1023") from None
            except OSError as error:
                raise PortInUse(
                    f"port {port} is taken ({error.strerror}); choose another, or stop what uses it"
                ) from None


def _port_lock(port: int) -> _Lock:
    directory = Path(tempfile.gettempdir()) / f"rlds2reverb-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return _Lock(directory / f"port-{port}.lock", f"port {port} is taken by another rlds2reverb server")


class _Lock:
    """A lock file, held as long as the context; it goes with the process, however that ends."""

    def __init__(self, path: Path, complaint: str):
        self._path, self._complaint = path, complaint

    def __enter__(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise PortInUse(f"{self._complaint} (lock {self._path})") from None

    def __exit__(self, *exception: Any) -> None:
        os.close(self._descriptor)
