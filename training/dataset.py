"""Datasets: converted to items in memory, in a store, or in a table of prioritized items."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from tf_agents.specs.tensor_spec import BoundedTensorSpec
from tf_agents.trajectories import time_step

from rlds2reverb import ReplayServer, Selector, TableConfig, ingest, packed_signature
from rlds2reverb.adders.places import find_ends
from rlds2reverb.datasets import Source
from rlds2reverb.datasets.action_specs import OF_DATA, describe_bounds, make_action_spec
from rlds2reverb.datasets.checks import Finding
from rlds2reverb.datasets.mapping.value_operations import RELATIVE_ACTIONS
from rlds2reverb.datasets.selection import select_episodes
from rlds2reverb.datasets.steps.goals import add_goal
from rlds2reverb.datasets.steps.loaded_steps import LoadedSteps, Preparation, TooLargeError, convert_columns, read_steps
from rlds2reverb.datasets.steps.step_columns import StepColumns
from rlds2reverb.datasets.transforms import ScaleRewards, clip_actions, parse_reward
from rlds2reverb.datasets.valid_episodes import describe_skipped
from rlds2reverb.errors import ArgumentError, Message, SourceError
from rlds2reverb.learners.algorithms import get_algorithm
from rlds2reverb.learners.stored_items import StoredItems, decode_images
from rlds2reverb.reverb.wire.packing import Packing
from rlds2reverb.reverb.writing.report import IngestWarning
from rlds2reverb.system.platform import cache_folder
from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import Episode, ProgressCallback
from rlds2reverb.types.short_repr import short_repr
from rlds2reverb.types.spaces import action_bounds, add_bounds
from rlds2reverb.types.specs import ArraySpec, Nest, describe, leaves, path_name, to_tensor_spec

from .config import TrainingConfig
from .config_validation import resolve_sampler
from .data import (
    Moments,
    RunFeed,
    TrainingData,
    find_goal_sampling,
    make_adder,
    require_trainable,
    sample_table,
    start_isolated,
    warn_large,
)
from .legal_values import LegalValues
from .step_info import SOURCE_FIELDS, get_return_options, make_step_info

#: Exponent of the priorities of prioritized replay (Schaul et al. 2016, table 3, proportional).
PRIORITY_EXPONENT = 0.6
_TABLE = "replay"
#: Parts of the names of observations that tell the task.
_TASK_NAMES = ("task", "instruction", "language", "goal")
#: A function that converts columns of steps as the algorithm learns from them.
_Convert = Callable[[dict[str, Nest]], dict[str, Nest]]


@dataclass(frozen=True, kw_only=True)
class StepData(TrainingData):
    """The steps of a dataset, in memory or in a store.

    Attributes:
      items: their items in batches of any size, to sample uniformly or in epochs; they are cut from the steps when they
        are read.
      episodes: the episodes to train on, to write to tables.
    """

    items: StoredItems
    episodes: Source

    __repr__ = short_repr

    @contextmanager
    def open_batches(self, config: TrainingConfig) -> Iterator[RunFeed]:
        """Implements `TrainingData.open_batches`. Prioritized items are sampled from a server that the run starts."""
        if config.sampler != "prioritized":
            feed = self.items.resize(config.batch_size or 1, in_epochs=config.epochs is not None)
            yield RunFeed(feed, self.items.resize)
            return
        with ExitStack() as stack:
            server = stack.enter_context(start_isolated(self._start_server))
            yield replace(sample_table(server, _TABLE, config, stack, is_own=True), fill=partial(self._fill, server))

    def resolve_steps(self, config: TrainingConfig) -> TrainingConfig:
        """Implements `TrainingData.resolve_steps`."""
        return config.for_items(self.items.num_items)

    def _start_server(self, *, isolate: bool) -> ReplayServer:
        """Starts a server with an empty table."""
        packing = Packing(self.adder.item_spec(self.episodes.step_spec), self.adder.squeeze)
        tables = [TableConfig(_TABLE, sampler=Selector("prioritized", PRIORITY_EXPONENT))]
        return ReplayServer(tables, packed_signature(packing), isolate=isolate)

    def _fill(self, server: ReplayServer) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IngestWarning)
            ingest(self.episodes, server, _TABLE, adder=self.adder, layout="packed", resume=False)


def open_dataset(
    source: Source,
    config: TrainingConfig,
    *,
    action_space: Any = None,
    observation_space: Any = None,
    other_fields: Sequence[str] = (),
    progress: ProgressCallback = lambda stage, episode: None,
) -> StepData:
    """Reads a dataset, into memory or a store, unless it is stored already; see `sources.open_data`.

    `other_fields` are names of further fields of the steps to keep.
    """
    notes: list[str] = []
    warnings = list(source.warnings)
    _require_known(source.assumed_fields, config)
    relative_actions = _require_reversible(source, config, action_space)
    dataset = _read_or_store(source, config, action_space, other_fields, progress, notes)
    action_space = None if relative_actions else action_space  # It has the bounds of absolute actions.
    action_spec, about_bounds = make_action_spec(
        dataset.actions,
        action_space,
        source.action_space,
        bounds=config.action_bounds,
        clip_actions=config.clip_actions,
        has_advice=config.env is not None,
    )
    notes += [*([] if about_bounds is None else [about_bounds]), *describe_skipped(source, dataset.num_skipped)]
    if about_bounds is not None and OF_DATA in about_bounds:
        warnings += [_describe_odd(finding) for finding in dataset.odd_actions]
    clipping = dataset.count_clipped(action_spec)
    if clipping.counts[1] and config.clip_actions:
        notes.append(clipping.describe())
    elif clipping.counts[1]:
        kept = f"are not clipped to {describe_bounds(action_spec)}; they can be"
        warnings.append(Message(clipping.describe(kept), clip_actions=True))
    warnings += _warn_tasks(dataset, config)
    is_kept, is_held_out, about_selection = select_episodes(
        dataset.returns, validation=config.validation, top_percent=config.top_percent, seed=config.seed
    )
    notes += about_selection
    if config.normalize_observations:
        notes += dataset.moments.describe_constants()
    else:
        warnings += warn_large(dataset.moments, config)
    time_step_spec, moments = _describe_observations(dataset, config, (source.observation_space, observation_space))
    legal_values = LegalValues(time_step_spec.observation, action_spec, config.action_mask)
    legal_values.require(dataset.steps)
    notes += legal_values.notes
    has_transitions = dataset.steps.num_steps > 1
    is_used, is_validated = np.zeros((2, len(has_transitions)), bool)
    is_used[has_transitions], is_validated[has_transitions] = is_kept, is_held_out
    transform = fit_reward(config, dataset.returns, source.name)
    goals = find_goal_sampling(config, time_step_spec, action_spec)
    adder = make_adder(config, time_step_spec, action_spec, goals=goals)
    kept_fields = (*fields.STEP_FIELDS, *other_fields)
    notes = [*dataset.describe_left_out(kept_fields, uses_all_actions=adder.uses_all_actions), *notes]
    ends = find_ends(dataset.steps.num_steps, dataset.steps.final_rows if adder.uses_all_actions else None)
    common: dict[str, Any] = {
        "name": source.name,
        "time_step_spec": time_step_spec,
        "action_spec": action_spec,
        "fingerprint": dataset.fingerprint,
        "adder": adder,
        "num_transitions": int((ends.num_steps[is_used] - 1).sum()),
        "returns": dataset.returns,
        "num_episodes": int(is_kept.sum()),
        "moments": moments,
        "reward_transform": transform,
        "relative_actions": relative_actions,
        "held_out": tuple(np.flatnonzero(is_held_out).tolist()),
        "notes": tuple(notes),
        "warnings": tuple(warnings),
    }
    convert = partial(_prepare, config, action_spec, transform)
    items = partial(
        StoredItems,
        dataset.steps,
        adder,
        1,
        seed=config.seed,
        convert=convert,
        added=_read_step_info(dataset.steps, convert, config),
        goals=goals,
    )
    if config.validation:
        common["validation"] = items(is_used=is_validated).resize(config.batch_size or 1)
    weigh = resolve_sampler(config.sampler)
    episodes = _make_source(source.name, dataset.steps, is_used, convert, config)
    return StepData(**common, items=items(is_used=is_used, weigh=weigh), episodes=episodes)


def make_preparation(config: TrainingConfig) -> Preparation:
    """Returns how a run changes a dataset before it is read, and where its steps are stored."""
    return Preparation(config.drop_fields, config.cut_at_terminal, config.store_dir)


def _read_or_store(
    source: Source,
    config: TrainingConfig,
    action_space: Any,
    other_fields: Sequence[str],
    progress: ProgressCallback,
    notes: list[str],
) -> LoadedSteps:
    """Returns what `read_steps` reads; data that do not fit in memory are stored first, which is noted."""

    def require(step_spec: dict[str, Nest]) -> None:
        require_trainable(step_spec, config, action_space)
        _require_numbers(step_spec, other_fields)

    names = (*fields.STEP_FIELDS, *other_fields)
    functions: dict[str, Any] = {"require": require, "decode_images": decode_images, "progress": progress}
    read = partial(read_steps, source, names=names, **functions, on_note=notes.append)
    preparation = make_preparation(config)
    try:
        return read(preparation)
    except TooLargeError as error:
        preparation = replace(preparation, store_dir=str(cache_folder()))
        notes.append(Message(f"{error}; they are stored in {preparation.store_dir}", store_dir=...))
        return read(preparation)


def _require_known(assumed_fields: Sequence[str], config: TrainingConfig) -> None:
    """Raises `SourceError` if a run learns from fields that the dataset does not contain."""
    has_use = get_algorithm(config.algo).learns_from_rewards or config.top_percent is not None or config.reward
    if assumed_fields and has_use:
        names = " and ".join(map(repr, assumed_fields))
        raise SourceError(
            f"the dataset has no {names}, from which {config.algo} or an option of the run learns; clone with 'bc' or "
            "'discrete_bc', or load RLDS with values for them",
            missing=...,
        )


def _require_numbers(step_spec: Nest, names: Sequence[str]) -> None:
    """Raises `SourceError` unless there are step fields with these names, each of which is a single number."""
    for name in names:
        spec = step_spec.get(name)
        if not isinstance(spec, ArraySpec) or spec.shape != () or spec.dtype.kind not in "fiu":
            got = "no such field" if spec is None else describe(spec) if isinstance(spec, ArraySpec) else "a nest"
            have = ", ".join(map(repr, sorted(step_spec)))
            sentence = f"the step field {name!r} must be a number, got {got}; the dataset has {have}"
            raise SourceError(f"{sentence}; read it", extra_fields=[name]) if spec is None else SourceError(sentence)


def _require_reversible(source: Source, config: TrainingConfig, action_space: Any) -> tuple[dict[str, Any], ...]:
    """Returns what a mapping has done to the actions; raises `SourceError` if policies cannot undo it.

    The bounds of the actions before are those of the environment, or else of the dataset.
    """
    changes = tuple(source.statistics.get(RELATIVE_ACTIONS, ()))
    for change in changes:
        if change["action"] != [fields.ACTION] or change["state"][0] != fields.OBSERVATION:
            raise SourceError(
                "relative actions must be the field 'action', with a state in the observation, so that policies can "
                f"undo it, got {'.'.join(change['action'])!r} and {'.'.join(change['state'])!r}; change the mapping"
            )
    if changes and config.online_steps:
        raise ArgumentError("cannot be combined with relative actions", about="online_steps", mapping=...)
    if changes and action_space is not None:
        return ({**changes[0], "bounds": action_bounds(action_space)}, *changes[1:])
    return changes


def _warn_tasks(dataset: LoadedSteps, config: TrainingConfig) -> list[str]:
    """Returns a warning if a clone cannot know which of several tasks to do; else none."""
    names = " ".join(path_name(path, "observation") for path, _ in leaves(dataset.observation_spec))
    if len(dataset.tasks) < 2 or get_algorithm(config.algo).learns_from_rewards or any(map(names.count, _TASK_NAMES)):
        return []
    texts = ", ".join(repr(text.decode(errors="replace")) for text in sorted(dataset.tasks)[:3])
    more = ", ..." if len(dataset.tasks) > 3 else ""
    return [
        f"the episodes have {len(dataset.tasks)} tasks ({texts}{more}), of which the agent sees none; select one of "
        "them with a mapping, or embed the task into the observation"
    ]


def _describe_odd(finding: Finding) -> Message:
    """Returns a warning about actions that determine the bounds alone, to which all others are scaled."""
    counts = f"{finding.count:,} steps, the first in {finding.place}" if finding.count > 1 else finding.place
    sentence = f"all actions are scaled to a few: {finding.field} is {finding.message} ({counts}); {finding.advice}"
    return Message(f"{sentence}, or set the bounds", action_bounds=...)


def _describe_observations(
    dataset: LoadedSteps, config: TrainingConfig, spaces: Sequence[Any]
) -> tuple[time_step.TimeStep, Moments]:
    """Returns the spec of the time steps that the agent sees, and the moments of its observations.

    The spec has the bounds of categories, whose space is Discrete or MultiDiscrete in the last of `spaces` that has
    such, so that they are one-hot encoded.
    """
    observations = dataset.observation_spec
    for space in spaces:
        observations = add_bounds(observations, space, of_categories=True)
    algorithm = get_algorithm(config.algo)
    moments = Moments(*dataset.moments.agent_statistics(algorithm.std_eps))
    if algorithm.items == "goals":
        observations = add_goal(observations, observations)
        moments = Moments(*(add_goal(part, part) for part in moments))
    return time_step.time_step_spec(to_tensor_spec(observations)), moments


def _read_step_info(steps: StepColumns, convert: _Convert, config: TrainingConfig) -> dict[str, Nest]:
    """Returns the field with what the algorithm learns from in addition to the steps; {} if it needs nothing else."""
    algorithm = get_algorithm(config.algo)
    names = algorithm.step_info
    if not names:
        return {}
    options = {"gamma": 1.0} if algorithm.items == "windows" else get_return_options(config)
    parts = [
        make_step_info(convert(columns), num_steps, names, **options)
        for columns, num_steps in steps.read_batches(SOURCE_FIELDS)
    ]
    return {fields.POLICY_INFO: {name: np.concatenate([part[name] for part in parts]) for name in names}}


def _prepare(
    config: TrainingConfig, action_spec: BoundedTensorSpec, transform: ScaleRewards | None, steps: dict[str, Nest]
) -> dict[str, Nest]:
    """Returns columns of some fields as the algorithm learns from them."""
    steps = convert_columns(steps)
    if transform is not None and fields.REWARD in steps:
        steps[fields.REWARD] = transform.transform(steps)
    if config.clip_actions and fields.ACTION in steps:
        steps[fields.ACTION] = clip_actions(steps[fields.ACTION], action_spec.minimum, action_spec.maximum)
    return steps


def _make_source(
    name: str, steps: StepColumns, is_used: np.ndarray, convert: _Convert, config: TrainingConfig
) -> Source:
    """Returns the episodes to train on."""
    names = get_algorithm(config.algo).step_info
    options = get_return_options(config) if names else {}

    def read() -> Iterator[Episode]:
        first = 0
        for columns, num_steps in steps.read_batches(fields.STEP_FIELDS):
            used = is_used[first : first + len(num_steps)]
            first += len(num_steps)
            columns = convert(columns)
            if names:
                columns[fields.POLICY_INFO] = make_step_info(columns, num_steps, names, **options)
            kept = EpisodeBatch.from_columns(columns, num_steps).select(used)
            yield from () if kept is None else kept.episodes

    return Source(name, "memory", read, int(is_used.sum()), int(steps.num_steps[is_used].sum()))


def fit_reward(config: TrainingConfig, returns: np.ndarray, name: str) -> ScaleRewards | None:
    """Returns the transform of the rewards, given the returns of a dataset; None if they are not changed.

    Raises:
      ValueError: If the returns do not determine the transform.
    """
    return None if config.reward is None else parse_reward(config.reward).fit_returns(returns.tolist(), name)
