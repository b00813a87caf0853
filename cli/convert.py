"""`rlds2reverb convert`: writes a dataset as a directory that servers start from, to a server, or in another format."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb.datasets.writers.lerobot_writer import VERSIONS
from rlds2reverb.datasets.writers.writing import WRITTEN_FORMATS
from rlds2reverb.system.installation import install_command
from rlds2reverb.system.signals import raise_on_sigterm
from rlds2reverb.types.locations import find_shard_numbers, is_table_directory, server_address

from . import checks, output
from .declarations import flag, option, parameter_names
from .item_writing import (
    ITEM_PACKAGES,
    describe_items,
    drop_printed,
    open_prepared,
    print_report,
    save_statistics,
    write_items,
)
from .number_types import at_least_1, seconds
from .options import (
    ADVANCED_NAMES,
    CONVERSION_HEADINGS,
    GroupedCommand,
    conversion_options,
    make_episode_adder,
    make_transforms,
    require_item_options,
    require_unused,
    server_writing_options,
    sources_argument,
    table_configs,
    table_options,
)
from .output import json_option
from .quiet import hide_other_processes, import_quietly, status
from .reading import get_load_arguments

if TYPE_CHECKING:
    from rlds2reverb.datasets.writers.writing import WriteReport

_TABLE_NAMES = parameter_names(table_options)
#: Formats to which an option applies, if not to all; at first only of the options under the heading 'Advanced'.
_FORMATS_OF: dict[str, Sequence[str]] = {
    "recompute_discounts": ("d4rl", "minari", "lerobot", "robomimic"),
    "shard_mb": ("rlds",),
    **dict.fromkeys(["lerobot_version", "fps", "video"], ("lerobot",)),
    "num_workers": WRITTEN_FORMATS,
    "runner": ("reverb", "rlds"),
}
#: Options about the tables of a running server.
_SERVER_NAMES = ["writer", "timeout", *parameter_names(server_writing_options)]
_HEADINGS = {
    "Output": ["out", "format", "num_shards", "verify"],
    **CONVERSION_HEADINGS,
    "Tables": _TABLE_NAMES,
    "Advanced": [*ADVANCED_NAMES, *_FORMATS_OF, "beam_pipeline_options"],
    "Servers": _SERVER_NAMES,
}
_FORMATS_OF |= dict.fromkeys(
    ["num_shards", *CONVERSION_HEADINGS["Items"], *_TABLE_NAMES, *ADVANCED_NAMES, *_SERVER_NAMES], ("reverb",)
)


@click.command(cls=GroupedCommand, headings=_HEADINGS, explained=[*_HEADINGS["Output"], *_HEADINGS["Items"]])
@sources_argument()
@option("--out", type=checks.destination, required=True, help="Directory or file to write, or address of a server.")
@option(
    "--format",
    choices=["reverb", *WRITTEN_FORMATS],
    help="Reverb tables, a D4RL or robomimic HDF5 file, a directory as TFDS prepares it (rlds), a Minari or a LeRobot "
    "dataset.",
)
@option(
    "--shards",
    "num_shards",
    type=at_least_1,
    metavar="K",
    help="Distribute the episodes over directories shard_0, shard_1, ... for K servers, by a hash of their index.",
)
@flag(
    "--verify",
    help="Read the result back, and compare each item, or each field of each episode in other formats, with the "
    "dataset, bit for bit. If a directory of tables is complete already, only this is done.",
)
@table_options
@flag(
    "--recompute-discounts",
    help="--format d4rl, minari, lerobot and robomimic: replace discounts that these formats cannot store by 0 at "
    "terminal transitions and 1 elsewhere.",
)
@option(
    "--shard-mb",
    type=at_least_1,
    default=256,
    metavar="MB",
    help="--format rlds: size from which a new file is started.",
)
@option("--lerobot-version", choices=VERSIONS, help="--format lerobot: version of the format.")
@option(
    "--fps",
    type=float,
    metavar="RATE",
    show_default="that of the dataset, or 30",
    help="--format lerobot: rows per second, from which timestamps are made.",
)
@flag("--video", help="--format lerobot: store images as H.264 videos, which are lossy, rather than as PNG images.")
@option(
    "--workers",
    "num_workers",
    type=click.IntRange(0),
    metavar="N",
    show_default="read and write in one pass",
    help="All formats except reverb: read the dataset in N processes first (0 for this one), into a store next to "
    "PATH, so that the same command continues an interrupted conversion with the next episode.",
)
@option(
    "--runner",
    metavar="RUNNER",
    help="Convert on Apache Beam, with --format reverb or rlds: direct (this machine), flink, spark, dataflow, or the "
    "name of a different runner. Requires the extra beam (see rlds2reverb doctor).",
)
@option(
    "--beam-pipeline-options",
    "--beam_pipeline_options",
    default="",
    metavar="NAME=VALUE,...",
    help="Options of Beam's runner, such as direct_num_workers=4,direct_running_mode=multi_processing.",
    show_default=False,
)
@option(
    "--writer",
    choices=["bulk", "reverb"],
    help="'reverb' uses Reverb's own writer, which is much slower and may store items twice if it is interrupted.",
)
@option("--timeout", default=30.0, type=seconds, help="Maximum wait for each answer of the server.")
@server_writing_options
@conversion_options
@json_option
def convert(out: str, format: Any, runner: str | None, **options: Any) -> None:
    """Write a dataset as Reverb tables, into the tables of a running server, or in another format.

    \b
    Examples:
      rlds2reverb convert hopper_medium-v2.hdf5 --out hopper/
      rlds2reverb convert hopper_medium-v2.hdf5 --out host:8000,host:8001
      rlds2reverb convert hopper_medium-v2.hdf5 --out hopper/1.0.0 --format rlds
      rlds2reverb convert 'gs://bucket/*.hdf5' --out /mnt/hopper --runner direct

    SRC is a dataset (see rlds2reverb --help), several datasets that are read as one, or a pattern. --out is a directory
    of Reverb tables, from which rlds2reverb serve starts servers, or a dataset in another --format with the same
    episodes; it appears when it is complete. Or it is HOST:PORT of a server that has the tables already, or of several,
    over which the episodes are distributed. To continue an interrupted conversion, run the same command again.

    An item is what one sample from a table returns; by default it is a transition (two consecutive steps). Training
    needs no conversion: rlds2reverb train reads the same files directly.
    """
    for name, formats in _FORMATS_OF.items():
        if format not in formats:
            require_unused({name}, f"requires --format {' or '.join(formats)}")
    require_item_options(options)
    is_server = server_address(out) is not None
    if is_server:
        require_unused({"format"}, "requires a path as --out, got a server")
        names = {"num_shards", "verify", "runner", *_TABLE_NAMES} - {"table_names"}
        require_unused(names, "requires a directory as --out; the tables of a server exist already")
    else:
        require_unused(set(_SERVER_NAMES), "requires HOST:PORT of a server as --out")
    if runner:
        require_unused({"verify", "num_workers"}, "cannot be combined with --runner")
        _convert_with_beam(out, format, runner, options)
        return
    require_unused({"beam_pipeline_options"}, "requires --runner")
    if format == "reverb" and not is_server:
        _require_vacant(Path(out), options["num_shards"])
    with raise_on_sigterm():
        source, statistics = open_prepared(options, *(ITEM_PACKAGES if format == "reverb" else ()))
        if format == "reverb":
            write_items(source, out if is_server else Path(out), options, statistics)
        else:
            _write_dataset(source, Path(out), format, options)
            save_statistics(statistics, options)


def _write_dataset(source: Any, out: Path, format: Any, options: dict[str, Any]) -> None:
    """Writes a dataset in a format other than Reverb's, and prints the report."""
    from rlds2reverb.datasets.writers.writing import FORMAT_LIMITS, write_dataset

    limits = FORMAT_LIMITS[format]
    losses = limits.describe_lost_metadata(source)
    for loss in (limits.loss, *losses):
        if loss and source.kind != format:
            output.warn(loss)
    values = {
        "shard_bytes": options["shard_mb"] * 1_000_000,
        **{name: options[name] for name in ("recompute_discounts", "lerobot_version", "fps", "video")},
    }
    if format == "rlds":
        import_quietly("tensorflow_datasets")
    with output.StepProgress(source) as progress:
        report = write_dataset(
            source,
            out,
            format=format,
            on_invalid=options["on_invalid"],
            verify=options["verify"],
            num_workers=options["num_workers"],
            progress=progress,
            on_read=progress.count_read,
            **{name: value for name, value in values.items() if name in limits.options},
        )
    _print_written(report, (*source.warnings, *losses), options)


