"""What `train` puts together: data, items, agent and feed, from every branch of the package."""

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
#: Items of a table that are looked at before training.
_LOOKED_AT = 32


@dataclass(frozen=True)
class Behaviour:
    """What a data set is like, read once.

    Attributes:
      returns: float64 `[E]`, of its episodes.
      fingerprint: of its content.
      mean: nest of float32, of the observations, as agents normalise them.
      std: the same, with a small constant added.
      low: float32, the least value of each element of the actions that were taken.
      high: float32, the largest.
    """

    returns: np.ndarray
    fingerprint: str
    mean: Nest
    std: Nest
    low: np.ndarray
    high: np.ndarray

    @property
    def mean_return(self) -> float:
        """The mean return of the policies that made the data."""
        return float(self.returns.mean())


def behaviour_of(source: Source) -> Behaviour:
    """Reads a data set for what training has to know of it.

    Raises:
      SpecMismatchError: if its actions are a nest, or observations are not numbers.
      SourceError: if it has no transition, or no rewards.
    """
    fingerprint, returns, actions = Fingerprint(), [], []
    sums: list[Any] = []
    count = 0
    if REWARD not in source.step_spec:
        raise SourceError("the data set has no rewards; there is nothing to learn from")
    for episode in source:
        fingerprint.add(episode)
        if not episode.num_transitions:
            continue
        returns.append(episode.total_reward)
        action = episode.steps["action"]
        if not isinstance(action, np.ndarray):
            raise SpecMismatchError("the actions are a nest, expected one array; leave parts out with --drop-field")
        actions.append([action[:-1].min(0), action[:-1].max(0)])
        seen = tree.map_structure(lambda column: column[:-1].astype(np.float64), episode.steps["observation"])
        sums.append(tree.map_structure(lambda column: np.stack([column.sum(0), (column**2).sum(0)]), seen))
        count += episode.num_transitions
    if not count:
        raise SourceError("the data set has no transition; there is nothing to train from")
    moments = tree.map_structure(lambda *parts: sum(parts) / count, *sums)
    mean = tree.map_structure(lambda moment: moment[0], moments)
    std = tree.map_structure(lambda moment: np.sqrt(np.maximum(moment[1] - moment[0] ** 2, 0)) + _STD_EPS, moments)
    low, high = np.array(actions).min(0)[0], np.array(actions).max(0)[1]
    as_float = partial(tree.map_structure, lambda leaf: leaf.astype(np.float32))
    return Behaviour(np.array(returns), fingerprint.hexdigest(), as_float(mean), as_float(std), low, high)


def best_episodes(source: Source, percent: float, returns: np.ndarray) -> Source:
    """Returns the episodes of the highest returns: so many percent of them, one at least.

    Chen et al. (2021), "Decision Transformer", section 5.1, clone the best 10 %, 25 % and so on.
    """
    num = max(1, round(len(returns) * percent / 100))
    best = set(np.argsort(-returns, kind="stable")[:num].tolist())

    def read() -> Iterator[Any]:
        numbered = enumerate(one for one in source if one.num_transitions)
        return (one for number, one in numbered if number in best)

    return replace(source, read=read, num_episodes=None, num_rows=None)


def specs_of(
    source: Source, behaviour: Behaviour, action_space: Any = None, *, is_clipped: bool = False
) -> tuple[Any, Any]:
    """Returns TF-Agents' time step spec and the bounded action spec of a data set.

    The bounds are those of the environment's action space. Without one they are [-1, 1] where all actions are in it or
    are to be clipped, else the least and the largest of the data; integers begin at 0.

    Raises:
      SpecMismatchError: if actions of the environment are of another shape.
    """
    spec = source.step_spec
    observation = to_tensor_spec(spec["observation"])
    action = spec["action"]
    _require_shape(action, action_space)
    otherwise: tuple[Any, Any] = (-1, 1)
    if np.issubdtype(action.dtype, np.integer):
        otherwise = (0, behaviour.high.max())
    elif not is_clipped and ((behaviour.low < -1).any() or (behaviour.high > 1).any()):
        otherwise = (behaviour.low, behaviour.high)
    return time_step.time_step_spec(observation), _bounded(action, action_space, otherwise)


def _bounded(action: Any, action_space: Any, otherwise: tuple[Any, Any]) -> Any:
    """Returns the bounded spec of actions: the bounds are those of the environment, or without one the given ones."""
    if action_space is None:
        low, high = otherwise
    elif hasattr(action_space, "n"):
        low, high = 0, int(action_space.n) - 1
    else:
        low, high = action_space.low, action_space.high
    return tensor_spec.BoundedTensorSpec(action.shape, action.dtype, low, high, name="action")


def _require_shape(action: Any, action_space: Any) -> None:
    if action_space is not None and tuple(action_space.shape) != tuple(action.shape):
        raise SpecMismatchError(
            f"the data's actions are {tuple(action.shape)}, the environment's {tuple(action_space.shape)}; give the "
            "environment that the data are of"
        )


