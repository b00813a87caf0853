"""`rlds2reverb record`: runs a policy in an environment, and writes its episodes as a dataset."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from rlds2reverb.datasets import Source
from rlds2reverb.datasets.writers.writing import FORMAT_LIMITS
from rlds2reverb.system.signals import raise_on_sigterm

from . import output
from .declarations import PATH, option
from .films import film_option, film_policy
from .item_writing import drop_printed
from .number_types import Number, at_least_0, at_least_1, fraction
from .options import require_unused, time_limit_option
from .output import json_option
from .quiet import import_quietly, status

if TYPE_CHECKING:
    from rlds2reverb.datasets.writers.writing import WriteReport
    from rlds2reverb.envs.film import Film

_RANDOM = "random"
_HDF5_SUFFIXES = (".hdf5", ".h5")
_DEFAULT_EPISODES = 10


@click.command()
@click.argument("environment", metavar="ENV")
@option(
    "--policy",
    default=_RANDOM,
    metavar="RUN|random",
    help="Policy to run: the --run-dir of rlds2reverb train, a directory that TF-Agents' PolicySaver wrote, an ONNX "
    "file of rlds2reverb export, or random for uniformly random actions.",
)
@option(
    "--which",
    choices=["last", "best"],
    help="Policy of a training run: the last policy, or the one with the best evaluation.",
)
@option("--out", type=PATH, metavar="PATH", help="Dataset to create; required unless there is a --film.")
@option(
    "--format",
    type=click.Choice([name for name, limits in FORMAT_LIMITS.items() if True in limits.layouts]),
    show_default="from the name of --out: d4rl for .hdf5 and .h5, minari for NAME-vN, otherwise rlds",
    help="Format of the dataset: an HDF5 file as D4RL's or robomimic's, a directory as TFDS prepares it (rlds), or a "
    "Minari dataset.",
)
@option(
    "--episodes",
    type=at_least_1,
    show_default=f"{_DEFAULT_EPISODES} without --steps",
    help="Number of episodes to record.",
)
@option("--steps", type=at_least_1, help="Number of steps to record instead; the last episodes are truncated.")
@option("--num-envs", default=1, type=at_least_1, help="Number of environments that are stepped in parallel processes.")
@option("--seed", default=0, type=at_least_0, help="Random seed for the environments, random actions and the policy.")
@option("--epsilon", default=0.0, type=fraction, help="Share of random actions that replace those of the policy.")
@option(
    "--target-return",
    type=Number(),
    show_default="as in training",
    help="Return that a policy of decision_transformer aims at.",
)
@time_limit_option
@film_option
@option(
    "--env-info", multiple=True, metavar="NAME", help="Also record this field of the environment's info. Repeatable."
)
@json_option
def record(
    environment: str,
    policy: str,
    which: str,
    out: Path | None,
    format: Any,
    film: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a policy in an environment, and write its episodes as a dataset, or a film.

    \b
    Examples:
      rlds2reverb record Pendulum-v1 --out pendulum.hdf5 --steps 10000
      rlds2reverb record Hopper-v5 --policy runs/iql --which best --out hopper-best-v0 --episodes 100
      rlds2reverb record Hopper-v5 --policy runs/iql --epsilon 0.3 --out hopper/1.0.0 --num-envs 8
      rlds2reverb record Hopper-v5 --policy runs/iql --film hopper.mp4 --episodes 3

    ENV is the id of a Gymnasium environment, or MODULE:ID to import a module first. The dataset contains the final
    observation of each episode, whether it was terminated or truncated, and the environment's description, in which
    rlds2reverb train then evaluates. It appears under its path when it is complete. A film shows --episodes episodes,
    without random actions; with --out, one episode.
    """
    env = (environment, environment)
    if options["episodes"] and options["steps"]:
        raise click.UsageError("pass only one of --episodes and --steps")
    if out is None:
        if film is None:
            raise click.UsageError("pass --out for a dataset, --film for a film, or both")
        names = {"format", "steps", "num_envs", "epsilon", "env_info"}
        require_unused(names, "requires --out, because it concerns the dataset")
        with raise_on_sigterm():
            acting = _load_policy(policy, which, options)
            result = film_policy(film, env, acting, options, num_episodes=options["episodes"] or 1)
        _print_film(result, environment, as_json=as_json)
        return
    from rlds2reverb.datasets.writers.writing import require_destination, write_dataset

    format = format or _choose_format(out)
    if format == "d4rl":
        require_unused({"env_info"}, "requires --format rlds or minari, because D4RL has no row for the last step")
    require_destination(out, format)
    with raise_on_sigterm():
        acting = _load_policy(policy, which, options)
        source = _record(environment, acting, options)
        source.metadata = _describe(policy, which, options)
        for warning in source.warnings:
            output.warn(warning)
        if format == "rlds":
            import_quietly("tensorflow_datasets")
        with status(f"writing {out}"):
            report = write_dataset(source, out, format=format)
        filmed = None if film is None else film_policy(film, env, acting, options)
    _print(report, source, environment, filmed, as_json=as_json)


