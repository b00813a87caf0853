"""Writing the items of a dataset into directories or servers, as `convert` and `serve` do it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb.datasets import Source
from rlds2reverb.datasets.transforms import apply_transforms
from rlds2reverb.errors import CheckpointError
from rlds2reverb.types.locations import shard_path

from . import output
from .options import make_episode_adder, make_transforms, table_configs, table_names
from .quiet import import_quietly, status
from .reading import open_source

#: Packages that items are made with.
ITEM_PACKAGES = ("tensorflow", "tf_agents.trajectories")

if TYPE_CHECKING:
    from rlds2reverb.reverb.writing.report import IngestReport


def open_prepared(options: dict[str, Any], *packages: str) -> tuple[Source, dict[str, Any]]:
    """Opens the source of a command and applies its preprocessing; returns it with the statistics used.

    Args:
      options: options of the command.
      *packages: packages to import as soon as the source is known to exist.
    """
    source = open_source(options)
    import_quietly(*packages)
    with status("computing the statistics of the dataset"):
        return apply_transforms(source, make_transforms(options))


def write_items(source: Source, destination: Path | str, options: dict[str, Any], statistics: dict[str, Any]) -> None:
    """Writes the items of a source, prints the report, and saves the statistics.

    Args:
      source: the preprocessed source.
      destination: a directory, or the addresses of servers.
      options: options of the command.
      statistics: the statistics used in preprocessing.
    """
    from rlds2reverb.ingestion import IngestOptions, ingest
    from rlds2reverb.reverb.writing.report import IngestWarning
    from rlds2reverb.types.priorities import ByReturn

    is_directory = isinstance(destination, Path)
    existed = Path(destination).exists()
    num_shards = options["num_shards"] if is_directory else None
    by_return = options["priority"] == "return"
    names = ["chunk_length", "key_seed", *(["verify"] if is_directory else ["writer", "force", "allow_eviction"])]
    try:
        with output.StepProgress(source) as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", IngestWarning)  # The printed report contains them.
            report = ingest(
                source,
                [shard_path(destination, shard) for shard in range(num_shards)] if num_shards else destination,
                table_configs(options) if is_directory else table_names(options),
                adder=make_episode_adder(options),
                priority=ByReturn.from_episodes(source) if by_return else float(options["priority"]),
                on_invalid=options["on_invalid"],
                resume=options["resume"],
                layout=options["layout"],
                options=IngestOptions(**{name: options[name] for name in names}),
                progress=progress,
                **({} if is_directory else {"timeout_secs": options["timeout"]}),
            )
    except CheckpointError as error:
        if existed:
            raise click.UsageError(output.describe_error(error)) from error
        raise
    print_report(report, destination, describe_items(options), source.warnings, as_json=options["as_json"])
    save_statistics(statistics, options)


def save_statistics(statistics: dict[str, Any], options: dict[str, Any]) -> None:
    """Writes the statistics of preprocessing to the file of --save-statistics, if that is passed."""
    if path := options["save_statistics"]:
        path.write_text(json.dumps(statistics, indent=1, allow_nan=False) + "\n")


def print_report(
    report: IngestReport, destination: Path | str, item_kind: str, printed_warnings: Sequence[str], *, as_json: bool
) -> None:
    """Prints the report of written items, without the warnings that are printed already."""
    facts = drop_printed(report.facts(), printed_warnings)
    facts.insert(0, ("directory" if isinstance(destination, Path) else "server", str(destination)))
    facts.insert([name for name, _ in facts].index("items") + 1, ("item kind", item_kind))
    if isinstance(destination, Path):
        facts.append(output.next_command("serve", destination))
    content = output.format_named_facts(f"{report.source} converted", facts)
    output.print_result(report.as_dict(), output.add_mapping(content, report.statistics), as_json=as_json)


def drop_printed(facts: list[tuple[str, str]], printed_warnings: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the facts of a report without warnings that were printed when the source was opened."""
    return [fact for fact in facts if fact[0] != "warning" or fact[1] not in printed_warnings]


def describe_items(options: dict[str, Any]) -> str:
    """Returns the kind of the items that the `item_options` describe."""
    if options["whole_episodes"]:
        return "whole episodes"
    if options["n_step"] is not None:
        return f"{options['n_step']}-step transitions"
    if options["sequence_length"] == 2:
        return "transitions (2 steps each)"
    return f"windows of {output.count(options['sequence_length'], 'step')}"
