"""The parts of a training run: statistics and specs of the dataset, items, and batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tree
import xxhash
from rlds2reverb.learners import InMemoryDataset, collect_items
from rlds2reverb.learners.evaluation import action_bounds
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb import PriorityWriter, ReplayServer, TableConfig, TrajectoryWindows, ingest, sample_dataset
from rlds2reverb import packed_signature as signature_of_packed
from rlds2reverb._encoding.packing import Packing, find_packing
from rlds2reverb._server.clients import connect, table_infos
from rlds2reverb.errors import SourceError, SpecMismatchError
from rlds2reverb.fields import REWARD
from rlds2reverb.sampling import LinearSchedule
from rlds2reverb.sources import Source
from rlds2reverb.sources.summary import Fingerprint
from rlds2reverb.specs import Nest, to_tensor_spec
from rlds2reverb.tables import Selector

#: Added to standard deviations (Fujimoto & Gu 2021, section 5: "a small normalization constant" of 1e-3).
_STD_EPS = 1e-3
#: Number of items that are sampled from a table to check them before training.
_NUM_CHECKED = 32


@dataclass(frozen=True)
class Behaviour:
    """Statistics of a dataset, and so of the policies that produced it.

    Attributes:
      returns: float64 `[E]`, the undiscounted return of each episode.
      fingerprint: fingerprint of the content.
      mean: nest of float32, the mean of the observations, which agents use for normalisation.
      std: nest of float32, their standard deviation plus a small constant.
      low: float32, the minimum of each element of the actions.
      high: float32, the maximum of each element of the actions.
    """

    returns: np.ndarray
    fingerprint: str
    mean: Nest
    std: Nest
    low: np.ndarray
    high: np.ndarray

    @property
    def mean_return(self) -> float:
        """The mean return of the policies that produced the data."""
        return float(self.returns.mean())


def read_behaviour(source: Source) -> Behaviour:
    """Reads a dataset once and computes its statistics.

    Raises:
      SpecMismatchError: If its actions are a nest, or its observations are not numbers.
      SourceError: If it has no transitions or no rewards.
    """
    fingerprint, returns, actions = Fingerprint(), [], []
    sums: list[Any] = []
    count = 0
    if REWARD not in source.step_spec:
        raise SourceError("the dataset has no rewards, but training requires them")
    for episode in source:
        fingerprint.add(episode)
        if not episode.num_transitions:
            continue
        returns.append(episode.total_reward)
        action = episode.steps["action"]
        if not isinstance(action, np.ndarray):
            raise SpecMismatchError("the actions must be one array, got a nest; drop parts of it with --drop-field")
        actions.append([action[:-1].min(0), action[:-1].max(0)])
        observations = tree.map_structure(lambda column: column[:-1].astype(np.float64), episode.steps["observation"])
        sums.append(tree.map_structure(lambda column: np.stack([column.sum(0), (column**2).sum(0)]), observations))
        count += episode.num_transitions
    if not count:
        raise SourceError("the dataset has no transitions, but training requires them")
    moments = tree.map_structure(lambda *parts: sum(parts) / count, *sums)
    mean = tree.map_structure(lambda moment: moment[0], moments)
    std = tree.map_structure(lambda moment: np.sqrt(np.maximum(moment[1] - moment[0] ** 2, 0)) + _STD_EPS, moments)
    low, high = np.array(actions).min(0)[0], np.array(actions).max(0)[1]
    as_float = partial(tree.map_structure, lambda leaf: leaf.astype(np.float32))
    return Behaviour(np.array(returns), fingerprint.hexdigest(), as_float(mean), as_float(std), low, high)


def best_episodes(source: Source, percent: float, returns: np.ndarray) -> Source:
    """Returns the given percentage of episodes with the highest returns, at least one.

    Chen et al. (2021), "Decision Transformer", section 5.1, clone the best 10 %, 25 % and so on.
    """
    num = max(1, round(len(returns) * percent / 100))
    best = set(np.argsort(-returns, kind="stable")[:num].tolist())

    def read() -> Iterator[Any]:
        numbered = enumerate(episode for episode in source if episode.num_transitions)
        return (episode for number, episode in numbered if number in best)

    return replace(source, read=read, num_episodes=None, num_rows=None)


def make_specs(
    source: Source, behaviour: Behaviour, action_space: Any = None, *, is_clipped: bool = False
) -> tuple[Any, Any]:
    """Returns TF-Agents' time step spec and bounded action spec for a dataset.

    The bounds are those of the environment's action space. Without an environment they are [-1, 1] if all actions are
    within these bounds or will be clipped, else the minimum and maximum of the data. Integers start at 0.

    Raises:
      SpecMismatchError: If the environment's actions have a different shape.
    """
    spec = source.step_spec
    observation = to_tensor_spec(spec["observation"])
    action = spec["action"]
    _require_shape(action, action_space)
    fallback: tuple[Any, Any] = (-1, 1)
    if np.issubdtype(action.dtype, np.integer):
        fallback = (0, behaviour.high.max())
    elif not is_clipped and ((behaviour.low < -1).any() or (behaviour.high > 1).any()):
        fallback = (behaviour.low, behaviour.high)
    return time_step.time_step_spec(observation), _make_action_spec(action, action_space, fallback)


def _make_action_spec(action: Any, action_space: Any, fallback: tuple[Any, Any]) -> Any:
    """Returns the bounded spec of actions, with the bounds of the environment or else the fallback."""
    if action_space is None:
        low, high = fallback
    else:
        low, high = action_bounds(action_space)
    return tensor_spec.BoundedTensorSpec(action.shape, action.dtype, low, high, name="action")


def _require_shape(action: Any, action_space: Any) -> None:
    if action_space is not None and tuple(action_space.shape) != tuple(action.shape):
        raise SpecMismatchError(
            f"the dataset's actions have shape {tuple(action.shape)}, but those of the environment "
            f"{tuple(action_space.shape)}; pass the environment that the dataset was recorded in"
        )


def count_outside(source: Source, behaviour: Behaviour, action_spec: Any) -> tuple[int, int]:
    """Returns the number of actions outside the bounds, and the number of all actions; (0, 0) if none are outside.

    Args:
      source: the dataset, which is read only if some actions are outside.
      behaviour: its statistics.
      action_spec: the bounded spec; actions that exceed it by less than 1e-5 of its range do not count.
    """
    slack = 1e-5 * (np.float64(action_spec.maximum) - action_spec.minimum)
    low, high = action_spec.minimum - slack, action_spec.maximum + slack
    if (behaviour.low >= low).all() and (behaviour.high <= high).all():
        return 0, 0
    num = total = 0
    for episode in source:
        actions = episode.steps["action"][:-1].reshape(max(episode.num_transitions, 0), -1)
        num += int(((actions < np.ravel(low)) | (actions > np.ravel(high))).any(1).sum())
        total += len(actions)
    return num, total


def clip_actions(source: Source, action_spec: Any) -> Source:
    """Returns the source with its actions clipped to the bounds."""

    def clip(episode: Any) -> Any:
        action = episode.steps["action"]
        within = np.clip(action, action_spec.minimum, action_spec.maximum).astype(action.dtype)
        return replace(episode, steps={**episode.steps, "action": within})

    return replace(source, read=lambda: map(clip, source))


@dataclass(frozen=True)
class ServedTable:
    """A table that already contains items.

    Attributes:
      server: a `ReplayServer`, or the address of a server.
      table: the name of the table.
      time_step_spec: TF-Agents' time step spec of the items.
      action_spec: the action spec, bounded by the environment's action space or else by [-1, 1].
      has_trajectories: whether items are trajectories of two steps instead of transitions.
    """

    server: Any
    table: str
    time_step_spec: Any
    action_spec: Any
    has_trajectories: bool


def describe_table(server: Any, action_space: Any = None) -> ServedTable:
    """Returns the table of a server with transitions of `NStep` or trajectories of `TrajectoryWindows(2)`.

    Raises:
      SourceError: If the table is empty, or if there are several and none is named 'replay'.
      SpecMismatchError: If the items are of a different kind.
      ServerUnavailableError: If the server does not answer.
    """
    client = connect(server)
    infos, where = table_infos(client), client.server_address
    name = next(iter(infos)) if len(infos) == 1 else "replay"
    if name not in infos:
        raise SourceError(
            f"{where} has the tables {', '.join(sorted(infos))}; training requires one table, or one named 'replay'"
        )
    if not infos[name].current_size:
        raise SourceError(f"table {name!r} at {where} has no items, but training requires them")
    signature = infos[name].signature
    packing = find_packing(signature) if signature is not None else None
    spec = signature if packing is None else packing.item_spec
    if isinstance(spec, dict) and {"observation", "action", "reward", "discount", "next_observation"} <= set(spec):
        row = spec
    elif hasattr(spec, "next_step_type") and tree.flatten(spec.reward)[0].shape[:1] == [2]:
        row = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), spec)._asdict()
    else:
        raise SpecMismatchError(
            f"the items of table {name!r} at {where} must be transitions (convert --n-step) or trajectories of two "
            "steps (convert); convert the dataset again"
        )
    action = row["action"]
    _require_shape(action, action_space)
    if action_space is None and not action.dtype.is_floating:
        raise SpecMismatchError(
            "the actions of the items are integers with an unknown maximum; pass --env to name the environment"
        )
    bounded = _make_action_spec(action, action_space, (-1, 1))
    observation = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), row["observation"])
    return ServedTable(server, name, time_step.time_step_spec(observation), bounded, not isinstance(spec, dict))


def require_matching_items(adder: Any, algo: str, served: ServedTable) -> bool:
    """Checks that an agent can learn from the items of a table, and that they use the discount factor of the run.

    A few items are sampled, which counts in their `times_sampled`.

    Args:
      adder: adder of the items that the agent requires, `NStep` or `TrajectoryWindows`.
      algo: name of the agent.
      served: the table.

    Returns:
      Whether all sampled items have the same priority.

    Raises:
      SpecMismatchError: If the items do not match.
    """
    if isinstance(adder, TrajectoryWindows) and not served.has_trajectories:
        raise SpecMismatchError(
            f"the items of table {served.table!r} are transitions, but {algo} learns from trajectories of two "
            "steps; convert the dataset again without --n-step"
        )
    (sample,) = sample_dataset(served.server, served.table, _NUM_CHECKED).take(1)
    has_one_priority = bool((sample.info.priority == sample.info.priority[0]).numpy().all())
    if served.has_trajectories or "value_gamma" not in sample.data:
        return has_one_priority
    value_gamma = float(sample.data["value_gamma"][0])
    powers = adder.gamma ** np.arange(1, 1001, dtype=np.float64)
    if not np.isclose(powers, value_gamma, rtol=1e-5, atol=1e-9).any():
        raise SpecMismatchError(
            f"the items of table {served.table!r} have a different discount factor: value_gamma is {value_gamma:g}, "
            f"which is no power of {adder.gamma:g}; pass the --gamma of the conversion"
        )
    return has_one_priority


def identify_tables(source: str) -> str:
    """Returns an identifier of data in tables: a hash of a directory's content, or the address of a server."""
    manifests = sorted((Path(source) / "manifests").glob("*"))
    return xxhash.xxh3_128_hexdigest(manifests[-1].read_bytes()) if manifests else source


