"""The parts of a run on a cluster, before anything is started: data, agent, environment and tables."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlds2reverb import Selector, TableConfig, packed_signature
from rlds2reverb.envs.suite_gym import find_spec
from rlds2reverb.errors import ArgumentError
from rlds2reverb.learners.algorithms import get_algorithm
from rlds2reverb.learners.tasks import make_task
from rlds2reverb.reverb.client import find_addresses
from rlds2reverb.reverb.wire.packing import Packing
from rlds2reverb.system.references import describe_callable
from rlds2reverb.types.locations import find_tables

from ..collected_pieces import PieceConverter
from ..config import TrainingConfig, declared_options
from ..config_validation import resolve_sampler
from ..data import TrainingData, make_augmentation
from ..dataset import PRIORITY_EXPONENT, StepData
from ..evaluation_environment import environment_key, evaluator_arguments
from ..progress import Progress
from ..sources import EnvironmentData, open_environment, open_evaluated_data
from ..table_data import TableData
from ..trackers import TENSORBOARD
from ..training import agent_hyperparameters, describe_run
from .reverb_comm_learner import COLLECTED_TABLE, OFFLINE_TABLE, ReplayTables

_TASK = "train"


@dataclass(frozen=True)
class ClusterParts:
    """A run that is ready to be started.

    Attributes:
      task: the task of the learner; see `rlds2reverb.learners.tasks.make_task`.
      document: content of `config.json`.
      evaluator: arguments of `Evaluator`, whose environment is also that of the collectors; None without evaluation.
      convert: conversion of collected steps to items.
      tables: configurations of the tables on each replay server.
      signature: signature of their items.
      replay: the tables that the learner's batches come from.
      dataset: the episodes to write to the replay servers, or None.
    """

    task: dict[str, Any]
    document: dict[str, Any]
    evaluator: dict[str, Any] | None
    convert: PieceConverter
    tables: list[TableConfig]
    signature: Any
    replay: ReplayTables
    dataset: StepData | None


def prepare(
    source: Any, config: TrainingConfig, run_dir: str | Path, num_shards: int, progress: Progress
) -> ClusterParts:
    """Reads the data and checks that a run is possible.

    Args:
      source: the data, see `Training`, except for a directory that `ingest` wrote and servers in this process, which
        other machines could not reach.
      config: the options of the run.
      run_dir: directory of the run, which all machines share.
      num_shards: number of replay servers.
      progress: prints notes and warnings.

    Raises:
      ValueError: If an option requires a single process.
      Exception: See `Training`.
    """
    _require_options(source, config)
    source, environment, evaluator = open_environment(source, config, progress)
    data, evaluator = open_evaluated_data(source, config, evaluator, progress)
    environment = None if evaluator is None else environment
    with data:
        if data.relative_actions:
            raise ArgumentError("of relative actions requires a single process; use train", about="mapping")
        if resolve_sampler(config.sampler) is not None:
            raise ArgumentError("requires a single process for weights; use train", about="sampler")
        make_augmentation(config, data.time_step_spec.observation)  # Raises if there are no images to shift.
        key = environment_key(environment)
        if environment is not None and isinstance(environment.make_env, str):
            # The other processes may not have registered it.
            environment = replace(environment, make_env=find_spec(environment.make_env))
        document = describe_run(config, data, key, None if evaluator is None else evaluator.reference_returns)
        convert = PieceConverter.of_run(config, data)
        item_spec = convert.item_spec(data.time_step_spec.observation, data.action_spec)
        return ClusterParts(
            task=_make_task(config, data, document["identity"], run_dir),
            document=document,
            evaluator=None if environment is None else evaluator_arguments(config, environment),
            convert=convert,
            tables=_make_tables(config, data, num_shards),
            signature=packed_signature(Packing(item_spec, convert.squeeze)),
            replay=_describe_replay(config, data),
            dataset=data if isinstance(data, StepData) else None,
        )


def _require_options(source: Any, config: TrainingConfig) -> None:
    single = "requires a single process; use train"
    for name, value in {"chunk_length": 1, "observation_offsets": (0,)}.items():
        if getattr(config, name) != value:
            raise ArgumentError(single, about=name)
    if get_algorithm(config.algo).items in ("windows", "goals"):
        raise ArgumentError(f"cannot be {config.algo}, which requires a single process; use train", about="algo")
    if config.deterministic:
        raise ArgumentError(single, about="deterministic", value=True)
    if config.epochs is not None:
        sentence = "requires a single process, because servers choose the items of a batch themselves; use train"
        raise ArgumentError(sentence, about="epochs")
    if tuple(config.track) != (TENSORBOARD,):
        raise ArgumentError(f"must be ('{TENSORBOARD}',) on a cluster, got {config.track}", about="track")
    if config.validation:
        raise ArgumentError("requires a single process, which logs the losses; use train", about="validation")
    tables = find_tables(source)
    if tables is not None and tables.directory is not None:
        raise ValueError(
            f"other machines cannot reach the tables in {tables.place}; run "
            f"`rlds2reverb serve {shlex.quote(str(tables.place))}`, and pass the address of that server"
        )


def _make_task(
    config: TrainingConfig, data: TrainingData, identity: dict[str, Any], run_dir: str | Path
) -> dict[str, Any]:
    hyperparameters = {name: describe_callable(value) for name, value in agent_hyperparameters(config, data).items()}
    return make_task(
        _TASK,
        config.algo,
        data.time_step_spec,
        data.action_spec,
        hyperparameters=hyperparameters,
        run_dir=str(Path(run_dir).resolve()),
        num_iterations=config.num_updates,
        hooks=config.as_dict()["hooks"],
        identity=identity,
        **{name: getattr(config, name) for name, option in declared_options().items() if option.is_of_learner},
    )


def _make_tables(config: TrainingConfig, data: TrainingData, num_shards: int) -> list[TableConfig]:
    tables = []
    if isinstance(data, StepData):
        sampler = Selector("uniform") if config.sampler == "uniform" else Selector("prioritized", PRIORITY_EXPONENT)
        tables.append(TableConfig(OFFLINE_TABLE, sampler))
    if config.online_steps or not tables:
        size = -(-config.replay_size // num_shards)
        tables.append(TableConfig(COLLECTED_TABLE, Selector("uniform"), max_size=size))
    return tables


def _describe_replay(config: TrainingConfig, data: TrainingData) -> ReplayTables:
    table = data.table if isinstance(data, TableData) else None
    servers = () if table is None else tuple(find_addresses(table.server))
    return ReplayTables(
        has_offline=not isinstance(data, EnvironmentData),
        offline_servers=servers,
        offline_table=OFFLINE_TABLE if table is None else table.table,
        num_offline_updates=config.num_offline_updates,
        collected_ratio=config.online_ratio if config.online_steps else 0.0,
        is_prioritized=config.sampler == "prioritized",
        num_updates=config.count_updates(config.online_steps),
    )
