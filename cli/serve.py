"""`rlds2reverb serve`: a Reverb server with its own port, lock and checkpoints."""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb._units import bytes_text

from . import output
from .options import (
    SOURCE_ONLY,
    adder_of,
    cast_floats_option,
    item_options,
    open_source,
    reading_options,
    require_table_options,
    require_unused,
    signature_of,
    start_server,
    table_options,
)
from .quiet import import_quietly

if TYPE_CHECKING:
    from rlds2reverb._server.replay_server import ReplayServer


#: Between two attempts to write the last checkpoint to a disk that is full.
_RETRY_SECS = 5.0
#: Handlers of signals run after a sleep.
_LONGEST_SLEEP_SECS = 0.2


@click.command()
@table_options
@click.option(
    "--from",
    "data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Start with the data of a directory that convert --out wrote; it stays as it is.",
)
@click.option("--force", is_flag=True, help="With --from: even if the data need more memory than there is.")
@click.option("--like", "source", metavar="SRC", help="Give the tables this data set's signature.  [default: none]")
@item_options
@cast_floats_option
@reading_options
def serve(cast_floats: bool, **options: Any) -> None:
    """Start a Reverb server and run until Ctrl-C or SIGTERM.

    With --checkpoint-root it starts from the newest good checkpoint in there, and writes one when it ends. If the disk
    is full then, it waits for space; a second Ctrl-C or SIGTERM ends it without. What was inserted after the last
    checkpoint is lost if the process is killed: see --checkpoint-every. Reverb listens on all interfaces and asks
    nobody who they are: keep the port behind a firewall.
    """
    require_table_options(options)
    if options["data"] and options["source"]:
        raise click.UsageError("give --from or --like, not both: data have their own signature")
    if not options["data"]:
        require_unused({"force"}, "is for --from")
    if not options["source"]:
        require_unused(SOURCE_ONLY, "is for --like SRC")
    import_quietly("reverb", *(["tf_agents.trajectories"] if options["source"] else []))
    if options["data"]:
        _say_memory(options["data"])
        _say_not_used(options["data"], options["checkpoint_root"])
    with start_server(options, _signature(options, cast_floats=cast_floats)) as server:
        serve_until_end(server, checkpoint_secs=options["checkpoint_secs"])


def _say_memory(data: Path) -> None:
    from rlds2reverb._server.checkpoint_root import CheckpointRoot
    from rlds2reverb._server.replay_server import stored_tables

    stored_tables(data)
    described = CheckpointRoot(data, make=False).described()
    if "memory_bytes" in described:
        output.say(f"{data} will need about {bytes_text(described['memory_bytes'])} of memory")


def _say_not_used(data: Path, checkpoint_root: Path | None) -> None:
    from rlds2reverb._server.checkpoint_root import CheckpointRoot

    if checkpoint_root is not None and checkpoint_root.is_dir():
        checkpoint = CheckpointRoot(checkpoint_root, make=False).latest()
        if checkpoint is not None:
            output.say(f"{checkpoint_root} has a checkpoint already, {checkpoint.name}: it is served, and not {data}")


def _signature(options: dict[str, Any], *, cast_floats: bool) -> Any:
    if not options["source"]:
        return None
    from rlds2reverb.sources.transforms import CastFloats, apply_transforms

    source, _ = apply_transforms(open_source(options), [CastFloats()] if cast_floats else [])
    return signature_of(source, adder_of(options), options)


def serve_until_end(server: ReplayServer, *, checkpoint_secs: float | None = None) -> None:
    """Says where the server is and who can reach it, waits for Ctrl-C or SIGTERM, and writes a checkpoint if it may.

    Args:
      server: to wait with.
      checkpoint_secs: how often to write a checkpoint before that; None for never.

    Raises:
      StorageFullError: if there was no space for the last checkpoint when a second signal came.
      CheckpointError: if the last checkpoint could not be written for another reason when a second signal came.
    """
    from rlds2reverb._server.clients import table_infos

    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, frame: signals.append(got))
    for name, info in sorted(table_infos(server.client).items()):
        shapes = "" if info.signature else ", of any shape: without a signature (--like SRC) it refuses none"
        output.say(f"table {name!r}: {info.current_size:,} of at most {info.max_size:,} items{shapes}")
    output.say(f"serving on {server.address}, and on every other interface without authentication; Ctrl-C ends it")
    while not _arrives(signals, checkpoint_secs):
        write_checkpoint(server)
    if server.has_checkpoints:
        _write_last(server, signals)


def _arrives(signals: list[int], secs: float | None) -> bool:
    """Waits until a signal arrived, at most for some time; returns whether one did, and forgets it."""
    end = math.inf if secs is None else time.monotonic() + secs
    while not signals and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _LONGEST_SLEEP_SECS))
    has_arrived = bool(signals)
    signals.clear()
    return has_arrived


def write_checkpoint(server: ReplayServer) -> None:
    """Writes a checkpoint; if that fails, says so and leaves it to the next time."""
    from rlds2reverb.errors import CheckpointError, ServerUnavailableError, StorageFullError

    try:
        output.say(f"checkpoint {server.checkpoint()}")
    except (CheckpointError, ServerUnavailableError, StorageFullError) as error:
        output.warn(f"no checkpoint: {_sentence(error)}")


def _write_last(server: ReplayServer, signals: list[int]) -> None:
    """Writes the last checkpoint, as soon as there is space; a signal ends the waiting."""
    from rlds2reverb.errors import CheckpointError, StorageFullError

    said = False
    while True:
        try:
            output.say(f"checkpoint {server.checkpoint()}")
            return
        except (CheckpointError, StorageFullError) as error:
            if not said:
                output.warn(
                    f"{_sentence(error)}. All items are still in memory: this is tried again every {_RETRY_SECS:g} s; "
                    "Ctrl-C or SIGTERM ends it without a checkpoint"
                )
                said = True
            if _arrives(signals, _RETRY_SECS):
                raise


def _sentence(error: Exception) -> str:
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)
