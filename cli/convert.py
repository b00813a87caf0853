"""`rlds2reverb convert`: writes a dataset into the tables of a server, a directory for servers, or another format."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb._system.signals import raise_on_sigterm
from rlds2reverb.errors import CheckpointError
from rlds2reverb.locations import is_table_directory
from rlds2reverb.server.process import start_launcher
from rlds2reverb.sources import Source
from rlds2reverb.sources.writing import FORMATS

from . import checks, output
from .options import (
    GroupedCommand,
    apply_transform_options,
    get_reading_options,
    item_options,
    make_adder,
    make_signature,
    make_transforms,
    open_source,
    parameter_names,
    reading_options,
    require_item_options,
    require_server_options,
    require_unused,
    server_options,
    sources_options,
    start_server,
    table_configs,
    table_names,
    table_options,
    transform_options,
)
from .output import json_option
from .quiet import hide_other_processes, import_quietly, status
from .serve import serve_until_end, write_checkpoint

if TYPE_CHECKING:
    from rlds2reverb.items import EpisodeAdder
    from rlds2reverb.server.replay_server import ReplayServer
    from rlds2reverb.server.sharded_server import ShardedReplayServer
    from rlds2reverb.writing.report import IngestReport

_HEADINGS = {
    "Destination": [
        *(
            "out",
            "format",
            "num_shards",
            "address",
            "serve",
            "port",
            "isolate",
            "serve_batches",
            "checkpoint_root",
            "checkpoint_secs",
        ),
        "append",
    ],
    "Input": parameter_names(reading_options),
    "Preprocessing": [*parameter_names(transform_options), "on_invalid", "save_statistics"],
    "Items": [*parameter_names(item_options), "stride", "padding", "discount_source", "priority"],
    "Table": parameter_names(table_options),
    "Dataset formats": ["recompute_discounts", "shard_mb"],
    "Apache Beam": ["runner", "beam_pipeline_options"],
    "Advanced": [
        *("resume", "timeout", "chunk_length", "writer", "key_seed", "allow_eviction", "force", "no_verify"),
    ],
}
_SERVE_ONLY = {"port", "isolate", "serve_batches", "checkpoint_root", "checkpoint_secs", "no_verify", "append"}
#: Parameters that apply to all formats, and those that apply to some.
_COMMON = {
    *("source", "out", "format", "on_invalid", "save_statistics", "as_json", "runner", "beam_pipeline_options"),
    *parameter_names(reading_options),
    *parameter_names(transform_options),
}
_FORMATS_OF = {"recompute_discounts": ("d4rl", "minari"), "shard_mb": ("rlds",)}
_NEW_TABLES_ONLY = {"sampler", "remover", "max_size", "max_times_sampled", "rate_limiter"}


@click.command(cls=GroupedCommand, headings=_HEADINGS)
@sources_options
@click.option(
    "--out",
    metavar="PATH",
    help="Write a directory that servers start from (rlds2reverb serve --data DIR), or a dataset in another --format.",
)
@click.option(
    "--format",
    type=click.Choice(["reverb", *FORMATS]),
    default="reverb",
    show_default=True,
    help="Format of --out: Reverb tables, a D4RL HDF5 file, a directory as TFDS prepares it (rlds), or a Minari "
    "dataset.",
)
@click.option(
    "--shards",
    "num_shards",
    type=checks.at_least_1,
    metavar="K",
    help="Distribute the episodes over K servers (--serve), or over directories shard_0, shard_1, ... for them "
    "(--out), by a hash of their index.",
)
@click.option(
    "--to",
    "address",
    metavar="HOST:PORT",
    callback=checks.address,
    help="Write to this running server, which must have the table already; or to several, separated by commas, over "
    "which the episodes are distributed.",
)
@click.option("--serve", is_flag=True, help="Start a server, write to it, and serve until Ctrl-C.")
@table_options
@server_options
@transform_options
@click.option(
    "--save-statistics",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=checks.new_file,
    metavar="FILE",
    help="Write the statistics used in preprocessing (means, standard deviations, scales) to a JSON file.",
)
@click.option("--append", is_flag=True, help="With --serve: add to the items that the checkpoint contains.")
@item_options
@click.option(
    "--stride",
    default=1,
    show_default=True,
    type=checks.at_least_1,
    metavar="N",
    help="Steps between the starts of consecutive items.",
)
@click.option(
    "--padding",
    type=click.Choice(["none", "short", "tile"]),
    default="none",
    show_default=True,
    help="Zero padding: 'short' pads episodes that are shorter than an item; 'tile' pads every episode so that an item "
    "starts at each step.",
)
@click.option(
    "--discount-source",
    type=click.Choice(["product", "next_terminal", "step"]),
    default="product",
    show_default=True,
    help="Discount of a trajectory step: the dataset's discount (step), 1 - is_terminal of the next step "
    "(next_terminal), or their product.",
)
@click.option(
    "--priority",
    default="1",
    show_default=True,
    metavar="NUMBER|return",
    callback=checks.priority,
    help="Initial priority of items: a number, or the return of the item's episode scaled to [0.01, 1].",
)
@click.option(
    "--on-invalid",
    type=click.Choice(["error", "skip_episode", "keep"]),
    default="error",
    show_default=True,
    help="Handling of invalid episodes; with 'error', nothing is written if any episode is invalid.",
)
@click.option(
    "--recompute-discounts",
    is_flag=True,
    help="--format d4rl and minari: replace discounts that these formats cannot store by 0 at terminal transitions and "
    "1 elsewhere.",
)
@click.option(
    "--shard-mb",
    type=checks.at_least_1,
    default=256,
    show_default=True,
    metavar="MB",
    help="--format rlds: size from which a new file is started.",
)
@click.option(
    "--runner",
    metavar="RUNNER",
    help="Convert on Apache Beam, with --out and --format reverb or rlds: direct (this machine), flink, spark, "
    "dataflow, or the name of another runner. Requires pip install '.[beam]' or make dev.",
)
@click.option(
    "--beam-pipeline-options",
    "--beam_pipeline_options",
    default="",
    metavar="NAME=VALUE,...",
    help="Options of Beam's runner, such as direct_num_workers=4,direct_running_mode=multi_processing.",
)
@click.option("--resume/--no-resume", default=True, show_default=True, help="Continue a run that was interrupted.")
@click.option(
    "--chunk-length",
    type=checks.integer(1, 1_000_000),
    metavar="N",
    show_default="chosen by size",
    help="Items per Reverb chunk.",
)
@click.option(
    "--writer",
    type=click.Choice(["bulk", "reverb"]),
    default="bulk",
    show_default=True,
    help="'reverb' uses Reverb's own writer, which is much slower and may store items twice if it is interrupted.",
)
@click.option(
    "--key-seed",
    default=0,
    type=checks.integer(),
    show_default=True,
    metavar="N",
    help="Seed of the item keys; change it if two keys collide.",
)
@click.option(
    "--timeout",
    default=30.0,
    show_default=True,
    type=checks.seconds,
    metavar="SECONDS",
    help="Maximum wait for each answer of the server.",
)
@click.option(
    "--allow-eviction", is_flag=True, help="Allow more items than the table can hold; the remover then evicts items."
)
@click.option(
    "--force", is_flag=True, help="Write to a server on this machine even if it has too little memory for the data."
)
@json_option
def convert(
    address: str | None,
    serve: bool,
    out: str | None,
    append: bool,
    save_statistics: Path | None,
    as_json: bool,
    format: str,
    **options: Any,
) -> None:
    """Write a dataset into Reverb tables, or in another dataset format.

    \b
    Examples:
      rlds2reverb convert hopper_medium-v2.hdf5 --out hopper/
      rlds2reverb convert hopper_medium-v2.hdf5 --serve --port 8000
      rlds2reverb convert hopper_medium-v2.hdf5 --to host:8000 --n-step 3
      rlds2reverb convert hopper_medium-v2.hdf5 --format rlds --out hopper/1.0.0
      rlds2reverb convert 'gs://bucket/*.hdf5' --out /mnt/hopper --runner direct

    SRC is a dataset (see rlds2reverb --help), several datasets that are read as one, or a pattern. Pass exactly one
    destination: --out writes a directory that servers start from, --to writes to a running server, and --serve starts a
    server and keeps it running. The table options define the tables that --out and --serve create.

    An item is what one sample from the table returns; by default it is a transition (two consecutive steps). To
    continue an interrupted conversion, run the same command again. Training needs no conversion: rlds2reverb train
    reads the same files directly.

    With --format d4rl, rlds or minari, --out is a new dataset of that format, with the same episodes. It appears when
    it is complete.
    """
    if options["runner"]:
        _require_beam_options(out, format)
        _convert_with_beam(str(out), format, options, save_statistics, as_json=as_json)
        return
    require_unused({"beam_pipeline_options"}, "requires --runner")
    if format != "reverb":
        _convert_dataset(Path(out) if out else None, format, options, save_statistics, as_json=as_json)
        return
    require_unused(set(_FORMATS_OF), "requires a different --format than reverb")
    if out == "":
        raise click.UsageError("--out must be a path, got ''")
    if bool(address) + serve + bool(out) != 1:
        raise click.UsageError("pass exactly one of --out DIR, --to HOST:PORT and --serve")
    if not serve:
        require_unused(_SERVE_ONLY, "requires --serve")
    if address:
        require_unused({"num_shards"}, "requires --out or --serve")
    if address:
        require_unused(_NEW_TABLES_ONLY, "requires --serve or --out; a running server has its tables already")
    if out:
        require_unused({"timeout", "writer", "force"}, "requires --to or --serve")
        _require_vacant(Path(out))
    require_server_options(options)
    require_item_options(options)
    with raise_on_sigterm():
        source = open_source(options)
        if serve:
            start_launcher()
        import_quietly("tensorflow", "tf_agents.trajectories")
        adder = make_adder(options)
        with status("computing the statistics of the dataset"):
            source, statistics = apply_transform_options(source, options)
        if serve:
            with start_server(options, make_signature(source, adder, options)) as server:
                if not append:
                    _require_empty(server)
                _ingest(source, server.address, adder, options, as_json=as_json)
                _save_statistics(save_statistics, statistics)
                if server.has_checkpoints:
                    write_checkpoint(server)
                serve_until_end(server, checkpoint_secs=options["checkpoint_secs"])
        else:
            _ingest(source, Path(out) if out else address, adder, options, as_json=as_json)
            _save_statistics(save_statistics, statistics)


def _convert_dataset(
    out: Path | None, format: Any, options: dict[str, Any], save_statistics: Path | None, *, as_json: bool
) -> None:
    """Writes a dataset in another format than Reverb's."""
    from rlds2reverb.sources.writing import write_dataset

    require_unused(set(click.get_current_context().params) - _COMMON - set(_FORMATS_OF), "requires --format reverb")
    for name, formats in _FORMATS_OF.items():
        if format not in formats:
            require_unused({name}, f"requires --format {' or '.join(formats)}")
    if out is None:
        raise click.UsageError(f"--format {format} requires --out")
    with raise_on_sigterm():
        source = open_source(options)
        with status("computing the statistics of the dataset"):
            source, statistics = apply_transform_options(source, options)
        if format == "rlds":
            import_quietly("tensorflow_datasets")
        with output.StepProgress(source) as progress:
            report = write_dataset(
                source,
                out,
                format=format,
                on_invalid=options["on_invalid"],
                recompute_discounts=options["recompute_discounts"],
                shard_bytes=options["shard_mb"] * 1_000_000 if format == "rlds" else None,
                progress=progress,
            )
        _save_statistics(save_statistics, statistics)
    if as_json:
        output.print_json(report.as_dict())
    else:
        facts = [fact for fact in report.facts() if fact[0] != "warning" or fact[1] not in source.warnings]
        output.print_facts(f"{report.source} converted", facts)


