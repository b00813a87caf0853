"""`rlds2reverb train`: from a data set to a trained agent, in one command that can be killed and given again."""

from __future__ import annotations

import ast
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import checks, output
from .options import (
    GroupedCommand,
    names_of,
    open_source,
    reading_options,
    transform_options,
    transformed,
)
from .output import json_option
from .quiet import import_quietly, status

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


@click.command(cls=GroupedCommand, headings=_HEADINGS)
@click.option("--algo", required=True, metavar="NAME", help="bc, td3_bc, iql, cql, awac, rebrac, dqn, ...")
@click.option("--data", "source", required=True, metavar="SRC", help="A data set; see rlds2reverb --help.")
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
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A gin file with hyperparameters. Repeatable.",
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
    import_quietly("tf_agents.agents.tf_agent", "rlds2reverb.learners", "rlds2reverb.adders")
    return _Training(options, settings, as_json=as_json).run()


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


class _Training:
    """One run of the command."""

    def __init__(self, options: dict[str, Any], settings: dict[str, Any], *, as_json: bool):
        self.options, self.settings, self.as_json = options, settings, as_json

    def run(self) -> int:
        import tensorflow as tf
        from rlds2reverb.adders import NStep
        from rlds2reverb.learners import Learner
        from rlds2reverb.learners.agents import make_agent

        from rlds2reverb.sources.transforms import CastFloats, apply_transforms

        from . import training
        from .main import MAY_BE_RETRIED, OK

        options = self.options
        if options["deterministic"]:
            tf.config.experimental.enable_op_determinism()
        tf.random.set_seed(options["seed"])
        raw, _ = apply_transforms(open_source(options), [CastFloats()])
        with status("reading the data"):
            own_returns = training.behaviour_of(raw).mean_return
            normalise = options["normalize_observations"] or options["algo"] in _NORMALISE
            source, _ = transformed(raw, {**options, "normalize_observations": False, "cast_floats": False})
            behaviour = training.behaviour_of(source)
            if options["top_percent"] is not None:
                source = training.best_episodes(source, options["top_percent"], behaviour.returns)
        evaluator = self._evaluator()
        specs = training.specs_of(source, behaviour, evaluator.action_space if evaluator else None)
        if training.num_outside(behaviour, specs[1]):
            output.warn("the data have actions outside of the bounds; --clip-actions clips them")
        self._read_configs()
        moments = {"observation_mean": behaviour.mean, "observation_std": behaviour.std} if normalise else {}
        settings = {**moments, "seed": options["seed"], **self._of_run(), **self.settings}
        agent = make_agent(options["algo"], *specs, **settings)
        batch_size = options["batch_size"] or getattr(agent, "batch_size", 256)
        adder = NStep(options["n_step"], options["gamma"])
        with ExitStack() as resources:
            writer = None
            if options["sampler"] == "prioritized":
                dataset, writer, _ = training.table_of(
                    source, adder, batch_size, prioritized=True, num_iterations=options["steps"], resources=resources
                )
            else:
                dataset = training.resident_items(source, adder, batch_size, seed=options["seed"])
            learner = resources.enter_context(
                Learner(
                    options["root_dir"],
                    agent,
                    dataset,
                    priorities=writer,
                    hooks=self._hooks(evaluator),
                    jit_compile=options["jit_compile"],
                    identity=self._identity(behaviour.fingerprint),
                    keep_checkpoints=options["keep"],
                    on_log=_Lines(options["steps"], quiet=self.as_json),
                )
            )
            learner.run.write_config(
                {key: _plain(value) for key, value in {**options, **self.settings}.items()},
                data={
                    "source": str(options["source"]),
                    "fingerprint": behaviour.fingerprint,
                    "behaviour_return": own_returns,
                },
                environment=evaluator.name if evaluator else None,
                reference_returns=evaluator.reference_returns if evaluator else None,
            )
            learner.load_checkpoint(override=options["override"])
            if learner.load_path:
                output.say(f"continuing from iteration {learner.last_iter:,}")
            learner.start(options["steps"])
            self._export(learner)
            self._report(learner, own_returns)
        return MAY_BE_RETRIED if learner.stop_reason.startswith("SIG") else OK

    def _of_run(self) -> dict[str, Any]:
        """Returns the hyperparameters that follow from the run: the discount, and the length of schedules."""
        from rlds2reverb.learners.agents import hyperparameters

        known = hyperparameters(self.options["algo"]) if _is_known(self.options["algo"]) else {}
        of_run = {"discount": self.options["gamma"], "num_updates": self.options["steps"]}
        return {name: value for name, value in of_run.items() if name in known}

    def _identity(self, fingerprint: str) -> dict[str, Any]:
        names = ("algo", "n_step", "gamma", "sampler", "top_percent", "reward", "seed", "batch_size")
        return {
            **{name: self.options[name] for name in names},
            "data": fingerprint,
            **{f"--set {name}": repr(value) for name, value in self.settings.items()},
        }

    def _read_configs(self) -> None:
        import gin

        for path in self.options["configs"]:
            gin.parse_config_file(str(path))

    def _evaluator(self) -> Evaluator | None:
        from rlds2reverb.learners import Evaluator, read_reference_returns

        name = self.options["environment"]
        if name is None:
            output.say("no evaluation: give --env ID, such as --env Hopper-v5 (pip install 'rlds2reverb[eval]')")
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
        return hooks

    def _export(self, learner: Learner) -> None:
        with status("exporting the policy"):
            learner.export_policy(learner.root_dir / "policy")
            if learner.export_best_policy(learner.root_dir / "best_policy") is None:
                shutil.rmtree(learner.root_dir / "best_policy", ignore_errors=True)

    def _report(self, learner: Learner, behaviour_return: float) -> None:
        from rlds2reverb.learners import load_run
        from rlds2reverb.learners.curves import draw_curves, learning_curves, save_png

        latest = learner.latest
        facts = [("updates", f"{learner.last_iter:,}"), ("return of the data", f"{behaviour_return:,.1f}")]
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
            output.print_json({"iterations": learner.last_iter, "behaviour_return": behaviour_return, **latest})
        else:
            output.print_facts(f"{self.options['algo']} trained in {learner.root_dir}", facts)


def _is_known(algo: str) -> bool:
    from rlds2reverb.learners.agents import AGENTS

    return algo in AGENTS


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value


class _Lines:
    """Prints a line for each log: one that moves on a terminal, plain ones elsewhere."""

    def __init__(self, num_iterations: int, *, quiet: bool):
        self._total, self._quiet = num_iterations, quiet
        self._score = ""
        self._began, self._first = time.monotonic(), 0

    def __call__(self, done: int, numbers: dict[str, float]) -> None:
        if self._quiet:
            return
        if "evaluation/mean_return" in numbers:
            score = f" score {numbers['evaluation/score']:.1f}" if "evaluation/score" in numbers else ""
            self._score = f"return {numbers['evaluation/mean_return']:,.1f}{score}"
            self._show(f"{done:>9,} of {self._total:,}   {self._score}", lasting=True)
            return
        rate = numbers.get("steps_per_sec", 0.0)
        left = (self._total - done) / rate if rate else 0.0
        parts = [f"{done:>9,} of {self._total:,}", f"loss {numbers.get('loss', float('nan')):.4g}"]
        if rate:
            parts += [
                f"{rate:,.0f} steps/s",
                f"data wait {numbers['data_wait_share']:.0%}",
                f"{left / 60:.1f} min left",
            ]
        self._show("   ".join(parts), lasting=False)

    def _show(self, line: str, *, lasting: bool) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="\n" if lasting else "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
