"""`rlds2reverb serve`: a Reverb server with its own port, lock and checkpoints."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import output
from .options import table_configs, table_options
from .quiet import import_quietly

if TYPE_CHECKING:
    from rlds2reverb.serving import ReplayServer


@click.command()
@table_options
@click.option("--like", metavar="SRC", help="Give the tables the signature of this data set.  [default: none]")
@click.option("--sequence-length", default=2, show_default=True, help="With --like: trajectories in an item.")
@click.option("--cast-floats", is_flag=True, help="With --like: float64 is cast to float32.")
@click.option("--no-verify", is_flag=True, help="Start from a checkpoint that does not match its manifest.")
def serve(like: str | None, sequence_length: int, cast_floats: bool, no_verify: bool, **options: Any) -> None:
    """Start a Reverb server and run until Ctrl-C or SIGTERM.

    With --checkpoint-root it starts from the newest checkpoint in there, and writes one when it ends. Reverb listens
    on all interfaces and asks nobody who they are: keep the port behind a firewall.
    """
    import_quietly("reverb", *(["tf_agents.trajectories"] if like else []))
    from rlds2reverb.serving import ReplayServer

    with ReplayServer(
        table_configs(options),
        _signature(like, sequence_length, cast_floats) if like else None,
        port=options["port"],
        checkpoint_root=options["checkpoint_root"],
        verify=not no_verify,
    ) as server:
        announce(server)
        wait_for_end()
        if options["checkpoint_root"]:
            output.say(f"checkpoint {server.checkpoint()}")


def _signature(like: str, sequence_length: int, cast_floats: bool) -> Any:
    from rlds2reverb.sources import load
    from rlds2reverb.tables import item_signature
    from rlds2reverb.trajectories import trajectory_spec
    from rlds2reverb.transforms import CastFloats, apply_transforms

    source = load(Path(like) if Path(like).exists() else like, max_episode_steps=None)
    source, _ = apply_transforms(source, [CastFloats()] if cast_floats else [])
    return item_signature(trajectory_spec(source.step_spec), sequence_length)


def announce(server: ReplayServer) -> None:
    """Says where the server is and who can reach it."""
    infos = server.client.server_info(timeout=10)
    for name, info in sorted(infos.items()):
        output.say(f"table {name!r}: {info.current_size:,} of at most {info.max_size:,} items")
    output.say(f"serving on {server.address}, and on every other interface without authentication; Ctrl-C ends it")


def wait_for_end() -> None:
    """Waits for Ctrl-C or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    while not ended.wait(0.2):
        pass