def _require_beam_options(out: str | None, format: str) -> None:
    """Raises `click.UsageError` for options that have no effect on Beam."""
    if out is None or format not in ("reverb", "rlds"):
        raise click.UsageError("--runner requires --out, and --format reverb or rlds")
    require_unused(_SERVE_ONLY | {"address", "serve"}, "cannot be combined with --runner")
    require_unused({"timeout", "writer", "force", "allow_eviction"}, "has no effect with --runner")
    if format == "rlds":
        require_unused(set(click.get_current_context().params) - _COMMON - {"shard_mb"}, "requires --format reverb")
    else:
        require_unused(set(_FORMATS_OF), "requires a different --format than reverb")


def _convert_with_beam(
    out: str, format: str, options: dict[str, Any], save_statistics: Path | None, *, as_json: bool
) -> None:
    """Converts a dataset on Beam's workers."""
    try:
        import_quietly("rlds2reverb.beam")
        from rlds2reverb.beam import BeamOptions, convert_with_beam, prepare_with_beam
    except ImportError as error:
        raise click.UsageError(
            "--runner requires Apache Beam: run pip install '.[beam]' in the checkout, or make dev after make install"
        ) from error
    from rlds2reverb.ingestion import IngestOptions
    from rlds2reverb.writing.report import IngestWarning

    require_item_options(options)
    names = [name for name in options["beam_pipeline_options"].split(",") if name]
    common: dict[str, Any] = {
        "transforms": make_transforms(options),
        "on_invalid": options["on_invalid"],
        "beam_options": BeamOptions(options["runner"], tuple(f"--{name.lstrip('-')}" for name in names)),
        **get_reading_options(options),
    }
    with (
        raise_on_sigterm(),
        hide_other_processes(),
        status(f"converting on Beam's {options['runner']} runner"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", IngestWarning)  # The printed report contains them.
        if format == "rlds":
            prepared = prepare_with_beam(options["source"], out, shard_bytes=options["shard_mb"] * 1_000_000, **common)
            report: Any = prepared
        else:
            report = convert_with_beam(
                options["source"],
                out,
                table_configs(options),
                adder=make_adder(options),
                priority="return" if options["priority"] == "return" else float(options["priority"]),
                layout=options["layout"],
                num_shards=options["num_shards"],
                resume=options["resume"],
                options=IngestOptions(chunk_length=options["chunk_length"], key_seed=options["key_seed"]),
                **common,
            )
            _save_statistics(save_statistics, dict(report.statistics))
    if as_json:
        output.print_json(report.as_dict())
    elif format == "rlds":
        output.print_facts(f"{report.source} converted", report.facts())
    else:
        _print(report, Path(out), options, ())


def _require_vacant(out: Path) -> None:
    """Raises `click.UsageError` unless the path is free, an empty directory or a converted one."""
    if not os.path.lexists(out) or is_table_directory(out):
        return
    if not out.is_dir() or any(out.iterdir()):
        raise click.UsageError(f"--out {out} exists and was not written by rlds2reverb; pass a new directory")


def _require_empty(server: ReplayServer | ShardedReplayServer) -> None:
    from rlds2reverb.client import find_addresses, table_infos

    tables = [table for address in find_addresses(server) for table in table_infos(address).items()]
    for name, info in tables:
        if info.current_size:
            raise click.UsageError(
                f"table {name!r} already has {info.current_size:,} items from the checkpoint; pass --append to add to "
                "them, or a different --checkpoint-root"
            )


def _save_statistics(path: Path | None, statistics: dict[str, Any]) -> None:
    if path:
        path.write_text(json.dumps(statistics, indent=1, allow_nan=False) + "\n")


def _ingest(source: Source, destination: Any, adder: EpisodeAdder, options: dict[str, Any], *, as_json: bool) -> None:
    from rlds2reverb.ingestion import IngestOptions, ingest
    from rlds2reverb.priorities import ByReturn
    from rlds2reverb.server.commits import shard_path
    from rlds2reverb.writing.report import IngestWarning

    is_directory = isinstance(destination, Path)
    num_shards = options["num_shards"] or 0
    is_sharded = is_directory and num_shards > 0
    existed = is_directory and destination.exists()
    by_return = options["priority"] == "return"
    try:
        with output.StepProgress(source) as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", IngestWarning)  # The printed report contains them.
            report = ingest(
                source,
                [shard_path(destination, shard) for shard in range(num_shards)] if is_sharded else destination,
                table_configs(options) if is_directory else table_names(options),
                adder=adder,
                priority=ByReturn.from_episodes(source) if by_return else float(options["priority"]),
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
        if existed:
            raise click.UsageError(str(error)) from error
        raise
    if as_json:
        output.print_json(report.as_dict())
    else:
        _print(report, destination, options, source.warnings)


def _print(report: IngestReport, destination: Any, options: dict[str, Any], printed_warnings: Sequence[str]) -> None:
    # The warnings of the source were printed when it was opened.
    facts = [fact for fact in report.facts() if fact[0] != "warning" or fact[1] not in printed_warnings]
    facts.insert(0, ("directory" if isinstance(destination, Path) else "server", str(destination)))
    facts.insert([name for name, _ in facts].index("items") + 1, ("item kind", _describe_items(options)))
    if isinstance(destination, Path):
        facts.append(("next", f"rlds2reverb serve --data {destination}"))
    output.print_facts(f"{report.source} converted", facts)


def _describe_items(options: dict[str, Any]) -> str:
    if options["whole_episodes"]:
        return "whole episodes"
    if options["n_step"] is not None:
        return f"{options['n_step']}-step transitions"
    if options["sequence_length"] == 2:
        return "transitions (2 steps each)"
    return f"windows of {output.count(options['sequence_length'], 'step')}"
