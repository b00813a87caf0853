"""`rlds2reverb train`: from a data set to a trained agent, in one command that can be killed and given again."""

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

from rlds2reverb.errors import SpecMismatchError

from . import checks, output
from .options import (
    GroupedCommand,
    names_of,
    open_source,
    reading_options,
    require_unused,
    transform_options,
    transformed,
)
from .output import json_option
from .presets import preset_names, preset_path, read_configs
from .progress_lines import ProgressLines
from .quiet import import_quietly, status
from .stopping import sigterm_as_exception

if TYPE_CHECKING:
    from rlds2reverb.learners import Evaluator, Learner

_HEADINGS = {
    "The run": ["algo", "source", "run_dir", "steps", "seed", "deterministic", "override"],
    "The agent": ["overrides", "configs", "n_step", "gamma", "batch_size", "sampler", "top_percent", "jit_compile"],
    "Evaluation": ["environment", "evaluate_every", "episodes", "references", "is_d4rl"],
    "Checkpoints and logs": ["checkpoint_every", "log_every", "keep"],
    "What to read": names_of(reading_options),
    "What to change": names_of(transform_options),
}
#: Agents whose published results have normalised observations (TD3+BC: Fujimoto & Gu 2021, section 5).
_NORMALISE = ("td3_bc",)
#: What --algo takes, known before TensorFlow is loaded.
ALGORITHMS = ("awac", "bc", "cql", "discrete_bc", "discrete_cql", "double_dqn", "dqn", "iql", "rebrac", "td3", "td3_bc")


#: Published batch sizes other than 256 (ReBRAC: Tarasov et al. 2023, appendix; AWAC: Nair et al. 2020, appendix;
#: DQN and CQL of Atari: Mnih et al. 2015, table 1).
_BATCH_SIZES = {"rebrac": 1024, "awac": 1024, "dqn": 32, "double_dqn": 32, "discrete_cql": 32}
#: Agents that need the action after each transition, and so trajectories of two steps.
_OF_TRAJECTORIES = ("rebrac",)
#: Agents without a critic, which give no TD errors to be priorities.
_WITHOUT_PRIORITIES = ("bc", "discrete_bc")
#: Gymnasium's environment of a word in the name of a data set.
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


