"""`rlds2reverb train`: from a data set to a trained agent, in one command that can be killed and given again."""

from __future__ import annotations

import ast
import difflib
import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

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
from .progress_lines import ProgressLines
from .quiet import import_quietly, status
from .recipes import is_set, read_configs, recipe_names, recipe_path

if TYPE_CHECKING:
    from rlds2reverb.learners import Evaluator, Learner

_HEADINGS = {
    "The run": ["algo", "source", "root_dir", "steps", "seed", "deterministic", "override"],
    "The agent": ["overrides", "configs", "n_step", "gamma", "batch_size", "sampler", "top_percent", "jit_compile"],
    "Evaluation": ["environment", "evaluate_every", "episodes", "references"],
    "Checkpoints and logs": ["checkpoint_every", "log_every", "keep"],
    "What to read": names_of(reading_options),
    "What to change": names_of(transform_options),
}
#: Agents whose published results have normalised observations (TD3+BC: Fujimoto & Gu 2021, section 5).
_NORMALISE = ("td3_bc",)
#: What --algo takes, known before TensorFlow is loaded.
ALGORITHMS = ("awac", "bc", "cql", "discrete_bc", "discrete_cql", "double_dqn", "dqn", "iql", "rebrac", "td3", "td3_bc")


#: Published batch sizes other than 256 (ReBRAC: Tarasov et al. 2023, appendix).
_BATCH_SIZES = {"rebrac": 1024}
#: Agents that need the action after each transition, and so trajectories of two steps.
_OF_TRAJECTORIES = ("rebrac",)


