"""`rlds2reverb eval`: what the policies of a training run reach in the real environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb._text import columns_text
from rlds2reverb.sources.scores import REFERENCE_RETURNS, d4rl_environment, d4rl_score

from . import checks, output
from .output import json_option
from .quiet import import_quietly, status

if TYPE_CHECKING:
    from rlds2reverb.learners.evaluation import Evaluation, Evaluator
    from rlds2reverb.learners.run_directory import Run

#: Training evaluates with seeds from 0 on, and chooses the best policy by those episodes.
_FIRST_SEED = 1000
_FOLDERS = {"last": "policy", "best": "best_policy"}


@click.command("eval")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--episodes", default=10, show_default=True, type=checks.at_least_1, help="How many episodes.")
@click.option(
    "--seed",
    default=_FIRST_SEED,
    show_default=True,
    type=checks.at_least_0,
    help="Seed of the first episode; each has the next. Training uses those from 0 on.",
)
@click.option("--env", "environment", metavar="ID", help="Gymnasium's id.  [default: the run's]")
@click.option("--last", "which", flag_value="last", help="Only the last policy.")
@click.option("--best", "which", flag_value="best", help="Only the policy that was best in training.")
@click.option("--max-episode-steps", type=checks.at_least_1, metavar="N", help="Cut episodes off after N steps.")
@click.option(
    "--reference-returns",
    type=float,
    nargs=2,
    metavar="RANDOM EXPERT",
    help="Returns of a random policy and an expert, for a score.  [default: the run's]",
)
@click.option(
    "--references",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help='JSON file with reference returns: {"Hopper-v5": [RANDOM, EXPERT]}.',
)
@click.option(
    "--d4rl-score",
    "is_d4rl",
    is_flag=True,
    help="Score by D4RL's returns for the environment's name (they were measured in mujoco-py, v2).",
)
@json_option
def evaluate(folder: Path, which: str | None, as_json: bool, **options: Any) -> None:
    """Run the policies of a training run in the real environment: the last one, and the best one.

    RUN is the run_dir of `rlds2reverb train`, or a directory where TF-Agents' PolicySaver saved a policy (then give
    --env). Which policy is the best was decided in training, by other episodes than the ones here.
    """
    run, paths = _found(folder, which)
    environment = options["environment"] or (run.environment if run else None)
    if not environment:
        raise click.UsageError(f"{folder} names no environment; give --env, such as --env Hopper-v5")
    references = _reference_returns(run, environment, options)
    import_quietly("tensorflow")
    from rlds2reverb.learners.evaluation import Evaluator

    seeds = range(options["seed"], options["seed"] + options["episodes"])
    evaluator = Evaluator(
        environment, seeds=seeds, reference_returns=references, max_episode_steps=options["max_episode_steps"]
    )
    found = [(name, *_evaluated(name, path, evaluator)) for name, path in paths.items()]
    behaviour = run.behaviour_return if run else None
    if as_json:
        policies = [{"policy": name, "step": step, **result.as_dict()} for name, step, result in found]
        output.print_json(
            {"run": str(folder), "environment": environment, "behaviour_return": behaviour, "policies": policies}
        )
        return
    range_text = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    print(output.printable(f"{folder}: {environment}, {output.counted(len(seeds), 'episode')}, {range_text}"))
    print(_table(found, behaviour, references))
    for name, _, result in found:
        if result.num_clipped:
            share = f"{result.num_clipped:,} of {result.lengths.sum():,} actions"
            output.warn(f"{share} of the policy '{name}' were out of the environment's bounds, and clipped")


def _found(folder: Path, which: str | None) -> tuple[Run | None, dict[str, Path]]:
    """Returns the run, None for a directory of a policy alone, and the policies to evaluate, by name."""
    from rlds2reverb.learners.run_directory import load_run

    if (folder / "saved_model.pb").is_file():
        return None, {"policy": folder}
    run = load_run(folder)
    wanted = {which: _FOLDERS[which]} if which else _FOLDERS
    paths = {name: folder / subfolder for name, subfolder in wanted.items()}
    there = {name: path for name, path in paths.items() if (path / "saved_model.pb").is_file()}
    if not there:
        expected = " or ".join(f"{path}{'/'}" for path in paths.values())
        raise ValueError(f"{folder} has no policy yet, expected {expected}; it is written when training ends or saves")
    return run, there


def _reference_returns(run: Run | None, environment: str, options: dict[str, Any]) -> tuple[float, float] | None:
    given = [name for name in ("reference_returns", "references", "is_d4rl") if options[name]]
    if len(given) > 1:
        raise click.UsageError("give one of --reference-returns, --references and --d4rl-score")
    if options["reference_returns"]:
        d4rl_score(0.0, options["reference_returns"])
        return tuple(options["reference_returns"])
    if options["references"]:
        from rlds2reverb.learners.evaluation import read_reference_returns

        return read_reference_returns(options["references"], environment)
    if options["is_d4rl"]:
        key = d4rl_environment(environment)
        if key is None:
            raise click.UsageError(f"D4RL has no reference returns of {environment}; give --reference-returns")
        return REFERENCE_RETURNS[key]
    return run.reference_returns if run and run.environment == environment else None


def _evaluated(name: str, path: Path, evaluator: Evaluator) -> tuple[int | None, Evaluation]:
    """Returns the training step of a saved policy, None if it was saved without, and what it reaches."""
    from rlds2reverb.learners.batched_policy import load_policy

    with status(f"running {output.counted(evaluator.num_episodes, 'episode')} of the policy '{name}'"):
        policy = load_policy(path)
        step = int(policy.get_train_step()) if hasattr(policy, "get_train_step") else -1
        return (step if step >= 0 else None), evaluator.evaluate(policy)


def _table(
    found: list[tuple[str, int | None, Evaluation]],
    behaviour: float | None,
    references: tuple[float, float] | None,
) -> str:
    rows = []
    for name, step, result in found:
        score = "-" if result.score is None else f"{result.score:.1f}"
        mean_return = f"{result.mean:,.1f} ± {result.std:,.1f}"
        length = f"{result.lengths.mean():,.1f}"
        rows.append((name, "-" if step is None else f"{step:,}", mean_return, score, length))
    if behaviour is not None:
        score = "-" if references is None else f"{d4rl_score(behaviour, references):.1f}"
        rows.append(("the data", "-", f"{behaviour:,.1f}", score, "-"))
    return columns_text(("policy", "step", "return", "score", "length"), rows)
