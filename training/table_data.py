"""Tables that already contain items: of a running server, or of a directory that `ingest` wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tree
import xxhash
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb import ReplayServer, ShardedReplayServer, TrajectoryWindows, sample_dataset
from rlds2reverb.adders import ItemAdder
from rlds2reverb.datasets.action_specs import make_action_spec
from rlds2reverb.datasets.action_statistics import ActionStatistics
from rlds2reverb.datasets.moments import ObservationMoments
from rlds2reverb.datasets.steps.goals import add_goal
from rlds2reverb.datasets.steps.loaded_steps import convert_columns
from rlds2reverb.errors import ArgumentError, Message, SourceError, SpecMismatchError
from rlds2reverb.learners.algorithms import get_algorithm
from rlds2reverb.learners.stored_items import StoredItems
from rlds2reverb.reverb.client import find_addresses, table_infos
from rlds2reverb.reverb.sampling import SamplePlan
from rlds2reverb.reverb.sampling.server_tables import ServerTables
from rlds2reverb.reverb.server.shards import find_shards, find_table_directories
from rlds2reverb.reverb.wire.packing import find_packing
from rlds2reverb.types import fields
from rlds2reverb.types.locations import TableLocation, server_address
from rlds2reverb.types.spaces import make_array_space
from rlds2reverb.types.specs import ArraySpec, Nest, path_name, with_bounds

from .config import TrainingConfig, declared_options
from .data import (
    PREFETCH,
    RunFeed,
    TrainingData,
    find_goal_sampling,
    make_adder,
    require_trainable_actions,
    sample_table,
    start_isolated,
    warn_large,
)
from .legal_values import LegalValues
from .sampled_episodes import SampledEpisodes

#: Number of items that are sampled from a table to check them before training.
_NUM_CHECKED = 32
#: Maximum time to wait for the servers' information about their tables.
_INFO_SECS = 10.0
#: Maximum time to wait for the items that are checked.
SAMPLE_SECS = 30.0
#: Number of episodes from which the items of a batch with goals are drawn.
_NUM_EPISODES = 64
_DEFAULT_TABLE = "replay"
#: Options that determine the items of a dataset.
_CONVERSION = ("top_percent", "validation", "n_step", "chunk_length", "observation_offsets", "drop_fields",
               "cut_at_terminal", "reward", "clip_actions", "store_dir")  # fmt: skip


@dataclass(frozen=True)
class ServedTable:
    """A table with items to train on.

    Attributes:
      server: a `ReplayServer`, a client, or the address of a server; or several of these, whose tables are shards.
      table: the name of the table.
      row_spec: dict of the `tf.TensorSpec`s of one step.
      action_bounds: the minimum and maximum of the actions, which the signature of the table contains; None if unknown.
      has_trajectories: whether items are trajectories of two steps instead of transitions.
      size: the number of items on all servers.
    """

    server: Any
    table: str
    row_spec: Any
    action_bounds: tuple[Any, Any] | None
    has_trajectories: bool
    size: int


@dataclass(frozen=True, kw_only=True)
class TableData(TrainingData):
    """A table that already contains the items, or the episodes in which an agent draws its goals.

    Attributes:
      table: the table.
      owns_server: whether `open_table` started its server.
    """

    table: ServedTable
    owns_server: bool = False
    _resources: ExitStack = field(default_factory=ExitStack, repr=False, compare=False)

    def close(self) -> None:
        """Implements `TrainingData.close`."""
        self._resources.close()

    @contextmanager
    def open_batches(self, config: TrainingConfig) -> Iterator[RunFeed]:
        """Implements `TrainingData.open_batches`."""
        with ExitStack() as stack:
            if get_algorithm(config.algo).items == "goals":
                yield self._sample_episodes(config, stack)
            else:
                yield sample_table(self.table.server, self.table.table, config, stack, is_own=self.owns_server)

    def _sample_episodes(self, config: TrainingConfig, stack: ExitStack) -> RunFeed:
        """Returns batches of items with goals, which are drawn in whole episodes from the table."""
        goals = find_goal_sampling(config, self.time_step_spec, self.action_spec)
        options: Any = {"seed": config.seed, "convert": convert_columns, "goals": goals}
        plan = SamplePlan(self.table.server, self.table.table, _NUM_EPISODES, beta=0.0, prefetch=PREFETCH)

        def open_feed(size: int) -> SampledEpisodes:
            feed = SampledEpisodes(plan, lambda steps: StoredItems(steps, self.adder, size, **options))
            stack.callback(feed.close)
            return feed

        return RunFeed(open_feed(config.batch_size or 1), open_feed)

    @property
    def collected_adder(self) -> ItemAdder:
        """The adder of collected items of the same kind as those of the table."""
        return TrajectoryWindows(2) if self.table.has_trajectories else self.adder


def open_table(location: TableLocation, config: TrainingConfig, action_space: Any) -> TableData:
    """Opens a table, and starts its server if it is in a directory; see `sources.open_data`."""
    require_table_options(config)
    has_goals = get_algorithm(config.algo).items == "goals"
    with ExitStack() as stack:
        server = location.place
        if location.directory is not None:
            is_sharded = bool(find_shards(location.directory))
            start: Any = ShardedReplayServer if is_sharded else ReplayServer
            server = stack.enter_context(start_isolated(partial(start, directory=location.directory)))
        table = describe_table(server, location.table, holds_episodes=has_goals)
        # Counts in their `times_sampled`.
        (sample,) = sample_dataset(table.server, table.table, _NUM_CHECKED, timeout_secs=SAMPLE_SECS).take(1)
        action_spec, about_bounds = make_table_action_spec(table, config, action_space, sample)
        observation = table.row_spec["observation"]
        time_step_spec = time_step.time_step_spec(add_goal(observation, observation) if has_goals else observation)
        goals = find_goal_sampling(config, time_step_spec, action_spec)
        adder = make_adder(config, time_step_spec, action_spec, goals=goals, has_trajectories=table.has_trajectories)
        has_one_priority = require_matching_items(table, config, adder, sample)
        is_named = isinstance(location.place, (str, Path))
        name = str(location.place) if is_named else ",".join(find_addresses(server))
        notes = _require_legal(table, config, time_step_spec, action_spec, sample)
        notes += [] if about_bounds is None else [about_bounds]
        warnings: list[str] = []
        if not has_one_priority and config.sampler == "uniform":
            sentence = "the table samples items by priority; do the same here for importance weights"
            warnings.append(Message(sentence, sampler="prioritized"))
        warnings += warn_large(_measure_observations(table, sample), config, has_statistics=False)
        if get_algorithm(config.algo).normalizes_observations and "observation_mean" not in config.hyperparameters:
            notes.append(
                f"observations are not normalised, because {name} has no statistics; set the hyperparameters "
                "observation_mean and observation_std to normalise them"
            )
        resources = stack.pop_all()
    return TableData(
        name=name,
        time_step_spec=time_step_spec,
        action_spec=action_spec,
        fingerprint=identify_table(location, table.table),
        adder=adder,
        num_transitions=table.size,
        table=table,
        owns_server=location.directory is not None,
        notes=tuple(notes),
        warnings=tuple(warnings),
        _resources=resources,
    )


def _require_legal(
    table: ServedTable, config: TrainingConfig, time_step_spec: Any, action_spec: Any, sample: Any
) -> list[str]:
    """Returns notes about categories and action masks; raises `SpecMismatchError` if sampled items contradict them."""
    legal_values = LegalValues(time_step_spec.observation, action_spec, config.action_mask)
    data = sample.data if isinstance(sample.data, dict) else sample.data._asdict()
    first = tree.map_structure(
        lambda column: column.numpy()[:, 0] if table.has_trajectories else column.numpy(),
        {name: data[name] for name in ("observation", "action")},
    )
    if found := legal_values.find_illegal(first["observation"], first["action"]):
        raise SpecMismatchError(f"an item of table {table.table!r} is invalid: {found[1]}")
    return legal_values.notes


def _measure_observations(table: ServedTable, sample: Any) -> ObservationMoments:
    """Returns the moments of the observations of some items of a table."""
    specs = tree.map_structure(
        lambda leaf: ArraySpec(tuple(leaf.shape), np.dtype(leaf.dtype.as_numpy_dtype)), table.row_spec["observation"]
    )
    moments = ObservationMoments(specs)
    observation = sample.data["observation"] if isinstance(sample.data, dict) else sample.data.observation
    for column, leaf in zip(tree.flatten(observation), moments.leaves, strict=True):
        if leaf is not None:
            leaf.add(column.numpy().reshape(-1, *leaf.max_size.shape))
    return moments


def choose_table(names: Sequence[str]) -> str:
    """Returns the table to train on if the user names none: the only one, or else 'replay'."""
    return names[0] if len(names) == 1 else _DEFAULT_TABLE


def describe_table(server: Any, table: str | None = None, *, holds_episodes: bool = False) -> ServedTable:
    """Returns the table of a server with transitions of `NStep` or trajectories of `TrajectoryWindows(2)`.

    Args:
      server: the server, or several servers with shards of the same table.
      table: the name of the table; None for the only one, or else 'replay'.
      holds_episodes: whether to require whole episodes of `TrajectoryEpisodes` instead.

    Raises:
      SourceError: If there is no such table, if it is empty, or if there are several tables and none is named 'replay'.
      SpecMismatchError: If the items are of a different kind, or differ between servers.
      ServerUnavailableError: If a server does not answer.
    """
    addresses = find_addresses(server)
    all_infos = [table_infos(address) for address in addresses]
    infos, where = all_infos[0], ", ".join(addresses)
    name = table or choose_table(list(infos))
    if name not in infos:
        expected = f"there is no table {table!r}" if table else "training requires one table, or one named 'replay'"
        raise SourceError(f"{where} has the tables {', '.join(sorted(infos))}; {expected}")
    if len(addresses) > 1:
        ServerTables.fetch(server, name, timeout_secs=_INFO_SECS)  # Raises an error unless the tables match.
    size = sum(server_infos[name].current_size for server_infos in all_infos)
    if not size:
        raise SourceError(f"table {name!r} at {where} has no items, but training requires them")
    for address, server_infos in zip(addresses, all_infos, strict=True):
        info, minimum = server_infos[name], server_infos[name].rate_limiter_info.min_size_to_sample
        if 0 < info.current_size < minimum:  # No samples would be returned yet.
            raise SourceError(
                f"table {name!r} at {address} has {info.current_size:,} items, but its rate limiter waits for "
                f"{minimum:,} before it returns samples; insert more, or serve it with the rate limiter min_size:1"
            )
    signature = infos[name].signature
    packing = find_packing(signature) if signature is not None else None
    spec = signature if packing is None else packing.item_spec
    has_transitions = isinstance(spec, dict) and set(spec) >= set(fields.TRANSITION_FIELDS)
    length = None if holds_episodes else 2
    has_trajectories = hasattr(spec, "next_step_type") and tree.flatten(spec.reward)[0].shape.as_list()[:1] == [length]
    if not has_trajectories and (holds_episodes or not has_transitions):
        kinds = "transitions of NStep or trajectories of TrajectoryWindows(2)"
        if holds_episodes:
            kinds = "whole episodes, in which goals are drawn (TrajectoryEpisodes, convert --whole-episodes)"
        raise SpecMismatchError(f"the items of table {name!r} at {where} must be {kinds}; convert the dataset again")
    parts = spec._asdict() if has_trajectories else spec
    num_axes = 1 if has_trajectories else 0
    rows = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[num_axes:], leaf.dtype), parts)
    rows["observation"] = tree.map_structure(with_bounds, rows["observation"], parts["observation"])
    read = {column: rows[column] for column in ("observation", "action", "reward")}
    _require_float32(read, f"table {name!r} at {where}")
    action = parts["action"]
    bounds = (action.minimum, action.maximum) if isinstance(action, tensor_spec.BoundedTensorSpec) else None
    return ServedTable(server, name, rows, bounds, has_trajectories, size)


def _require_float32(rows: Nest, table: str) -> None:
    """Raises `SpecMismatchError` if a field that agents use contains floats other than float32."""
    for path, leaf in tree.flatten_with_path(rows):
        if leaf.dtype.is_floating and leaf.dtype != tf.float32:
            raise SpecMismatchError(
                f"{path_name(path)} of {table} must be float32, got {leaf.dtype.name}; convert the dataset again with "
                "CastFloats (convert --cast-floats)"
            )


def make_table_action_spec(
    table: ServedTable, config: TrainingConfig, action_space: Any, sample: Any
) -> tuple[tensor_spec.BoundedTensorSpec, str | None]:
    """Returns the action spec of a table's items, and a sentence about bounds that are not the environment's.

    Args:
      table: the table.
      config: the options of the run.
      action_space: action space of the environment; None if unknown.
      sample: some items of the table.

    Raises:
      SpecMismatchError: If the algorithm cannot learn from the actions, if those of the environment differ, or if their
        bounds are unknown.
    """
    action = table.row_spec["action"]
    if not hasattr(action, "dtype"):
        raise SpecMismatchError("the actions must be one array, got a nest; convert the dataset again without it")
    spec = ArraySpec(tuple(action.shape), np.dtype(action.dtype.as_numpy_dtype))
    require_trainable_actions(spec, get_algorithm(config.algo), action_space)
    data = (sample.data["action"] if isinstance(sample.data, dict) else sample.data.action).numpy()
    if tf.is_tensor(sample.info.mask):  # Items of varying length are padded.
        data = data[sample.info.mask.numpy()]
    actions = ActionStatistics(spec)
    actions.add(data.reshape(-1, *spec.shape))
    data_space = None if table.action_bounds is None else make_array_space(spec, *table.action_bounds)
    options: Any = {"bounds": config.action_bounds, "has_advice": config.env is not None}
    return make_action_spec(actions, action_space, data_space, is_complete=False, **options)


def require_matching_items(table: ServedTable, config: TrainingConfig, adder: ItemAdder, sample: Any) -> bool:
    """Checks that an agent can learn from the items of a table, and that they use the discount factor of the run.

    Args:
      table: the table.
      config: the options of the run.
      adder: adder of the items that the agent requires.
      sample: some items of the table.

    Returns:
      Whether all sampled items have the same priority.

    Raises:
      SpecMismatchError: If the items do not match.
    """
    if isinstance(adder, TrajectoryWindows) and not table.has_trajectories:
        raise SpecMismatchError(
            f"the items of table {table.table!r} are transitions, but {config.algo} learns from trajectories of two "
            "steps; convert the dataset again with TrajectoryWindows(2)"
        )
    info = table.row_spec.get(fields.POLICY_INFO) or {}
    if missing := [name for name in get_algorithm(config.algo).step_info if name not in info]:
        raise SpecMismatchError(
            f"the items of table {table.table!r} have no {fields.POLICY_INFO}[{missing[0]!r}], from which "
            f"{config.algo} learns; train on the dataset, for which it is computed, or convert it again with this "
            "field in the steps"
        )
    has_one_priority = bool((sample.info.priority == sample.info.priority[0]).numpy().all())
    if table.has_trajectories or "value_gamma" not in sample.data:
        return has_one_priority
    value_gamma = float(sample.data["value_gamma"][0])
    powers = config.gamma ** np.arange(1, 1001, dtype=np.float64)
    if not np.isclose(powers, value_gamma, rtol=1e-5, atol=1e-9).any():
        raise SpecMismatchError(
            f"the items of table {table.table!r} have a different discount factor: value_gamma is {value_gamma:g}, "
            f"which is not a power of {config.gamma:g}; use that of the conversion",
            gamma=...,
        )
    return has_one_priority


def require_table_options(config: TrainingConfig) -> None:
    """Raises `ValueError` if options change or select episodes, or require repeatability, which tables do not have."""
    if config.epochs is not None:
        raise ArgumentError("requires a dataset; servers choose the items of a batch themselves", about="epochs")
    if config.deterministic:
        sentence = "requires a dataset; servers sample nondeterministically"
        raise ArgumentError(sentence, about="deterministic", value=True)
    if get_algorithm(config.algo).items == "windows":
        raise SpecMismatchError(f"{config.algo} learns from windows of a dataset's steps; train on the dataset itself")
    changed = [name for name in _CONVERSION if getattr(config, name) != declared_options()[name].default]
    if config.normalize_observations and not get_algorithm(config.algo).normalizes_observations:
        changed.append("normalize_observations")
    if changed:
        raise ArgumentError("requires a dataset; the items of a table are already converted", about=changed[0])


def identify_table(location: TableLocation, table: str) -> str:
    """Returns an identifier of the data: a hash of a directory or addresses of servers, and the name of the table.

    A server in this process usually has a different port each time, so that its address does not identify it.
    """
    # Without the default name, so that earlier runs on the default table can be continued.
    suffix = "" if table == _DEFAULT_TABLE else f", table {table!r}"
    if location.directory is not None:
        folders = [sorted((path / "manifests").glob("*.json")) for path in find_table_directories(location.directory)]
        hashes = [xxhash.xxh3_128_hexdigest(manifests[-1].read_bytes()) for manifests in folders if manifests]
        return (",".join(hashes) or str(location.place)) + suffix
    places = location.place if isinstance(location.place, (list, tuple)) else [location.place]
    return ",".join(places) + suffix if all(map(server_address, places)) else f"table {table!r}"
