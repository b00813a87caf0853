"""Opens what a training run learns from: a dataset, a table, or an environment in which it collects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tree
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb.datasets import Source, load
from rlds2reverb.datasets.source import keep_images_encoded
from rlds2reverb.datasets.steps.loaded_steps import cast_spec, compute_fingerprint
from rlds2reverb.envs.evaluation import Evaluator
from rlds2reverb.errors import Message, SpecMismatchError, find_messages
from rlds2reverb.reverb.server.replay_server import read_tables
from rlds2reverb.reverb.server.shards import find_table_directories
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import ProgressCallback
from rlds2reverb.types.locations import TableLocation, find_tables
from rlds2reverb.types.spaces import action_bounds
from rlds2reverb.types.specs import ArraySpec, to_tensor_spec

from .config import AUTO, TrainingConfig
from .config_validation import NO_ENVIRONMENT_TO_COLLECT_IN
from .data import TrainingData, make_adder, require_trainable
from .dataset import fit_reward, make_preparation, open_dataset
from .evaluation_environment import EvaluationEnvironment, find_environment, make_evaluator
from .progress import Progress
from .table_data import choose_table, identify_table, open_table

#: Fingerprint of a run without data.
_NO_DATA = "none"


@dataclass(frozen=True, kw_only=True)
class EnvironmentData(TrainingData):
    """The specs of an environment, for an agent that learns only from what it collects there."""

    @contextmanager
    def open_batches(self, config: TrainingConfig) -> Iterator[None]:
        """Implements `TrainingData.open_batches`."""
        yield None


def open_source(source: Any) -> Source | TableLocation:
    """Opens a source of training data without reading it.

    Args:
      source: see `open_data`.

    Returns:
      A dataset, whose images are in the encoding of their files if the format has it, or where the tables are.

    Raises:
      FileNotFoundError, SourceError, TypeError: As `rlds2reverb.load`.
    """
    return find_tables(source) or keep_images_encoded(load(source))


def fit_config(source: Any, config: TrainingConfig) -> TrainingConfig:
    """Returns the options of a run on a source, without what it cannot have: see `without_data` and `open_data`.

    Raises:
      ValueError: If an option requires a dataset.
    """
    if source is None:
        return config.without_data()
    return config if find_tables(source) is None else config.without_statistics()


def find_fingerprint(source: Any, config: TrainingConfig) -> str | None:
    """Returns the `TrainingData.fingerprint` of a source; None for the tables of servers, whose content may change."""
    if source is None:
        return _NO_DATA
    opened = open_source(source)
    if isinstance(opened, Source):
        return compute_fingerprint(opened, make_preparation(config))
    if opened.directory is None:
        return None
    names = [table.name for table in read_tables(find_table_directories(opened.directory)[0])]
    return identify_table(opened, opened.table or choose_table(names))


def open_data(
    source: Any,
    config: TrainingConfig,
    *,
    action_space: Any = None,
    observation_space: Any = None,
    progress: ProgressCallback = lambda stage, episode: None,
) -> TrainingData:
    """Opens the data of a training run, and checks that the algorithm can learn from them.

    A dataset is read once and validated as by `ingest`; its episodes stay in memory until they are converted to items.
    Fields besides those of RLDS are not used. Episodes without transitions are left out.

    Args:
      source: a dataset (any argument of `rlds2reverb.load`, such as a path, a name, a `Source`, a list or a generator
        function of episodes), or tables: the address of a server, a `ReplayServer` or client, a directory that `ingest`
        wrote, or a pair of one of these and the name of a table. Without a name, there must be one table, or one named
        'replay'.
      config: the options of the run.
      action_space: Gymnasium action space of the environment that the agent will act in; None if unknown.
      observation_space: Gymnasium space of its observations, whose Discrete and MultiDiscrete parts replace those that
        a dataset declares; None if unknown.
      progress: callback for each episode that was read, called with 'read' and the episode.

    Returns:
      The data.

    Raises:
      InvalidEpisodeError: If an episode is invalid.
      SpecMismatchError: If the algorithm cannot learn from the data, or they do not match the environment.
      SourceError: If the source cannot be opened or read, or has no rewards or no transitions.
      FileNotFoundError: If the source does not exist.
      ServerUnavailableError: If a server does not answer.
      ValueError: If an option does not apply to the data.
    """
    opened = open_source(source)
    if isinstance(opened, TableLocation):
        return open_table(opened, config, action_space)
    spaces = {"action_space": action_space, "observation_space": observation_space}
    return open_dataset(opened, config, **spaces, progress=progress)


def open_environment(
    source: Any, config: TrainingConfig, progress: Progress
) -> tuple[Any, EvaluationEnvironment | None, Evaluator | None]:
    """Opens the source of a run without reading it, and creates the environment of the evaluations.

    Args:
      source: see `open_data`; None for a run that only collects in the environment.
      config: the options of the run.
      progress: prints notes about an environment that the user did not choose, or without a time limit.

    Returns:
      The opened source, and the environment and the evaluator; None for both without evaluation.

    Raises:
      ValueError: If there is no environment to collect in.
      Exception: See `open_source`, `resolve_environment` and `make_evaluator`.
    """
    if source is not None:
        with progress.activity("opening the data"):
            source = open_source(source)
    environment = find_environment(config, source)
    if config.online_steps and (environment is None or environment.make_env is None):
        raise ValueError(NO_ENVIRONMENT_TO_COLLECT_IN)
    if environment is not None and environment.note:
        progress.note(environment.note)
    evaluator = make_evaluator(config, environment, progress.warn)
    if evaluator is not None and not evaluator.is_limited:
        sentence = f"{evaluator.name} has no time limit; evaluations truncate episodes after"
        progress.note(Message(f"{sentence} {evaluator.max_episode_steps:,} steps", eval_max_episode_steps=...))
    return source, None if evaluator is None else environment, evaluator


def open_evaluated_data(
    source: Any, config: TrainingConfig, evaluator: Evaluator | None, progress: Progress
) -> tuple[TrainingData, Evaluator | None]:
    """Opens the data of a run, and checks that they match the environment of the evaluations.

    If that environment was derived from the name of the dataset and does not match, there is a warning, and no
    evaluation.

    Args:
      source: see `open_data`; None for a run that only collects in the environment.
      config: the options of the run.
      evaluator: the evaluator; None without evaluation.
      progress: prints the notes and warnings.

    Returns:
      The data, and the evaluator or None.

    Raises:
      Exception: See `open_data`.
    """
    names = ("action_space", "observation_space")
    spaces: dict[str, Any] = {name: getattr(evaluator, name, None) for name in names}
    with progress.activity("reading the data"):
        try:
            if source is None and evaluator is not None:
                data: TrainingData = _describe_environment(evaluator, config)
            else:
                data = open_data(source, config, **spaces)
                if evaluator is not None:
                    evaluator.require_observations(data.time_step_spec.observation)
        except SpecMismatchError as error:
            if evaluator is None or config.env != AUTO or config.online_steps:
                raise
            # Raises an error if the algorithm cannot learn from the data in any environment.
            data, evaluator = open_data(source, config), None
            reason = str(error) if find_messages(str(error)) else Message(str(error), env=...)
            progress.warn(f"no evaluation: {reason}")
    for note in data.notes:
        progress.note(note)
    for warning in data.warnings:
        progress.warn(warning)
    return data, evaluator


def _describe_environment(evaluator: Evaluator, config: TrainingConfig) -> EnvironmentData:
    """Returns the specs of an environment as data without items, for an agent that learns only from what it collects.

    Floats in observations become float32.

    Raises:
      SpecMismatchError: If the algorithm cannot learn from such observations or actions.
      ValueError: If the actions have no bounds, or `reward` depends on the returns of a dataset.
    """
    name, action_space = evaluator.name, evaluator.action_space
    observations = tree.map_structure(cast_spec, evaluator.observation_spec)
    action = cast_spec(ArraySpec(tuple(action_space.shape), np.dtype(action_space.dtype)))
    step_spec = {
        fields.OBSERVATION: observations, fields.ACTION: action, fields.REWARD: ArraySpec((), np.dtype(np.float32))
    }  # fmt: skip
    require_trainable(step_spec, config, action_space)
    low, high = action_bounds(action_space)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError(
            f"the actions of {name} must have finite bounds, got {action_space}; give its action space a low and a high"
        )
    time_step_spec = time_step.time_step_spec(to_tensor_spec(observations))
    action_spec = tensor_spec.BoundedTensorSpec(action.shape, action.dtype, low, high, name="action")
    return EnvironmentData(
        name=name,
        time_step_spec=time_step_spec,
        action_spec=action_spec,
        fingerprint=_NO_DATA,
        adder=make_adder(config, time_step_spec, action_spec),
        reward_transform=fit_reward(config, np.zeros(0), name),
    )
