"""`rlds2reverb train`: trains an agent from a dataset; the same command continues an interrupted run."""

from __future__ import annotations

import ast
import difflib
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rlds2reverb._signals import raise_on_sigterm
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.locations import server_address

from . import checks, directories, output
from .options import (
    GroupedCommand,
    apply_transform_options,
    open_source,
    parameter_names,
    reading_options,
    require_unused,
    transform_options,
)
from .output import json_option
from .presets import preset_names, preset_path, read_configs
from .progress_lines import ProgressLines
from .quiet import import_quietly, status

if TYPE_CHECKING:
    from rlds2reverb.learners import Evaluator, Learner

_HEADINGS = {
    "Run": ["algo", "source", "run_dir", "steps", "seed", "deterministic", "allow_config_mismatch"],
    "Agent": ["settings", "presets", "list_presets", "configs", "gamma", "n_step", "jit_compile"],
    "Batches": ["batch_size", "sampler", "top_percent"],
    "Evaluation": ["environment", "evaluate_every", "episodes", "reference_file", "is_d4rl"],
    "Checkpoints and logs": ["checkpoint_every", "keep_checkpoints", "log_every"],
    "Input": parameter_names(reading_options),
    "Preprocessing": parameter_names(transform_options),
}
#: Agents whose published results use normalised observations (TD3+BC: Fujimoto & Gu 2021, section 5).
_NORMALISING = ("td3_bc",)
#: Values of --algo, listed here so that they are checked before TensorFlow is loaded.
ALGORITHMS = ("awac", "bc", "cql", "discrete_bc", "discrete_cql", "double_dqn", "dqn", "iql", "rebrac", "td3", "td3_bc")

#: Published batch sizes other than 256 (ReBRAC: Tarasov et al. 2023, appendix; AWAC: Nair et al. 2020, appendix;
#: DQN and CQL of Atari: Mnih et al. 2015, table 1).
_BATCH_SIZES = {"rebrac": 1024, "awac": 1024, "dqn": 32, "double_dqn": 32, "discrete_cql": 32}
#: Agents that learn from the action after each transition as well, which only trajectories contain.
_TRAJECTORY_AGENTS = ("rebrac",)
#: Agents without a critic, and so without TD errors to use as priorities.
_WITHOUT_PRIORITIES = ("bc", "discrete_bc")
#: Gymnasium environments by a word in the name of a dataset.
_ENVIRONMENTS = {
    "ant": "Ant-v5",
    "halfcheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "inverteddoublependulum": "InvertedDoublePendulum-v5",
    "invertedpendulum": "InvertedPendulum-v5",
    "pendulum": "Pendulum-v1",
    "reacher": "Reacher-v5",
    "swimmer": "Swimmer-v5",
    "walker2d": "Walker2d-v5",
}
_NO_ENVIRONMENT = "none"