def _config_paths(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> tuple[Path, ...]:
    """Returns the files of `--config`, those that come with the package by their names."""
    paths = tuple(recipe_path(name) for name in names)
    for path in paths:
        if not path.is_file():
            raise click.BadParameter(f"there is no file {path}{_nearest(str(path), recipe_names())}")
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
    "--root_dir",
    "--root-dir",
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
@click.option("--env", "environment", metavar="ID", help="Gymnasium environment to evaluate in, such as Hopper-v5.")
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
      rlds2reverb train --algo iql --data hopper_medium-v2.hdf5 --env Hopper-v5 --root_dir runs/iql

    Uniform batches are drawn from the data set in memory; prioritized ones from a Reverb table that the command
    serves. SIGTERM or Ctrl-C saves and stops (exit code 75); the same command goes on.
    """  # noqa: D301
    settings = _parsed_settings(options["overrides"])
    if options["algo"] in _OF_TRAJECTORIES and options["n_step"] > 1:
        raise click.UsageError(f"{options['algo']} learns from the next action too, expected --n-step 1")
    if options["algo"] not in ALGORITHMS:
        raise click.UsageError(f"there is no algorithm {options['algo']!r}{_nearest(options['algo'], ALGORITHMS)}")
    if options["deterministic"] and (options["sampler"] == "prioritized" or _is_served(options["source"])):
        raise click.UsageError("--deterministic is for uniform batches of a data set: a server samples as it goes")
    if not _is_served(options["source"]):
        _require_there(options["source"], options["download"])
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # takes a fifth less time on CPUs
    import_quietly("tf_agents.agents.tf_agent", "rlds2reverb.learners", "rlds2reverb.adders")
    _require_settings(options["algo"], settings)
    options = _with_configs(options)
    return _Training(options, settings, as_json=as_json).run()


def _with_configs(options: dict[str, Any]) -> dict[str, Any]:
    """Reads the gin files, and returns the options with what these set, unless it was given on the command line."""
    from rlds2reverb.learners.agents import AGENTS

    agent = AGENTS[options["algo"]].__name__
    try:
        found = read_configs(options["configs"])
        for name, mend in (("discount", "train.gamma"), ("num_updates", "--steps")):
            if is_set(f"{agent}.{name}"):
                raise ValueError(f"{agent}.{name} follows from the run; set {mend} in its place")
        if "reward" in found:
            checks.parse_reward(found["reward"])
    except ValueError as error:
        raise click.UsageError(f"--config: {error}") from error
    source = click.get_current_context().get_parameter_source
    return {**options, **{name: found[name] for name in found if source(name) is ParameterSource.DEFAULT}}


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

    def run(self) -> int:
        import tensorflow as tf
        from rlds2reverb.learners import Learner
        from rlds2reverb.learners.agents import make_agent

        from . import training
        from .main import MAY_BE_RETRIED, OK

        options = self.options
        if options["deterministic"]:
            tf.config.experimental.enable_op_determinism()
        tf.random.set_seed(options["seed"])
        with ExitStack() as resources:
            evaluator = self._evaluator()
            is_served = _is_served(options["source"])
            prepared = self._of_table(evaluator, resources) if is_served else self._of_data_set(evaluator)
            if evaluator is not None:
                training.require_observations(prepared.specs[0], evaluator)
            settings = {**prepared.moments, "seed": options["seed"], **self._of_run(), **self.settings}
            try:
                agent = make_agent(options["algo"], *prepared.specs, **settings)
            except TypeError as error:
                raise click.UsageError(str(error)) from error
            position = tf.Variable(0, dtype=tf.int64)
            dataset, writer, hooks = self._batches(prepared, position, resources)
            learner = resources.enter_context(
                Learner(
                    options["root_dir"],
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
            learner.run.write_config(
                {key: _plain(value) for key, value in {**options, **self.settings}.items()},
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
            learner.start(options["steps"])
            self._export(learner)
            self._report(learner, prepared.behaviour_return)
        return MAY_BE_RETRIED if learner.is_stopped_by_signal else OK

    def _batches(self, prepared: _Prepared, position: Any, resources: ExitStack) -> tuple[Any, Any, list[Any]]:
        """Returns the batches, what writes priorities back or None, and the hooks that belong to them."""
        from rlds2reverb.learners.hooks import ReplayCheckpointHook

        from . import training

        options, adder = self.options, self._adder()
        batch_size = options["batch_size"] or _BATCH_SIZES.get(options["algo"], 256)
        is_prioritized = options["sampler"] == "prioritized"
        server, table, hooks = prepared.server, prepared.table, []
        if server is None and not is_prioritized:
            return training.resident_items(prepared.source, adder, batch_size, seed=options["seed"]), None, []
        if server is None:
            kind = f"{type(adder).__name__}-{options['n_step']}-{options['gamma']}"
            root = options["root_dir"] / "replay" / f"{prepared.fingerprint[:16]}-{kind}"
            own = training.table_of(prepared.source, adder, checkpoint_root=root)
            server, table = resources.enter_context(own), "replay"
            hooks.append(ReplayCheckpointHook(server, every=options["checkpoint_every"]))
            hooks.append(ReplayCheckpointHook(server, position="after_run"))
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
            normalise = options["normalize_observations"] or options["algo"] in _NORMALISE
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
        moments = {"observation_mean": behaviour.mean, "observation_std": behaviour.std} if normalise else {}
        return _Prepared(specs, moments, behaviour.fingerprint, own_returns, source)

    def _of_table(self, evaluator: Evaluator | None, resources: ExitStack) -> _Prepared:
        from . import training

        options = self.options
        why = "is for a data set; items of a table are as they were converted"
        require_unused({"top_percent", "n_step", *names_of(reading_options), *names_of(transform_options)}, why)
        server: Any = options["source"]
        if Path(server).is_dir():
            from rlds2reverb._server.replay_server import ReplayServer

            with status(f"serving {server}"):
                server = resources.enter_context(ReplayServer(None, data=server))
        served = training.served_items(server, evaluator.action_space if evaluator else None)
        if options["algo"] in _NORMALISE and "observation_mean" not in self.settings:
            output.say(
                f"observations are not normalised: {options['source']} has no statistics; give them with --set "
                "observation_mean=[...] and --set observation_std=[...]"
            )
        fingerprint = str(Path(options["source"]).resolve() if Path(options["source"]).is_dir() else options["source"])
        specs = (served.time_step_spec, served.action_spec)
        return _Prepared(specs, {}, fingerprint, None, None, served.server, served.table)

    def _adder(self) -> Any:
        """Returns what makes the items: transitions, or trajectories of two steps."""
        from rlds2reverb.adders import NStep

        from rlds2reverb import Windows

        if self.options["algo"] in _OF_TRAJECTORIES:
            return Windows(2)
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

        name = self.options["environment"]
        if name is None:
            output.say("no evaluation: give --env ID, such as --env Hopper-v5 (needs pip install '.[eval]')")
            return None
        references = self.options["references"]
        pair = read_reference_returns(references, name) if references else None
        try:
            return Evaluator(name, num_episodes=self.options["episodes"], reference_returns=pair)
        except ImportError as error:
            output.warn(f"no evaluation: {error}")
            return None

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

    def _export(self, learner: Learner) -> None:
        with status("exporting the policy"):
            learner.export_policy(learner.root_dir / "policy")
            if learner.export_best_policy(learner.root_dir / "best_policy") is None:
                shutil.rmtree(learner.root_dir / "best_policy", ignore_errors=True)

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
            figure = draw_curves(learning_curves([load_run(learner.root_dir)]))
            save_png(figure, learner.root_dir / "curve.png")
            facts.append(("curve", str(learner.root_dir / "curve.png")))
        facts.append(("policy", str(learner.root_dir / "policy")))
        if learner.stop_reason:
            facts.append(("stopped by", f"{learner.stop_reason}; the same command continues"))
        if self.as_json:
            best = learner.best_return if last is not None else None
            summary = {"root_dir": str(learner.root_dir), "iterations": learner.last_iter}
            returns = {"behaviour_return": behaviour_return, "best_return": best}
            output.print_json({**summary, **returns, "stopped_by": learner.stop_reason or None, **latest})
        else:
            output.print_facts(f"{self.options['algo']} trained in {learner.root_dir}", facts)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value