def _print_written(report: WriteReport, printed_warnings: Sequence[str], options: dict[str, Any]) -> None:
    facts = output.format_named_facts(f"{report.source} converted", drop_printed(report.facts(), printed_warnings))
    output.print_result(report.as_dict(), output.add_mapping(facts, report.statistics), as_json=options["as_json"])


def _convert_with_beam(out: str, format: str, runner: str, options: dict[str, Any]) -> None:
    """Converts a dataset on Beam's workers."""
    try:
        import_quietly("rlds2reverb.beam")
        from rlds2reverb.beam import BeamOptions, convert_with_beam, prepare_with_beam
    except ImportError as error:
        raise click.UsageError(f"--runner requires Apache Beam ({error}); run {install_command('beam')}") from error
    from rlds2reverb.ingestion import IngestOptions
    from rlds2reverb.reverb.writing.report import IngestWarning

    names = [name for name in options["beam_pipeline_options"].split(",") if name]
    common: dict[str, Any] = {
        "transforms": make_transforms(options),
        "on_invalid": options["on_invalid"],
        "beam_options": BeamOptions(runner, tuple(f"--{name.lstrip('-')}" for name in names)),
        **get_load_arguments(options),
    }
    with (
        raise_on_sigterm(),
        hide_other_processes(),
        status(f"converting on Beam's {runner} runner"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", IngestWarning)  # The printed report contains them.
        if format == "rlds":
            report: Any = prepare_with_beam(
                options["source"],
                out,
                shard_bytes=options["shard_mb"] * 1_000_000,
                **common,
            )
        else:
            report = convert_with_beam(
                options["source"],
                out,
                table_configs(options),
                adder=make_episode_adder(options),
                priority="return" if options["priority"] == "return" else float(options["priority"]),
                layout=options["layout"],
                num_shards=options["num_shards"],
                resume=options["resume"],
                options=IngestOptions(chunk_length=options["chunk_length"], key_seed=options["key_seed"]),
                **common,
            )
        save_statistics(dict(report.statistics), options)
    if format == "reverb":
        print_report(report, Path(out), describe_items(options), (), as_json=options["as_json"])
    else:
        _print_written(report, (), options)


def _require_vacant(out: Path, num_shards: int | None) -> None:
    """Raises `click.UsageError` unless the path is free, an empty directory, or one converted to as many shards."""
    if is_table_directory(out):
        from rlds2reverb.reverb.server.shards import find_num_shards

        written = (find_num_shards(out) or num_shards or "K") if find_shard_numbers(out) else None
        if written != num_shards:
            found, advice = ("tables without shards", "leave out --shards")
            if written is not None:
                found, advice = ("shards", f"pass --shards {written}")
            raise click.UsageError(f"--out {out} contains {found}; {advice}, or pass a new directory")
    elif os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise click.UsageError(f"--out {out} exists and was not written by rlds2reverb; pass a new directory")
