"""The data of a training run: the common interface of all kinds of data, and sampling of tables."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from rlds2reverb import PriorityWriter, ReplayServer, ShardedReplayServer
from rlds2reverb.adders import ChunkTransitions, ItemAdder, Transitions
from rlds2reverb.adders.observation_history import NO_HISTORY, ObservationHistory
from rlds2reverb.adders.trajectory_windows import PaddedTrajectoryWindows, TrajectoryWindows
from rlds2reverb.datasets.action_specs import ADVICE, describe_bounds
from rlds2reverb.datasets.action_statistics import require_joined
from rlds2reverb.datasets.moments import ObservationMoments
from rlds2reverb.datasets.steps.goals import GoalSampling
from rlds2reverb.datasets.transforms import ScaleRewards
from rlds2reverb.errors import ArgumentError, Message, SourceError, SpecMismatchError
from rlds2reverb.learners import RandomShift
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.agents.history_policy import extend_spec, make_history
from rlds2reverb.learners.agents.unit_conversions import count_categories, find_action_mask
from rlds2reverb.learners.algorithms import ALGORITHMS, Algorithm, accepts_statistics, get_algorithm
from rlds2reverb.learners.feeds import Feed, StreamingDataset
from rlds2reverb.learners.stored_items import StoredItems
from rlds2reverb.reverb.sampling import LinearSchedule, SamplePlan
from rlds2reverb.system.closing import Closing
from rlds2reverb.types import fields
from rlds2reverb.types.short_repr import short_repr
from rlds2reverb.types.specs import ArraySpec, Nest, describe, leaves, path_name

from .config import TrainingConfig

#: Exponent of the importance weights at the beginning and at the end of a run with prioritized replay (Schaul et al.
#: 2016, table 3, proportional).
FIRST_BETA, LAST_BETA = 0.4, 1.0
#: What to do with floats that stand for discrete actions.
WHOLE_NUMBERS = "cast whole numbers to integers (one-hot vectors by argmax)"
#: Number of batches to prepare ahead.
PREFETCH = 4

_AnyServer = TypeVar("_AnyServer", bound=ReplayServer | ShardedReplayServer)


class Moments(NamedTuple):
    """The numbers that agents subtract from the observations and divide them by: nests of float64.

    The divisor is the standard deviation + 0.001, and infinity for constant elements, which become 0. Integers, such as
    images, are not normalised: they have 0 and 1.
    """

    mean: Nest
    std: Nest

    def __repr__(self) -> str:
        return short_repr(self)


@dataclass(frozen=True)
class RunFeed:
    """The feed of a run, and what belongs to it.

    Attributes:
      feed: the feed of the learner.
      priorities: the priority sink of the learner; None for uniform sampling.
      replay: the server or servers with the items, which the learner saves in its checkpoints; None if they do not
        belong to the run, or their priorities do not change.
      resize: function that returns a feed of the same items with a different batch size.
      fill: function that writes the items of the dataset to the run's own server, and does nothing without one. To be
        called before the first batch, unless a checkpoint with the items was loaded.
    """

    feed: Feed
    resize: Callable[[int], Feed]
    priorities: PriorityWriter | None = None
    replay: ReplayServer | ShardedReplayServer | None = None
    fill: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class TrainingData(Closing, ABC):
    """The data of a training run. Use it as a context manager, because `open_data` may have to start a server for it.

    Each kind of data has its own class, which knows how it is sampled: `dataset.StepData`, `table_data.TableData`, and
    `sources.EnvironmentData` for a run that only collects.

    Attributes:
      name: name of the dataset, or the address of the server.
      time_step_spec: TF-Agents' spec of the time steps.
      action_spec: the bounded spec of the actions.
      fingerprint: fingerprint of the content before rewards and actions were changed, or an identifier of the table.
      adder: the adder of the items, which `make_adder` returns.
      num_transitions: number of transitions, or of the table's items.
      returns: float64 `[E]`, the undiscounted return of each episode in the dataset's own rewards, or None.
      num_episodes: number of episodes to train on; None without a dataset.
      moments: statistics of the observations; None without a dataset.
      reward_transform: transform of the rewards, which was applied to the data; None if they are unchanged.
      held_out: numbers of the episodes that are held out, among those with transitions.
      validation: the items of these episodes; None if none are held out.
      relative_actions: what a mapping has done to the actions, which the policies undo; see `AbsolutePolicy`.
      notes: sentences for the user.
      warnings: sentences that the user should not miss.
    """

    name: str
    time_step_spec: Any
    action_spec: Any
    fingerprint: str
    adder: ItemAdder
    num_transitions: int = 0
    returns: np.ndarray | None = None
    num_episodes: int | None = None
    moments: Moments | None = None
    reward_transform: ScaleRewards | None = None
    held_out: tuple[int, ...] = ()
    validation: StoredItems | None = None
    relative_actions: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    __repr__ = short_repr

    def close(self) -> None:
        """Stops the server that was started for the data, if there is one. Idempotent."""

    @abstractmethod
    def open_batches(self, config: TrainingConfig) -> AbstractContextManager[RunFeed | None]:
        """Returns a context manager that opens the batches of a run; None if there are only collected ones.

        At the end, it releases their iterators, closes connections and stops the run's own server.

        Args:
          config: the options of the run.
        """

    @property
    def history(self) -> ObservationHistory:
        """The steps whose observations the agent sees."""
        return self.adder.history

    @property
    def agent_time_step_spec(self) -> Any:
        """The spec of the time steps that the agent sees, whose observations contain those of earlier steps."""
        return extend_spec(self.time_step_spec, self.history)

    def resolve_steps(self, config: TrainingConfig) -> TrainingConfig:
        """Returns the configuration with the number of updates that `epochs` of these data take."""
        return config

    @property
    def collected_adder(self) -> ItemAdder:
        """The adder of the items that the agent collects."""
        return self.adder

    @property
    def data_return(self) -> float | None:
        """The mean return of the dataset, and so of the policies that produced it; None if unknown."""
        return None if self.returns is None else float(self.returns.mean())

    def identity(self) -> dict[str, Any]:
        """Returns what distinguishes these data from others, as JSON values."""
        observations = leaves(self.time_step_spec.observation)
        return {
            "data": self.fingerprint,
            "observations": {path_name(path, "observation"): _describe(leaf) for path, leaf in observations},
            "actions": describe(self.action_spec),
            "action bounds": describe_bounds(self.action_spec),
        }


def _describe(leaf: Any) -> str:
    return describe(leaf) + (f" in {describe_bounds(leaf)}" if count_categories(leaf) else "")


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
    return {**config.identity(environment, spec), **data.identity()}


def sample_table(server: Any, table: str, config: TrainingConfig, stack: ExitStack, *, is_own: bool) -> RunFeed:
    """Returns the batches of a table, whose connections `stack` closes.

    Prioritized ones have importance weights, whose exponent grows from 0.4 to 1 over the run, and update priorities.

    Args:
      server: the server, or several servers with shards of the same table.
      table: the name of the table.
      config: the options of the run.
      stack: closes the connections.
      is_own: whether the server belongs to the run, whose checkpoints then contain it.
    """
    size = config.batch_size or 1

    def open_feed(size: int) -> StreamingDataset:
        feed = StreamingDataset(SamplePlan(server, table, size, beta=0.0, prefetch=PREFETCH))
        stack.callback(feed.close)
        return feed

    if config.sampler == "uniform":
        return RunFeed(open_feed(size), open_feed)
    writer = stack.enter_context(
        PriorityWriter(server, table, new_items_first=True, on_server_lost=_warn_priorities_lost)
    )
    samples = SamplePlan(server, table, size, beta=1.0, prefetch=PREFETCH)
    feed = StreamingDataset(samples, beta=LinearSchedule(FIRST_BETA, LAST_BETA, config.num_offline_updates))
    stack.callback(feed.close)
    return RunFeed(feed, open_feed, writer, server if is_own else None)


def make_augmentation(config: TrainingConfig, observation_spec: Any) -> RandomShift | None:
    """Returns the random shift of the images of batches, or None.

    Raises:
      ValueError: If no field of the observation is an image, or the shift is as large as one.
    """
    return RandomShift(config.random_shift, observation_spec, seed=config.seed) if config.random_shift else None


def start_isolated(start: Callable[..., _AnyServer]) -> _AnyServer:
    """Starts one or more servers for this machine only, or with a warning for all machines if that is not possible.

    Args:
      start: function that starts them, with the argument `isolate`.
    """
    try:
        return start(isolate=True)
    except OSError as error:
        server = start(isolate=False)
        warnings.warn(
            f"the replay server accepts connections from all machines, without authentication ({error})",
            RuntimeWarning,
            stacklevel=2,
        )
        return server


def _warn_priorities_lost(address: str, reason: str) -> None:
    sentence = f"new priorities for {address} are lost; continuing with the other servers: {reason}"
    warnings.warn(sentence, RuntimeWarning, stacklevel=2)


def find_goal_sampling(config: TrainingConfig, time_step_spec: Any, action_spec: Any) -> GoalSampling | None:
    """Returns the goals that the agent learns from, of which it is created once; None if it learns from none."""
    if get_algorithm(config.algo).items != "goals":
        return None
    sampling = make_agent(config.algo, time_step_spec, action_spec, **config.resolved_hyperparameters).goal_sampling
    assert isinstance(sampling, GoalSampling)
    return sampling


def warn_large(moments: ObservationMoments, config: TrainingConfig, *, has_statistics: bool = True) -> list[str]:
    """Returns a warning if observations that an agent receives without normalisation exceed 10 in size; else none.

    `has_statistics` is whether the data determine the mean and the standard deviation.
    """
    found = [] if "observation_mean" in config.hyperparameters else moments.describe_large()
    algorithm = get_algorithm(config.algo)
    sentence = f"observations of more than 10 in size slow down or prevent learning: {'; '.join(found)}; "
    if not has_statistics:
        message = sentence + "normalise them with the hyperparameters observation_mean and observation_std"
    elif algorithm.factory is None or accepts_statistics(algorithm.factory):
        message = Message(sentence + "normalise them", normalize_observations=True)
    else:
        message = sentence + "normalise them in the agent"
    return [message] if found else []


def require_trainable(step_spec: Nest, config: TrainingConfig, action_space: Any) -> None:
    """Checks the fields of a dataset before it is read.

    Raises:
      SpecMismatchError: If an observation holds strings, a reward is not a single number, or the algorithm cannot learn
        from the actions.
      SourceError: If there are no rewards.
    """
    if fields.REWARD not in step_spec:
        raise SourceError("the dataset has no rewards, but training requires them")
    reward = step_spec[fields.REWARD]
    if not isinstance(reward, ArraySpec) or reward.shape != () or reward.dtype.kind not in "fiub":
        got = describe(reward) if isinstance(reward, ArraySpec) else "a nest"
        raise SpecMismatchError(f"the rewards must be single numbers, got {got}; combine them into one")
    for path, leaf in leaves({fields.OBSERVATION: step_spec[fields.OBSERVATION]}):
        if leaf.dtype.kind not in "fiub":
            raise SpecMismatchError(
                f"{path_name(path)} must be numbers, got {describe(leaf)}; encode it, or drop it",
                drop_fields=["/".join(map(str, path))],
            )
    require_trainable_actions(step_spec[fields.ACTION], get_algorithm(config.algo), action_space)


def require_trainable_actions(spec: Nest, algorithm: Algorithm, action_space: Any) -> None:
    """Checks the spec of the actions.

    Args:
      spec: nest of specs of one action of the dataset.
      algorithm: the algorithm.
      action_space: action space of the environment; None if unknown.

    Raises:
      SpecMismatchError: If no algorithm supports such actions, if only others do, or if the environment's actions are
        of a different kind.
    """
    spec = require_joined(spec)
    if action_space is not None and action_space.shape is None:
        raise SpecMismatchError(
            f"the actions of the environment must be one array, got {action_space}; use a wrapper that joins its parts"
        )
    got = describe(spec)
    is_discrete = np.issubdtype(spec.dtype, np.integer)
    if not is_discrete and not np.issubdtype(spec.dtype, np.floating):
        raise SpecMismatchError(f"the actions must be floats or integers, got {got}; encode them as numbers")
    if action_space is not None and tuple(action_space.shape) != tuple(spec.shape):
        raise SpecMismatchError(
            f"the dataset's actions have shape {tuple(spec.shape)}, but those of the environment "
            f"{tuple(action_space.shape)}; " + ADVICE
        )
    if action_space is not None and np.issubdtype(action_space.dtype, np.integer) != is_discrete:
        cast = "" if is_discrete else f"{WHOLE_NUMBERS}, or "
        raise SpecMismatchError(
            f"the dataset's actions are {spec.dtype.name}, but those of the environment "
            f"{np.dtype(action_space.dtype).name}; {cast}" + ADVICE
        )
    if is_discrete and spec.shape == (1,):
        raise SpecMismatchError(f"discrete actions must be single integers, got {got}; remove the last axis")
    if is_discrete and spec.shape != ():
        raise SpecMismatchError(
            f"discrete actions must be single integers, got {got}: MultiDiscrete actions are not supported; encode "
            "each combination as one integer"
        )
    if not is_discrete and len(spec.shape) != 1:
        raise SpecMismatchError(f"continuous actions must be vectors, got {got}; reshape them")
    kind = "discrete" if is_discrete else "continuous"
    if algorithm.actions not in (kind, None):
        names = ", ".join(name for name, other in ALGORITHMS.items() if other.actions == kind)
        cast = "cast numbers of a scale to floats" if is_discrete else WHOLE_NUMBERS
        raise SpecMismatchError(
            f"{algorithm.name} requires {algorithm.actions} actions, but those of the dataset are {kind} ({got}); "
            f"{cast}, or use one of {names}"
        )


def find_history(config: TrainingConfig, time_step_spec: Any, action_spec: Any) -> ObservationHistory:
    """Returns the steps whose observations the agent sees."""
    if config.observation_offsets == (0,):
        return NO_HISTORY
    observation_spec, (action,) = time_step_spec.observation, tf.nest.flatten(action_spec)
    num_actions = int(action.maximum) - int(action.minimum) + 1 if action.dtype.is_integer else None
    mask = find_action_mask(observation_spec, num_actions, config.action_mask)
    return make_history(config.observation_offsets, observation_spec, mask=mask)


def make_adder(
    config: TrainingConfig,
    time_step_spec: Any,
    action_spec: Any,
    *,
    goals: GoalSampling | None = None,
    has_trajectories: bool | None = None,
) -> ItemAdder:
    """Returns the adder of the items that the algorithm learns from: transitions, trajectories or windows.

    A custom agent that does not declare its items is created once, to read its `train_sequence_length`.

    Args:
      config: the options of the run.
      time_step_spec: spec of the data's time steps.
      action_spec: spec of the actions.
      goals: the goals that the agent learns from, see `find_goal_sampling`; None if it learns from none.
      has_trajectories: kind of the items in a table, which an agent that declares neither learns from; None for data
        that are not yet converted.
    """
    algorithm, length = get_algorithm(config.algo), 2
    learns = algorithm.learns_from_rewards
    reads_next = learns or (goals is not None and goals.actor is not None)
    other_fields = (fields.POLICY_INFO,) if algorithm.step_info else ()
    history = find_history(config, time_step_spec, action_spec)
    transitions = Transitions(config.n_step, config.gamma, other_fields, reads_next=reads_next, history=history)
    if config.chunk_length > 1:
        options = {**vars(transitions), "n": config.chunk_length}
        return ChunkTransitions(**options, repeats_last=algorithm.masks_chunks)
    if algorithm.items == "windows":
        return PaddedTrajectoryWindows(config.resolved_hyperparameters["context_length"])
    if algorithm.items is None and has_trajectories is not None:
        return TrajectoryWindows(length) if has_trajectories else transitions
    if algorithm.items in ("transitions", "goals") or config.n_step > 1:
        return transitions
    if algorithm.factory is not None:
        spec = extend_spec(time_step_spec, history)
        agent = make_agent(config.algo, spec, action_spec, **config.resolved_hyperparameters)
        length = agent.train_sequence_length or 1
        if algorithm.items is None and length == 1:
            return transitions
    if history.parts:
        raise ArgumentError(
            f"requires an agent that learns from transitions, unlike {config.algo}", about="observation_offsets"
        )
    return TrajectoryWindows(length)
