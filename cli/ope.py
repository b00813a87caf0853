"""`rlds2reverb ope`: estimates the value of policies from data, without an environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb.learners.value_estimators import ESTIMATORS
from rlds2reverb.training.progress import Progress

from . import checks, output
from .declarations import EXISTING_DIRECTORY, option
from .number_types import at_least_0, at_least_1, fraction
from .output import json_option
from .quiet import import_quietly, quiet_imports
from .reading import open_source, reading_options

if TYPE_CHECKING:
    from rlds2reverb.training.policy_estimates import PolicyEstimate

_EPISODES = {"auto": None, "held-out": True, "all": False}


@click.command()
@click.argument("policies", metavar="RUN...", nargs=-1, required=True, type=EXISTING_DIRECTORY)
@option("--data", "source", required=True, metavar="SRC", help="Dataset; see rlds2reverb --help.")
@option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(list(ESTIMATORS)),
    show_default="model where it applies, else fqe",
    help=f"{', '.join(f'{name}: {estimator.title}' for name, estimator in ESTIMATORS.items())}. Repeatable.",
)
@option("--gamma", type=fraction, show_default="that of the run, or 0.99", help="Discount factor.")
@option(
    "--behaviour",
    default="cloned",
    metavar="FIELD",
    help="Step field with the log probabilities of the data's actions, log:FIELD for probabilities, or cloned to "
    "estimate them by behavioural cloning. D4RL files need --load extra_fields=FIELD as well.",
)
@option(
    "--episodes",
    choices=list(_EPISODES),
    help="Episodes to use: those that the run held out (train --validation), all, or the former if the run was trained "
    "on the same data.",
)
@option("--confidence", default=0.9, type=fraction, help="Probability that the intervals are meant to cover.")
@option(
    "--updates",
    default=10_000,
    type=at_least_1,
    help="Number of updates of each fit.",
)
@option("--ensemble", default=5, type=at_least_1, help="Models or Q-functions to fit.")
@option("--seed", default=0, type=at_least_0, help="Random seed of weights, batches and the bootstrap.")
@option("--out", type=checks.estimates, help="File to write: the estimates, or a figure of them.")
@reading_options
@json_option
def ope(policies: tuple[Path, ...], methods: tuple[str, ...], out: Path | None, as_json: bool, **options: Any) -> None:
    """Estimate the discounted return of policies from data, without an environment.

    \b
    Examples:
      rlds2reverb ope runs/iql --data hopper_medium-v2.hdf5
      rlds2reverb ope runs/dqn --data log.hdf5 --method fqe --method wdr --out ope.json
      rlds2reverb ope runs/iql runs/td3_bc --data held_out.hdf5 --out ope.png

    RUN is the --run-dir of rlds2reverb train, or a directory that TF-Agents' PolicySaver wrote, such as
    runs/iql/best_policy. Policies that take a single continuous action in each state have no probabilities; only model
    and fqe evaluate them. If the command is stopped, the same one continues.

    The verdict is "can't tell", with the reasons, unless the data say what the policy is worth. Several policies are
    listed by what they reach at least, the lower end of the interval. Use data that no policy was trained on, or hold
    out episodes with train --validation.
    """
    paths = list(dict.fromkeys(policies))
    if len(paths) > 1 and len(methods) > 1:
        raise click.UsageError(f"several policies are compared by one --method, got {', '.join(methods)}")
    is_figure = out is not None and out.suffix.lower() != ".json"
    if is_figure and len(methods) > 1:
        raise click.UsageError(f"a figure shows the estimates of one --method, got {', '.join(methods)}")
    estimates = _run_estimates(paths, methods, options, as_json=as_json)
    from rlds2reverb.training.policy_estimates import draw_estimates, format_estimates, order_estimates, save_estimates

    estimates = order_estimates(estimates) if len(paths) > 1 else estimates
    if out is not None and not is_figure:
        save_estimates(estimates, out)
    elif out is not None:
        with quiet_imports():
            from rlds2reverb.learners.figure_style import save_figure

            save_figure(draw_estimates(estimates), out)
    if as_json:
        output.print_json({"estimates": [estimate.as_dict() for estimate in estimates]})
    elif len(paths) == 1:
        print(output.escape_controls("\n\n".join(map(str, estimates))))
    else:
        print(output.escape_controls(format_estimates(estimates)))
        for result in estimates:
            for sentence in result.doubts:
                print(output.escape_controls(f"{result.policy}: {result.verdict}: {sentence}"))
            for sentence in result.warnings:
                output.warn(f"{result.policy}: {sentence}")


def _run_estimates(
    policies: Sequence[Path], methods: Sequence[str], options: dict[str, Any], *, as_json: bool
) -> list[PolicyEstimate]:
    """Returns the estimates of the methods for each policy, and shows the progress unless the output is JSON."""
    source = open_source(options)
    import_quietly("tensorflow", "tf_agents.agents.tf_agent")
    from rlds2reverb.learners.ensemble_fit import FitOptions
    from rlds2reverb.training.off_policy_evaluation import evaluate_policies

    fit = FitOptions(num_updates=options["updates"], ensemble_size=options["ensemble"], seed=options["seed"])
    return evaluate_policies(
        policies,
        source,
        methods,
        Progress(quiet=as_json, describe=output.name_options),
        held_out=_EPISODES[options["episodes"]],
        fit=fit,
        **{name: options[name] for name in ("gamma", "behaviour", "confidence")},
    )
