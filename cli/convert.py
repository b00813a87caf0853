"""`rlds2reverb convert`: a data set into the tables of a server, or into a directory that a server starts from."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb.errors import CheckpointError
from rlds2reverb.sources import Source

from . import checks, output
from .options import (
    GroupedCommand,
    adder_of,
    item_options,
    names_of,
    open_source,
    reading_options,
    require_item_options,
    require_table_options,
    require_unused,
    signature_of,
    source_options,
    start_server,
    table_configs,
    table_names,
    table_options,
    transform_options,
    transformed,
)
from .output import json_option
from .quiet import import_quietly, status
from .serve import serve_until_end, write_checkpoint
from .stopping import sigterm_as_exception

if TYPE_CHECKING:
    from rlds2reverb._server.replay_server import ReplayServer
    from rlds2reverb._writing.report import IngestReport
    from rlds2reverb.items import EpisodeAdder

_HEADINGS = {
    "Where to": ["address", "serve", "out", "append", "resume", "save_statistics"],
    "What to read": names_of(reading_options),
    "What to change": names_of(transform_options),
    "Items": [*names_of(item_options), "stride", "padding", "priority", "discount", "on_invalid"],
    "Tables and the server (--serve, --out)": names_of(table_options),
    "Writing": ["chunk_length", "writer", "key_seed", "timeout", "allow_eviction", "force"],
}
_SERVE_ONLY = {"port", "checkpoint_root", "checkpoint_secs", "no_verify", "append"}
_NEW_TABLES_ONLY = {"sampler", "remover", "max_size", "max_times_sampled", "rate_limiter"}


@click.command(cls=GroupedCommand, headings=_HEADINGS)
@source_options
@click.option("--to", "address", metavar="HOST:PORT", callback=checks.address, help="Write to this running server.")
@click.option("--serve", is_flag=True, help="Start a server, write to it, and serve until Ctrl-C.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write a directory that a server starts from (rlds2reverb serve --from).",
)
@table_options
@transform_options
@click.option(
    "--save-statistics",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write what was changed to a JSON file, with the means, stds and scales that were used.",
)
@click.option("--append", is_flag=True, help="With --serve: add to the items of a checkpoint.")
@item_options
@click.option(
    "--stride",
    default=1,
    show_default=True,
    type=checks.at_least_1,
    help="Trajectories between the beginnings of items.",
)
@click.option(
    "--padding",
    type=click.Choice(["none", "short", "tile"]),
    default="none",
    show_default=True,
    help="Fill up with rows of zeros: episodes shorter than an item; or the end of each, so that every row begins one.",
)
@click.option(
    "--priority",
    default="1",
    show_default=True,
    metavar="NUMBER|return",
    callback=checks.priority,
    help="Of every item; or by the return of its episode, from 0.01 for the lowest to 1.",
)
@click.option(
    "--discount",
    type=click.Choice(["product", "next_terminal", "step"]),
    default="product",
    show_default=True,
    help="The step's discount times 1 - is_terminal of the next step; only the latter; or only the former.",
)
@click.option(
    "--on-invalid",
    type=click.Choice(["error", "skip_episode", "keep"]),
    default="error",
    show_default=True,
    help="error writes nothing if an episode is invalid.",
)
@click.option("--resume/--no-resume", default=True, show_default=True, help="Continue a run that was killed.")
@click.option(
    "--chunk-length",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Items that share a chunk.  [default: found out]",
)
@click.option(
    "--writer",
    type=click.Choice(["bulk", "public"]),
    default="bulk",
    show_default=True,
    help="public: Reverb's own, much slower, and not exactly once.",
)
@click.option("--key-seed", default=0, show_default=True, help="Other keys, should two of them coincide.")
@click.option(
    "--timeout", default=30.0, show_default=True, type=checks.seconds, help="Seconds to wait for the server, each time."
)
@click.option("--allow-eviction", is_flag=True, help="Write more items than a table holds; the older ones are removed.")
@click.option("--force", is_flag=True, help="Write to a server here even if the data need more memory than there is.")
@json_option
def convert(
    address: str | None,
    serve: bool,
    out: Path | None,
    append: bool,
    save_statistics: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write a data set into a Reverb table.

    Give one of --to, for a server that is running and has the table; --serve, which starts one with a table made for
    the data; or --out, for a directory to start servers from. The table's options (--sampler and on) are for the
    latter two. A run that was killed continues when it is started again with the same arguments. With --serve and
    --checkpoint-root, checkpoints are written once the data are in and at the end; between, see --checkpoint-every.
    """
    if bool(address) + serve + bool(out) != 1:
        raise click.UsageError("give one of --to HOST:PORT, --serve and --out DIRECTORY")
    if not serve:
        require_unused(_SERVE_ONLY, "is for --serve")
    if address:
        require_unused(_NEW_TABLES_ONLY, "is for --serve and --out; a running server has its tables already")
    if out:
        require_unused({"timeout", "writer", "force"}, "is for writing to a server")
        _require_vacant(out)
    require_table_options(options)
    require_item_options(options)
    with sigterm_as_exception():
        source = open_source(options)
        import_quietly("reverb", "tf_agents.trajectories")
        adder = adder_of(options)
        with status("reading the data set for its statistics"):
            source, statistics = transformed(source, options)
        if address or out:
            _ingest(source, out or address, adder, options, as_json=as_json)
            _save(statistics, save_statistics)
            return
        _serve(source, adder, statistics, save_statistics, options, append=append, as_json=as_json)