def _require_presets(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Checks the values of `--preset`."""
    for name in names:
        if name not in preset_names():
            raise click.BadParameter(f"unknown preset {name!r}{_suggest(name, preset_names())}")
    return names


def _list_presets(ctx: click.Context, param: click.Parameter, is_passed: bool) -> None:
    if is_passed:
        print("\n".join(preset_names()))
        ctx.exit()


@click.command(cls=GroupedCommand, headings=_HEADINGS)
@click.option("--algo", required=True, metavar="NAME", help=f"Agent to train: {', '.join(ALGORITHMS)}.")
@click.option(
    "--data",
    "source",
    required=True,
    metavar="SRC",
    help="Dataset (see rlds2reverb --help), directory that convert --out wrote, or HOST:PORT of a Reverb server.",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Directory for checkpoints, logs and the policy. If it contains a run, the run is continued.",
)
@click.option(
    "--steps",
    default=100_000,
    show_default=True,
    type=checks.at_least_1,
    metavar="N",
    help="Total number of gradient updates.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=checks.at_least_0,
    metavar="N",
    help="Random seed for weight initialisation, batch sampling and noise.",
)
@click.option(
    "--deterministic",
    is_flag=True,
    help="Make runs with the same seed bit-identical, even if they are continued; slower.",
)
@click.option(
    "--allow-config-mismatch",
    is_flag=True,
    help="Continue a run even if its data or hyperparameters differ from those of this command.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a hyperparameter of the agent, such as hidden_sizes=(64,64). Repeatable.",
)
@click.option(
    "--preset",
    "presets",
    multiple=True,
    callback=_require_presets,
    metavar="NAME",
    help="Use published settings for a D4RL task, such as iql-antmaze. Repeatable.",
)
@click.option(
    "--list-presets",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_presets,
    help="Print the names of all presets and exit.",
)
@click.option(
    "--config",
    "configs",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Read hyperparameters from a gin file; it overrides presets, and the command line overrides both. Repeatable.",
)
@click.option(
    "--n-step",
    default=1,
    show_default=True,
    type=checks.at_least_1,
    metavar="N",
    help="Number of steps that a transition spans.",
)
@click.option(
    "--gamma", default=0.99, show_default=True, type=checks.fraction, metavar="FLOAT", help="Discount factor."
)
@click.option(
    "--batch-size",
    type=checks.at_least_1,
    metavar="N",
    show_default="as published for the agent, mostly 256",
    help="Items per batch.",
)
@click.option(
    "--sampler",
    type=click.Choice(["uniform", "prioritized"]),
    default="uniform",
    show_default=True,
    help="How batches are sampled: uniformly from the dataset in memory, or by priority from a Reverb table whose "
    "priorities are updated with TD errors.",
)
@click.option(
    "--top-percent",
    type=click.FloatRange(0, 100, min_open=True),
    metavar="P",
    help="Train only on the P percent of episodes with the highest return.",
)
@click.option("--jit-compile", is_flag=True, help="Compile the gradient update with XLA.")
@click.option(
    "--env",
    "environment",
    metavar="ID",
    show_default="derived from the name of the dataset",
    help="Gymnasium environment to evaluate in, or 'none'.",
)
@click.option(
    "--eval-every",
    "evaluate_every",
    default=5_000,
    show_default=True,
    type=checks.at_least_1,
    metavar="N",
    help="Number of updates between evaluations.",
)
@click.option(
    "--eval-episodes",
    "episodes",
    default=10,
    show_default=True,
    type=checks.at_least_1,
    metavar="N",
    help="Number of episodes per evaluation; their seeds are 0, 1, ...",
)
@click.option(
    "--reference-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help='JSON file with the returns that define the scores 0 and 100: {"Hopper-v5": [RANDOM, EXPERT]}.',
)
@click.option(
    "--d4rl-score",
    "is_d4rl",
    is_flag=True,
    help="Use D4RL's reference returns for the environment; they were measured in its v2 version with mujoco-py.",
)
@click.option(
    "--checkpoint-every",
    default=10_000,
    show_default=True,
    type=checks.at_least_1,
    metavar="N",
    help="Number of updates between checkpoints.",
)
@click.option(
    "--log-every",
    default=500,
    show_default=True,
    type=checks.at_least_1,
    metavar="N",
    help="Number of updates between progress lines.",
)
@click.option(
    "--keep-checkpoints",
    default=3,
    show_default=True,
    type=checks.at_least_1,
    metavar="N",
    help="Number of checkpoints to keep; older ones are deleted.",
)
@reading_options
@transform_options
@json_option
def train(as_json: bool, **options: Any) -> int:
    """Train an agent from a dataset and evaluate it.

    \b
    Examples:
      rlds2reverb train --algo iql --data hopper_medium-v2.hdf5 --run-dir runs/iql
      rlds2reverb train --algo td3_bc --data hopper-medium-v2 --run-dir runs/td3 \\
          --preset td3_bc-locomotion --d4rl-score
      rlds2reverb train --algo iql --data localhost:8000 --run-dir runs/iql-served

    The command reads the dataset directly; no conversion is needed. The run directory then contains checkpoints, logs,
    the learning curve and the policy. Ctrl-C or SIGTERM saves a checkpoint and stops with exit code 75; the same
    command then continues the run.
    """
    settings = _parse_settings(options["settings"])
    if options["algo"] not in ALGORITHMS:
        raise click.UsageError(f"unknown algorithm {options['algo']!r}{_suggest(options['algo'], ALGORITHMS)}")
    if options["algo"] in _TRAJECTORY_AGENTS and options["n_step"] > 1:
        raise click.UsageError(f"{options['algo']} requires --n-step 1, because it learns from the next action as well")
    if options["sampler"] == "prioritized" and options["algo"] in _WITHOUT_PRIORITIES:
        raise click.UsageError(
            f"{options['algo']} requires --sampler uniform: it has no TD errors to use as priorities"
        )
    if "discount" in settings:
        raise click.UsageError("'discount' cannot be set here because it must match the stored items; use --gamma")
    if options["reference_file"] and options["is_d4rl"]:
        raise click.UsageError("pass only one of --reference-file and --d4rl-score")
    if options["deterministic"] and (options["sampler"] == "prioritized" or _is_served(options["source"])):
        raise click.UsageError(
            "--deterministic requires uniform batches of a dataset; servers sample nondeterministically"
        )
    if not _is_served(options["source"]):
        _require_existing(options["source"], options["download"])
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # A fifth faster on CPUs.
    import_quietly("tf_agents.agents.tf_agent", "rlds2reverb.learners", "rlds2reverb.adders")
    _require_hyperparameters(options["algo"], settings)
    options = _apply_configs(options)
    with raise_on_sigterm():
        return _Training(options, settings, as_json=as_json).run()


def _apply_configs(options: dict[str, Any]) -> dict[str, Any]:
    """Reads presets and gin files; returns the options with their values, except for those on the command line."""
    from rlds2reverb.learners.agents import AGENTS, get_hyperparameters, is_set_by_gin

    try:
        values = read_configs([*map(preset_path, options["presets"]), *options["configs"]])
        bound = {
            agent.__name__: [name for name in get_hyperparameters(algo) if is_set_by_gin(f"{agent.__name__}.{name}")]
            for algo, agent in AGENTS.items()
        }
        agent = AGENTS[options["algo"]].__name__
        for name, option in (("discount", "train.gamma"), ("num_updates", "--steps")):
            if name in bound[agent]:
                raise ValueError(f"{agent}.{name} cannot be set because the run determines it; set {option} instead")
        others = [other for other, names in bound.items() if names and other != agent]
        if others and not bound[agent]:
            raise ValueError(f"the settings are for {', '.join(others)}, but --algo {options['algo']} is {agent}")
        if "reward" in values:
            checks.parse_reward(values["reward"])
    except ValueError as error:
        option = "--config" if options["configs"] else "--preset"
        raise click.UsageError(f"{option}: {error}") from error
    source = click.get_current_context().get_parameter_source
    values = {name: value for name, value in values.items() if source(name) is ParameterSource.DEFAULT}
    if source("normalize_observations") is ParameterSource.DEFAULT:
        values.setdefault("normalize_observations", options["algo"] in _NORMALISING)
    if source("batch_size") is ParameterSource.DEFAULT:
        values.setdefault("batch_size", _BATCH_SIZES.get(options["algo"], 256))
    return {**options, **values}


def _guess_environment(source: str) -> str | None:
    """Returns the environment for the last word of a dataset's name that has one, or None."""
    words = re.split(r"[^a-z0-9]+", source.lower())
    return next((_ENVIRONMENTS[word] for word in reversed(words) if word in _ENVIRONMENTS), None)


def _require_existing(source: str, is_downloaded: bool) -> None:
    """Raises `click.UsageError` with the most similar name if an HDF5 file is missing, before TensorFlow is loaded."""
    path = Path(source)
    if path.exists() or is_downloaded or path.suffix not in (".hdf5", ".h5"):
        return
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    raise click.UsageError(f"the file {source} does not exist{_suggest(path.name, names, 'check the path')}")


def _require_hyperparameters(algo: str, settings: dict[str, Any]) -> None:
    from rlds2reverb.learners.agents import get_hyperparameters

    names = get_hyperparameters(algo)
    for name in settings:
        if name not in names:
            raise click.UsageError(f"{algo} has no hyperparameter {name!r}{_suggest(name, names)}")


def _suggest(name: str, valid_names: Iterable[str], fallback: str = "") -> str:
    """Returns the end of a message: the most similar valid name or else, without a fallback, all of them."""
    valid_names = sorted(valid_names)
    similar = difflib.get_close_matches(name, valid_names, 1)
    return f"; did you mean {similar[0]!r}?" if similar else f"; {fallback or 'use one of ' + ', '.join(valid_names)}"


def _is_served(source: str) -> bool:
    """Returns whether the data are in tables: of a server, or of a directory that `convert --out` wrote."""
    return server_address(source) is not None or directories.is_rlds2reverb_directory(source)


def _parse_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Returns NAME=VALUE pairs as a dict; values that are not Python literals stay strings."""
    settings = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise click.UsageError(f"--set must be NAME=VALUE such as alpha=2.5, got {pair!r}")
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
    return settings


@dataclass(frozen=True)
class _TrainingData:
    """The data of a run: a dataset, or a table of a server.

    Attributes:
      specs: the time step spec and the action spec.
      moments: mean and standard deviation of the observations, as arguments of the agent.
      fingerprint: fingerprint of the data, or the address of the server.
      behaviour_return: mean return of the dataset; None if unknown.
      source: the episodes; None for a table.
      server: the server with the table; None for a dataset.
      table: the name of the table.
    """

    specs: tuple[Any, Any]
    moments: dict[str, Any]
    fingerprint: str
    behaviour_return: float | None
    source: Any
    server: Any = None
    table: str = ""


class _Training:
    """One run of the command."""

    def __init__(self, options: dict[str, Any], settings: dict[str, Any], *, as_json: bool):
        self.options, self.settings, self.as_json = options, settings, as_json
        self._server: Any = None

    def run(self) -> int:
        import tensorflow as tf
        from rlds2reverb.learners import Learner, load_run
        from rlds2reverb.learners.agents import make_agent, resolve_hyperparameters

        from .main import OK, TEMPORARY_FAILURE

        options = self.options
        if options["deterministic"]:
            tf.config.experimental.enable_op_determinism()
        tf.random.set_seed(options["seed"])
        with ExitStack() as resources:
            evaluator, prepared = self._prepare(resources)
            settings = {**prepared.moments, "seed": options["seed"], **self._run_hyperparameters(), **self.settings}
            try:
                agent = make_agent(options["algo"], *prepared.specs, **settings)
            except TypeError as error:
                raise click.UsageError(str(error)) from error
            position = tf.Variable(0, dtype=tf.int64)
            dataset, writer, hooks = self._make_batches(prepared, position, resources)
            learner = resources.enter_context(
                Learner(
                    options["run_dir"],
                    agent,
                    dataset,
                    priorities=writer,
                    hooks=[*self._make_hooks(evaluator), *hooks],
                    jit_compile=options["jit_compile"],
                    identity=self._identity(prepared.fingerprint),
                    position=position,
                    keep_checkpoints=options["keep_checkpoints"],
                    on_log=ProgressLines(options["steps"], quiet=self.as_json),
                )
            )
            has_run = learner.load_checkpoint(allow_config_mismatch=options["allow_config_mismatch"])
            steps_before = load_run(options["run_dir"]).configuration.get("steps") if has_run else None
            learner.run.write_config(
                {key: _plain(value) for key, value in {**options, **self.settings}.items()},
                hyperparameters=_without_statistics(resolve_hyperparameters(options["algo"], **settings)),
                data={
                    "source": str(options["source"]),
                    "fingerprint": prepared.fingerprint,
                    "behaviour_return": prepared.behaviour_return,
                },
                environment=evaluator.name if evaluator else None,
                reference_returns=evaluator.reference_returns if evaluator else None,
            )
            if has_run:
                output.say(f"continuing from iteration {learner.last_iter:,}")
                self._compare_replay(learner)
                if steps_before not in (None, options["steps"]) and settings.get("num_updates"):
                    change = f"now ends after {options['steps']:,} updates instead of {steps_before:,}"
                    output.say(f"the actor's learning rate schedule {change}")
            learner.start(options["steps"])
            self._export(learner)
            self._report(learner, prepared.behaviour_return)
        return TEMPORARY_FAILURE if learner.is_stopped_by_signal else OK

    def _prepare(self, resources: ExitStack) -> tuple[Evaluator | None, _TrainingData]:
        """Returns the evaluator, or None without evaluation, and the data, which match its environment."""
        evaluator = self._make_evaluator()
        try:
            return evaluator, self._load_data(evaluator, resources)
        except SpecMismatchError as error:
            if evaluator is None or self.options["environment"]:
                raise
            output.warn(f"no evaluation, pass --env to choose an environment: {error}")
            return None, self._load_data(None, resources)

    def _load_data(self, evaluator: Evaluator | None, resources: ExitStack) -> _TrainingData:
        is_served = _is_served(self.options["source"])
        prepared = self._load_table(evaluator, resources) if is_served else self._load_dataset(evaluator)
        if evaluator is not None:
            evaluator.require_observations(prepared.specs[0].observation)
        return prepared

    def _make_batches(self, prepared: _TrainingData, position: Any, resources: ExitStack) -> tuple[Any, Any, list[Any]]:
        """Returns the batches, the priority writer or None, and the hooks that save the table."""
        from rlds2reverb.learners.hooks import ReplayCheckpointHook

        from rlds2reverb import ReplayServer

        from . import training

        options, adder = self.options, self._make_adder()
        batch_size, is_prioritized = options["batch_size"], options["sampler"] == "prioritized"
        server, table, hooks = prepared.server, prepared.table, []
        if server is None and not is_prioritized:
            return training.load_in_memory(prepared.source, adder, batch_size, seed=options["seed"]), None, []
        if server is None:
            kind = f"{type(adder).__name__}-{options['n_step']}-{options['gamma']}-{options['top_percent']}"
            name = f"{prepared.fingerprint[:16]}-{kind}{'-clipped' if options['clip_actions'] else ''}"
            own = training.serve_items(prepared.source, adder, checkpoint_root=options["run_dir"] / "replay" / name)
            server, table = resources.enter_context(own), "replay"
        if isinstance(server, ReplayServer) and server.has_checkpoints:
            hooks.append(ReplayCheckpointHook(server, every=options["checkpoint_every"]))
            hooks.append(ReplayCheckpointHook(server, position="after_run"))
        self._server = server
        dataset, writer = training.make_batches(
            server,
            table,
            batch_size,
            adder=adder,
            prioritized=is_prioritized,
            num_iterations=options["steps"],
            position=position,
            resources=resources,
        )
        return dataset, writer, hooks

    def _load_dataset(self, evaluator: Evaluator | None) -> _TrainingData:
        from rlds2reverb.sources.transforms import CastFloats, apply_transforms

        from . import training

        options = self.options
        raw, _ = apply_transforms(open_source(options), [CastFloats()])
        with status("reading the data"):
            later = ("normalize_observations", "cast_floats", "clip_actions")
            source, _ = apply_transform_options(raw, {**options, **dict.fromkeys(later, False)})
            behaviour = training.read_behaviour(source)
            own_returns = (behaviour if source is raw else training.read_behaviour(raw)).mean_return
            space = evaluator.action_space if evaluator else None
            specs = training.make_specs(source, behaviour, space, is_clipped=options["clip_actions"])
            num_outside, num_actions = training.count_outside(source, behaviour, specs[1])
            if options["top_percent"] is not None:
                source = training.best_episodes(source, options["top_percent"], behaviour.returns)
        if num_outside:
            advice = "they are clipped" if options["clip_actions"] else "use --clip-actions to clip them"
            output.warn(f"{num_outside:,} of {num_actions:,} actions are outside the action bounds; {advice}")
        if options["clip_actions"]:
            source = training.clip_actions(source, specs[1])
        moments = {"observation_mean": behaviour.mean, "observation_std": behaviour.std}
        moments = moments if options["normalize_observations"] else {}
        return _TrainingData(specs, moments, behaviour.fingerprint, own_returns, source)

    def _load_table(self, evaluator: Evaluator | None, resources: ExitStack) -> _TrainingData:
        from . import training

        options = self.options
        names = {"top_percent", "n_step", *parameter_names(reading_options, transform_options)}
        require_unused(names, "requires a dataset; the items of a table are already converted")
        server: Any = options["source"]
        if Path(server).is_dir():
            from rlds2reverb._server.replay_server import ReplayServer

            root = options["run_dir"] / "replay" / "served" if options["sampler"] == "prioritized" else None
            if root is not None:
                root.mkdir(parents=True, exist_ok=True)
            with status(f"serving {server}"):
                server = resources.enter_context(ReplayServer.from_directory(server, checkpoint_root=root))
        served = training.describe_table(server, evaluator.action_space if evaluator else None)
        has_one_priority = training.require_matching_items(self._make_adder(), options["algo"], served)
        if evaluator is None:
            output.say("assuming actions in [-1, 1]; pass --env ID to use the action bounds of an environment")
        if not has_one_priority and options["sampler"] == "uniform":
            output.warn("the table samples items by priority; use --sampler prioritized for importance weights")
        if options["algo"] in _NORMALISING and "observation_mean" not in self.settings:
            output.say(
                f"observations are not normalised, because {options['source']} has no statistics; pass --set "
                "observation_mean=[...] and --set observation_std=[...] to normalise them"
            )
        fingerprint = training.identify_tables(options["source"])
        specs = (served.time_step_spec, served.action_spec)
        return _TrainingData(specs, {}, fingerprint, None, None, served.server, served.table)

    def _make_adder(self) -> Any:
        """Returns the adder of the items: transitions, or trajectories of two steps."""
        from rlds2reverb.adders import NStep

        from rlds2reverb import TrajectoryWindows

        if self.options["algo"] in _TRAJECTORY_AGENTS:
            return TrajectoryWindows(2)
        return NStep(self.options["n_step"], self.options["gamma"])

    def _run_hyperparameters(self) -> dict[str, Any]:
        """Returns the hyperparameters that the run determines: the discount, and the length of schedules."""
        from rlds2reverb.learners.agents import get_hyperparameters

        names = get_hyperparameters(self.options["algo"])
        values = {"discount": self.options["gamma"], "num_updates": self.options["steps"]}
        return {name: value for name, value in values.items() if name in names}

    def _identity(self, fingerprint: str) -> dict[str, Any]:
        names = ("algo", "n_step", "gamma", "sampler", "top_percent", "reward", "seed", "batch_size", "clip_actions")
        return {
            **{name: self.options[name] for name in (*names, "normalize_observations")},
            "data": fingerprint,
            **{f"--preset {name}": preset_path(name).read_text() for name in self.options["presets"]},
            **{f"--config {path.name}": path.read_text() for path in self.options["configs"]},
            **{f"--set {name}": repr(value) for name, value in self.settings.items()},
        }

    def _make_evaluator(self) -> Evaluator | None:
        from rlds2reverb.learners import Evaluator, read_reference_returns

        from rlds2reverb.sources.scores import REFERENCE_RETURNS, d4rl_environment

        name = self.options["environment"] or _guess_environment(str(self.options["source"]))
        if name == _NO_ENVIRONMENT:
            return None
        if name is None:
            output.say(
                "no evaluation; pass --env ID, such as --env Hopper-v5, to evaluate (requires pip install '.[eval]')"
            )
            return None
        pair, reference_file = None, self.options["reference_file"]
        if reference_file:
            pair = read_reference_returns(reference_file, name)
        elif self.options["is_d4rl"]:
            if (key := d4rl_environment(name)) is None:
                raise click.UsageError(f"D4RL has no reference returns for {name}; pass --reference-file")
            pair = REFERENCE_RETURNS[key]
        try:
            evaluator = Evaluator(name, num_episodes=self.options["episodes"], reference_returns=pair)
        except ImportError as error:
            output.warn(f"no evaluation: {error}")
            return None
        if not self.options["environment"]:
            output.say(f"evaluating in {name}, derived from the name of the dataset (--env none disables evaluation)")
        return evaluator

    def _make_hooks(self, evaluator: Evaluator | None) -> list[Any]:
        from rlds2reverb.learners.hooks import EvaluateHook, LogShowHook, SaveCkptHook

        options = self.options
        hooks = [
            LogShowHook(every=options["log_every"]),
            SaveCkptHook(every=options["checkpoint_every"]),
            SaveCkptHook(position="after_run"),
        ]
        if evaluator is not None:
            hooks.append(EvaluateHook(evaluator.evaluate, every=options["evaluate_every"]))
            hooks.append(EvaluateHook(evaluator.evaluate, position="after_run"))
        return hooks

    def _compare_replay(self, learner: Learner) -> None:
        """Prints a line if the priorities were not saved together with the weights."""
        started_from = getattr(self._server, "started_from", None)
        if learner.replay_checkpoint and started_from and Path(learner.replay_checkpoint) != Path(started_from):
            output.say(
                f"the priorities come from {started_from}, but the weights were saved with {learner.replay_checkpoint}"
            )

    def _export(self, learner: Learner) -> None:
        with status("exporting the policy"):
            learner.export_policy(learner.run_dir / "policy")
            if learner.export_best_policy(learner.run_dir / "best_policy") is None:
                shutil.rmtree(learner.run_dir / "best_policy", ignore_errors=True)

    def _report(self, learner: Learner, behaviour_return: float | None) -> None:
        from rlds2reverb.learners import load_run
        from rlds2reverb.learners.curves import draw_curves, learning_curves, save_png

        latest = learner.latest
        facts = [("updates", f"{learner.last_iter:,}")]
        if behaviour_return is not None:
            facts.append(("dataset return", f"{behaviour_return:,.1f}"))
        last = latest.get("evaluation/mean_return")
        if last is not None:
            facts += [("last return", f"{last:,.1f}"), ("best return", f"{learner.best_return:,.1f}")]
            if "evaluation/score" in latest:
                facts.append(("last score", f"{latest['evaluation/score']:.1f}"))
            figure = draw_curves(learning_curves([load_run(learner.run_dir)]))
            save_png(figure, learner.run_dir / "curve.png")
            facts.append(("curve", str(learner.run_dir / "curve.png")))
        facts.append(("policy", str(learner.run_dir / "policy")))
        if learner.stop_reason:
            facts.append(("stopped by", f"{learner.stop_reason}; run the same command to continue"))
        if self.as_json:
            best = learner.best_return if last is not None else None
            summary = {"run_dir": str(learner.run_dir), "iterations": learner.last_iter}
            returns = {"behaviour_return": behaviour_return, "best_return": best}
            output.print_json({**summary, **returns, "stopped_by": learner.stop_reason or None, **latest})
        else:
            output.print_facts(f"{self.options['algo']} trained in {learner.run_dir}", facts)


def _without_statistics(hyperparameters: dict[str, Any]) -> dict[str, Any]:
    """Returns hyperparameters as JSON values, without the moments of the observations, which the policy contains."""
    return {name: _plain(value) for name, value in hyperparameters.items() if not name.startswith("observation_")}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(element) for element in value] if isinstance(value, (tuple, list)) else value
