"""Processes for the fault tests: the programs that they run until they are killed, and how to compare the results.

Processes are forked from `multiprocessing`'s fork server, which has imported everything and started nothing, so one
starts within milliseconds. Programs send messages over a connection, and send their exception if they fail.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, TypeAlias

import internals
import numpy as np
import pytest
import tensorflow as tf
from reference_impls import episode
from reverb.cc import schema_pb2

import rlds2reverb
from rlds2reverb import ingestion
from rlds2reverb.reverb.process import isolation
from rlds2reverb.reverb.server import process as server_process
from rlds2reverb.reverb.server.checkpoint_root import CheckpointRoot
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.wire import item_blocks
from rlds2reverb.reverb.writing import compatibility, directory_destination, server_destination
from rlds2reverb.types.tables import TableConfig

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["hypothesis", "rlds2reverb.ingestion", "rlds2reverb.reverb.server.replay_server", "launched"]
)
#: The folder of the fork server's socket. It is created on import, before a test changes the temporary directory: in a
#: test's own folder the path of the socket might exceed the 107 characters that Linux allows.
SOCKETS = get_temp_dir()
#: Longer than any step takes; a process that sends nothing for this long hangs.
HANG_SECS = 100

Process = multiprocessing.process.BaseProcess


def make_episodes(num_episodes: int = 100, length: int = 150) -> list[dict]:
    """Returns episodes whose numbers reveal their position, so that no two items are equal."""
    return [episode(length, terminal=n % 2 == 0, start=1000 * n) for n in range(num_episodes)]


# --- processes


@contextmanager
def process(program: Callable[..., None], *arguments: Any) -> Iterator[tuple[Process, Connection]]:
    """Runs `program(channel, *arguments)` in a process; yields the process and a channel to it, and finally kills it."""
    channel, child_channel = CONTEXT.Pipe()
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        started = CONTEXT.Process(target=_run, args=(program, child_channel, arguments, scratch))
        _ensure_fork_server()
        started.start()
        child_channel.close()
        try:
            yield started, channel
        finally:
            started.kill()
            started.join()
            channel.close()


def _ensure_fork_server() -> None:
    """Starts the fork server, if necessary, with the path of `launched`; it ignores modules that it cannot import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()


def _run(program: Callable[..., None], channel: Connection, arguments: tuple, scratch: str) -> None:
    tempfile.tempdir = scratch  # A killed process leaves its temporary files there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        assert "launched" in sys.modules, "the fork server has not started the launcher of servers"
        program(channel, *arguments)
    except EOFError:  # The test has ended.
        pass
    except Exception as error:
        channel.send(error)


def receive(channel: Connection) -> Any:
    """Returns the next message of a process, or raises its exception."""
    if not channel.poll(HANG_SECS):
        raise TimeoutError(f"the process hangs: it sent nothing for {HANG_SECS} s")
    message = channel.recv()
    if isinstance(message, BaseException):
        raise message
    return message


