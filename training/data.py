"""The data of a training run: a dataset in memory, or a table with its items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rlds2reverb.adders import NStep
from rlds2reverb.envs.evaluation import Evaluator
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.algorithms import get_algorithm
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb import ReplayServer, TrajectoryWindows, fields
from rlds2reverb._server.replay_server import read_tables
from rlds2reverb.client import find_addresses
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.items import Items
from rlds2reverb.sources import Source, load
from rlds2reverb.sources.transforms import ScaleRewards
from rlds2reverb.spaces import action_bounds
from rlds2reverb.specs import ArraySpec, Nest, describe, leaves, map_structure, path_name, to_tensor_spec

from .actions import describe_bounds, make_action_spec
from .config import AUTO, TrainingConfig
from .dataset import (
    Contents,
    Progress,
    cast_spec,
    compute_fingerprint,
    convert_batches,
    find_best,
    fit_reward,
    prepare_batches,
    read_contents,
    require_trainable,
)
from .tables import (
    ServedTable,
    choose_table,
    describe_table,
    identify_table,
    is_table,
    is_table_directory,
    make_table_action_spec,
    require_matching_items,
    require_table_options,
    sample_items,
    split_source,
)

#: Fingerprint of a run without data.
_NO_DATA = "none"


class Moments(NamedTuple):
    """The numbers that agents subtract from the observations and divide them by: nests of float32.

    The divisor is the standard deviation + 0.001, and infinity for constant elements, which become 0. Integers, such as
    images, are not normalised: they have 0 and 1.
    """

    mean: Nest
    std: Nest


@dataclass(frozen=True)
class TrainingData:
    """The data of a training run. Use it as a context manager if `open_data` had to start a server for it.

    Attributes:
      name: name of the dataset, or the address of the server.
      time_step_spec: TF-Agents' spec of the time steps.
      action_spec: the bounded spec of the actions.
      fingerprint: fingerprint of the content before rewards and actions were changed, or an identifier of the table.
      adder: the adder of the items: `NStep`, or `TrajectoryWindows(2)`.
      returns: float64 `[E]`, the undiscounted return of each episode in the dataset's own rewards; None for a table.
      num_episodes: number of episodes to train on; None for a table.
      num_transitions: number of transitions, or of the table's items.
      moments: statistics of the observations; None for a table.
      items: the items of a dataset in memory, else None.
      episodes: the episodes of a dataset to train on, in memory, in place of the items; else None.
      table: the table with the items, else None.
      reward_transform: transform of the rewards, which was applied to the items; None if they are unchanged.
      owns_server: whether `open_data` started the server of the table.
      notes: sentences for the user.
      warnings: sentences that the user should not miss.
    """

    name: str
    time_step_spec: Any
    action_spec: Any
    fingerprint: str
    adder: Any
    returns: np.ndarray | None
    num_episodes: int | None
    num_transitions: int
    moments: Moments | None
    items: Items | None
    episodes: Source | None
    table: ServedTable | None
    reward_transform: ScaleRewards | None = None
    owns_server: bool = False
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    _resources: ExitStack = field(default_factory=ExitStack, repr=False, compare=False)

    def __enter__(self) -> TrainingData:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    def close(self) -> None:
        """Stops the server of a directory of tables. Idempotent."""
        self._resources.close()

    @property
    def behaviour_return(self) -> float | None:
        """The mean return of the dataset, and so of the policies that produced it; None if unknown."""
        return None if self.returns is None else float(self.returns.mean())

    def identity(self) -> dict[str, Any]:
        """Returns what distinguishes these data from others, as JSON values."""
        observations = leaves(self.time_step_spec.observation)
        return {
            "data": self.fingerprint,
            "observations": {path_name(path, "observation"): describe(leaf) for path, leaf in observations},
            "actions": describe(self.action_spec),
            "action bounds": describe_bounds(self.action_spec),
        }


def identify_run(
    config: TrainingConfig, data: TrainingData, environment: str | None, spec: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns what distinguishes a run from others, as JSON values.

    A checkpoint belongs to a run if the identities are equal, and the runs of one learning curve differ only in `seed`.

    Args:
      config: the options of the run.
      data: the data of the run.
      environment: name of the evaluation environment; None without evaluation.
      spec: its description; see `describe_env`.
    """
    return {**config.settings(environment, spec), **data.identity()}


def open_source(source: Any) -> Any:
    """Opens a source of training data without reading it.

    Args:
      source: see `open_data`.

    Returns:
      A `Source`; tables are returned unchanged.

    Raises:
      FileNotFoundError, SourceError, TypeError: As `rlds2reverb.load`.
    """
    return source if is_table(source) else load(source)


