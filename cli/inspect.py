"""`rlds2reverb inspect`: a summary of a dataset, of a converted directory, of a server's tables, or of training runs.

With `--report`, the summary of a dataset or of runs is an HTML page with figures.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb.datasets.dataset_statistics import DatasetStatistics
from rlds2reverb.datasets.summary import find_reference_returns
from rlds2reverb.datasets.transforms import DropFields, apply_transforms
from rlds2reverb.datasets.valid_episodes import FILES
from rlds2reverb.errors import ServerUnavailableError, SourceError
from rlds2reverb.system.text import format_bytes
from rlds2reverb.types.locations import is_table_directory, server_address
from rlds2reverb.types.scores import D4RL
from rlds2reverb.types.specs import describe, leaves, path_name
from rlds2reverb.types.tables import MAX_ITEMS

from . import output, written_directories
from .config_options import config_options
from .declarations import flag, option
from .main import INVALID_DATA, OK
from .number_types import seconds
from .options import GroupedCommand, reference_option, report_option, require_unused
from .output import json_option
from .quiet import quiet_imports, status
from .reading import READING_NAMES, open_readable, reading_options

if TYPE_CHECKING:
    from rlds2reverb.learners.runs import Run
    from rlds2reverb.training.reports import Report

_HEADINGS = {
    "Report": ["report_path", "has_films"],
    "Input": [*READING_NAMES, "drop_fields", "timeout"],
    "Score": ["reference_returns"],
}


@click.command(cls=GroupedCommand, headings=_HEADINGS)
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@reading_options
@config_options("drop_fields")
@report_option
@flag(
    "--film",
    "has_films",
    help="Add films of the runs' policies to the report; requires the extra film (see rlds2reverb doctor) and, for "
    "MuJoCo without a display, libosmesa6.",
)
@reference_option(
    "Returns of a random policy and an expert, as RANDOM,EXPERT; adds a score that is 0 and 100 for them. d4rl stands "
    "for D4RL's own, which apply only to D4RL's own files."
)
@option("--timeout", default=10.0, type=seconds, help="Maximum wait for the answer of a server.")
@json_option
def inspect(
    sources: tuple[str, ...],
    report_path: Path | None,
    has_films: bool,
    as_json: bool,
    reference_returns: str | tuple[float, float] | None,
    timeout: float,
    drop_fields: tuple[str, ...],
    **options: Any,
) -> int:
    """Summarize a dataset, a converted directory, a server, or training runs.

    \b
    Examples:
      rlds2reverb inspect hopper_medium-v2.hdf5
      rlds2reverb inspect hopper_medium-v2.hdf5 --report hopper.html
      rlds2reverb inspect hopper/
      rlds2reverb inspect localhost:8000,localhost:8001
      rlds2reverb inspect runs/td3_bc runs/iql --report runs.html --film

    SRC is a dataset (see rlds2reverb --help), a directory that convert --out or serve --checkpoint-root wrote,
    HOST:PORT of a Reverb server (or several, separated by commas, whose items are added up), or the --run-dir of
    rlds2reverb train, of which there may be several. A dataset is read once from end to end. The findings of
    its checks are counted; rlds2reverb validate explains them, and looks for errors.
    """
    src = sources[0]
    if report_path is None or not _is_run(src):
        require_unused({"has_films"}, "requires training runs and --report")
    are_runs, is_server = any(map(_is_run, sources)) or len(sources) > 1, server_address(src) is not None
    if are_runs:
        _require_runs(sources)
    if are_runs or is_server or is_table_directory(src):
        require_unused({"reference_returns", "drop_fields", *READING_NAMES}, "requires a dataset")
        if are_runs:
            _inspect_runs(sources, report_path, has_films=has_films, as_json=as_json)
            return OK
        require_unused({"report_path"}, "requires a dataset or training runs")
        if is_server:
            _inspect_server(src, timeout, as_json=as_json)
        else:
            _inspect_directory(src, as_json=as_json)
        return OK
    source = open_readable({**options, "source": src})
    if drop_fields:
        source, _ = apply_transforms(source, [DropFields(drop_fields)])
    if isinstance(reference_returns, str) and reference_returns != D4RL:
        raise click.UsageError(f"--reference-returns must be two numbers or {D4RL} for a dataset, got a file")
    is_d4rl = reference_returns == D4RL
    scores: dict[str, Any] = {"reference_returns": None if is_d4rl else reference_returns, "is_d4rl": is_d4rl}
    find_reference_returns(source, **scores)  # Raises before the dataset is read.
    statistics = DatasetStatistics(source, has_sample=report_path is not None)
    with output.StepProgress(source) as progress:
        statistics.read(progress, "read", counts_skipped=True)
    if report_path is not None:
        with status(f"writing {report_path}"), quiet_imports():
            from rlds2reverb.training.reports.dataset_report import report_statistics

            report = report_statistics(statistics, report_path, **scores)
        _print_report(report, report_path, as_json=as_json)
        if statistics.error:
            output.fail(output.describe_error(statistics.error))
    else:
        _print_summary(statistics, scores, as_json=as_json)
    if unreadable := [error for error in statistics.errors if error.field == FILES]:
        are_left_out = f"{output.count(statistics.num_unreadable, 'episode')} cannot be read, and left out above"
        output.fail(f"{are_left_out}; rlds2reverb validate lists them: {output.name_options(str(unreadable[0]))}")
    return INVALID_DATA if unreadable or statistics.error else OK


def _print_summary(statistics: DatasetStatistics, scores: dict[str, Any], *, as_json: bool) -> None:
    source = statistics.source
    if statistics.error or (statistics.errors and not statistics.parts.counts["episodes"]):
        raise statistics.error or SourceError(statistics.errors[0].message)
    summary, findings = statistics.parts.finish(source, **scores), statistics.findings
    if as_json:
        mapped = {name: rows for name, rows in source.statistics.items() if name == "mapping"}
        output.print_json({**summary.as_dict(), **mapped, "findings": [asdict(finding) for finding in findings]})
        return
    unprinted = tuple(sentence for sentence in summary.warnings if sentence not in source.warnings)
    shown = str(replace(summary, warnings=unprinted))
    print(output.escape_controls(output.add_mapping(shown, source.statistics)))
    if findings:
        names = ", ".join(dict.fromkeys(f"{finding.check} ({finding.severity})" for finding in findings))
        print(f"\nfindings: {names}; see rlds2reverb validate")


def _is_run(location: str) -> bool:
    """Returns whether a location is the directory of a training run or of several."""
    from rlds2reverb.learners.runs import is_run_directory
    from rlds2reverb.training.experiments import is_experiment

    try:
        return is_run_directory(location) or is_experiment(location)
    except (OSError, ValueError):  # The text cannot be a path, for example because it is too long.
        return False


def _require_runs(folders: tuple[str, ...]) -> None:
    for folder in folders:
        if not _is_run(folder):
            if not Path(folder).exists():
                raise click.UsageError(f"there is no file or directory {folder!r}; check the path")
            raise click.UsageError(f"several SRC must all be directories of training runs, got {folder!r}")


def _inspect_runs(folders: tuple[str, ...], report_path: Path | None, *, has_films: bool, as_json: bool) -> None:
    with status("loading"), quiet_imports():
        from rlds2reverb.training.reports.run_report import load_runs, report_runs
    runs = load_runs(folders)
    if report_path is not None:
        with status(f"writing {report_path}"), quiet_imports():
            report = report_runs(runs, report_path, has_films=has_films)
        _print_report(report, report_path, as_json=as_json)
    elif as_json:
        output.print_json({"runs": [_describe_run(run) for run in runs]})
    else:
        print(output.escape_controls("\n".join(map(str, runs))))


def _describe_run(run: Run) -> dict[str, Any]:
    returns = {"data_return": run.data_return, "last_return": run.last_return, "best_return": run.best_return}
    updates = int(run.progress["step"][-1]) if len(run.progress.get("step", ())) else 0
    return {"run_dir": str(run.path), "algo": run.identity.get("algo"), "updates": updates, **returns}


def _print_report(report: Report, path: Path, *, as_json: bool) -> None:
    num_bytes = len(report.html.encode())
    document = {"report": str(path), "size_bytes": num_bytes}
    output.print_result(document, f"wrote {path} ({format_bytes(num_bytes)})", as_json=as_json)


def _inspect_directory(directory: str, *, as_json: bool) -> None:
    description = written_directories.describe(directory, verify=False)
    facts = written_directories.make_facts(description)
    output.print_result(description, output.format_named_facts(directory, facts), as_json=as_json)


def _inspect_server(address: str, timeout: float, *, as_json: bool) -> None:
    from rlds2reverb.reverb.client import table_infos

    addresses = address.split(",")
    tables: dict[str, dict[str, Any]] = {}
    failures: list[ServerUnavailableError] = []
    for shard_address in addresses:
        try:
            infos = table_infos(shard_address, timeout_secs=timeout)
        except ServerUnavailableError as error:
            failures.append(error)
            continue
        for name, info in sorted(infos.items()):
            tables[name] = add_tables(tables.get(name), _describe_table(info), shard_address)
    if len(failures) == len(addresses):
        raise failures[0]
    for failure in failures:
        output.warn(f"{failure}; its items are not counted")
    if len(addresses) == 1:
        for table in tables.values():
            del table["servers"]
    if as_json:
        output.print_json({"server": address, "tables": list(tables.values())})
        return
    for number, table in enumerate(tables.values()):
        if number:
            print()
        output.print_facts(f"table {table['name']!r} of {address}", _make_facts(table))


def add_tables(total: dict[str, Any] | None, table: dict[str, Any], address: str) -> dict[str, Any]:
    """Adds the counts of a table on one more server; `servers` contains the number of items of each."""
    servers = {**(total["servers"] if total else {}), address: table["items"]}
    if total is None:
        return {**table, "servers": servers}
    counts = {name: total[name] + table[name] for name in ("items", "max_size", "inserted", "sampled", "episodes")}
    counts["max_size"] = min(counts["max_size"], MAX_ITEMS)
    return {**total, **counts, "servers": servers}


def _make_facts(table: dict[str, Any]) -> list[tuple[str, str]]:
    no_limit = {"max_size": MAX_ITEMS, "max_times_sampled": 0}
    rows = []
    for name, value in table.items():
        if name not in ("name", "signature", "servers"):
            shown = f"{value:,}" if isinstance(value, int) else value
            rows.append((name.replace("_", " "), "no limit" if value == no_limit.get(name) else shown))
    rows += [("server", f"{address}  {count:,} items") for address, count in table.get("servers", {}).items()]
    fields = table["signature"] or {"any": "(no signature)"}
    return rows + [("field", f"{name}  {spec}") for name, spec in fields.items()]


def _describe_table(info: Any) -> dict[str, Any]:
    from rlds2reverb.reverb.client import format_selector

    limiter = info.rate_limiter_info
    signature = None
    if info.signature is not None:
        signature = {path_name(path, "item"): describe(spec) for path, spec in leaves(info.signature)}
    return {
        "name": info.name,
        "items": info.current_size,
        "max_size": info.max_size,
        "sampler": format_selector(info.sampler_options),
        "remover": format_selector(info.remover_options),
        "max_times_sampled": info.max_times_sampled,
        "min_size_to_sample": limiter.min_size_to_sample,
        "inserted": limiter.insert_stats.completed,
        "sampled": limiter.sample_stats.completed,
        "episodes": info.num_episodes,
        "signature": signature,
    }
