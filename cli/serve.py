"""`rlds2reverb serve`: a Reverb server with its own port, lock and checkpoints."""

from __future__ import annotations

import contextlib
import math
import signal
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb.datasets import Source
from rlds2reverb.reverb.server.process import start_launcher
from rlds2reverb.system.signals import raise_on_sigterm
from rlds2reverb.system.text import format_bytes
from rlds2reverb.types.locations import is_table_directory
from rlds2reverb.types.tables import MAX_ITEMS, TableConfig

from . import checks, output
from .declarations import DIRECTORY, flag, is_on_command_line, option, parameter_names
from .item_writing import ITEM_PACKAGES, print_report
from .number_types import at_least_1, port
from .options import (
    GroupedCommand,
    get_table_options,
    require_unused,
    server_writing_options,
    sources_argument,
    table_configs,
    table_names,
    table_options,
)
from .output import json_option
from .quiet import import_quietly
from .reading import READING_NAMES, open_source, reading_options

if TYPE_CHECKING:
    from rlds2reverb.reverb.server.replay_server import ReplayServer
    from rlds2reverb.reverb.server.sharded_server import ShardedReplayServer

#: Interval between attempts to write the last checkpoint to a full disk.
RETRY_SECS = 5.0
#: Python runs signal handlers only after a sleep returns, so sleeps are at most this long.
_MAX_SLEEP_SECS = 0.2

_TABLE_NAMES = parameter_names(table_options)
_HEADINGS = {
    "Server": ["port", "isolate", "num_shards", "checkpoint_root", "checkpoint_secs", "append", "empty"],
    "Dataset": [*READING_NAMES, *parameter_names(server_writing_options)],
    "Tables": _TABLE_NAMES,
    "Advanced": ["serve_batches", "no_verify"],
}
#: Options about the items that are written, and options about a dataset.
_WRITTEN_ONLY = {"append", "as_json", *parameter_names(server_writing_options)}
_DATASET_ONLY = {*_WRITTEN_ONLY, *READING_NAMES, "empty"}


@click.command(cls=GroupedCommand, headings=_HEADINGS, explained=_HEADINGS["Server"])
@sources_argument(required=False)
@table_options
@flag("--empty", help="Serve empty tables for items like those of SRC.")
@option("--port", type=port, show_default="a free port", help="Port of the new server.")
@option(
    "--checkpoint-root",
    type=DIRECTORY,
    metavar="DIR",
    help="Directory for the server's checkpoints. If it contains checkpoints, the server starts from the newest.",
)
@option(
    "--checkpoint-every",
    "checkpoint_secs",
    type=checks.duration,
    show_default="only when the server stops",
    help="Time between checkpoints while serving, such as 600 (seconds) or 10m; requires --checkpoint-root.",
)
@flag(
    "--isolate",
    help="Accept connections from this machine (or container) only, at localhost, 127.0.0.1 and ::1. Fails if the "
    "system does not support that; requires Linux 5.7 or root.",
)
@flag(
    "--serve-batches",
    help="Also serve finished batches, which clients sample much faster, on a second port 1,000 above --port. "
    "Isolated servers always do. Requires that all writers are trusted: a malformed chunk of theirs can end the "
    "server.",
)
@flag("--no-verify", help="Start even if the checkpoint does not match its manifest.")
@option(
    "--shards",
    "num_shards",
    type=at_least_1,
    metavar="K",
    help="Run K servers, on consecutive ports if there is a --port, whose tables are shards of the same table. A "
    "directory that convert --shards wrote determines K.",
)
@flag("--append", help="Add to the items that the checkpoint contains.")
@reading_options
@server_writing_options
@json_option
def serve(**options: Any) -> int:
    """Start a Reverb server and run it until Ctrl-C or SIGTERM.

    \b
    Examples:
      rlds2reverb serve hopper_medium-v2.hdf5 --port 8000
      rlds2reverb serve hopper/ --port 8000 --isolate
      rlds2reverb serve hopper_medium-v2.hdf5 --empty --port 8000 --shards 3
      rlds2reverb serve --checkpoint-root replay/ --checkpoint-every 10m

    SRC is a directory that rlds2reverb convert wrote, which is not changed, or a dataset, whose transitions are
    written to the server first; for other items, use convert. Without SRC, the tables are empty and accept items of
    any shape; with --empty, only items like those of SRC.

    With --checkpoint-root, the server starts from the newest valid checkpoint and writes one when it stops. If the
    disk is full at that moment, the server waits for space; a second Ctrl-C or SIGTERM stops it without a checkpoint.
    Items inserted after the last checkpoint are lost if the process is killed; --checkpoint-every limits that loss.
    The exit code is 0 after Ctrl-C, and 75 after SIGTERM.

    Reverb listens on all network interfaces without authentication: pass --isolate if all clients are on this machine;
    otherwise keep the port behind a firewall.
    """
    if options["checkpoint_root"] is None:
        require_unused({"checkpoint_secs", "append"}, "requires --checkpoint-root")
    data = _find_data(options["source"])
    if data:
        require_unused(_DATASET_ONLY - {"force"}, "requires a dataset as SRC, got a converted directory")
    elif not options["source"]:
        require_unused(_DATASET_ONLY, "requires SRC")
    elif options["empty"]:
        require_unused(_WRITTEN_ONLY, "cannot be combined with --empty")
    start_launcher()
    if data or not options["source"]:
        import_quietly("tensorflow")
        if data:
            _report_data(data, options["checkpoint_root"])
        with _start(options, data=data) as server:
            return serve_until_end(server, checkpoint_secs=options["checkpoint_secs"])
    with raise_on_sigterm():
        source = open_source(options)
        import_quietly(*ITEM_PACKAGES)
        with _start(options, signature=_make_signature(source)) as server:
            if not options["empty"]:
                _fill(server, source, options)
            return serve_until_end(server, checkpoint_secs=options["checkpoint_secs"])


