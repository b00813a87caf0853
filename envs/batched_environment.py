"""Batches of environments that are stepped one after the other in the calling process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlds2reverb.types.specs import Nest

from .env_specs import read_reward, require_equal_specs
from .environment import Environment, SpecifiedEnvironment, require_single
from .time_steps import TimeStep

_SAME = "create all environments of a batch with the same options"


class BatchedEnvironment(SpecifiedEnvironment):
    """Several environments of the same specs as one batch, stepped one after the other in this process.

    `untransformed` of its time steps is `()`. `ParallelEnvironment` steps its environments in several processes.
    """

    def __init__(self, envs: Sequence[Environment]):
        """Creates the batch.

        Args:
          envs: the environments, which are not batched themselves and reset themselves at the end of an episode. The
            batch closes them.

        Raises:
          ValueError: If the list is empty.
          SpecMismatchError: If their specs differ; the message names the path.
        """
        super().__init__()
        self._time_step_spec = read_common_spec(envs, type(self).__name__)
        self.envs, self._batch_size = tuple(envs), len(envs)
        self._ids = make_env_ids(len(envs))
        self._reward_shape: Any = self.reward_spec().shape

    def seed(self, seed: int) -> None:
        """Sets the seed of environment i to `seed + i`."""
        for index, env in enumerate(self.envs):
            env.seed(seed + index)

    def render(self, mode: str = "rgb_array") -> Any:
        """Returns what the first environment renders."""
        return self.envs[0].render(mode)

    def close(self) -> None:
        """Closes all environments."""
        for env in self.envs:
            env.close()

    def _reset(self) -> TimeStep:
        return self._stack([env.reset() for env in self.envs])

    def _step(self, action: Nest) -> TimeStep:
        rows = make_row_reader(action)
        return self._stack([env.advance(rows(index)) for index, env in enumerate(self.envs)])

    def _stack(self, time_steps: list[TimeStep]) -> TimeStep:
        for index, time_step in enumerate(time_steps):
            if getattr(time_step.reward, "shape", None) != self._reward_shape:
                reward = read_reward(time_step.reward, self._reward_shape, f"environment {index}")
                time_steps[index] = time_step._replace(reward=reward)
        return stack(time_steps)._replace(env_id=self._ids, untransformed=())


def make_env_ids(batch_size: int) -> np.ndarray:
    """Returns the `env_id` of the time steps of a batch, which cannot be modified."""
    ids = np.arange(batch_size, dtype=np.int32)
    ids.flags.writeable = False
    return ids


def read_common_spec(envs: Sequence[Environment], holder: str) -> TimeStep:
    """Returns the specs of the time steps of environments that become one, after the checks of `BatchedEnvironment`."""
    if not envs:
        raise ValueError("envs must contain at least one environment, got none")
    return find_common_spec([require_single(env, holder).time_step_spec() for env in envs])


def find_common_spec(time_step_specs: Sequence[TimeStep]) -> TimeStep:
    """Returns the specs of the time steps of all environments; raises `SpecMismatchError` unless they are the same."""
    for index, spec in enumerate(time_step_specs[1:], 1):
        holders = "environment 0", f"environment {index}"
        require_equal_specs(spec, time_step_specs[0], holders=holders, advice=_SAME)
    return time_step_specs[0]


def stack(nests: Sequence[Nest]) -> Nest:
    """Returns a nest of arrays `[B, ...]` from B nests of arrays; nests of different structure become `()`."""
    first = nests[0]
    if isinstance(first, dict):
        return {key: stack([nest[key] for nest in nests]) for key in first}
    if isinstance(first, tuple):
        if any(type(nest) is not type(first) or len(nest) != len(first) for nest in nests):
            return ()
        parts = [stack(parts) for parts in zip(*nests, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return np.stack(nests) if getattr(first, "shape", ()) else np.array(nests, getattr(first, "dtype", None))


def make_row_reader(nest: Nest) -> Callable[[int], Nest]:
    """Returns a function that returns row i of a nest of arrays `[B, ...]`."""
    if isinstance(nest, dict):
        parts = {key: make_row_reader(part) for key, part in nest.items()}
        return lambda index: {key: read(index) for key, read in parts.items()}
    if isinstance(nest, tuple):
        readers = [make_row_reader(part) for part in nest]
        return lambda index: tuple(read(index) for read in readers)
    return nest.__getitem__


def make_prev_action(first: Nest, action: Nest | None, is_first: np.ndarray) -> Nest:
    """Returns the actions `[B, ...]` of a step, with the action of first steps where episodes start."""
    if isinstance(first, dict):
        return {key: make_prev_action(part, action and action[key], is_first) for key, part in first.items()}
    if isinstance(first, tuple):
        return tuple(make_prev_action(part, action and action[index], is_first) for index, part in enumerate(first))
    if action is None:
        return np.broadcast_to(first, (len(is_first), *first.shape)).copy()
    result = np.array(action)
    result[is_first] = first
    return result