def find_fingerprint(source: Any, config: TrainingConfig) -> str | None:
    """Returns the `TrainingData.fingerprint` of a source; None for the tables of servers, whose content may change."""
    if source is None:
        return _NO_DATA
    if not is_table(source):
        return compute_fingerprint(load(source), config)
    location, table = split_source(source)
    if not isinstance(location, (str, Path)) or not is_table_directory(location):
        return None
    names = [config.name for config in read_tables(Path(location).expanduser())]
    return identify_table(location, table or choose_table(names))


def open_data(
    source: Any,
    config: TrainingConfig,
    *,
    action_space: Any = None,
    as_episodes: bool = False,
    progress: Progress = lambda stage, episode: None,
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
      as_episodes: whether to return the episodes of a dataset for uniform sampling as well, in place of its items.
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
    if is_table(source):
        return _open_table(source, config, action_space)
    source = load(source)
    contents = read_contents(source, config, action_space=action_space, progress=progress)
    action_spec, about_bounds = make_action_spec(contents.actions, config, action_space, source.action_space)
    notes, warnings = [*contents.notes], list(source.warnings)
    if about_bounds is not None:
        notes.append(about_bounds)
    clipping = contents.find_clipping(action_spec)
    if clipping.counts[1] and config.clip_actions:
        notes.append(clipping.describe())
    elif clipping.counts[1]:
        kept = f"are not clipped to {describe_bounds(action_spec)}; pass clip_actions=True to clip them"
        warnings.append(clipping.describe(kept))
    is_kept = np.ones(len(contents.returns), bool)
    if config.top_percent is not None:
        is_kept = find_best(contents.returns, config.top_percent)
        notes.append(_describe_kept(contents.returns, is_kept, config.top_percent))
    if config.normalize_observations:
        notes += contents.moments.describe_constants()
    as_episodes = as_episodes or config.sampler == "prioritized"
    return _make_data(contents, config, action_spec, is_kept, notes, warnings, as_episodes=as_episodes)


def open_evaluated_data(
    source: Any,
    config: TrainingConfig,
    evaluator: Evaluator | None,
    warn: Callable[[str], None],
    *,
    as_episodes: bool = False,
) -> tuple[TrainingData, Evaluator | None]:
    """Opens the data of a run, and checks that they match the environment of the evaluations.

    If that environment was derived from the name of the dataset and does not match, `warn` is called, and there is no
    evaluation.

    Args:
      source: see `open_data`; None for a run that only collects in the environment.
      config: the options of the run.
      evaluator: the evaluator; None without evaluation.
      warn: function called with a sentence.
      as_episodes: see `open_data`.

    Returns:
      The data, and the evaluator or None.

    Raises:
      Exception: See `open_data`.
    """
    if source is None and evaluator is not None:
        name, spec, space = evaluator.name, evaluator.observation_spec, evaluator.action_space
        return describe_environment(name, spec, space, config), evaluator
    action_space = None if evaluator is None else evaluator.action_space
    try:
        data = open_data(source, config, action_space=action_space, as_episodes=as_episodes)
        if evaluator is not None:
            evaluator.require_observations(data.time_step_spec.observation)
        return data, evaluator
    except SpecMismatchError as error:
        if evaluator is None or config.env != AUTO or config.online_steps:
            raise
        # Raises an error if the algorithm cannot learn from the data in any environment.
        data = open_data(source, config, as_episodes=as_episodes)
        warn(f"no evaluation, pass env= to choose an environment: {error}")
        return data, None


def describe_environment(name: str, observation_spec: Nest, action_space: Any, config: TrainingConfig) -> TrainingData:
    """Returns the specs of an environment as data without items, for an agent that learns only from what it collects.

    Args:
      name: name of the environment.
      observation_spec: nest of specs of its observations; floats become float32.
      action_space: its Gymnasium action space.
      config: the options of the run.

    Raises:
      SpecMismatchError: If the algorithm cannot learn from such observations or actions.
      ValueError: If the actions have no bounds, or `reward` depends on the returns of a dataset.
    """
    observations = map_structure(cast_spec, observation_spec)
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
    return TrainingData(
        name=name,
        time_step_spec=time_step_spec,
        action_spec=action_spec,
        fingerprint=_NO_DATA,
        adder=make_adder(config, time_step_spec, action_spec),
        returns=None,
        num_episodes=None,
        num_transitions=0,
        moments=None,
        items=None,
        episodes=None,
        table=None,
        reward_transform=fit_reward(config, np.zeros(0), name),
    )


def _describe_kept(returns: np.ndarray, is_kept: np.ndarray, percent: float) -> str:
    kept = returns[is_kept]
    return (
        f"training on the best {percent:g} % of episodes: {len(kept):,} of {len(returns):,}, with returns from "
        f"{kept.min():,.1f} to {kept.max():,.1f}"
    )


def _make_data(
    contents: Contents,
    config: TrainingConfig,
    action_spec: Any,
    is_kept: np.ndarray,
    notes: list[str],
    warnings: list[str],
    *,
    as_episodes: bool,
) -> TrainingData:
    """Returns the data of a dataset, with its items or its episodes."""
    time_step_spec = time_step.time_step_spec(to_tensor_spec(contents.step_spec["observation"]))
    adder, items, episodes = make_adder(config, time_step_spec, action_spec), None, None
    num_steps = np.concatenate([batch.num_steps for batch in contents.batches])
    transform = fit_reward(config, contents.returns, contents.name)
    batches = prepare_batches(contents, config, action_spec, is_kept, transform)
    if not as_episodes:
        items = convert_batches(batches, adder)
    else:
        episodes = _make_source(contents.name, list(batches))
    return TrainingData(
        name=contents.name,
        time_step_spec=time_step_spec,
        action_spec=action_spec,
        fingerprint=contents.fingerprint,
        adder=adder,
        returns=contents.returns,
        num_episodes=int(is_kept.sum()),
        num_transitions=int((num_steps[is_kept] - 1).sum()),
        moments=Moments(*contents.moments.agent_statistics()),
        items=items,
        episodes=episodes,
        table=None,
        reward_transform=transform,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _make_source(name: str, batches: list[EpisodeBatch]) -> Source:
    def read() -> Iterator[Episode]:
        return (episode for batch in batches for episode in batch.episodes)

    num_rows = sum(int(batch.num_steps.sum()) for batch in batches)
    return Source(name, "memory", read, sum(len(batch.num_steps) for batch in batches), num_rows)


def _open_table(source: Any, config: TrainingConfig, action_space: Any) -> TrainingData:
    require_table_options(config)
    location, table_name = split_source(source)
    with ExitStack() as stack:
        is_directory = isinstance(location, (str, Path)) and is_table_directory(location)
        server = stack.enter_context(ReplayServer.from_directory(location)) if is_directory else location
        table = describe_table(server, table_name)
        sample = sample_items(table)
        action_spec, about_bounds = make_table_action_spec(table, config, action_space, sample)
        time_step_spec = time_step.time_step_spec(table.row_spec["observation"])
        adder = make_adder(config, time_step_spec, action_spec, has_trajectories=table.has_trajectories)
        has_one_priority = require_matching_items(table, config, adder, sample)
        name = str(location)
        if not isinstance(location, (str, Path)):
            name = ",".join(find_addresses(server))
        notes, warnings = [], []
        if about_bounds is not None:
            notes.append(about_bounds)
        if not has_one_priority and config.sampler == "uniform":
            warnings.append("the table samples items by priority; pass sampler='prioritized' for importance weights")
        if get_algorithm(config.algo).normalizes_observations and "observation_mean" not in config.hyperparameters:
            notes.append(
                f"observations are not normalised, because {name} has no statistics; set the hyperparameters "
                "observation_mean and observation_std to normalise them"
            )
        resources = stack.pop_all()
    return TrainingData(
        name=name,
        time_step_spec=time_step_spec,
        action_spec=action_spec,
        fingerprint=identify_table(location, table.table),
        adder=adder,
        returns=None,
        num_episodes=None,
        num_transitions=table.size,
        moments=None,
        items=None,
        episodes=None,
        table=table,
        owns_server=is_directory,
        notes=tuple(notes),
        warnings=tuple(warnings),
        _resources=resources,
    )


def make_adder(
    config: TrainingConfig, time_step_spec: Any, action_spec: Any, *, has_trajectories: bool | None = None
) -> Any:
    """Returns the adder of the items that the algorithm learns from: transitions, or trajectories of two steps.

    An agent of the user's own that declares neither is created once, to read its `train_sequence_length`.

    Args:
      config: the options of the run.
      time_step_spec: spec of the data's time steps.
      action_spec: spec of the actions.
      has_trajectories: kind of the items in a table, which an agent that declares neither learns from; None for data
        that are not yet converted.
    """
    algorithm, length = get_algorithm(config.algo), 2
    if algorithm.items is None and has_trajectories is not None:
        return TrajectoryWindows(length) if has_trajectories else NStep(config.n_step, config.gamma)
    if algorithm.items == "transitions" or config.n_step > 1:
        return NStep(config.n_step, config.gamma)
    if algorithm.factory is not None:
        agent = make_agent(config.algo, time_step_spec, action_spec, **config.resolved_hyperparameters)
        length = agent.train_sequence_length or 1
        if algorithm.items is None and length == 1:
            return NStep(1, config.gamma)
    return TrajectoryWindows(length)