def _find_data(location: Any) -> Path | None:
    """Returns the path of a directory of tables or shards; None for any other location."""
    if not isinstance(location, str):
        return None
    path = Path(location).expanduser()
    return path if is_table_directory(path) else None


def _report_data(data: Path, checkpoint_root: Path | None) -> None:
    """Prints how much memory the data need, and whether a checkpoint is served instead of the data."""
    from rlds2reverb.reverb.server.checkpoint_root import CheckpointRoot
    from rlds2reverb.reverb.server.replay_server import read_tables
    from rlds2reverb.reverb.server.shards import find_shards

    shards = find_shards(data)
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


def _start(
    options: dict[str, Any], *, data: Path | None = None, signature: Any = None
) -> ReplayServer | ShardedReplayServer:
    """Starts the servers of the table and server options, and prints their warnings.

    Args:
      options: options of the command.
      data: the directory to start from, if any.
      signature: signature of new tables; None accepts items of any shape.
    """
    from rlds2reverb.reverb.server.replay_server import ReplayServer
    from rlds2reverb.reverb.server.sharded_server import ShardedReplayServer
    from rlds2reverb.reverb.server.shards import find_shards

    num_shards = options["num_shards"]
    common = {name: options[name] for name in ("port", "checkpoint_root", "isolate")}
    common |= {"verify": not options["no_verify"], "serve_batches": options["serve_batches"] or None}
    with _print_runtime_warnings():
        if data is None:
            configs = table_configs(options)
            if num_shards is None:
                return ReplayServer(configs, signature, **common)
            return ShardedReplayServer(configs, signature, num_shards=num_shards, **common)
        shards = find_shards(data)
        if num_shards not in (None, len(shards)):
            raise click.UsageError(f"{data} contains {len(shards) or 'no'} shards; leave out --shards")
        tables = _read_stored_tables(shards[0] if shards else data, options)
        start: Any = ShardedReplayServer if shards else ReplayServer
        return start(tables, directory=data, force=options["force"], **common)


@contextlib.contextmanager
def _print_runtime_warnings() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        yield
    for warning in caught:
        if warning.category is RuntimeWarning:
            output.warn(str(warning.message))