def count_outside(source: Source, behaviour: Behaviour, action_spec: Any) -> tuple[int, int]:
    """Returns how many actions of the data are outside of the bounds, and how many there are.

    Args:
      source: read only if there are any.
      behaviour: of the source.
      action_spec: bounded. Actions that are outside by 1e-5 of the range do not count.
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


def clipped(source: Source, action_spec: Any) -> Source:
    """Returns the episodes with actions that are clipped to the bounds."""

    def clip(episode: Any) -> Any:
        action = episode.steps["action"]
        within = np.clip(action, action_spec.minimum, action_spec.maximum).astype(action.dtype)
        return replace(episode, steps={**episode.steps, "action": within})

    return replace(source, read=lambda: map(clip, source))


@dataclass(frozen=True)
class ServedItems:
    """The items of a table that is there already.

    Attributes:
      server: a `ReplayServer` or an address.
      table: its name.
      time_step_spec: TF-Agents' spec of the data.
      action_spec: bounded by the environment's action space, else by [-1, 1].
      is_of_trajectories: whether items are trajectories of two steps, not transitions.
    """

    server: Any
    table: str
    time_step_spec: Any
    action_spec: Any
    is_of_trajectories: bool


def served_items(server: Any, action_space: Any = None) -> ServedItems:
    """Returns what a server has to train from: transitions of `NStep`, or trajectories of `TrajectoryWindows(2)`.

    Raises:
      SourceError: if its table is empty, or there are several and none is 'replay'.
      SpecMismatchError: if the items are of another kind.
      ServerUnavailableError: if it does not answer.
    """
    client = connect(server)
    infos, where = table_infos(client), client.server_address
    name = next(iter(infos)) if len(infos) == 1 else "replay"
    if name not in infos:
        raise SourceError(f"{where} has the tables {', '.join(sorted(infos))}; expected one, or one named 'replay'")
    if not infos[name].current_size:
        raise SourceError(f"table {name!r} at {where} has no items; there is nothing to train from")
    signature = infos[name].signature
    packing = find_packing(signature) if signature is not None else None
    spec = signature if packing is None else packing.item_spec
    if isinstance(spec, dict) and {"observation", "action", "reward", "discount", "next_observation"} <= set(spec):
        row = spec
    elif hasattr(spec, "next_step_type") and tree.flatten(spec.reward)[0].shape[:1] == [2]:
        row = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), spec)._asdict()
    else:
        raise SpecMismatchError(
            f"the items of table {name!r} at {where} are neither transitions (convert --n-step) nor trajectories of "
            "two steps (convert); convert the data again"
        )
    action = row["action"]
    _require_shape(action, action_space)
    if action_space is None and not action.dtype.is_floating:
        raise SpecMismatchError(
            "the items have integers as actions, whose number is unknown; give the environment with --env"
        )
    bounded = _bounded(action, action_space, (-1, 1))
    observation = tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), row["observation"])
    return ServedItems(server, name, time_step.time_step_spec(observation), bounded, not isinstance(spec, dict))


def require_items_for(adder: Any, algo: str, served: ServedItems) -> bool:
    """Checks that the items of a table are those that an agent takes, with the discount factor of the run.

    Looks at a few items, which counts as a sample of them.

    Args:
      adder: that makes such items: `NStep` or `TrajectoryWindows`.
      algo: the agent.
      served: the items.

    Returns:
      Whether they all have one priority, so that none is drawn more often.

    Raises:
      SpecMismatchError: if they are not.
    """
    if isinstance(adder, TrajectoryWindows) and not served.is_of_trajectories:
        raise SpecMismatchError(
            f"the items of table {served.table!r} are transitions, {algo} learns from trajectories of two steps; "
            "convert the data again, without --n-step"
        )
    (sample,) = sample_dataset(served.server, served.table, _LOOKED_AT).take(1)
    has_one_priority = bool((sample.info.priority == sample.info.priority[0]).numpy().all())
    if served.is_of_trajectories or "value_gamma" not in sample.data:
        return has_one_priority
    value_gamma = float(sample.data["value_gamma"][0])
    powers = adder.gamma ** np.arange(1, 1001, dtype=np.float64)
    if not np.isclose(powers, value_gamma, rtol=1e-5, atol=1e-9).any():
        raise SpecMismatchError(
            f"the items of table {served.table!r} have another discount factor: value_gamma is {value_gamma:g}, which "
            f"is no power of {adder.gamma:g}; give --gamma as it was in the conversion"
        )
    return has_one_priority


def identity_of(source: str) -> str:
    """Returns what says whether data in tables are those of before: the content of a directory, or an address."""
    manifests = sorted((Path(source) / "manifests").glob("*"))
    return xxhash.xxh3_128_hexdigest(manifests[-1].read_bytes()) if manifests else source


def resident_items(source: Source, adder: Any, batch_size: int, *, seed: int) -> InMemoryDataset:
    """Returns the items of a data set as tensors on the device."""
    made = collect_items(adder(episode) for episode in source)
    return InMemoryDataset(made, batch_size, seed=seed, to_experience=getattr(adder, "as_transition", None))


def table_of(source: Source, adder: Any, *, checkpoint_root: Path) -> ReplayServer:
    """Returns a server of its own with the items of a data set in a prioritized table, or with those of its checkpoint.

    The exponent is that of prioritized replay (Schaul et al. 2016, table 3, proportional): 0.6.
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


def batches_of(
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
    """Returns the batches of a table as experience, and what writes priorities back if they are to be.

    The exponent of the weights grows from 0.4 to 1 over the run (Schaul et al. 2016, table 3, proportional).

    Args:
      server: that has the table.
      table: its name.
      batch_size: items in a batch.
      adder: that made the items, if they are dicts.
      prioritized: whether priorities are written back.
      num_iterations: of the run.
      position: int64, the iterations before the first batch.
      resources: closes the writer.
    """
    schedule = LinearSchedule(0.4, 1.0, num_iterations)
    beta: Any = (lambda number: schedule(number + position)) if prioritized else 0.0
    samples = sample_dataset(server, table, batch_size, beta=beta, prefetch=4)
    if isinstance(samples.element_spec.data, dict):
        samples = samples.map(lambda sample: sample._replace(data=adder.as_transition(sample.data)))
    writer = resources.enter_context(PriorityWriter(server, table)) if prioritized else None
    return samples, writer
