"""`rlds2reverb serve`: a Reverb server with its own port, lock and checkpoints."""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb._system.signals import Terminated
from rlds2reverb._system.text import format_bytes
from rlds2reverb.server.process import start_launcher
from rlds2reverb.tables import MAX_ITEMS

from . import checks, output
from .options import (
    GroupedCommand,
    cast_floats_option,
    item_options,
    make_adder,
    make_signature,
    open_source,
    parameter_names,
    reading_options,
    require_item_options,
    require_server_options,
    require_unused,
    server_options,
    start_server,
    table_options,
)
from .quiet import import_quietly

if TYPE_CHECKING:
    from rlds2reverb.server.replay_server import ReplayServer
    from rlds2reverb.server.sharded_server import ShardedReplayServer

#: Interval between attempts to write the last checkpoint to a full disk.
_RETRY_SECS = 5.0
#: Python runs signal handlers only after a sleep returns, so sleeps are at most this long.
_MAX_SLEEP_SECS = 0.2

_SIGNATURE_OPTIONS = [*parameter_names(item_options), "cast_floats", *parameter_names(reading_options)]
_HEADINGS = {
    "Data": ["data", "force"],
    "Server": [*parameter_names(server_options), "num_shards"],
    "Table": parameter_names(table_options),
    "Signature": ["source", *_SIGNATURE_OPTIONS],
}


@click.command(cls=GroupedCommand, headings=_HEADINGS)
@table_options
@server_options
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Load the items of a directory that convert --out wrote. The directory is not changed.",
)
@click.option(
    "--shards",
    "num_shards",
    type=checks.at_least_1,
    metavar="K",
    help="Run K servers, on consecutive ports if there is a --port, whose tables are shards of the same table. A "
    "directory that convert --shards wrote determines K.",
)
@click.option("--force", is_flag=True, help="With --data: load the items even if there is too little memory for them.")
@click.option(
    "--signature-from",
    "source",
    metavar="SRC",
    help="Dataset whose items define the tables' signature; the following options define the items, as in convert. "
    "Without a signature, a table accepts items of any shape.",
)
@item_options
@cast_floats_option
@reading_options
def serve(cast_floats: bool, **options: Any) -> None:
    """Start a Reverb server and run it until Ctrl-C or SIGTERM.

    \b
    Examples:
      rlds2reverb serve --data hopper/ --port 8000 --isolate
      rlds2reverb serve --signature-from hopper_medium-v2.hdf5 --port 8000
      rlds2reverb serve --checkpoint-root replay/ --checkpoint-every 10m
      rlds2reverb serve --signature-from hopper_medium-v2.hdf5 --port 8000 --shards 3

    With --checkpoint-root, the server starts from the newest valid checkpoint and writes one when it stops. If the
    disk is full at that moment, the server waits for space; a second Ctrl-C or SIGTERM stops it without a checkpoint.
    Items inserted after the last checkpoint are lost if the process is killed; --checkpoint-every limits that loss.
    The exit code is 0 after Ctrl-C, and 75 after SIGTERM.

    Reverb listens on all network interfaces without authentication: pass --isolate if all clients are on this machine;
    otherwise keep the port behind a firewall.
    """
    require_server_options(options)
    require_item_options(options)
    if options["data"] and options["source"]:
        raise click.UsageError("pass --data or --signature-from, not both; converted data contain their signature")
    if not options["data"]:
        require_unused({"force"}, "requires --data")
    if not options["source"]:
        require_unused(set(_SIGNATURE_OPTIONS), "requires --signature-from")
    start_launcher()
    import_quietly("tensorflow", *(["tf_agents.trajectories"] if options["source"] else []))
    if options["data"]:
        _report_data(options["data"], options["checkpoint_root"])
    with start_server(options, _make_signature(options, cast_floats=cast_floats)) as server:
        serve_until_end(server, checkpoint_secs=options["checkpoint_secs"])


def _report_data(data: Path, checkpoint_root: Path | None) -> None:
    """Prints how much memory the data need, and whether a checkpoint is served instead of the data."""
    from rlds2reverb.server.checkpoint_root import CheckpointRoot
    from rlds2reverb.server.commits import count_shards, shard_path
    from rlds2reverb.server.replay_server import read_tables

    shards = [shard_path(data, shard) for shard in range(count_shards(data))]
    memory_bytes = 0
    for directory in shards or [data]:
        read_tables(directory)  # Raises if the directory is missing or was not written by rlds2reverb.
        memory_bytes += CheckpointRoot(directory, create=False).data().get("memory_bytes", 0)
    if memory_bytes:
        output.say(f"{data} needs about {format_bytes(memory_bytes)} of memory")
    if shards:
        return
    if checkpoint_root is not None and checkpoint_root.is_dir():
        checkpoint = CheckpointRoot(checkpoint_root, create=False).latest()
        if checkpoint is not None:
            output.say(f"serving the checkpoint {checkpoint.name} of {checkpoint_root} instead of {data}")


