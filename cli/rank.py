"""`rlds2reverb rank`: orders policies by their value, estimated from data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rlds2reverb.learners.value_estimators import ESTIMATORS

from . import checks, output
from .declarations import EXISTING_DIRECTORY, option
from .ope import evaluation_options, run_estimates
from .options import reading_options
from .output import json_option
from .quiet import quiet_imports


@click.command()
@click.argument("policies", metavar="RUN...", nargs=-1, required=True, type=EXISTING_DIRECTORY)
@option("--method", choices=list(ESTIMATORS), help="Estimator; see ope.")
@evaluation_options
@option("--out", type=checks.png, help="Figure to write.")
@reading_options
@json_option
def rank(policies: tuple[Path, ...], method: str, out: Path | None, as_json: bool, **options: Any) -> None:
    """Order policies by their discounted return, estimated from data.

    \b
    Examples:
      rlds2reverb rank runs/iql runs/td3_bc --data held_out.hdf5 --out rank.png

    RUN is the --run-dir of rlds2reverb train, or a directory with a policy. Use data that no policy was trained on, or
    hold out episodes with train --validation. The table shows the policies from the highest to the lowest estimate;
    the order of policies whose intervals overlap is not certain. If the command is stopped, the same one continues.
    """
    found = run_estimates(list(dict.fromkeys(policies)), [method], options, as_json=as_json)
    from rlds2reverb.training.policy_estimates import draw_estimates, format_estimates, order_estimates

    estimates = order_estimates(found)
    if out is not None:
        with quiet_imports():
            from rlds2reverb.learners.figure_style import save_png

            save_png(draw_estimates(estimates), out)
    if as_json:
        output.print_json({"estimates": [estimate.as_dict() for estimate in estimates], "out": out and str(out)})
        return
    print(output.escape_controls(format_estimates(estimates)))
    for result in estimates:
        for sentence in result.warnings:
            output.warn(f"{result.policy}: {sentence}")
