"""`rlds2reverb cluster train`: trains an agent with the processes of a Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb.system.signals import raise_on_sigterm
from rlds2reverb.training.cluster.cluster_config import ClusterConfig
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.option_fields import declare_fields
from rlds2reverb.training.progress import Progress

from . import output
from .config_options import config_options
from .declarations import EXISTING_FILE, option
from .groups import Group
from .options import GroupedCommand
from .output import json_option
from .quiet import import_quietly
from .train import NO_DATA, format_results, parse_hyperparameters, read_options, run_dir_option

if TYPE_CHECKING:
    from rlds2reverb.learners.runs import Run

#: Options of a run; `--set` sets the others.
_OPTIONS = ("steps", "online_steps", "env", "seed", "allow_config_mismatch", "hyperparameters")
_CLUSTER_OPTIONS = [name for name in declare_fields(ClusterConfig) if name != "lead_steps"]
_HEADINGS = {"Run": ["source", "run_dir", "algo", *_OPTIONS], "Cluster": _CLUSTER_OPTIONS}


@click.group(cls=Group)
def cluster() -> None:
    """Train with the processes of a Ray cluster."""


@cluster.command(cls=GroupedCommand, headings=_HEADINGS)
@click.argument("config_file", metavar="CONFIG", type=EXISTING_FILE)
@option(
    "--data",
    "source",
    metavar="SRC",
    help="Dataset, or HOST:PORT of Reverb servers; none to learn only from what is collected.  [default: that of "
    "the run whose config.json is passed, in this directory]",
)
@run_dir_option(
    "Directory for checkpoints, logs and the policy, on a file system that all machines share. If it contains a run, "
    "the run is continued."
)
@option("--algo", metavar="NAME", help="Algorithm to train. Required if CONFIG is a gin file.")
@config_options(*_CLUSTER_OPTIONS, config=ClusterConfig)
@config_options(*_OPTIONS)
@json_option
def train(as_json: bool, **options: Any) -> int:
    """Train an agent with collectors, replay servers, a learner and an evaluator as separate processes.

    \b
    Examples:
      rlds2reverb cluster train runs/sac/config.json --run-dir runs/sac-cluster
      rlds2reverb cluster train sac.gin --algo sac --data none --env Pendulum-v1 --online 20000 \\
          --run-dir runs/sac --collectors 2
      rlds2reverb cluster train iql.gin --algo iql --data hopper_medium-v2.hdf5 --online 100000 \\
          --run-dir /shared/iql --address auto --collectors 16 --shards 4 --gpus 1

    CONFIG is the config.json of a run, or a gin file with bindings such as train.online_steps = 20000; options on the
    command line take precedence. Ctrl-C or SIGTERM saves everything and stops with exit code 75; the same command then
    continues the run. The environment and all custom modules must be installed on every machine.
    """
    from .main import OK, TEMPORARY_FAILURE

    passed, source = read_options(options), options["source"]
    values = passed.pop("hyperparameters")
    if options["config_file"].suffix == ".json":
        document = _read_document(options["config_file"])
        source = _find_source(document) if source is None else source
        passed = {**document["configuration"], **({"algo": options["algo"]} if options["algo"] else {}), **passed}
        gin_files: list[Path] = []
    else:
        if not options["algo"]:
            raise click.UsageError("--algo is required, because CONFIG is a gin file")
        passed, gin_files = {**passed, "algo": options["algo"]}, [options["config_file"]]
    if source is None:
        raise click.UsageError("--data is required; pass none to learn only from what is collected")
    import_quietly("tf_agents.agents.tf_agent", "rlds2reverb.training.training")
    from rlds2reverb.learners.runs import load_run
    from rlds2reverb.training.cluster import ClusterTraining

    algo = passed.pop("algo")
    passed["hyperparameters"] = {
        **dict(passed.get("hyperparameters") or {}),
        **parse_hyperparameters(algo, values),
    }
    config = TrainingConfig.from_gin(algo, gin_files=gin_files, **passed)
    source = None if source == NO_DATA else source
    cluster_config = ClusterConfig(**{name: options[name] for name in _CLUSTER_OPTIONS})
    progress = Progress(quiet=as_json, describe=output.name_options)
    with (
        raise_on_sigterm(),
        ClusterTraining(source, config, options["run_dir"], cluster_config, progress=progress) as training,
    ):
        try:
            training.run()
        except KeyboardInterrupt:
            if training.status()["stop_reason"] != "SIGINT":
                raise
        status = training.status()
        _report(config, load_run(training.run_dir), status, as_json=as_json)
        return OK if status["stop_reason"] == "complete" else TEMPORARY_FAILURE


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.UsageError(f"{path} is not a JSON file ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get("configuration"), dict):
        raise click.UsageError(f"{path} must be the config.json of a run, which contains 'configuration'")
    return document


def _find_source(document: dict[str, Any]) -> str | None:
    """Returns the data of a run by the name in its `config.json`, or `NO_DATA` if it had none; None if unknown."""
    data = document.get("data") or {}
    return NO_DATA if data.get("fingerprint") == "none" else data.get("source")


def _report(config: TrainingConfig, run: Run, status: dict[str, Any], *, as_json: bool) -> None:
    document = {"run_dir": str(run.path), "best_return": run.best_return, **status}
    facts = [("updates", f"{status['step']:,}")]
    if config.online_steps:
        facts.append(("collected steps", f"{status['collected_steps']:,}"))
    stop_reason = None if status["stop_reason"] == "complete" else status["stop_reason"]
    output.print_result(document, format_results(config.algo, run, facts, stop_reason, {}), as_json=as_json)
