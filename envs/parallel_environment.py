"""Batches of environments that are stepped in several processes."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from rlds2reverb._arguments import require_count, require_one_of, require_timeout
from rlds2reverb.specs import ArraySpec, Nest, map_structure

from ._env_process import EnvironmentFailedError, LostProcessError, WorkerProcess
from ._env_worker import RESET, STEP, Share
from ._shared_arrays import Channel, create_memory
from .batched_environment import make_prev_action, require_same_specs
from .environment import Environment
from .specs import make_zeros
from .time_steps import FIRST, LAST, TimeStep

#: Waiting actively is faster than being woken, if each process has a core.
_SPIN_SECS = 0.001
_EXIT_SECS, _FIRST = 5.0, int(FIRST)
#: A worker that is lost more often than this without recovering in between is not started again.
_MAX_FAILURES = 3


class ParallelEnvironment(Environment):
    """Environments that are stepped in several processes with shared memory, as one batch.

    The calling process is one of them: while workers step their environments, it steps its own share. An environment
    that raises an error is created again, and its episode is truncated: the step is LAST, its discount is that of the
    step before, and its observation is repeated. If a worker dies or does not answer in time, the same holds for all of
    its environments. The other environments are not affected.

    `prev_action` of the time steps is the action that was passed to `step`, and `untransformed` is `()`. Environments
    reset themselves, each at the end of its own episodes.
    """

    def __init__(
        self,
        constructors: Sequence[Callable[[], Environment]],
        *,
        num_workers: int | None = None,
        caller_steps: bool = True,
        timeout_secs: float = 60.0,
        on_failure: Literal["restart", "raise"] = "restart",
        seed: int | None = None,
    ):
        """Starts the workers and creates the environments.

        Args:
          constructors: one function for each of the B environments, which creates it in the process that steps it.
            Lambdas and functions of scripts and notebooks are allowed.
          num_workers: number of processes in addition to the calling one; None for one process per core, at most B in
            total.
          caller_steps: whether the calling process steps a share of the environments. Without it, an environment that
            hangs or crashes cannot affect the calling process.
          timeout_secs: maximum duration of a step, or a `reset`, of the environments of one worker.
          on_failure: 'restart' to create failed environments again, with a warning; 'raise' to close the batch and
            raise `EnvironmentFailedError`.
          seed: environment i gets the seed `seed + i`; None for no seeds.

        Raises:
          ValueError: If an argument is out of range.
          TypeError: If a constructor cannot be sent to another process, or does not return an environment.
          SpecMismatchError: If the specs of the environments differ; the message names the path.
          EnvironmentFailedError: If an environment cannot be created; the message contains its stack trace.
        """
        super().__init__()
        if not constructors:
            raise ValueError("constructors must contain at least one function, got none")
        if num_workers is not None:
            require_count("num_workers", num_workers, 0 if caller_steps else 1)
        require_timeout(timeout_secs)
        require_one_of("on_failure", on_failure, ("restart", "raise"))
        num_envs, cores = len(constructors), len(os.sched_getaffinity(0))
        if num_workers is None:
            num_workers = max(min(cores, num_envs) - caller_steps, 0 if caller_steps else 1)
        num_workers = min(num_workers, num_envs - caller_steps)
        self._timeout_secs, self._on_failure = timeout_secs, on_failure
        self._num_envs = num_envs
        self._ids = np.arange(num_envs, dtype=np.int32)
        self._is_closed = False
        self._workers: list[WorkerProcess] = []
        self._own: Share | None = None
        self._memory = create_memory()
        spin_secs = _SPIN_SECS if num_workers + caller_steps <= cores else 0.0
        bounds = np.linspace(0, num_envs, num_workers + caller_steps + 1).round().astype(int).tolist()
        shares = list(itertools.pairwise(bounds))
        try:
            for index, (first, end) in enumerate(shares[caller_steps:]):
                worker = WorkerProcess(index, constructors[first:end], first, self._memory)
                self._workers.append(worker)
                worker.start()
            if caller_steps:
                first, end = shares[0]
                self._own = Share(constructors[first:end], first)
            specs = [env.time_step_spec() for env in self._own.envs] if self._own else []
            for worker in self._workers:
                specs += worker.receive(self._timeout_secs)
            require_same_specs(specs)
            self._spec: TimeStep = specs[0]
            self._channel = Channel(self._memory, self._spec, num_envs, num_workers)
            for worker in self._workers:
                worker.connect(self._channel, (self._spec, num_envs, num_workers, spin_secs), self._timeout_secs)
        except BaseException:
            self.close()
            raise
        if self._own is not None:
            self._own.connect(self._channel)
        self._spin_secs = spin_secs
        self._first_action = make_zeros(self._spec.prev_action)
        if seed is not None:
            self.seed(seed)

    @property
    def batched(self) -> bool:
        """True."""
        return True

    @property
    def batch_size(self) -> int:
        """The number B of environments."""
        return self._num_envs

    def observation_spec(self) -> Nest:
        """Returns the specs of one observation."""
        return self._spec.observation

    def action_spec(self) -> Nest:
        """Returns the specs of one action."""
        return self._spec.prev_action

    def reward_spec(self) -> ArraySpec:
        """Returns the spec of one reward."""
        return self._spec.reward

    def env_info_spec(self) -> Nest:
        """Returns the specs of `TimeStep.env_info`."""
        return self._spec.env_info

    def seed(self, seed: int) -> None:
        """Sets the seed of environment i to `seed + i`."""
        self.seed_each(range(seed, seed + self._num_envs))

    def seed_each(self, seeds: Sequence[int]) -> None:
        """Sets the seed of each environment.

        Args:
          seeds: B seeds.
        """
        seeds = [int(seed) for seed in seeds]
        if self._own is not None:
            self._own.seed(seeds[: len(self._own.envs)])
        for worker in self._workers:
            worker.seeds = seeds[worker.first : worker.end]
            worker.call("seed", None, worker.seeds, timeout_secs=self._timeout_secs)

    def render(self, mode: str = "rgb_array") -> Any:
        """Returns what the first environment renders."""
        if self._own is not None:
            return self._own.envs[0].render(mode)
        return self._workers[0].call("render", 0, mode, timeout_secs=self._timeout_secs)

    def close(self) -> None:
        """Closes all environments and ends the workers; kills those that do not end within 5 seconds. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for worker in self._workers:
            worker.disconnect()
        if self._own is not None:
            self._own.close()
        deadline = time.monotonic() + _EXIT_SECS
        for worker in self._workers:
            worker.stop(deadline)
        os.close(self._memory)

    def advance(self, action: Nest) -> TimeStep:
        """Executes a batch of actions that need no check; environments whose episodes have ended are reset."""
        if self._must_reset:
            return self.reset()
        self._current_time_step = self._run(STEP, action)
        return self._current_time_step

    def _reset(self) -> TimeStep:
        return self._run(RESET, None)

    def _step(self, action: Nest) -> TimeStep:
        return self._run(STEP, action)

    def _run(self, command: int, action: Nest) -> TimeStep:
        if self._is_closed:
            raise RuntimeError("the environment is closed; create a new one")
        channel = self._channel
        failures: list[tuple[int, str]] = []
        if action is not None:
            _copy_into(channel.action, action)
        for worker in self._workers:
            worker.request(command)
        if self._own is not None:
            self._own.run(command, lambda index, text: failures.append((index, text)))
        for worker in self._workers:
            try:
                failures += worker.wait(self._spin_secs, self._timeout_secs)
            except LostProcessError as lost:
                failures += [(index, str(lost)) for index in range(worker.first, worker.end)]
                if self._on_failure == "restart":
                    self._restart(worker, str(lost))
        if failures:
            self._handle(failures)
        return self._make_time_step(action)

    def _handle(self, failures: list[tuple[int, str]]) -> None:
        places = ", ".join(str(index) for index, _ in failures)
        texts = "\n".join(dict.fromkeys(text for _, text in failures))
        name = "environment" if len(failures) == 1 else "environments"
        if self._on_failure == "raise":
            self.close()
            raise EnvironmentFailedError(f"{name} {places} failed:\n{texts}")
        warnings.warn(f"{name} {places} failed and started new episodes:\n{texts}", RuntimeWarning, stacklevel=5)

    def _restart(self, worker: WorkerProcess, reason: str) -> None:
        """Starts a worker again, truncates its running episodes, and resets its other environments."""
        if worker.count_failure() > _MAX_FAILURES:
            self.close()
            raise EnvironmentFailedError(
                f"environments {worker.first} to {worker.end - 1} failed {worker.num_failures} times in a row: {reason}"
            )
        channel, previous = self._channel, self._current_time_step
        worker.stop(time.monotonic())
        worker.start()
        worker.receive(self._timeout_secs)
        layout = (self._spec, self._num_envs, len(self._workers), self._spin_secs)
        worker.connect(channel, layout, self._timeout_secs)
        if worker.seeds is not None:
            worker.seeds = [seed + 1_000_003 for seed in worker.seeds]  # A different random sequence than before.
            worker.call("seed", None, worker.seeds, timeout_secs=self._timeout_secs)
        own = slice(worker.first, worker.end)
        ended = np.ones(worker.end - worker.first, bool) if previous is None else previous.step_type[own] == LAST
        if ended.any():
            worker.request(RESET)
            try:
                worker.wait(self._spin_secs, self._timeout_secs)
            except LostProcessError as lost:
                self._restart(worker, str(lost))
                return
        if previous is not None:
            rows = np.arange(worker.first, worker.end)[~ended]
            _restore_rows(channel.time_step.observation, previous.observation, rows)
            _restore_rows(channel.time_step.env_info, previous.env_info, rows)
            channel.time_step.discount[rows] = previous.discount[rows]
            channel.time_step.step_type[rows] = LAST
            channel.time_step.reward[rows] = 0

    def _make_time_step(self, action: Nest) -> TimeStep:
        shared = self._channel.time_step
        step_type = shared.step_type.copy()
        if action is None or _FIRST in step_type.tolist():
            action = make_prev_action(self._first_action, action, step_type == FIRST)
        return TimeStep(
            step_type,
            shared.reward.copy(),
            shared.discount.copy(),
            _copy(shared.observation),
            action,
            self._ids,
            (),
            _copy(shared.env_info),
        )


def _copy_into(arrays: Nest, values: Nest) -> None:
    if isinstance(arrays, np.ndarray):
        arrays[...] = values
    elif isinstance(arrays, dict):
        for key, array in arrays.items():
            _copy_into(array, values[key])
    else:
        for array, value in zip(arrays, values, strict=True):
            _copy_into(array, value)


def _copy(nest: Nest) -> Nest:
    return nest.copy() if isinstance(nest, np.ndarray) else map_structure(np.copy, nest)


def _restore_rows(arrays: Nest, previous: Nest, rows: np.ndarray) -> None:
    if isinstance(arrays, np.ndarray):
        arrays[rows] = previous[rows]
    elif isinstance(arrays, dict):
        for key, array in arrays.items():
            _restore_rows(array, previous[key], rows)
    else:
        for array, value in zip(arrays, previous, strict=True):
            _restore_rows(array, value, rows)
