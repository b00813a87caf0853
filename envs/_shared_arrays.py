"""Arrays in anonymous memory that several processes share; it is freed when the last of them ends."""

from __future__ import annotations

import itertools
import math
import mmap
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import tree

from rlds2reverb.types.specs import ArraySpec, Nest, map_structure

from .env_specs import read_reward, require_spec
from .time_steps import FIRST, LAST, TimeStep

#: Processes write to different cache lines.
_ALIGNMENT = 64
#: The numbers that the caller exchanges with each worker: the number of the last request, its command, the number of
#: the last request that was completed, how many messages about failures were sent with that reply, the index of the
#: environment that is stepped, and whether each of the two processes waits for a message of the other.
_CONTROL = ("requests", "commands", "replies", "failures", "stepping", "worker_sleeps", "caller_sleeps")


class Channel:
    """The shared arrays of a batch of B environments.

    Attributes:
      action: nest of arrays [B, ...], the actions of the next step.
      time_step: `TimeStep` of arrays [B, ...] without `prev_action` and `env_id`; each process writes its own rows.
      time_step_bytes: uint8 [N], all of its memory.
      num_episodes: int64 [B], number of episodes that each environment, or those that it replaces, has started.
    """

    def __init__(self, memory: int, time_step_spec: TimeStep, batch_size: int, num_workers: int):
        """Maps the arrays.

        Args:
          memory: file descriptor of the memory, which is enlarged if it is too small.
          time_step_spec: specs of the time steps of one environment.
          batch_size: B.
          num_workers: W.
        """
        self._spec = _add_batch_axis(time_step_spec._replace(prev_action=(), env_id=()), batch_size)
        control = ArraySpec((num_workers, 8), np.dtype(np.int64))
        others = {
            "action": _add_batch_axis(time_step_spec.prev_action, batch_size),
            "num_episodes": ArraySpec((batch_size,), np.dtype(np.int64)),
            "control": dict.fromkeys(_CONTROL, control),
        }
        num_time_step_bytes = _find_offsets(self._spec)[-1]
        num_bytes = num_time_step_bytes + _find_offsets(others)[-1]
        if os.fstat(memory).st_size < num_bytes:
            os.ftruncate(memory, num_bytes)
        shared = np.frombuffer(mmap.mmap(memory, num_bytes), np.uint8)
        self.time_step_bytes = shared[:num_time_step_bytes]
        self.time_step = self.map_time_step(self.time_step_bytes)
        values = _map_arrays(others, shared[num_time_step_bytes:])
        self.action, self.num_episodes, self._control = (values[name] for name in others)

    def get_rows(self, worker: int) -> SimpleNamespace:
        """Returns the arrays int64 [8] of a worker, by the names in `_CONTROL`; each begins with a number."""
        return SimpleNamespace(**{name: array[worker] for name, array in self._control.items()})

    def map_time_step(self, memory: np.ndarray) -> TimeStep:
        """Returns the `time_step` that is stored in memory such as a copy of `time_step_bytes`."""
        time_step: TimeStep = _map_arrays(self._spec, memory)
        return time_step


def _find_offsets(spec: Nest) -> list[int]:
    """Returns the offset of each array in memory, and the total number of bytes."""
    sizes = (-(-leaf.num_bytes // _ALIGNMENT) * _ALIGNMENT for leaf in tree.flatten(spec))
    return [0, *itertools.accumulate(sizes)]


def _map_arrays(spec: Nest, memory: np.ndarray) -> Nest:
    """Returns views of memory, uint8 [N], as a nest of arrays."""
    arrays = [
        np.frombuffer(memory, leaf.dtype, math.prod(leaf.shape), offset).reshape(leaf.shape)
        for leaf, offset in zip(tree.flatten(spec), _find_offsets(spec), strict=False)
    ]
    return tree.unflatten_as(spec, arrays)


def _add_batch_axis(spec: Nest, batch_size: int) -> Nest:
    return tree.map_structure(lambda leaf: ArraySpec((batch_size, *leaf.shape), leaf.dtype), spec)


class Rows:
    """Environments of one process, with their rows in the shared arrays."""

    def __init__(self, envs: list[Any], first: int, channel: Channel):
        """Takes over environments `first`, `first + 1` and so on of the batch."""
        self.first = first
        own = slice(first, first + len(envs))
        rows = channel.action, channel.time_step, channel.num_episodes
        self.actions, time_step, self.num_episodes = map_structure(lambda array: array[own], rows)
        self.step_type, self._reward, self.discount, self._observation, *_ = time_step
        self._env_info, self._has_failed = time_step.env_info, time_step.has_failed
        written = self._observation, self._env_info
        self._specs = map_structure(lambda array: ArraySpec(array.shape[1:], array.dtype), written)
        numbers = range(first, first + len(envs))
        self._names = [(f"the observation of environment {i}", f"the env_info of environment {i}") for i in numbers]
        self._reward_shape = self._reward.shape[1:]
        is_single = isinstance(self._observation, np.ndarray)
        #: Views of the rows of a single array, which are written faster than by index.
        self._observations = [self._observation[row, ...] for row in range(len(envs))] if is_single else None

    def write(self, row: int, time_step: TimeStep, *, is_reset: bool = False) -> None:
        """Writes the time step of one environment, and counts its episodes."""
        step_type, reward, discount, observation, _, _, _, env_info, has_failed = time_step
        require_spec(observation, self._specs[0], self._names[row][0])
        if env_info is not self._specs[1]:  # Fast path: both are usually the empty tuple.
            require_spec(env_info, self._specs[1], self._names[row][1])
        if getattr(reward, "shape", None) != self._reward_shape:
            reward = read_reward(reward, self._reward_shape, f"environment {self.first + row}")
        self.step_type[row], self._reward[row] = step_type, reward
        self.discount[row], self._has_failed[row] = discount, has_failed
        if is_reset or step_type == FIRST:  # After a reset, some environments continue in the middle of an episode.
            self.num_episodes[row] += 1
        if self._observations is not None:
            self._observations[row][...] = observation
        else:
            write_nest(self._observation, row, observation)
        if env_info:
            write_nest(self._env_info, row, env_info)

    def truncate(self, row: int) -> None:
        """Ends the episode of an environment that is lost: its last observation is repeated."""
        self.step_type[row], self._has_failed[row] = LAST, True
        self._reward[row] = 0


def write_nest(arrays: Nest, rows: Any, values: Nest) -> None:
    """Writes a nest of values into rows, an index or several, of a nest of arrays."""
    if isinstance(arrays, dict):
        for key, array in arrays.items():
            write_nest(array, rows, values[key])
    elif isinstance(arrays, tuple):
        for array, value in zip(arrays, values, strict=True):
            write_nest(array, rows, value)
    else:
        arrays[rows] = values