def _serve(
    source: Source,
    adder: EpisodeAdder,
    statistics: dict[str, Any],
    save_statistics: Path | None,
    options: dict[str, Any],
    *,
    append: bool,
    as_json: bool,
) -> None:
    """Converts into a new server, and serves until the end."""
    signature = signature_of(source, adder, options)
    with start_server(options, signature) as server:
        if not append:
            _require_empty(server)
        _ingest(source, server.address, adder, options, as_json=as_json)
        _save(statistics, save_statistics)
        if server.has_checkpoints:
            write_checkpoint(server)
        serve_until_end(server, checkpoint_secs=options["checkpoint_secs"])


def _require_vacant(out: Path) -> None:
    """Raises `click.UsageError` if something else than a directory of ours is there."""
    if not os.path.lexists(out) or (out / "rlds2reverb.json").is_file():
        return
    if not out.is_dir() or any(out.iterdir()):
        raise click.UsageError(f"--out {out} exists already and is not a directory of ours; give a new one")


def _priority(options: dict[str, Any], source: Source) -> Any:
    from rlds2reverb.priorities import ByReturn

    return ByReturn.of(source) if options["priority"] == "return" else float(options["priority"])


def _require_empty(server: ReplayServer) -> None:
    from rlds2reverb._server.clients import table_infos

    for name, info in table_infos(server.client).items():
        if info.current_size:
            raise click.UsageError(
                f"table {name!r} has {info.current_size:,} items from the checkpoint already; give --append to add to "
                "them, or another --checkpoint-root"
            )


def _save(statistics: dict[str, Any], path: Path | None) -> None:
    if path:
        path.write_text(json.dumps(statistics, indent=1, allow_nan=False) + "\n")


def _ingest(source: Source, destination: Any, adder: EpisodeAdder, options: dict[str, Any], *, as_json: bool) -> None:
    from rlds2reverb._writing.report import IngestWarning
    from rlds2reverb.ingestion import IngestOptions, ingest

    to_directory = isinstance(destination, Path)
    was_there = to_directory and destination.exists()
    try:
        with output.StepProgress(source) as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", IngestWarning)  # the report that is printed has them
            report = ingest(
                source,
                destination,
                table_configs(options) if to_directory else table_names(options),
                adder=adder,
                priority=_priority(options, source),
                on_invalid=options["on_invalid"],
                resume=options["resume"],
                layout=options["layout"],
                timeout_secs=options["timeout"],
                options=IngestOptions(
                    writer=options["writer"],
                    chunk_length=options["chunk_length"],
                    key_seed=options["key_seed"],
                    force=options["force"],
                    allow_eviction=options["allow_eviction"],
                ),
                progress=progress,
            )
    except CheckpointError as error:
        if was_there:
            raise click.UsageError(str(error)) from error
        raise
    if as_json:
        output.print_json(report.as_dict())
    else:
        _print(report, destination, options, source.warnings)


def _print(report: IngestReport, destination: Any, options: dict[str, Any], warned: Sequence[str]) -> None:
    length = output.counted(options["sequence_length"], "step")
    if options["whole_episodes"]:
        length = "a whole episode"
    elif options["n_step"] is not None:
        length = f"a transition over {output.counted(options['n_step'], 'step')}"
    # The warnings of the source were printed when it was opened.
    facts = [fact for fact in report.facts() if fact[0] != "warning" or fact[1] not in warned]
    facts.insert(1, ("at", str(destination)))
    if isinstance(destination, Path):
        facts.insert(2, ("serve", f"rlds2reverb serve --from {destination}"))
    facts.insert([name for name, _ in facts].index("items") + 1, ("an item", length))
    output.print_facts(f"{report.source} converted", facts)
