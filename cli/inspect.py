"""`rlds2reverb inspect`: a summary of a dataset, of a converted directory, or of a server's tables."""

from __future__ import annotations

from typing import Any

import click

from rlds2reverb.locations import is_table_directory, server_address
from rlds2reverb.sources.summary import summarize
from rlds2reverb.specs import describe, leaves, path_name
from rlds2reverb.tables import MAX_ITEMS

from . import checks, directories, output
from .options import GroupedCommand, open_source, parameter_names, reading_options, source_options
from .output import json_option

_HEADINGS = {
    "Input": [*parameter_names(reading_options), "timeout"],
    "Score": ["reference_returns", "is_d4rl"],
}


@click.command(cls=GroupedCommand, headings=_HEADINGS)
@source_options
@click.option(
    "--reference-returns",
    type=float,
    nargs=2,
    metavar="RANDOM EXPERT",
    help="Returns of a random policy and an expert; adds a score that is 0 and 100 for them.",
)
@click.option(
    "--d4rl-score",
    "is_d4rl",
    is_flag=True,
    help="Add the D4RL score, for files from D4RL itself: their reference returns do not hold for other versions of "
    "the environment.",
)
@click.option(
    "--timeout",
    default=10.0,
    show_default=True,
    type=checks.seconds,
    metavar="SECONDS",
    help="Maximum wait for the answer of a server.",
)
@json_option
def inspect(
    as_json: bool, reference_returns: tuple[float, float] | None, is_d4rl: bool, timeout: float, **options: Any
) -> None:
    """Summarize a dataset, a converted directory, or a server.

    \b
    Examples:
      rlds2reverb inspect hopper_medium-v2.hdf5
      rlds2reverb inspect hopper/
      rlds2reverb inspect localhost:8000

    SRC is a dataset (see rlds2reverb --help), a directory that convert --out wrote, or HOST:PORT of a Reverb server. A
    dataset is read once from end to end, but not checked for errors; use rlds2reverb validate for that.
    """
    src = options["source"]
    if server_address(src) is not None:
        _inspect_server(src, timeout, as_json=as_json)
        return
    if is_table_directory(src):
        description = directories.describe(src, verify=False)
        if as_json:
            output.print_json(description)
        else:
            output.print_facts(src, directories.make_facts(description))
        return
    source = open_source(options)
    with output.StepProgress(source) as progress:
        summary = summarize(
            source,
            reference_returns=reference_returns or None,
            is_d4rl=is_d4rl,
            on_episode=lambda episode: progress("read", episode),
        )
    if as_json:
        output.print_json(summary.as_dict())
    else:
        print(output.escape_controls(str(summary)))


def _inspect_server(address: str, timeout: float, *, as_json: bool) -> None:
    from .quiet import import_quietly

    import_quietly("reverb")
    from rlds2reverb._server.clients import connect, table_infos

    infos = table_infos(connect(address), timeout_secs=timeout)
    tables = [_describe_table(info) for _, info in sorted(infos.items())]
    if as_json:
        output.print_json({"server": address, "tables": tables})
        return
    for number, table in enumerate(tables):
        if number:
            print()
        output.print_facts(f"table {table['name']!r} of {address}", _make_facts(table))


def _make_facts(table: dict[str, Any]) -> list[tuple[str, str]]:
    no_limit = {"max_size": MAX_ITEMS, "max_times_sampled": 0}
    rows = []
    for name, value in table.items():
        if name not in ("name", "signature"):
            text = f"{value:,}" if isinstance(value, int) else value
            rows.append((name.replace("_", " "), "no limit" if value == no_limit.get(name) else text))
    fields = table["signature"] or {"any": "(no signature)"}
    return rows + [("field", f"{name}  {spec}") for name, spec in fields.items()]


def _describe_table(info: Any) -> dict[str, Any]:
    limiter = info.rate_limiter_info
    signature = None
    if info.signature is not None:
        signature = {path_name(path, "item"): describe(spec) for path, spec in leaves(info.signature)}
    return {
        "name": info.name,
        "items": info.current_size,
        "max_size": info.max_size,
        "sampler": _format_selector(info.sampler_options),
        "remover": _format_selector(info.remover_options),
        "max_times_sampled": info.max_times_sampled,
        "min_size_to_sample": limiter.min_size_to_sample,
        "inserted": limiter.insert_stats.completed,
        "sampled": limiter.sample_stats.completed,
        "episodes": info.num_episodes,
        "signature": signature,
    }


def _format_selector(options: Any) -> str:
    kind = options.WhichOneof("distribution")
    if kind == "prioritized":
        return f"prioritized:{options.prioritized.priority_exponent:g}"
    if kind == "heap":
        return "min_heap" if options.heap.min_heap else "max_heap"
    return str(kind)
