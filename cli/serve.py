"""`rlds2reverb serve`: a Reverb server with its own port, lock and checkpoints."""

from __future__ import annotations

import signal
import threading
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
    require_unused,
    signature_of,
    start_server,
    table_options,
)
from .quiet import import_quietly

if TYPE_CHECKING:
    from rlds2reverb._server.replay_server import ReplayServer


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

    With --checkpoint-root it starts from the newest checkpoint in there, and writes one when it ends. Reverb listens
    on all interfaces and asks nobody who they are: keep the port behind a firewall.
    """
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
        serve_until_end(server)


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


def serve_until_end(server: ReplayServer) -> None:
    """Says where the server is and who can reach it, waits for Ctrl-C or SIGTERM, and writes a checkpoint if it may."""
    from rlds2reverb._server.clients import table_infos

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    for name, info in sorted(table_infos(server.client).items()):
        output.say(f"table {name!r}: {info.current_size:,} of at most {info.max_size:,} items")
    output.say(f"serving on {server.address}, and on every other interface without authentication; Ctrl-C ends it")
    while not ended.wait(0.2):
        pass
    if server.has_checkpoints:
        output.say(f"checkpoint {server.checkpoint()}")