def load_in_memory(source: Source, adder: Any, batch_size: int, *, seed: int) -> InMemoryDataset:
    """Returns the items of a dataset as tensors on the device."""
    items = collect_items(adder(episode) for episode in source)
    return InMemoryDataset(items, batch_size, seed=seed, to_experience=getattr(adder, "as_transition", None))


def serve_items(source: Source, adder: Any, *, checkpoint_root: Path) -> ReplayServer:
    """Starts a server with the items of a dataset in a prioritized table, or with those of its checkpoint.

    The exponent is 0.6, as in prioritized replay (Schaul et al. 2016, table 3, proportional).
    """
    spec = adder.item_spec(source.step_spec)
    signature = signature_of_packed(Packing(spec, getattr(adder, "squeeze", False)))
    checkpoint_root.mkdir(parents=True, exist_ok=True)
    tables = [TableConfig(sampler=Selector("prioritized", 0.6))]
    server = ReplayServer(tables, signature, checkpoint_root=checkpoint_root)
    try:
        if not table_infos(server.client)["replay"].current_size:
            ingest(source, server, adder=adder, layout="packed")
    except BaseException:
        server.stop()
        raise
    return server


def make_batches(
    server: Any,
    table: str,
    batch_size: int,
    *,
    adder: Any,
    prioritized: bool,
    num_iterations: int,
    position: tf.Variable,
    resources: ExitStack,
) -> tuple[tf.data.Dataset, PriorityWriter | None]:
    """Returns the batches of a table as experience, and the priority writer or None.

    The exponent of the importance weights grows from 0.4 to 1 over the run (Schaul et al. 2016, table 3,
    proportional).

    Args:
      server: the server with the table.
      table: the name of the table.
      batch_size: items per batch.
      adder: the adder of the items, if they are dicts.
      prioritized: whether to update priorities.
      num_iterations: number of iterations of the run.
      position: int64, number of iterations before the first batch.
      resources: stack that closes the writer.
    """
    schedule = LinearSchedule(0.4, 1.0, num_iterations)
    beta: Any = (lambda number: schedule(number + position)) if prioritized else 0.0
    samples = sample_dataset(server, table, batch_size, beta=beta, prefetch=4)
    if isinstance(samples.element_spec.data, dict):
        samples = samples.map(lambda sample: sample._replace(data=adder.as_transition(sample.data)))
    writer = resources.enter_context(PriorityWriter(server, table)) if prioritized else None
    return samples, writer
