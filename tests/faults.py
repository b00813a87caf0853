"""Processes for the fault tests: what they do until they are killed, and what there is to compare afterwards.

They are forked from `multiprocessing`'s fork server, which has imported everything and started nothing, so that one
takes milliseconds. It ends with the tests. Programs talk over a connection, and leave what went wrong to their caller.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from reference_impls import episode
from reverb.cc import schema_pb2

import rlds2reverb
from rlds2reverb import ingestion
from rlds2reverb._encoding import item_blocks
from rlds2reverb._server.checkpoint_root import CheckpointRoot
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb._writing import compatibility, directory_destination, server_destination
from rlds2reverb.tables import TableConfig

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["hypothesis", "rlds2reverb.ingestion", "rlds2reverb._server.replay_server"])
#: Where the fork server's socket will be. It is made now, before a test has temporary files elsewhere: in the folder of
#: a test the socket's path could be longer than the 107 characters that Linux allows.
SOCKETS = get_temp_dir()
#: Longer than anything takes: who waits so long has found a hang.
PATIENCE_SECS = 100

Process = multiprocessing.process.BaseProcess


def data_set(num_episodes: int = 100, length: int = 150) -> list[dict]:
    """Episodes whose numbers give their place: no two items are equal."""
    return [episode(length, terminal=n % 2 == 0, start=1000 * n) for n in range(num_episodes)]


# --- processes


@contextmanager
def process(program: Callable[..., None], *arguments: Any) -> Iterator[tuple[Process, Connection]]:
    """Runs `program(channel, *arguments)` in a process, which is killed in the end, and the channel's other end."""
    ours, theirs = CONTEXT.Pipe()
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        started = CONTEXT.Process(target=_run, args=(program, theirs, arguments, scratch))
        started.start()
        theirs.close()
        try:
            yield started, ours
        finally:
            started.kill()
            started.join()
            ours.close()


def _run(program: Callable[..., None], channel: Connection, arguments: tuple, scratch: str) -> None:
    tempfile.tempdir = scratch  # who is killed leaves its temporary files there
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        program(channel, *arguments)
    except EOFError:  # the tests have ended
        pass
    except Exception as error:
        channel.send(error)


def hear(channel: Connection) -> Any:
    """What the process says next; raises what it died of."""
    if not channel.poll(PATIENCE_SECS):
        raise TimeoutError(f"the process hangs: nothing was heard from it within {PATIENCE_SECS} s")
    said = channel.recv()
    if isinstance(said, BaseException):
        raise said
    return said


def mounted(channel: Connection) -> str | OSError:
    """'mounted', or why a process may not mount a disk."""
    try:
        return hear(channel)
    except OSError as error:
        return error


# --- what they do


def small_steps() -> None:
    """Has this process write in many small groups and parts, and note each of them."""
    item_blocks._GROUP_BYTES = 1 << 15
    directory_destination._PART_BYTES = 1 << 18
    server_destination._SECS_BETWEEN_SAVES = 0


def around(
    owner: Any, name: str, *, before: Callable[[], None] = lambda: None, after: Callable[[], None] = lambda: None
) -> None:
    """Has this process do something before or after each call of a function."""
    function = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        before()
        result = function(*arguments, **named)
        after()
        return result

    setattr(owner, name, wrapped)