@contextmanager
def within(secs: float) -> Iterator[None]:
    """Fails if the block takes longer."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took <= secs, f"took {took:.1f} s instead of at most {secs:g} s"


def skip_unless_mounted(channel: Connection) -> None:
    """Skips the test if the process was not allowed to mount a disk; otherwise it sends 'mounted'."""
    try:
        receive(channel)
    except OSError as error:
        pytest.skip(f"mounting a small disk is not permitted here ({error})")


def find_server(address: Any) -> int:
    """Returns the ID of the process that listens on a port of this machine; the address may be the port alone."""
    port = int(str(address).rpartition(":")[2])
    links = {
        f"socket:[{tcp_socket.inode}]"
        for tcp_socket in isolation.read_sockets(port)
        if tcp_socket.state == isolation.LISTEN
    }
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(path) in links:
                return int(path.parts[2])
    raise LookupError(f"no process listens on port {port}")


def use_own_launcher() -> None:
    """Makes this process start servers in its own namespaces, instead of in those of the fork server."""
    setattr(server_process, internals.LAUNCHER, None)


# --- programs


def use_small_groups(group_bytes: int = 1 << 15, part_bytes: int = 1 << 18) -> None:
    """Makes this process write many small groups and parts, and save its state after each."""
    item_blocks.GROUP_BYTES = group_bytes
    directory_destination.PART_BYTES = part_bytes
    server_destination.SECS_BETWEEN_SAVES = 0


def wrap_calls(
    owner: Any, name: str, *, before: Callable[[], None] = lambda: None, after: Callable[[], None] = lambda: None
) -> None:
    """Makes this process call `before` and `after` around each call of a function."""
    function = getattr(owner, name)

    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        before()
        result = function(*arguments, **keywords)
        after()
        return result

    setattr(owner, name, wrapper)


def convert(
    channel: Connection, destination: Any, options: dict[str, Any], hold_at: Sequence[tuple[str, int]] = ()
) -> None:
    """Ingests the dataset; sends 'begun' and, at the end, the report.

    Args:
      channel: connection to the test.
      destination: destination of `ingest`.
      options: options of `ingest` and of `IngestOptions`, and `state_home`, the folder for journals.
      hold_at: pairs of a stage and an episode's index at which to send 'held' and wait for a message. The stages are
        those of `progress`, and: 'try' (0), when the server has the trial item; for a directory, 'assemble' (0), 'link'
        (0: after the first file), 'manifest' and 'rename' (0 before, 1 after).
    """
    use_small_groups()
    options, waiting = {"source": make_episodes(), **options}, list(hold_at)
    if "state_home" in options:
        os.environ["XDG_STATE_HOME"] = str(options.pop("state_home"))
    advanced = {name: options.pop(name) for name in ("writer", "key_seed", "force") if name in options}
    options["options"] = ingestion.IngestOptions(**advanced)

    def hold(stage: str, index: int) -> None:
        if (stage, index) in waiting:
            waiting.remove((stage, index))
            channel.send("held")
            channel.recv()

    wrap_calls(compatibility.TrialItem, "find_difference", before=lambda: hold("try", 0))
    wrap_calls(directory_destination.DirectoryDestination, internals.ASSEMBLE, before=lambda: hold("assemble", 0))
    wrap_calls(directory_destination, "link_or_copy", after=lambda: hold("link", 0))
    wrap_calls(CheckpointRoot, "write_manifest", before=lambda: hold("manifest", 0), after=lambda: hold("manifest", 1))
    wrap_calls(os, "rename", before=lambda: hold("rename", 0), after=lambda: hold("rename", 1))
    channel.send("begun")
    report = ingestion.ingest(destination=destination, progress=lambda stage, at: hold(stage, at.index), **options)
    channel.send(report.as_dict())


def kill_while_writing(channel: Connection, path: Path, format: Any) -> None:
    """Writes a dataset; sends 'held' once most of it is written, and waits to be killed."""

    def hold(stage: str, read: Any) -> None:
        if read.index == 99:
            channel.send("held")
            channel.recv()

    rlds2reverb.write_dataset(_make_standard_episodes(), path, format=format, progress=hold)


def write_on_full_disk(channel: Connection, folder: Path, name: str, format: Any) -> None:
    """Writes a dataset to a disk that is too small; sends the error and the file names."""
    unshare_mounts()
    mount_tmpfs(folder, 128 << 10)
    channel.send("mounted")
    try:
        rlds2reverb.write_dataset(_make_standard_episodes(), folder / name, format=format)
    except Exception as error:
        channel.send((error, [path.name for path in folder.iterdir()]))


def _make_standard_episodes() -> list[dict]:
    """Returns episodes that every format can represent, in random numbers, which compress badly."""
    random = np.random.default_rng(0)
    episodes = [episode(150, terminal=False) for _ in range(100)]
    return [{**steps, "observation": random.normal(size=(150, 4))} for steps in episodes]


def serve_table(
    channel: Connection, root: Path, port: int | None = None, *, table: str = "replay", signature: Any = None
) -> None:
    """Serves a table; sends its port, and writes a checkpoint and sends its path for each message that it receives."""
    with ReplayServer([TableConfig(table)], signature, port=port, checkpoint_root=root) as started:
        channel.send(started.port)
        while channel.recv():
            channel.send(started.checkpoint())


def run_ingest(destination: Any, **options: Any) -> dict[str, Any]:
    """Ingests the dataset in a process that is not disturbed; returns the report."""
    with process(convert, destination, options) as (_, channel):
        assert receive(channel) == "begun"
        return receive(channel)


def kill_after(moment: Moment, destination: Any, **options: Any) -> None:
    """Kills an ingestion at a moment, unless it ends before."""
    with process(convert, destination, options, [moment[:2]]) as (running, channel):
        continue_until(moment, channel)
        running.kill()
        running.join()


def kill_at(stage: str, index: int, destination: Any, **options: Any) -> None:
    """Kills an ingestion at an episode of a stage; see `convert`."""
    with process(convert, destination, options, [(stage, index)]) as (_, channel):
        assert [receive(channel), receive(channel)] == ["begun", "held"]


#: A stage of an ingestion, an episode, and the number of seconds after that episode's turn.
Moment: TypeAlias = tuple[str, int, float]


def random_moments(num_moments: int, *stages: str, seed: int) -> list[Moment]:
    """Returns moments that are spread evenly over the stages of an ingestion of 100 episodes, however long it takes."""
    random = np.random.default_rng(seed)
    places = (np.arange(num_moments) + random.random(num_moments)) * len(stages) / num_moments
    return [(stages[int(place)], int(100 * (place % 1)), float(random.uniform(0, 0.02))) for place in places]


def continue_until(moment: Moment, channel: Connection) -> None:
    """Lets an ingestion that `convert` holds at a moment's episode run until that moment."""
    assert [receive(channel), receive(channel)] == ["begun", "held"]
    channel.send("continue")
    time.sleep(moment[2])


def convert_on_full_disk(channel: Connection, folder: Path, sizes: Sequence[int]) -> None:
    """Converts to disks of increasing sizes; sends the error and file names of each attempt, and finally the hashes."""
    use_small_groups()
    unshare_mounts()
    mount_tmpfs(folder, sizes[0])
    channel.send("mounted")
    for num_bytes in sizes:
        mount_tmpfs(folder, num_bytes, remount=True)
        try:
            ingestion.ingest(make_episodes(), folder / "data")
        except Exception as error:
            channel.send((error, sorted(path.name for path in folder.iterdir())))
    channel.send(hash_files(folder / "data"))


