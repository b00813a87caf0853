"""`rlds2reverb plot`: draws the learning curves of training runs to a file and prints a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlds2reverb.system.text import format_columns

from . import checks, output
from .declarations import EXISTING_DIRECTORY, option
from .output import json_option
from .quiet import quiet_imports, status

if TYPE_CHECKING:
    from rlds2reverb.learners.curves import Curve


@click.command()
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=EXISTING_DIRECTORY)
@option("--out", required=True, type=checks.figure, help="PNG or SVG file to write.")
@option(
    "--metric",
    choices=["auto", "return", "score"],
    help="Quantity to draw; auto draws the score if every run has one, else the return.",
)
@option("--title", metavar="TEXT", show_default="the environment", help="Title of the figure.")
@json_option
def plot(folders: tuple[Path, ...], out: Path, metric: str, title: str | None, as_json: bool) -> None:
    """Draw the learning curves of training runs, finished or not.

    \b
    Examples:
      rlds2reverb plot runs/iql --out iql.png
      rlds2reverb plot runs/iql-* runs/bc-* --out curves.png --metric score

    RUN is the --run-dir of rlds2reverb train; if it contains several runs, all are drawn. Runs that differ only in
    their seed become one curve with a band of one standard deviation over seeds. Panels below the curves show the
    priorities, if they were logged, and the share of time spent waiting for data, if it is above 10%.

    The printed table shows, for each curve, the mean of the last five evaluations of a run and the best one, averaged
    over its runs, ± the standard deviation over seeds (without it for a single run).
    """
    with status("drawing"), quiet_imports():
        from rlds2reverb.learners.curves import SPREAD, draw_curves, learning_curves
        from rlds2reverb.learners.figure_style import save_figure
        from rlds2reverb.training.experiments import list_runs

        curves = learning_curves([run for folder in dict.fromkeys(folders) for run in list_runs(folder)], metric=metric)
        save_figure(draw_curves(curves, title=title), out)
    headings = ("curve", "runs", "updates", f"last five {curves[0].metric}s", "best")
    table = format_columns(headings, [curve.format_row() for curve in curves])
    spread = f"\n{SPREAD}" if any(len(curve.runs) > 1 for curve in curves) else ""
    document = {"out": str(out), "curves": [_as_dict(curve) for curve in curves]}
    output.print_result(document, f"{table}{spread}\n\nwrote {out}", as_json=as_json)


def _as_dict(curve: Curve) -> dict[str, object]:
    results = {name: {"mean": mean, "std": std} for name, (mean, std) in curve.summarize().items()}
    return {
        "curve": curve.label,
        "runs": [str(run.path) for run in curve.runs],
        "metric": curve.metric,
        "data_return": curve.data_return,
        **results,
        "updates": curve.steps.tolist(),
        "mean": curve.mean.tolist(),
        "std": curve.std.tolist(),
    }
