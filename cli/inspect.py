"""`rlds2reverb inspect`: what is in a data set, or in a server's tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from rlds2reverb.sources.summary import summarize
from rlds2reverb.specs import describe, leaves, path_name

from . import checks, directories, output
from .options import open_source, source_options
from .output import json_option

_ADDRESS = re.compile(r"[A-Za-z0-9_.\-\[\]]+:\d{1,5}")


@click.command()
@source_options
@click.option(
    "--reference-returns",
    type=float,
    nargs=2,
    metavar="RANDOM EXPERT",
    help="Returns of a random policy and an expert, for a score from 0 to 100.",
)
@click.option(
    "--d4rl-score",
    "is_d4rl",
    is_flag=True,
    help="The file is one of D4RL's own: give its score, by D4RL's returns for the environment in its name.",
)
@click.option("--timeout", default=10.0, show_default=True, type=checks.seconds, help="Seconds to wait for a server.")
@json_option
def inspect(
    as_json: bool, reference_returns: tuple[float, float] | None, is_d4rl: bool, timeout: float, **options: Any
) -> None:
    """Summarize a data set, the tables of a server, or a directory that convert --out wrote.

    SRC is a data set (see `rlds2reverb --help`), HOST:PORT of a Reverb server, or such a directory. The whole data set
    is read once; nothing is judged: `rlds2reverb validate` does that.
    """
    if _ADDRESS.fullmatch(options["source"]) and not Path(options["source"]).exists():
        _inspect_server(options["source"], timeout, as_json=as_json)
        return
    if directories.is_ours(options["source"]):
        found = directories.described(options["source"], verify=False)
        output.print_json(found) if as_json else output.print_facts(options["source"], directories.facts(found))
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
        print(output.printable(str(summary)))


def _inspect_server(address: str, timeout: float, *, as_json: bool) -> None:
    from .quiet import import_quietly

    import_quietly("reverb")
    from rlds2reverb._server.clients import connect, table_infos

    infos = table_infos(connect(address), timeout_secs=timeout)
    tables = [_table_facts(info) for _, info in sorted(infos.items())]
    if as_json:
        output.print_json({"server": address, "tables": tables})
        return
    for facts in tables:
        fields = facts.pop("signature")
        rows = [(key, f"{value:,}" if isinstance(value, int) else str(value)) for key, value in facts.items()]
        rows += [("field", f"{name}  {spec}") for name, spec in (fields or {"any": "no signature"}).items()]
        output.print_facts(f"table {facts['name']!r} of {address}", rows)
        print()


def _table_facts(info: Any) -> dict[str, Any]:
    limiter = info.rate_limiter_info
    return {
        "name": info.name,
        "items": info.current_size,
        "max_size": info.max_size,
        "sampler": _selector(info.sampler_options),
        "remover": _selector(info.remover_options),
        "max_times_sampled": info.max_times_sampled,
        "min_size_to_sample": limiter.min_size_to_sample,
        "inserted": limiter.insert_stats.completed,
        "sampled": limiter.sample_stats.completed,
        "episodes": info.num_episodes,
        "signature": {path_name(path, "item"): describe(spec) for path, spec in leaves(info.signature)}
        if info.signature is not None
        else None,
    }


def _selector(options: Any) -> str:
    kind = options.WhichOneof("distribution")
    if kind == "prioritized":
        return f"prioritized:{options.prioritized.priority_exponent:g}"
    if kind == "heap":
        return "min_heap" if options.heap.min_heap else "max_heap"
    return str(kind)