def _choose_format(out: Path) -> str:
    if out.suffix.lower() in _HDF5_SUFFIXES:
        return "d4rl"
    return "minari" if re.search(r"-v\d+$", out.name) else "rlds"


def _load_policy(policy: str, which: str, options: dict[str, Any]) -> Any:
    """Returns 'random', or the policy of a run, a SavedModel or an ONNX file."""
    if policy == _RANDOM:
        require_unused({"which"}, "requires a --policy of a training run")
        require_unused({"target_return"}, "requires a --policy of decision_transformer")
        return policy
    folder = Path(policy).expanduser()
    if not folder.exists():
        raise click.UsageError(
            f"--policy must be 'random', the directory of a training run or an ONNX file, got {policy!r}"
        )
    from rlds2reverb.learners.runs import load_run
    from rlds2reverb.policies.onnx_policies import is_onnx_file
    from rlds2reverb.policies.saved_policies import is_saved_model, load_policy
    from rlds2reverb.training.directories import require_one_run

    require_one_run(folder)
    run = None if is_onnx_file(folder) or is_saved_model(folder) else load_run(folder)
    if run is None:
        require_unused({"which"}, "requires a --policy of a training run")
    if not is_onnx_file(folder):
        import_quietly("tensorflow")
        import tensorflow as tf

        tf.random.set_seed(options["seed"])
    with status(f"loading the policy of {folder}"):
        loaded = load_policy(folder) if run is None else run.best_policy if which == "best" else run.policy
    if options["target_return"] is not None:
        loaded.target_return = options["target_return"]
    return loaded


def _record(environment: str, policy: Any, options: dict[str, Any]) -> Source:
    from rlds2reverb.envs._env_process import EnvironmentFailedError
    from rlds2reverb.envs.recording import record_episodes

    num_steps = options["steps"]
    num_episodes = None if num_steps else options["episodes"] or _DEFAULT_EPISODES
    expected = Source(environment, "memory", lambda: iter(()), num_episodes=num_episodes, num_rows=num_steps)
    try:
        with output.StepProgress(expected) as progress:
            return record_episodes(
                environment,
                policy,
                num_episodes=num_episodes,
                num_steps=num_steps,
                env_info=options["env_info"] or False,
                **{name: options[name] for name in ("num_envs", "seed", "epsilon", "max_episode_steps")},
                progress=lambda episode: progress("recording", episode),
            )
    except EnvironmentFailedError as error:
        raise ValueError(str(error)) from error


def _print_film(film: Film, environment: str, *, as_json: bool) -> None:
    returns = ", ".join(f"{value:,.1f}" for value in film.returns)
    secs = film.num_images / film.images_per_sec
    facts = [("film", f"{film.path}, {secs:.1f} s, {film.size[0]} x {film.size[1]} pixels"), ("return", returns)]
    document = {"environment": environment, "film": film.as_dict()}
    output.print_result(document, output.format_named_facts(f"{environment} filmed", facts), as_json=as_json)


def _describe(policy: str, which: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the metadata of the dataset: the policy, in Minari's term its algorithm, and what it was run with."""
    name = policy if policy == _RANDOM else _name_policy(Path(policy).expanduser().resolve(), which)
    metadata = {"algorithm_name": name, "seed": options["seed"], "num_envs": options["num_envs"]}
    changed = {"epsilon": options["epsilon"] or None, "target_return": options["target_return"]}
    return metadata | {name: value for name, value in changed.items() if value is not None}


def _name_policy(path: Path, which: str) -> str:
    """Returns the name of a policy, given the directory of a run, one of the policies in it, or any other policy."""
    from rlds2reverb.learners.runs import POLICY_FOLDERS, is_run_directory

    names = {folder: name for name, folder in POLICY_FOLDERS.items()}
    if path.name in names and is_run_directory(path.parent):
        which, path = names[path.name], path.parent
    return f"{which} policy of run {path.name}" if is_run_directory(path) else f"policy {path.name}"


def _print(report: WriteReport, source: Source, environment: str, film: Film | None, *, as_json: bool) -> None:
    episodes = list(source)
    returns = np.array([episode.total_reward for episode in episodes])
    num_terminal = sum(episode.is_terminal for episode in episodes)
    document = {**report.as_dict(), "environment": environment, "mean_return": float(returns.mean())}
    document |= {"std_return": float(returns.std()), "terminal": num_terminal}
    facts = drop_printed(report.facts(), source.warnings)
    place = [name for name, _ in facts].index("transitions") + 1
    ends = f"{num_terminal:,} terminal, {len(episodes) - num_terminal:,} truncated"
    facts[place:place] = [("return", f"{returns.mean():,.1f} ± {returns.std():,.1f}"), ("ends", ends)]
    if film is not None:
        facts.append(("film", str(film)))
        document["film"] = film.as_dict()
    facts.append(output.next_command("train", "--algo", "ALGO", "--data", report.path, "--run-dir", "DIR"))
    output.print_result(document, output.format_named_facts(f"{environment} recorded", facts), as_json=as_json)