def checkpoint_on_full_disk(channel: Connection, folder: Path, num_bytes: int) -> None:
    """Writes a checkpoint, one for which there is no space, and one for which there is space again.

    Sends the error, and the table sizes with which the three servers started.
    """
    unshare_mounts()
    mount_tmpfs(folder, 64 << 20)
    channel.send("mounted")
    sizes = []
    for space in (64 << 20, num_bytes, 64 << 20):
        with ReplayServer([TableConfig()], checkpoint_root=folder / "root") as started:
            sizes.append(started.client.server_info(timeout=10)["replay"].current_size)
            ingestion.ingest(make_episodes() if sizes[0] < sizes[-1] else make_episodes(2, 11), started.address)
            mount_tmpfs(folder, space, remount=True)
            try:
                started.checkpoint()
            except Exception as error:
                channel.send(error)
    channel.send(sizes)


def serve_on_full_disk(channel: Connection, package_path: list[str], folder: Path, num_bytes: int) -> None:
    """Runs `serve` until a signal, on a disk too small for the last checkpoint that grows after the first warning.

    Sends the output of the command, and the size of the table of a server that is started afterwards.
    """
    rlds2reverb.__path__[:] = package_path  # Finds the command line in a bare checkout as well.
    from rlds2reverb.cli import output, serve as command

    def grow(sentence: str) -> None:
        channel.send(sentence)
        mount_tmpfs(folder, 64 << 20, remount=True)

    unshare_mounts()
    mount_tmpfs(folder, 64 << 20)
    channel.send("mounted")
    command.RETRY_SECS = 0.01
    output.say, output.warn = channel.send, grow
    with ReplayServer([TableConfig()], checkpoint_root=folder / "root") as started:
        ingestion.ingest(make_episodes(20), started.address)
        mount_tmpfs(folder, num_bytes, remount=True)
        command.serve_until_end(started)
    with ReplayServer([TableConfig()], checkpoint_root=folder / "root") as restarted:
        channel.send(restarted.client.server_info(timeout=10)["replay"].current_size)


# --- results


def read_checkpoint(checkpoint: Path) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Returns the items and the chunks of a checkpoint that a server wrote, by key.

    Each item is stored once. A chunk may be stored twice, if it was restored from a checkpoint and sent again for other
    items; Reverb merges the copies when it starts from the checkpoint.
    """
    items = [schema_pb2.PrioritizedItem.FromString(record) for record in _read_records(checkpoint / "items.tfrecord")]
    chunks = [schema_pb2.ChunkData.FromString(record) for record in _read_records(checkpoint / "chunks.tfrecord")]
    for item in items:
        item.ClearField("inserted_at")
        item.ClearField("times_sampled")  # An item may have been sampled; see `stored_items`.
    items_by_key = {item.key: item.SerializeToString(deterministic=True) for item in items}
    distinct_chunks = {(chunk.chunk_key, chunk.SerializeToString(deterministic=True)) for chunk in chunks}
    chunks_by_key = dict(distinct_chunks)
    assert (len(items), len(distinct_chunks)) == (len(items_by_key), len(chunks_by_key))
    return items_by_key, chunks_by_key


def _read_records(path: Path) -> list[bytes]:
    batches = tf.data.TFRecordDataset(str(path), compression_type="ZLIB").batch(1 << 14)
    return [record for batch in batches.as_numpy_iterator() for record in batch]


def hash_files(directory: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file in a directory, by relative path."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


# --- damage


#: The kinds of damage of `damage_file`.
DAMAGES = ("flipped", "truncated", "empty")


def damage_file(file: Path, damage: str) -> None:
    """Flips a bit a quarter into a file, truncates the file there, or empties it."""
    content = bytearray(file.read_bytes())
    offset = len(content) // 4
    if damage == "flipped":
        content[offset] ^= 1
    file.write_bytes({"flipped": content, "truncated": content[:offset], "empty": b""}[damage])


# --- small disks

_NEW_MOUNTS, _NEW_USER, _REMOUNT, _PRIVATE, _RECURSIVE = 0x20000, 0x10000000, 0x20, 1 << 18, 1 << 14


def unshare_mounts() -> None:
    """Gives this process its own mounts, which end with it: in a new user namespace if permitted, otherwise as root.

    Raises:
      OSError: If neither is permitted.
    """
    use_own_launcher()
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_MOUNTS) == 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    else:
        _require_success(libc.unshare(_NEW_MOUNTS))
    _require_success(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None))


def mount_tmpfs(folder: Path, num_bytes: int, *, remount: bool = False) -> None:
    """Mounts an in-memory file system of a given size on a folder, or changes its size."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = f"size={num_bytes}".encode()
    _require_success(libc.mount(b"tmpfs", bytes(folder), b"tmpfs", _REMOUNT if remount else 0, size))


def _require_success(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