def _make_signature(options: dict[str, Any], *, cast_floats: bool) -> Any:
    if not options["source"]:
        return None
    from rlds2reverb.sources.transforms import CastFloats, apply_transforms

    source, _ = apply_transforms(open_source(options), [CastFloats()] if cast_floats else [])
    return make_signature(source, make_adder(options), options)


def serve_until_end(server: ReplayServer | ShardedReplayServer, *, checkpoint_secs: float | None = None) -> None:
    """Prints the address, waits for Ctrl-C or SIGTERM, and writes a last checkpoint if the server has any.

    Args:
      server: the running server or servers.
      checkpoint_secs: interval between checkpoints while waiting; None for none.

    Raises:
      ServerUnavailableError: If a server's process ends, such as when there is too little memory.
      StorageFullError: If there was no space for the last checkpoint when a second signal came.
      CheckpointError: If the last checkpoint could not be written for another reason when a second signal came.
      Terminated: After SIGTERM, once the last checkpoint is written.
    """
    from rlds2reverb.client import find_addresses, table_infos

    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: signals.append(number))
    all_infos = [table_infos(address) for address in find_addresses(server)]
    for name, info in sorted(all_infos[0].items()):
        size = sum(infos[name].current_size for infos in all_infos)
        max_size = sum(infos[name].max_size for infos in all_infos)
        limit = f" of at most {max_size:,}" if max_size < MAX_ITEMS else ""
        shapes = "" if info.signature else ", of any shape (pass --signature-from SRC to check them)"
        shards = f" on {len(all_infos)} servers" if len(all_infos) > 1 else ""
        output.say(f"table {name!r}: {size:,}{limit} items{shards}{shapes}")
    output.say(f"serving on {server.address} {_describe_reach(server)}; Ctrl-C stops it")
    while (stopped_by := _wait_for_signal(signals, checkpoint_secs, server)) is None:
        write_checkpoint(server)
    if server.has_checkpoints:
        _write_last_checkpoint(server, signals)
    if stopped_by == signal.SIGTERM:
        raise Terminated


def _describe_reach(server: ReplayServer | ShardedReplayServer) -> str:
    if server.is_isolated:
        return "for this machine only"
    return (
        "and all network interfaces: other machines can reach the port without authentication, unless a firewall "
        "blocks it or --isolate is passed"
    )


def _wait_for_signal(signals: list[int], secs: float | None, server: ReplayServer | ShardedReplayServer) -> int | None:
    """Waits for a signal, at most `secs`; returns the first one that arrived or None, and clears the list.

    Raises:
      ServerUnavailableError: If a server ends in the meantime.
    """
    end = math.inf if secs is None else time.monotonic() + secs
    while not signals and (remaining := end - time.monotonic()) > 0:
        server.require_running()
        time.sleep(min(remaining, _MAX_SLEEP_SECS))
    first = signals[0] if signals else None
    signals.clear()
    return first


def write_checkpoint(server: ReplayServer | ShardedReplayServer) -> None:
    """Writes a checkpoint; prints a warning if it fails, because a later checkpoint may succeed."""
    from rlds2reverb.errors import CheckpointError, ServerUnavailableError, StorageFullError

    try:
        output.say(f"checkpoint {server.checkpoint()}")
    except (CheckpointError, ServerUnavailableError, StorageFullError) as error:
        output.warn(f"no checkpoint: {_describe_error(error)}")


def _write_last_checkpoint(server: ReplayServer | ShardedReplayServer, signals: list[int]) -> None:
    """Writes the last checkpoint, and retries after failures until a signal arrives."""
    from rlds2reverb.errors import CheckpointError, StorageFullError

    is_reported = False
    while True:
        try:
            output.say(f"checkpoint {server.checkpoint()}")
            return
        except (CheckpointError, StorageFullError) as error:
            if not is_reported:
                output.warn(
                    f"{_describe_error(error)}. All items are still in memory, and rlds2reverb tries again every "
                    f"{_RETRY_SECS:g} s; Ctrl-C or SIGTERM stops the server without a checkpoint"
                )
                is_reported = True
            if _wait_for_signal(signals, _RETRY_SECS, server) is not None:
                raise


def _describe_error(error: Exception) -> str:
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)