def converter(
    channel: Connection, destination: Any, options: dict[str, Any], held_at: Sequence[tuple[str, int]] = ()
) -> None:
    """Ingests the data set; says 'begun', then the report; and 'held', to wait for a word, at stages and episodes.

    `options` are those of `ingest`, those of `IngestOptions`, and `state_home`, the folder of journals.

    The stages are those of `progress`; 'try', where the server has the item that is to show that it understands; and of
    a directory's end 'assemble' (0), 'link' (after the first file), 'manifest' and 'rename' (0 before, 1 after).
    """
    small_steps()
    options, waiting = {"source": data_set(), **options}, list(held_at)
    if "state_home" in options:
        os.environ["XDG_STATE_HOME"] = str(options.pop("state_home"))
    rare = {name: options.pop(name) for name in ("writer", "key_seed", "force") if name in options}
    options["options"] = ingestion.IngestOptions(**rare)

    def hold(stage: str, index: int) -> None:
        if (stage, index) in waiting:
            waiting.remove((stage, index))
            channel.send("held")
            channel.recv()

    around(compatibility.TrialItem, "difference", before=lambda: hold("try", 0))
    around(directory_destination.DirectoryDestination, "_assemble", before=lambda: hold("assemble", 0))
    around(directory_destination, "link_or_copy", after=lambda: hold("link", 0))
    around(CheckpointRoot, "write_manifest", before=lambda: hold("manifest", 0), after=lambda: hold("manifest", 1))
    around(os, "rename", before=lambda: hold("rename", 0), after=lambda: hold("rename", 1))
    channel.send("begun")
    report = ingestion.ingest(destination=destination, progress=lambda stage, at: hold(stage, at.index), **options)
    channel.send(report.as_dict())


def server(
    channel: Connection, root: Path, port: int | None = None, *, table: str = "replay", signature: Any = None
) -> None:
    """Serves a table; says its port, and the path of a checkpoint whenever it hears anything."""
    with ReplayServer([TableConfig(table)], signature, port=port, checkpoint_root=root) as started:
        channel.send(started.port)
        while channel.recv():
            channel.send(started.checkpoint())


def ingested(destination: Any, **options: Any) -> dict[str, Any]:
    """The report of an ingestion, in a process of its own, that nobody disturbs."""
    with process(converter, destination, options) as (_, channel):
        assert hear(channel) == "begun"
        return hear(channel)


def killed_after(secs: float, destination: Any, **options: Any) -> bool:
    """Kills an ingestion some seconds after it has begun; returns whether it was still running."""
    with process(converter, destination, options) as (running, channel):
        assert hear(channel) == "begun"
        finished = channel.poll(secs)
        running.kill()
        running.join()
        assert not finished or hear(channel)["items"]
        return not finished


def killed_at(stage: str, index: int, destination: Any, **options: Any) -> None:
    """Kills an ingestion at an episode of a stage."""
    with process(converter, destination, options, [(stage, index)]) as (_, channel):
        assert [hear(channel), hear(channel)] == ["begun", "held"]


def moments(num_moments: int, duration_secs: float, *, seed: int) -> list[float]:
    """Random moments that are spread over a duration: one in each of `num_moments` equal parts."""
    parts = np.arange(num_moments) + np.random.default_rng(seed).random(num_moments)
    return [float(secs) for secs in parts * duration_secs / num_moments]


def convert_on_full_disk(channel: Connection, folder: Path, sizes: Sequence[int]) -> None:
    """Converts to a disk of the first size, then of the next and so on; says each error, then the files."""
    small_steps()
    leave_mounts()
    mount(folder, sizes[0])
    channel.send("mounted")
    for num_bytes in sizes:
        mount(folder, num_bytes, again=True)
        try:
            ingestion.ingest(data_set(), folder / "data")
        except Exception as error:
            channel.send((error, sorted(path.name for path in folder.iterdir())))
    channel.send(files(folder / "data"))


def checkpoint_on_full_disk(channel: Connection, folder: Path, num_bytes: int) -> None:
    """Has a server write a checkpoint, one that there is no space for, and one that there is space for again.

    Says the error, and the sizes of the table of which servers started after each.
    """
    leave_mounts()
    mount(folder, 64 << 20)
    channel.send("mounted")
    sizes = []
    for space in (64 << 20, num_bytes, 64 << 20):
        with ReplayServer([TableConfig()], checkpoint_root=folder / "root") as started:
            sizes.append(started.client.server_info(timeout=10)["replay"].current_size)
            ingestion.ingest(data_set() if sizes[0] < sizes[-1] else data_set(2, 11), started.address)
            mount(folder, space, again=True)
            try:
                started.checkpoint()
            except Exception as error:
                channel.send(error)
    channel.send(sizes)


