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
from .options import combine, open_source, reading_options
from .output import json_option
from .quiet import import_quietly

if TYPE_CHECKING:
    from rlds2reverb.training.policy_estimates import PolicyEstimate

_EPISODES = {"auto": None, "held-out": True, "all": False}

#: The options of `ope` and `rank`.
evaluation_options = combine(
    option("--data", "source", required=True, metavar="SRC", help="Dataset; see rlds2reverb --help."),
    option("--gamma", type=fraction, show_default="that of the run, or 0.99", help="Discount factor."),
    option("--behaviour", default="cloned", metavar="FIELD",
           help="Step field with the log probabilities of the data's actions, log:FIELD for probabilities, or cloned "
           "to estimate them by behavioural cloning. D4RL files need --extra-field as well."),
    option("--episodes", choices=list(_EPISODES),
           help="Episodes to use: those that the run held out (train --validation), all, or the former if the run was "
           "trained on the same data."),
    option("--confidence", default=0.9, type=fraction,
           help="Probability that the intervals are meant to cover."),
    option("--updates", default=10_000, type=at_least_1,
           help="Number of updates of fitted Q evaluation and of behavioural cloning."),
    option("--ensemble", default=5, type=at_least_1, help="Number of Q-functions of fitted Q evaluation."),
    option("--seed", default=0, type=at_least_0, help="Random seed of weights, batches and the bootstrap."),
)  # fmt: skip


@click.command()
@click.argument("policy", metavar="RUN_OR_POLICY", type=EXISTING_DIRECTORY)
@option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(list(ESTIMATORS)),
    default=["fqe"],
    show_default="fqe",
    help=f"{', '.join(f'{name}: {estimator.title}' for name, estimator in ESTIMATORS.items())}. Repeatable.",
)
@evaluation_options
@option("--out", metavar="FILE.json", type=checks.new_file, help="File to write.")
@reading_options
@json_option
def ope(policy: Path, methods: tuple[str, ...], out: Path | None, as_json: bool, **options: Any) -> None:
    """Estimate the discounted return of a policy from data, without an environment.

    \b
    Examples:
      rlds2reverb ope runs/iql --data hopper_medium-v2.hdf5
      rlds2reverb ope runs/dqn --data log.hdf5 --method fqe --method wdr --out estimates.json

    RUN_OR_POLICY is the --run-dir of rlds2reverb train, or a directory that TF-Agents' PolicySaver wrote, such as
    runs/iql/best_policy. Policies that take a single continuous action in each state have no probabilities; only fqe
    evaluates them. If the command is stopped, the same one continues.
    """
    estimates = run_estimates([policy], methods, options, as_json=as_json)
    if out is not None:
        import_quietly("rlds2reverb.training.policy_estimates")
        from rlds2reverb.training.policy_estimates import save_estimates

        save_estimates(estimates, out)
    document = {"estimates": [estimate.as_dict() for estimate in estimates]}
    output.print_result(document, "\n\n".join(map(str, estimates)), as_json=as_json)


def run_estimates(
    policies: Sequence[Path], methods: Sequence[str], options: dict[str, Any], *, as_json: bool
) -> list[PolicyEstimate]:
    """Returns the estimates of the methods for each policy, and shows the progress unless the output is JSON."""
    source = open_source(options)
    import_quietly("tensorflow", "tf_agents.agents.tf_agent")
    from rlds2reverb.learners.fitted_q import FittedQOptions
    from rlds2reverb.training.off_policy_evaluation import evaluate_policies

    fqe = FittedQOptions(num_updates=options["updates"], ensemble_size=options["ensemble"], seed=options["seed"])
    return evaluate_policies(
        policies,
        source,
        methods,
        Progress(quiet=as_json, describe=output.name_options),
        held_out=_EPISODES[options["episodes"]],
        fqe=fqe,
        **{name: options[name] for name in ("gamma", "behaviour", "confidence")},
    )
