"""`rlds2reverb convert`: a data set into the tables of a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb.sources import Source

from . import output
from .options import (
    SERVER_ONLY,
    json_option,
    open_source,
    require_unused,
    source_options,
    start_server,
    table_names,
    table_options,
    transform_options,
    transformed,
)
from .quiet import import_quietly
from .serve import serve_until_end

if TYPE_CHECKING:
    from rlds2reverb.serving import ReplayServer


@click.command()
@source_options
@click.option("--to", "address", metavar="HOST:PORT", help="Write to this running server.")
@click.option("--serve", is_flag=True, help="Start a server, write to it, and serve until Ctrl-C.")
@table_options
@transform_options
@click.option(
    "--save-statistics",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write means, stds and scales that were used to a JSON file.",
)
@click.option("--append", is_flag=True, help="With --serve: add to the items of a checkpoint.")
@click.option("--sequence-length", default=2, show_default=True, help="Trajectories in an item; 2 is one transition.")
@click.option("--stride", default=1, show_default=True, help="Trajectories between the beginnings of items.")
@click.option("--priority", default=1.0, show_default=True, help="Priority of every item.")
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
    help="error checks everything first and writes nothing if an episode is invalid.",
)
@click.option("--timeout", default=30.0, show_default=True, help="Seconds to wait for the server, each time.")
@json_option
def convert(
    address: str | None, serve: bool, append: bool, save_statistics: Path | None, as_json: bool, **options: Any
) -> None:
    """Write a data set into a Reverb table.

    Give either --to, for a server that is running and has the table, or --serve, which starts one with a table made
    for the data; the table's options (--sampler and on) are for --serve.
    """
    if bool(address) == serve:
        raise click.UsageError("give either --to HOST:PORT or --serve")
    if address:
        require_unused(SERVER_ONLY, "is for --serve; a running server has its tables already")
    import_quietly("reverb", "tf_agents.trajectories")
    source, statistics = transformed(open_source(options), options)
    if address:
        _ingest(source, address, options, as_json=as_json)
        _save(statistics, save_statistics)
        return
    from rlds2reverb.tables import item_signature
    from rlds2reverb.trajectories import trajectory_spec

    signature = item_signature(trajectory_spec(source.step_spec), options["sequence_length"])
    with start_server(options, signature) as server:
        if not append:
            _require_empty(server)
        _ingest(source, server.address, options, as_json=as_json)
        _save(statistics, save_statistics)
        if server.has_checkpoints:
            output.say(f"checkpoint {server.checkpoint()}")
        serve_until_end(server)


def _require_empty(server: ReplayServer) -> None:
    for name, info in server.client.server_info(timeout=10).items():
        if info.current_size:
            raise click.UsageError(
                f"table {name!r} has {info.current_size:,} items from the checkpoint already; give --append to add to "
                "them, or another --checkpoint-root"
            )


def _save(statistics: dict[str, Any], path: Path | None) -> None:
    if path:
        path.write_text(json.dumps(statistics, indent=1, allow_nan=False) + "\n")


def _ingest(source: Source, address: str, options: dict[str, Any], *, as_json: bool) -> None:
    from rlds2reverb.ingestion import IngestReport, ingest

    with output.StepProgress(source) as progress:
        report: IngestReport = ingest(
            source,
            address,
            table_names(options),
            sequence_length=options["sequence_length"],
            stride=options["stride"],
            priority=options["priority"],
            discount_source=options["discount"],
            on_invalid=options["on_invalid"],
            timeout_secs=options["timeout"],
            progress=progress,
        )
    if as_json:
        output.print_json(report.as_dict())
        return
    seconds = ", ".join(f"{stage} {taken:.1f} s" for stage, taken in report.seconds.items())
    rows = [
        ("into", f"{', '.join(report.tables)} at {address}"),
        ("episodes", f"{report.episodes:,}"),
        ("steps", f"{report.steps:,} ({output.size(report.bytes)})"),
        ("items", f"{report.items:,} in each table, of {options['sequence_length']} steps"),
        ("speed", f"{output.number(round(report.steps_per_second))} steps/s ({seconds})"),
        ("fingerprint", f"sha256 {report.fingerprint}"),
    ]
    notes = [
        (report.open_ends, "episodes just stop in the data; written as truncated"),
        (report.too_short, "episodes are shorter than an item and gave none"),
        (report.skipped_episodes, "invalid episodes were left out"),
        (report.kept_problems, "problems were kept"),
    ]
    rows += [("note", f"{count:,} {what}") for count, what in notes if count]
    output.console().print(output.facts(f"{report.source} converted", rows))
    for problem in report.problems:
        output.warn(str(problem))