def _config_paths(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> tuple[Path, ...]:
    """Returns the files of `--config`, those that come with the package by their names."""
    paths = tuple(preset_path(name) for name in names)
    for path in paths:
        if not path.is_file():
            raise click.BadParameter(f"there is no file {path}{_nearest(str(path), preset_names())}")
    return paths


@click.command(cls=GroupedCommand, headings=_HEADINGS)
@click.option("--algo", required=True, metavar="NAME", help="bc, td3_bc, iql, cql, awac, rebrac, dqn, ...")
@click.option(
    "--data",
    "source",
    required=True,
    metavar="SRC",
    help="A data set (see rlds2reverb --help), a directory that convert --out wrote, or HOST:PORT of a server.",
)
@click.option(
    "--run-dir",
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Directory of the run. The same command continues the run that is in it.",
)
@click.option("--steps", default=100_000, show_default=True, type=checks.at_least_1, help="Updates in all.")
@click.option("--seed", default=0, show_default=True, type=checks.at_least_0, help="Of weights, batches and noise.")
@click.option("--deterministic", is_flag=True, help="The same weights, to the bit, also when continued; slower.")
@click.option("--override", is_flag=True, help="Continue a run of another agent's settings or other data.")
@click.option(
    "--set", "overrides", multiple=True, metavar="NAME=VALUE", help="A hyperparameter of the agent. Repeatable."
)
@click.option(
    "--config",
    "configs",
    multiple=True,
    callback=_config_paths,
    metavar="FILE|NAME",
    help="A gin file with hyperparameters, or one of ours for D4RL's tasks, such as iql-antmaze. Repeatable.",
)
@click.option("--n-step", default=1, show_default=True, type=checks.at_least_1, help="Steps of a transition.")
@click.option("--gamma", default=0.99, show_default=True, type=click.FloatRange(0, 1), help="Discount factor.")
@click.option("--batch-size", type=checks.at_least_1, help="Items in a batch.  [default: as published, mostly 256]")
@click.option(
    "--sampler",
    type=click.Choice(["uniform", "prioritized"]),
    default="uniform",
    show_default=True,
    help="prioritized: from a Reverb table, by TD errors that are written back.",
)
@click.option("--top-percent", type=click.FloatRange(0, 100, min_open=True), help="Only the best episodes.")
@click.option("--jit-compile", is_flag=True, help="Compile the update with XLA.")
@click.option(
    "--env",
    "environment",
    metavar="ID",
    help="Gymnasium environment to evaluate in, or 'none'.  [default: by the name of the data, such as Hopper-v5]",
)
@click.option(
    "--eval-every",
    "evaluate_every",
    default=5_000,
    show_default=True,
    type=checks.at_least_1,
    metavar="N",
    help="Updates between two evaluations.",
)
@click.option(
    "--eval-episodes",
    "episodes",
    default=10,
    show_default=True,
    type=checks.at_least_1,
    metavar="N",
    help="Episodes of an evaluation, with the seeds 0, 1, ...",
)
@click.option(
    "--references",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON file with returns of a random policy and of an expert, for scores.",
)
@click.option("--d4rl-score", "is_d4rl", is_flag=True, help="Score by D4RL's own reference returns of the environment.")
@click.option(
    "--checkpoint-every",
    default=10_000,
    show_default=True,
    type=checks.at_least_1,
    metavar="N",
    help="Updates between two checkpoints.",
)
@click.option(
    "--log-every",
    default=500,
    show_default=True,
    type=checks.at_least_1,
    metavar="N",
    help="Updates between two lines.",
)
@click.option("--keep", default=3, show_default=True, type=checks.at_least_1, help="Checkpoints that are kept.")
@reading_options
@transform_options
@json_option
def train(as_json: bool, **options: Any) -> int:
    """Trains an agent from a data set, evaluates it, and leaves everything in a directory.

    \b
      rlds2reverb train --algo iql --data hopper_medium-v2.hdf5 --run-dir runs/iql

    Uniform batches are drawn from the data set in memory; prioritized ones from a Reverb table that the command
    serves. SIGTERM or Ctrl-C saves and stops (exit code 75); the same command goes on.
    """  # noqa: D301
    settings = _parsed_settings(options["overrides"])
    if options["algo"] in _OF_TRAJECTORIES and options["n_step"] > 1:
        raise click.UsageError(f"{options['algo']} learns from the next action too, expected --n-step 1")
    if options["algo"] not in ALGORITHMS:
        raise click.UsageError(f"there is no algorithm {options['algo']!r}{_nearest(options['algo'], ALGORITHMS)}")
    if options["sampler"] == "prioritized" and options["algo"] in _WITHOUT_PRIORITIES:
        raise click.UsageError(f"{options['algo']} has no TD errors to be priorities, expected --sampler uniform")
    if "discount" in settings:
        raise click.UsageError("discount is that of the items too; give --gamma in its place")
    if options["references"] and options["is_d4rl"]:
        raise click.UsageError("give --references or --d4rl-score, not both")
    if options["deterministic"] and (options["sampler"] == "prioritized" or _is_served(options["source"])):
        raise click.UsageError("--deterministic is for uniform batches of a data set: a server samples as it goes")
    if not _is_served(options["source"]):
        _require_there(options["source"], options["download"])
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # takes a fifth less time on CPUs
    import_quietly("tf_agents.agents.tf_agent", "rlds2reverb.learners", "rlds2reverb.adders")
    _require_settings(options["algo"], settings)
    options = _with_configs(options)
    with sigterm_as_exception():
        return _Training(options, settings, as_json=as_json).run()


def _with_configs(options: dict[str, Any]) -> dict[str, Any]:
    """Reads the gin files, and returns the options with what these set, unless it was given on the command line."""
    from rlds2reverb.learners.agents import AGENTS, hyperparameters, is_bound

    try:
        found = read_configs(options["configs"])
        bound = {
            agent.__name__: [name for name in hyperparameters(algo) if is_bound(f"{agent.__name__}.{name}")]
            for algo, agent in AGENTS.items()
        }
        own = AGENTS[options["algo"]].__name__
        for name, mend in (("discount", "train.gamma"), ("num_updates", "--steps")):
            if name in bound[own]:
                raise ValueError(f"{own}.{name} follows from the run; set {mend} in its place")
        others = [agent for agent, names in bound.items() if names and agent != own]
        if others and not bound[own]:
            raise ValueError(f"the settings are of {', '.join(others)}, --algo {options['algo']} is {own}")
        if "reward" in found:
            checks.parse_reward(found["reward"])
    except ValueError as error:
        raise click.UsageError(f"--config: {error}") from error
    source = click.get_current_context().get_parameter_source
    found = {name: found[name] for name in found if source(name) is ParameterSource.DEFAULT}
    if source("normalize_observations") is ParameterSource.DEFAULT:
        found.setdefault("normalize_observations", options["algo"] in _NORMALISE)
    if source("batch_size") is ParameterSource.DEFAULT:
        found.setdefault("batch_size", _BATCH_SIZES.get(options["algo"], 256))
    return {**options, **found}


def _environment_of(source: str) -> str | None:
    """Returns the environment that the name of a data set stands for: that of its last word which is known."""
    words = re.split(r"[^a-z0-9]+", source.lower())
    return next((_ENVIRONMENTS[word] for word in reversed(words) if word in _ENVIRONMENTS), None)


def _require_there(source: str, is_downloaded: bool) -> None:
    """Refuses a path that is not there with the nearest name in its folder, before TensorFlow is loaded."""
    path = Path(source)
    if path.exists() or is_downloaded or path.suffix not in (".hdf5", ".h5"):
        return
    names = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    raise click.UsageError(f"there is no file {source}{_nearest(path.name, names, 'look at the path')}")


def _require_settings(algo: str, settings: dict[str, Any]) -> None:
    from rlds2reverb.learners.agents import hyperparameters

    known = hyperparameters(algo)
    for name in settings:
        if name not in known:
            raise click.UsageError(f"{algo} has no hyperparameter {name!r}{_nearest(name, known)}")


def _nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; {otherwise or 'expected one of ' + ', '.join(known)}"


def _is_served(source: str) -> bool:
    """Returns whether data are in tables: an address host:port, or a directory that `convert --out` wrote."""
    path = Path(source)
    if path.is_dir():
        return (path / "rlds2reverb.json").is_file()
    host, _, port = source.rpartition(":")
    return bool(host) and port.isdigit() and not path.exists()


def _parsed_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Returns NAME=VALUE pairs with values as Python literals, or as text."""
    settings = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise click.UsageError(f"--set got {pair!r}, expected NAME=VALUE such as alpha=2.5")
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
    return settings


@dataclass(frozen=True)
class _Prepared:
    """What is trained from: a data set, or a table of a server.

    Attributes:
      specs: of time steps and actions.
      moments: the agent's statistics of observations, by argument.
      fingerprint: of the data; path or address of a table.
      behaviour_return: the mean return in the data, if it is known.
      source: the episodes; None for a table.
      server: that has the table, or None.
      table: its name.
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
        from rlds2reverb.learners.agents import make_agent, resolved

        from .main import MAY_BE_RETRIED, OK

        options = self.options
        if options["deterministic"]:
            tf.config.experimental.enable_op_determinism()
        tf.random.set_seed(options["seed"])
        with ExitStack() as resources:
            evaluator, prepared = self._prepared(resources)
            settings = {**prepared.moments, "seed": options["seed"], **self._of_run(), **self.settings}
            try:
                agent = make_agent(options["algo"], *prepared.specs, **settings)
            except TypeError as error:
                raise click.UsageError(str(error)) from error
            position = tf.Variable(0, dtype=tf.int64)
            dataset, writer, hooks = self._batches(prepared, position, resources)
            learner = resources.enter_context(
                Learner(
                    options["run_dir"],
                    agent,
                    dataset,
                    priorities=writer,
                    hooks=[*self._hooks(evaluator), *hooks],
                    jit_compile=options["jit_compile"],
                    identity=self._identity(prepared.fingerprint),
                    position=position,
                    keep_checkpoints=options["keep"],
                    on_log=ProgressLines(options["steps"], quiet=self.as_json),
                )
            )
            has_run = learner.load_checkpoint(override=options["override"])
            steps_before = load_run(options["run_dir"]).configuration.get("steps") if has_run else None
            learner.run.write_config(
                {key: _plain(value) for key, value in {**options, **self.settings}.items()},
                hyperparameters=_without_statistics(resolved(options["algo"], **settings)),
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
                    ends = f"ended after {steps_before:,} updates, and ends after {options['steps']:,} now"
                    output.say(f"the schedule of the actor's learning rate {ends}")
            learner.start(options["steps"])
            self._export(learner)
            self._report(learner, prepared.behaviour_return)
        return MAY_BE_RETRIED if learner.is_stopped_by_signal else OK

    def _prepared(self, resources: ExitStack) -> tuple[Evaluator | None, _Prepared]:
        """Returns what evaluates, if anything, and what is trained from; the two fit."""
        evaluator = self._evaluator()
        try:
            return evaluator, self._data_for(evaluator, resources)
        except SpecMismatchError as error:
            if evaluator is None or self.options["environment"]:
                raise
            output.warn(f"no evaluation, give --env: {error}")
            return None, self._data_for(None, resources)

    def _data_for(self, evaluator: Evaluator | None, resources: ExitStack) -> _Prepared:
        is_served = _is_served(self.options["source"])
        prepared = self._of_table(evaluator, resources) if is_served else self._of_data_set(evaluator)
        if evaluator is not None:
            evaluator.require_observations(prepared.specs[0].observation)
        return prepared

    def _batches(self, prepared: _Prepared, position: Any, resources: ExitStack) -> tuple[Any, Any, list[Any]]:
        """Returns the batches, what writes priorities back or None, and the hooks that belong to them."""
        from rlds2reverb.learners.hooks import ReplayCheckpointHook

        from rlds2reverb import ReplayServer

        from . import training

        options, adder = self.options, self._adder()
        batch_size, is_prioritized = options["batch_size"], options["sampler"] == "prioritized"
        server, table, hooks = prepared.server, prepared.table, []
        if server is None and not is_prioritized:
            return training.resident_items(prepared.source, adder, batch_size, seed=options["seed"]), None, []
        if server is None:
            kind = f"{type(adder).__name__}-{options['n_step']}-{options['gamma']}-{options['top_percent']}"
            name = f"{prepared.fingerprint[:16]}-{kind}{'-clipped' if options['clip_actions'] else ''}"
            own = training.table_of(prepared.source, adder, checkpoint_root=options["run_dir"] / "replay" / name)
            server, table = resources.enter_context(own), "replay"
        if isinstance(server, ReplayServer) and server.has_checkpoints:
            hooks.append(ReplayCheckpointHook(server, every=options["checkpoint_every"]))
            hooks.append(ReplayCheckpointHook(server, position="after_run"))
        self._server = server
        dataset, writer = training.batches_of(
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

    def _of_data_set(self, evaluator: Evaluator | None) -> _Prepared:
        from rlds2reverb.sources.transforms import CastFloats, apply_transforms

        from . import training

        options = self.options
        raw, _ = apply_transforms(open_source(options), [CastFloats()])
        with status("reading the data"):
            later = ("normalize_observations", "cast_floats", "clip_actions")
            source, _ = transformed(raw, {**options, **dict.fromkeys(later, False)})
            behaviour = training.behaviour_of(source)
            own_returns = (behaviour if source is raw else training.behaviour_of(raw)).mean_return
            space = evaluator.action_space if evaluator else None
            specs = training.specs_of(source, behaviour, space, is_clipped=options["clip_actions"])
            num_outside, num_actions = training.count_outside(source, behaviour, specs[1])
            if options["top_percent"] is not None:
                source = training.best_episodes(source, options["top_percent"], behaviour.returns)
        if num_outside:
            what = f"{num_outside:,} of {num_actions:,} actions are outside of the bounds"
            output.warn(
                f"{what}; they are clipped" if options["clip_actions"] else f"{what}; --clip-actions clips them"
            )
        if options["clip_actions"]:
            source = training.clipped(source, specs[1])
        moments = {"observation_mean": behaviour.mean, "observation_std": behaviour.std}
        moments = moments if options["normalize_observations"] else {}
        return _Prepared(specs, moments, behaviour.fingerprint, own_returns, source)

    def _of_table(self, evaluator: Evaluator | None, resources: ExitStack) -> _Prepared:
        from . import training

        options = self.options
        why = "is for a data set; items of a table are as they were converted"
        require_unused({"top_percent", "n_step", *names_of(reading_options), *names_of(transform_options)}, why)
        server: Any = options["source"]
        if Path(server).is_dir():
            from rlds2reverb._server.replay_server import ReplayServer

            root = options["run_dir"] / "replay" / "served" if options["sampler"] == "prioritized" else None
            if root is not None:
                root.mkdir(parents=True, exist_ok=True)
            with status(f"serving {server}"):
                server = resources.enter_context(ReplayServer(None, data=server, checkpoint_root=root))
        served = training.served_items(server, evaluator.action_space if evaluator else None)
        has_one_priority = training.require_items_for(self._adder(), options["algo"], served)
        if evaluator is None:
            output.say("actions are taken to be in [-1, 1]; --env ID gives the bounds of an environment")
        if not has_one_priority and options["sampler"] == "uniform":
            output.warn("the table draws items by their priorities; --sampler prioritized weights the batches for it")
        if options["algo"] in _NORMALISE and "observation_mean" not in self.settings:
            output.say(
                f"observations are not normalised: {options['source']} has no statistics; give them with --set "
                "observation_mean=[...] and --set observation_std=[...]"
            )
        fingerprint = training.identity_of(options["source"])
        specs = (served.time_step_spec, served.action_spec)
        return _Prepared(specs, {}, fingerprint, None, None, served.server, served.table)

    def _adder(self) -> Any:
        """Returns what makes the items: transitions, or trajectories of two steps."""
        from rlds2reverb.adders import NStep

        from rlds2reverb import TrajectoryWindows

        if self.options["algo"] in _OF_TRAJECTORIES:
            return TrajectoryWindows(2)
        return NStep(self.options["n_step"], self.options["gamma"])

    def _of_run(self) -> dict[str, Any]:
        """Returns the hyperparameters that follow from the run: the discount, and the length of schedules."""
        from rlds2reverb.learners.agents import hyperparameters

        known = hyperparameters(self.options["algo"])
        of_run = {"discount": self.options["gamma"], "num_updates": self.options["steps"]}
        return {name: value for name, value in of_run.items() if name in known}

    def _identity(self, fingerprint: str) -> dict[str, Any]:
        names = ("algo", "n_step", "gamma", "sampler", "top_percent", "reward", "seed", "batch_size", "clip_actions")
        return {
            **{name: self.options[name] for name in (*names, "normalize_observations")},
            "data": fingerprint,
            **{f"--config {path.name}": path.read_text() for path in self.options["configs"]},
            **{f"--set {name}": repr(value) for name, value in self.settings.items()},
        }

    def _evaluator(self) -> Evaluator | None:
        from rlds2reverb.learners import Evaluator, read_reference_returns

        from rlds2reverb.sources.scores import REFERENCE_RETURNS, d4rl_environment

        name = self.options["environment"] or _environment_of(str(self.options["source"]))
        if name is None or name == _NO_ENVIRONMENT:
            output.say("no evaluation: give --env ID, such as --env Hopper-v5 (needs pip install '.[eval]')")
            return None
        pair, references = None, self.options["references"]
        if references:
            pair = read_reference_returns(references, name)
        elif self.options["is_d4rl"]:
            if (key := d4rl_environment(name)) is None:
                raise click.UsageError(f"D4RL has no reference returns of {name}; give --references")
            pair = REFERENCE_RETURNS[key]
        try:
            evaluator = Evaluator(name, num_episodes=self.options["episodes"], reference_returns=pair)
        except ImportError as error:
            output.warn(f"no evaluation: {error}")
            return None
        if not self.options["environment"]:
            output.say(f"evaluating in {name}, by the name of the data (--env none: not at all)")
        return evaluator

    def _hooks(self, evaluator: Evaluator | None) -> list[Any]:
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
        """Says so where the priorities are not of the same moment as the weights."""
        started_from = getattr(self._server, "started_from", None)
        if learner.replay_checkpoint and started_from and Path(learner.replay_checkpoint) != Path(started_from):
            output.say(f"the priorities are those of {started_from}, the weights went with {learner.replay_checkpoint}")

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
            facts.append(("return of the data", f"{behaviour_return:,.1f}"))
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
            facts.append(("stopped by", f"{learner.stop_reason}; the same command continues"))
        if self.as_json:
            best = learner.best_return if last is not None else None
            summary = {"run_dir": str(learner.run_dir), "iterations": learner.last_iter}
            returns = {"behaviour_return": behaviour_return, "best_return": best}
            output.print_json({**summary, **returns, "stopped_by": learner.stop_reason or None, **latest})
        else:
            output.print_facts(f"{self.options['algo']} trained in {learner.run_dir}", facts)


def _without_statistics(hyperparameters: dict[str, Any]) -> dict[str, Any]:
    """Returns hyperparameters as JSON has them, without the moments of the observations, which are in the policy."""
    return {name: _plain(value) for name, value in hyperparameters.items() if not name.startswith("observation_")}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value
