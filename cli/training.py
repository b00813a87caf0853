"""What `train` puts together: data, items, agent and feed, from every branch of the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from rlds2reverb.adders import NStep
from rlds2reverb.learners import ResidentItems, gathered_items
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb import PriorityWriter, ReplayServer, TableConfig, ingest, sample_dataset
from rlds2reverb import packed_signature as signature_of_packed
from rlds2reverb._encoding.packing import Packing
from rlds2reverb.errors import SourceError, SpecMismatch
from rlds2reverb.sampling import LinearSchedule
from rlds2reverb.sources import Source
from rlds2reverb.sources.summary import Fingerprint
from rlds2reverb.specs import Nest, to_tensor_spec
from rlds2reverb.tables import Selector

#: Added to standard deviations (Fujimoto & Gu 2021, section 5: "a small normalization constant" of 1e-3).
_STD_EPS = 1e-3


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
      SpecMismatch: if its actions are a nest, or observations are not numbers.
      SourceError: if it has no transition.
    """
    fingerprint, returns, actions = Fingerprint(), [], []
    sums: list[Any] = []
    count = 0
    for episode in source:
        fingerprint.add(episode)
        if not episode.num_transitions:
            continue
        returns.append(episode.total_reward)
        action = episode.steps["action"]
        if not isinstance(action, np.ndarray):
            raise SpecMismatch("the actions are a nest, expected one array; leave parts out with --leave-out")
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
    least = np.sort(returns)[-num]

    def read() -> Iterator[Any]:
        return (one for one in source if one.num_transitions and one.total_reward >= least)

    return replace(source, read=read, num_episodes=None, num_rows=None)


def specs_of(source: Source, behaviour: Behaviour, action_space: Any = None) -> tuple[Any, Any]:
    """Returns TF-Agents' time step spec and the bounded action spec of a data set.

    The bounds are those of the environment's action space. Without one they are [-1, 1] where all actions are in it,
    else the least and the largest of the data; integers begin at 0.
    """
    spec = source.step_spec
    observation = to_tensor_spec(spec["observation"])
    action = spec["action"]
    if np.issubdtype(action.dtype, np.integer):
        highest = int(getattr(action_space, "n", behaviour.high.max() + 1)) - 1
        bounded = tensor_spec.BoundedTensorSpec(action.shape, action.dtype, 0, highest, name="action")
    else:
        low, high = np.full(action.shape, -1, action.dtype), np.full(action.shape, 1, action.dtype)
        if action_space is not None:
            low, high = action_space.low, action_space.high
        elif (behaviour.low < -1).any() or (behaviour.high > 1).any():
            low, high = behaviour.low, behaviour.high
        bounded = tensor_spec.BoundedTensorSpec(action.shape, action.dtype, low, high, name="action")
    return time_step.time_step_spec(observation), bounded


def num_outside(behaviour: Behaviour, action_spec: Any) -> bool:
    """Returns whether the data have actions outside of the bounds."""
    slack = 1e-5 * (action_spec.maximum - action_spec.minimum)
    return bool(
        (behaviour.low < action_spec.minimum - slack).any() or (behaviour.high > action_spec.maximum + slack).any()
    )


def resident_items(source: Source, adder: NStep, batch_size: int, *, seed: int) -> ResidentItems:
    """Returns the items of a data set as tensors on the device."""
    made = gathered_items(adder(episode) for episode in source)
    return ResidentItems(made, batch_size, seed=seed, as_experience=adder.as_transition)


def table_of(
    source: Source, adder: NStep, batch_size: int, *, prioritized: bool, num_iterations: int, resources: ExitStack
) -> tuple[tf.data.Dataset, PriorityWriter | None, ReplayServer]:
    """Puts the items of a data set into the table of a server of its own; returns batches, and what writes priorities.

    The exponents are those of prioritized replay (Schaul et al. 2016, table 3, proportional): alpha 0.6, and beta from
    0.4 to 1 over the run.
    """
    spec = adder.item_spec(source.step_spec)
    signature = signature_of_packed(Packing(spec, adder.squeeze))
    sampler = Selector("prioritized", 0.6) if prioritized else Selector("uniform")
    server = resources.enter_context(ReplayServer([TableConfig(sampler=sampler)], signature))
    ingest(source, server, adder=adder, layout="packed")
    return (
        *batches_of(
            server, adder, batch_size, prioritized=prioritized, num_iterations=num_iterations, resources=resources
        ),
        server,
    )


def batches_of(
    server: Any, adder: NStep, batch_size: int, *, prioritized: bool, num_iterations: int, resources: ExitStack
) -> tuple[tf.data.Dataset, PriorityWriter | None]:
    """Returns the batches of a table as experience, and what writes priorities back if they are to be."""
    beta: Any = LinearSchedule(0.4, 1.0, num_iterations) if prioritized else 0.0
    samples = sample_dataset(server, "replay", batch_size, beta=beta, prefetch=4)
    if isinstance(samples.element_spec.data, dict):
        samples = samples.map(lambda sample: sample._replace(data=adder.as_transition(sample.data)))
    writer = resources.enter_context(PriorityWriter(server, "replay")) if prioritized else None
    return samples, writer
