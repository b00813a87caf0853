"""Records what benchmarks measure in CSV files, which `pages.py` shows in the README and the docs.

    python benchmarks/bench_ingest.py --record docs/speed.csv
    python benchmarks/learning.py DATA --record docs/results
    python benchmarks/bench_ope.py coverage --record docs/estimates

Each command replaces its rows of the files. The columns that identify a row come first.
"""

from __future__ import annotations

import csv
import os
import platform
import re
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
SPEED_COLUMNS = (
    *("section", "task", "column", "name", "rate", "unit", "baseline", "ratio", "low", "high"),
    *("command", "date", "rounds", "machine"),
)
RESULT_COLUMNS = ("dataset", "agent", "seed", "updates", "mean_return", "std_over_episodes", "commit", "command")
COVERAGE_COLUMNS = ("mdp", "method", "value", "estimate", "low", "high")
RANKING_COLUMNS = (
    *("dataset", "seed", "method", "policy", "estimate", "low", "high", "verdict"),
    *("discounted_return", "total_return", "commit", "command"),
)
DATASET_COLUMNS = ("dataset", "episodes", "mean_return", "best_return")

_options = Namespace(record=None, busy="")
format_number = partial(np.format_float_positional, precision=4, fractional=False, trim="-")


def parse_arguments(parser: ArgumentParser) -> Namespace:
    """Parses the options of a benchmark, and `--record`, the file that `record` writes to."""
    parser.add_argument("--record", type=Path, metavar="CSV", help="file whose rows are replaced, as docs/speed.csv")
    load = os.getloadavg()[0]
    _options.busy = f", shared with other processes at load average {load:.1f}" if load > (os.cpu_count() or 1) else ""
    return parser.parse_args(namespace=_options)


def record(section: str, task: str, rate: float, unit: str, ratios: Sequence[float] = (), **cells: str) -> None:
    """Records a rate, and the median and range of its ratios to a baseline, if `--record` was passed.

    Args:
      section: the table that contains the row; on a machine that was busy at the start, 'busy'.
      task: what was measured.
      rate: median over the rounds.
      unit: unit of the rate, such as 'steps/s'.
      ratios: ratio of each round, or of the medians.
      cells: further columns, such as `baseline`; with `column`, a task has several rates.
    """
    if _options.record is None:
        return
    rounds = vars(_options).get("rounds", vars(_options).get("runs", 1))
    row = {
        **{
            "section": "busy" if _options.busy else section,
            "task": task,
            "column": "",
            "rate": format_number(rate),
            "unit": unit,
            "baseline": "",
        },
        **{"ratio": format_number(np.median(ratios)) if len(ratios) else ""},
        **{name: format_number(end(ratios)) if len(ratios) > 1 else "" for name, end in (("low", min), ("high", max))},
        **{"command": _describe_command()},
        **{"date": date.today().isoformat(), "rounds": str(rounds)},
        **{"machine": f"{os.cpu_count()} {platform.machine().replace('_', '-')} cores{_options.busy}", **cells},
    }
    replace_rows(_options.record, SPEED_COLUMNS, 3, [row])


def _describe_command() -> str:
    """Returns the command of this process, with names for absolute paths, and without where it writes."""
    names = [Path(argument).name if Path(argument).is_absolute() else argument for argument in sys.argv[1:]]
    arguments = re.sub(r"--(record|out) \S+ ?", "", " ".join(names))
    return f"python benchmarks/{Path(sys.argv[0]).name} {arguments}".strip()


def record_results(path: Path, rows: list[dict[str, str]], columns: Sequence[str] = RESULT_COLUMNS) -> None:
    """Writes the evaluations of runs, with this command and the commit that is checked out; see `replace_rows`.

    A '+' follows the commit if files were edited since. Runs that an earlier commit has made must not be in the folder.
    """
    commit, status = (
        subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        for arguments in (("rev-parse", "--short=8", "HEAD"), ("status", "--porcelain", "--", "*.py"))
    )
    origin = {"commit": commit + ("+" if status else ""), "command": _describe_command()}
    replace_rows(path, columns, 3, [{**row, **origin} for row in rows])


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def replace_rows(path: Path, columns: Sequence[str], num_keys: int, rows: list[dict[str, str]]) -> None:
    """Writes rows in place of those whose first `num_keys` columns are the same; columns that they lack are kept."""
    groups: list[dict[tuple[str, ...], list[dict[str, str]]]] = [{}, {}]
    for group, found in zip(groups, (read(path) if path.exists() else [], rows), strict=True):
        for row in found:
            group.setdefault(tuple(row[key] for key in columns[:num_keys]), []).append(row)
    old, new = groups
    new = {key: [{**old.get(key, [{}])[0], **row} for row in group] for key, group in new.items()}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for group in {**old, **new}.values() for row in group)