def _read_stored_tables(data: Path, options: dict[str, Any]) -> list[TableConfig]:
    """Returns the tables stored in a directory, changed by the `table_options` on the command line."""
    from rlds2reverb.reverb.server.replay_server import read_tables

    configs = read_tables(data)
    names = [config.name for config in configs]
    if is_on_command_line("table_names") and names != list(table_names(options)):
        raise click.UsageError(f"{data} contains the tables {', '.join(names)}; leave out --table")
    # The server compares these values with the stored ones and rejects differences.
    changes = {name: value for name, value in get_table_options(options).items() if is_on_command_line(name)}
    return [replace(config, **changes) for config in configs]


def _make_signature(source: Source) -> Any:
    """Returns the table signature for the transitions of a source."""
    from rlds2reverb.adders import TrajectoryWindows
    from rlds2reverb.reverb.writing.item_conversion import drop_strings

    return TrajectoryWindows().item_spec(drop_strings(source.step_spec))


def _fill(server: ReplayServer | ShardedReplayServer, source: Source, options: dict[str, Any]) -> None:
    """Writes the transitions of a source into the new tables of a server, and a checkpoint if it has any."""
    from rlds2reverb.ingestion import IngestOptions, ingest
    from rlds2reverb.reverb.client import find_addresses, table_infos
    from rlds2reverb.reverb.writing.report import IngestWarning

    for address in find_addresses(server) if not options["append"] else ():
        for name, info in table_infos(address).items():
            if info.current_size:
                raise click.UsageError(
                    f"table {name!r} already has {info.current_size:,} items from the checkpoint; pass --append to add "
                    "to them, or a different --checkpoint-root"
                )
    ingest_options = IngestOptions(force=options["force"], allow_eviction=options["allow_eviction"])
    with output.StepProgress(source) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", IngestWarning)  # The printed report contains them.
        report = ingest(source, server.address, table_names(options), options=ingest_options, progress=progress)
    print_report(report, server.address, "transitions (2 steps each)", source.warnings, as_json=options["as_json"])
    if server.has_checkpoints:
        write_checkpoint(server)


def serve_until_end(server: ReplayServer | ShardedReplayServer, *, checkpoint_secs: float | None = None) -> int:
    """Prints the address, waits for Ctrl-C or SIGTERM, and writes a last checkpoint if the server has any.

    Either is the usual end of a server, and no error.

    Args:
      server: the running server or servers.
      checkpoint_secs: interval between checkpoints while waiting; None for none.

    Returns:
      The exit code: 0 after Ctrl-C, and 75 after SIGTERM.

    Raises:
      ServerUnavailableError: If a server's process ends, such as when there is too little memory.
      StorageFullError: If there was no space for the last checkpoint when a second signal came.
      CheckpointError: If the last checkpoint could not be written for another reason when a second signal came.
    """
    from rlds2reverb.reverb.client import find_addresses, table_infos

    from .main import OK, TEMPORARY_FAILURE

    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: signals.append(number))
    all_infos = [table_infos(address) for address in find_addresses(server)]
    for name, info in sorted(all_infos[0].items()):
        size = sum(infos[name].current_size for infos in all_infos)
        max_size = sum(infos[name].max_size for infos in all_infos)
        limit = f" of at most {max_size:,}" if max_size < MAX_ITEMS else ""
        shapes = "" if info.signature else ", of any shape (pass SRC --empty to check them)"
        shards = f" on {len(all_infos)} servers" if len(all_infos) > 1 else ""
        output.say(f"table {name!r}: {size:,}{limit} items{shards}{shapes}")
    output.say(f"serving on {server.address} {_describe_reach(server)}; Ctrl-C stops it")
    while (stopped_by := _wait_for_signal(signals, checkpoint_secs, server)) is None:
        write_checkpoint(server)
    if server.has_checkpoints:
        _write_last_checkpoint(server, signals)
    return TEMPORARY_FAILURE if stopped_by == signal.SIGTERM else OK


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
                    f"{RETRY_SECS:g} s; Ctrl-C or SIGTERM stops the server without a checkpoint"
                )
                is_reported = True
            if _wait_for_signal(signals, RETRY_SECS, server) is not None:
                raise


def _describe_error(error: Exception) -> str:
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)
