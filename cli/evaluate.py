"""`rlds2reverb eval`: runs the policies of a training run in their environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb.policies.onnx_policies import is_onnx_file
from rlds2reverb.system.text import format_columns
from rlds2reverb.types.scores import d4rl_score

from . import output
from .declarations import EXISTING_PATH, option
from .films import film_option, film_policy
from .number_types import Number, at_least_0, at_least_1
from .options import reference_option, time_limit_option
from .output import json_option
from .quiet import import_quietly, status

if TYPE_CHECKING:
    from rlds2reverb.envs.evaluation import Evaluator
    from rlds2reverb.learners.runs import Run
    from rlds2reverb.types.evaluations import Evaluation

    #: The name of a policy, facts about it, and its evaluation.
    _Result = tuple[str, dict[str, Any], Evaluation]

#: Training selects the best policy by episodes with seeds from 0, so `eval` uses different seeds.
_FIRST_SEED = 1000


@click.command("eval")
@click.argument("folder", metavar="RUN", type=EXISTING_PATH)
@option(
    "--policy",
    type=click.Choice(["last", "best"]),
    show_default="both",
    help="Policy to evaluate: the last policy, or the best one during training.",
)
@option("--episodes", default=10, type=at_least_1, help="Number of episodes per policy.")
@option(
    "--seed",
    default=_FIRST_SEED,
    type=at_least_0,
    help="Seed of the first episode; each further episode uses the next seed. Training uses seeds from 0.",
)
@option("--env", "environment", metavar="ID", show_default="as in training", help="Gymnasium environment.")
@time_limit_option
@reference_option(
    "Returns of a random policy and an expert, which define the scores 0 and 100: two numbers, d4rl for D4RL's own, or "
    'a JSON file that contains {"Hopper-v5": [RANDOM, EXPERT]}.',
    "as in training",
)
@option(
    "--target-return",
    type=Number(),
    multiple=True,
    show_default="as in training",
    help="Return that a policy of decision_transformer aims at. Repeatable; each one is evaluated.",
)
@film_option
@json_option
def evaluate(folder: Path, policy: str | None, film: Path | None, as_json: bool, **options: Any) -> None:
    """Run the policies of a training run in their environment.

    \b
    Examples:
      rlds2reverb eval runs/iql
      rlds2reverb eval runs/iql --policy best --episodes 100 --reference-returns d4rl
      rlds2reverb eval runs/iql --film hopper.mp4
      rlds2reverb eval runs/dt --target-return 1800 --target-return 3600

    RUN is the --run-dir of rlds2reverb train, a directory that TF-Agents' PolicySaver wrote, or an ONNX file of
    rlds2reverb export; for the last two, pass --env. The best policy was selected during training, on different
    episodes. --film shows the episode of the first seed, with the best policy if there is one, and with the last
    --target-return.
    """
    run, paths = _find_policies(folder, policy)
    environment, make_env = _find_environment(folder, run, options)
    references = _read_reference_returns(run, environment, options)
    if not all(map(is_onnx_file, paths.values())):
        import_quietly("tensorflow")
    from rlds2reverb.envs.evaluation import Evaluator
    from rlds2reverb.envs.goal_tasks import expects_goals
    from rlds2reverb.policies.saved_policies import load_policy

    seeds = range(options["seed"], options["seed"] + options["episodes"])
    loaded = {name: load_policy(path) for name, path in paths.items()}
    evaluator = Evaluator(
        make_env,
        seeds=seeds,
        reference_returns=references,
        max_episode_steps=options["max_episode_steps"],
        with_goals=expects_goals([*loaded.values()][-1]),
    )
    # The film comes first, because its environment may be impossible to render.
    if film is not None and options["target_return"]:
        [*loaded.values()][-1].target_return = options["target_return"][-1]
    filmed = None if film is None else film_policy(film, (environment, make_env), [*loaded.values()][-1], options)
    results = [
        _evaluate_policy(name, policy, target, evaluator)
        for name, policy in loaded.items()
        for target in options["target_return"] or (None,)
    ]
    data_return = run.data_return if run else None
    if as_json:
        policies = [{**facts, **result.as_dict()} for _, facts, result in results]
        document = {"run": str(folder), "environment": environment, "data_return": data_return, "policies": policies}
        output.print_json(document | ({} if filmed is None else {"film": filmed.as_dict()}))
        return
    range_text = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    print(output.escape_controls(f"{folder}: {environment}, {output.count(len(seeds), 'episode')}, {range_text}"))
    print(_format_table(results, data_return, references))
    for name, _, result in results:
        if result.num_clipped:
            num_actions = f"{result.num_clipped:,} of {result.lengths.sum():,} actions"
            output.warn(f"{num_actions} of the policy '{name}' were clipped to the environment's bounds")
    if filmed is not None:
        print(output.escape_controls(f"film: {filmed}"))


def _find_environment(folder: Path, run: Run | None, options: dict[str, Any]) -> tuple[str, Any]:
    """Returns the name of the environment and what makes it: that of --env, or else of the run with its time limit."""
    if options["environment"]:
        return options["environment"], options["environment"]
    from rlds2reverb.training.evaluation_environment import restore_environment

    environment = None if run is None else restore_environment(run)
    if run is None or environment is None:
        raise click.UsageError(f"{folder} names no environment; pass --env, such as --env Hopper-v5")
    if isinstance(environment.make_env, str):
        _require_registered(folder, environment.name)
    if options["max_episode_steps"] is None:
        options["max_episode_steps"] = run.configuration.get("eval_max_episode_steps")
    return environment.name, environment.make_env


def _require_registered(folder: Path, environment: str) -> None:
    """Raises `UsageError` if the environment of a run was made by a function, of which only the name is known."""
    from rlds2reverb.envs.suite_gym import find_spec

    try:
        find_spec(environment)
    except ValueError as error:
        raise click.UsageError(
            f"{folder} was evaluated in {environment!r}, which cannot be created by that name; pass --env, such as "
            "--env Hopper-v5"
        ) from error


def _find_policies(folder: Path, policy: str | None) -> tuple[Run | None, dict[str, Path]]:
    """Returns the run, or None for a policy on its own, and the paths of the policies by name."""
    from rlds2reverb.learners.runs import POLICY_FOLDERS, load_run
    from rlds2reverb.policies.saved_policies import find_policy, is_saved_model
    from rlds2reverb.training.directories import require_one_run

    if is_onnx_file(folder) or is_saved_model(folder):
        return None, {"policy": folder}
    require_one_run(folder)
    run = load_run(folder)
    paths = {name: folder / subfolder for name, subfolder in POLICY_FOLDERS.items() if policy in (None, name)}
    existing = {name: found for name, path in paths.items() if (found := find_policy(path))}
    if not existing:
        missing = " or ".join(f"{path}/" for path in paths.values())
        raise ValueError(f"there is no {missing} yet; train writes policies when it ends or is stopped")
    return run, existing


def _read_reference_returns(run: Run | None, environment: str, options: dict[str, Any]) -> tuple[float, float] | None:
    chosen = options["reference_returns"]
    if chosen is None:
        return run.reference_returns if run and run.environment == environment else None
    from rlds2reverb.training.evaluation_environment import resolve_reference_returns

    return resolve_reference_returns(chosen, environment)


def _evaluate_policy(name: str, policy: Any, target_return: float | None, evaluator: Evaluator) -> _Result:
    """Returns the name of a saved policy, with its target return; facts about it for JSON; and its evaluation."""
    facts: dict[str, Any] = {"policy": name}
    if target_return is not None:
        policy.target_return = facts["target_return"] = target_return
        name = f"{name}, target {target_return:,.10g}"
    with status(f"running {output.count(evaluator.num_episodes, 'episode')} of the policy '{name}'"):
        step = int(policy.get_train_step()) if hasattr(policy, "get_train_step") else -1
        return name, {**facts, "updates": step if step >= 0 else None}, evaluator.evaluate(policy)


def _format_table(results: list[_Result], data_return: float | None, references: tuple[float, float] | None) -> str:
    rows: list[list[str]] = []
    has_successes = any(result.success_rate is not None for _, _, result in results)
    for name, facts, result in results:
        score = "-" if result.score is None else f"{result.score:.1f}"
        mean_return = f"{result.mean:,.1f} ± {result.std:,.1f}"
        length = f"{result.lengths.mean():,.1f}"
        success = "-" if result.success_rate is None else f"{result.success_rate:.0%}"
        rows.append(
            [name, "-" if facts["updates"] is None else f"{facts['updates']:,}", mean_return, score, length, success]
        )
    if data_return is not None:
        score = "-" if references is None else f"{d4rl_score(data_return, references):.1f}"
        rows.append(["(data)", "-", f"{data_return:,.1f}", score, "-", "-"])
    headings = ["policy", "updates", "return", "score", "length", "success"][: None if has_successes else -1]
    return format_columns(headings, [row[: len(headings)] for row in rows])