def serve_on_full_disk(channel: Connection, package_path: list[str], folder: Path, num_bytes: int) -> None:
    """Serves until a signal, with too small a disk for the last checkpoint, which grows once `serve` has complained.

    Says what the command says, then the size of the table of a server that starts later.
    """
    rlds2reverb.__path__[:] = package_path  # where the tests find the command line, also in a bare checkout
    from rlds2reverb.cli import output
    from rlds2reverb.cli import serve as command

    def grow(sentence: str) -> None:
        channel.send(sentence)
        mount(folder, 64 << 20, again=True)

    leave_mounts()
    mount(folder, 64 << 20)
    channel.send("mounted")
    command._RETRY_SECS = 0.01
    output.say, output.warn = channel.send, grow
    with ReplayServer([TableConfig()], checkpoint_root=folder / "root") as started:
        ingestion.ingest(data_set(20), started.address)
        mount(folder, num_bytes, again=True)
        command.serve_until_end(started)
    with ReplayServer([TableConfig()], checkpoint_root=folder / "root") as again:
        channel.send(again.client.server_info(timeout=10)["replay"].current_size)


# --- what is there afterwards


def stored(checkpoint: Path) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Items and chunks of a checkpoint that a server wrote, by their keys.

    Each item is there once. A chunk may be there twice, as it came from a checkpoint and was sent again for others of
    its items; Reverb stores it once when it starts from that.
    """
    items = [schema_pb2.PrioritizedItem.FromString(record) for record in _records(checkpoint / "items.tfrecord")]
    chunks = [schema_pb2.ChunkData.FromString(record) for record in _records(checkpoint / "chunks.tfrecord")]
    for item in items:
        item.ClearField("inserted_at")
        item.ClearField("times_sampled")  # one may have been looked at; see `held_items`
    items_by_key = {item.key: item.SerializeToString(deterministic=True) for item in items}
    distinct_chunks = {(chunk.chunk_key, chunk.SerializeToString(deterministic=True)) for chunk in chunks}
    chunks_by_key = dict(distinct_chunks)
    assert (len(items), len(distinct_chunks)) == (len(items_by_key), len(chunks_by_key))
    return items_by_key, chunks_by_key


def _records(path: Path) -> list[bytes]:
    batches = tf.data.TFRecordDataset(str(path), compression_type="ZLIB").batch(1 << 14)
    return [record for batch in batches.as_numpy_iterator() for record in batch]


def files(directory: Path) -> dict[str, str]:
    """sha256 of every file in a directory, by its path in there."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


# --- damage


#: What `damage_file` does.
DAMAGES = ("flipped", "truncated", "empty")


def damage_file(file: Path, damage: str) -> None:
    """Flips a bit in the first quarter of a file, or cuts it there, or empties it."""
    content = bytearray(file.read_bytes())
    place = len(content) // 4
    if damage == "flipped":
        content[place] ^= 1
    file.write_bytes({"flipped": content, "truncated": content[:place], "empty": b""}[damage])


# --- small disks

_NEW_MOUNTS, _NEW_USER, _REMOUNT, _PRIVATE, _RECURSIVE = 0x20000, 0x10000000, 0x20, 1 << 18, 1 << 14


def leave_mounts() -> None:
    """Gives this process mounts of its own, which end with it: as its own user if it may, else as root.

    Raises:
      OSError: if it may do neither.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_MOUNTS) == 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    else:
        _require(libc.unshare(_NEW_MOUNTS))
    _require(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None))


def mount(folder: Path, num_bytes: int, *, again: bool = False) -> None:
    """Puts a file system in memory of a certain size there, or changes its size."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = f"size={num_bytes}".encode()
    _require(libc.mount(b"tmpfs", bytes(folder), b"tmpfs", _REMOUNT if again else 0, size))


def _require(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
