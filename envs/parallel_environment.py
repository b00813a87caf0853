"""Batches of environments that are stepped in several processes."""

from __future__ import annotations

import itertools
import os
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from rlds2reverb.system.platform import available_cores, create_anonymous_file
from rlds2reverb.types.arguments import require_count, require_one_of, require_timeout
from rlds2reverb.types.ownership import copy_arrays
from rlds2reverb.types.specs import Nest, map_structure

from ._env_process import EnvironmentFailedError, LostProcessError, WorkerProcess
from ._env_worker import RESET, STEP, Share
from ._shared_arrays import Channel, write_nest
from .batched_environment import find_common_spec, make_env_ids, make_prev_action
from .env_specs import make_zeros
from .environment import Environment, LockedEnvironment, SpecifiedEnvironment, require_constructor
from .suite_gym import serialise_registered_specs
from .time_steps import FIRST, LAST, MID, TimeStep, new_time_step

#: Waiting actively is faster than being woken, if each process has a core.
_SPIN_SECS = 0.001
EXIT_SECS, _FIRST = 5.0, int(FIRST)
#: A worker that is lost more often than this without recovering in between is not started again.
_MAX_FAILURES = 3
#: The index of an environment, and why it has failed: its stack trace, or an error to raise.
_Failure = tuple[int, str | Exception]


class ParallelEnvironment(SpecifiedEnvironment, LockedEnvironment):
    """Environments that are stepped in several processes with shared memory, as one batch.

    The calling process is one of them: while workers step their environments, it steps its own share. An environment
    that raises an error is created again, and its episode is truncated: the step is LAST, marked by `has_failed`, its
    discount is that of the step before, and its observation is repeated. If a worker dies or does not answer in time,
    the same holds for all of its environments. The other environments are not affected, and no seed is used again.

    `prev_action` of the time steps is the action that was passed to `step`, and `untransformed` is `()`. Environments
    reset themselves, each at the end of an episode.

    A reset takes place in the step after the end of an episode, which lasts as long as the slowest reset.
    """

    def __init__(
        self,
        constructors: Sequence[Callable[[], Environment]],
        *,
        num_workers: int | None = None,
        caller_steps: bool = True,
        timeout_secs: float = 60.0,
        construction_timeout_secs: float = 60.0,
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
          construction_timeout_secs: maximum duration of the construction of the environments of one worker.
          on_failure: 'restart' to create failed environments again, with a warning; 'raise' to close the batch and
            raise `EnvironmentFailedError`.
          seed: environment i gets the seed `seed + i`; None for no seeds.

        Raises:
          ValueError: If an argument is out of range.
          TypeError: If a constructor is no function, cannot be sent to another process, or does not return an
            environment.
          SpecMismatchError: If the specs of the environments differ; the message names the path.
          EnvironmentFailedError: If an environment cannot be created; the message contains its stack trace.
        """
        super().__init__()
        if not constructors:
            raise ValueError("constructors must contain at least one function, got none")
        for index, constructor in enumerate(constructors):
            require_constructor(constructor, f"constructors[{index}]")
        if num_workers is not None:
            require_count("num_workers", num_workers, 0 if caller_steps else 1)
        require_timeout(timeout_secs)
        require_timeout(construction_timeout_secs)
        require_one_of("on_failure", on_failure, ("restart", "raise"))
        num_envs, cores = len(constructors), available_cores()
        if num_workers is None:
            num_workers = max(min(cores, num_envs) - caller_steps, 0 if caller_steps else 1)
        num_workers = min(num_workers, num_envs - caller_steps)
        self._timeout_secs, self._on_failure = timeout_secs, on_failure
        self._construction_timeout_secs = construction_timeout_secs
        self._batch_size = num_envs
        self._ids = make_env_ids(num_envs)
        self._is_running = False
        #: How often each environment has failed without a real step in between.
        self._num_failures = np.zeros(num_envs, np.int64)
        self._workers: list[WorkerProcess] = []
        self._own: Share | None = None
        self._channel: Any = None
        self._memory = create_anonymous_file("rlds2reverb_envs")
        self._spin_secs = _SPIN_SECS if num_workers + caller_steps <= cores else 0.0
        bounds = np.linspace(0, num_envs, num_workers + caller_steps + 1).round().astype(int).tolist()
        shares = list(itertools.pairwise(bounds))
        try:
            registered = serialise_registered_specs() if num_workers else []
            for index, (first, end) in enumerate(shares[caller_steps:]):
                worker = WorkerProcess(index, constructors[first:end], first, self._memory, registered)
                self._workers.append(worker)
                worker.start()
            if caller_steps:
                first, end = shares[0]
                self._own = Share(constructors[first:end], first)
            specs = [env.time_step_spec() for env in self._own.envs] if self._own else []
            for worker in self._workers:
                specs += worker.receive(self._construction_timeout_secs)
            self._time_step_spec = find_common_spec(specs)
            self._channel = Channel(self._memory, self._time_step_spec, num_envs, num_workers)
            #: What lost environments repeat: the last time steps, which the caller cannot modify.
            self._last_bytes = self._channel.time_step_bytes.copy()
            self._last = self._channel.map_time_step(self._last_bytes)
            for worker in self._workers:
                worker.connect(self._channel, self._layout, self._timeout_secs)
                worker.is_lost = False
        except BaseException:
            self.close()
            raise
        if self._own is not None:
            self._own.connect(self._channel)
        self._first_action = make_zeros(self._time_step_spec.prev_action)
        if seed is not None:
            self.seed(seed)

    def seed(self, seed: int) -> None:
        """Sets the seed of environment i to `seed + i`.

        Raises:
          NotImplementedError: If the environments cannot be seeded.
        """
        seeds = list(range(int(seed), int(seed) + self._batch_size))
        with self._lock:
            self._require_open()
            if self._own is not None:
                self._own.seed(seeds[: len(self._own.envs)])
            for worker in self._workers:
                own_seeds = seeds[worker.first : worker.end]
                worker.call("seed", None, own_seeds, timeout_secs=self._timeout_secs)
                worker.seeds = own_seeds

    def render(self, mode: str = "rgb_array") -> Any:
        """Returns what the first environment renders."""
        with self._lock:
            self._require_open()
            if self._own is not None:
                return self._own.envs[0].render(mode)
            return self._workers[0].call("render", 0, mode, timeout_secs=self._timeout_secs)

    def close(self) -> None:
        """Closes all environments, ends the workers, and frees the shared memory. Idempotent.

        Waits for the call of a different thread. Workers that do not end within 5 seconds are killed.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for worker in self._workers:
                worker.disconnect()
            if self._own is not None:
                self._own.close()
            deadline = time.monotonic() + EXIT_SECS
            for worker in self._workers:
                worker.stop(deadline)
            self._channel = None  # The memory is freed with the last array in it.
            os.close(self._memory)

    def _reset(self) -> TimeStep:
        return self._run(RESET, None)

    def _step(self, action: Nest) -> TimeStep:
        return self._run(STEP, action)

    @property
    def _layout(self) -> Any:
        return self._time_step_spec, self._batch_size, len(self._workers), self._spin_secs

    def _run(self, command: int, action: Nest) -> TimeStep:
        try:
            if self._is_running:  # Ctrl-C has interrupted the last call.
                self._finish_requests()
            self._is_running = True
            failures = self._run_all(command, action)
            if failures:
                self._handle(failures)
            time_step = self._make_time_step(action)
            if self._workers and self._on_failure == "restart":
                self._last_bytes[:] = self._channel.time_step_bytes
        except Exception:
            self.close()
            raise
        self._is_running = False
        return time_step

    def _run_all(self, command: int, action: Nest) -> list[_Failure]:
        """Makes a request to all processes, and returns which environments have failed."""
        failures: list[_Failure] = []
        if action is not None and self._workers:
            write_nest(self._channel.action, slice(None), action)
        for worker in self._workers:
            worker.request(command)
        if self._own is not None:
            try:
                # Environments may modify their actions, which are also the `prev_action` of the time step.
                self._own.run(command, copy_arrays(action), lambda index, reason: failures.append((index, reason)))
            except RuntimeError:
                reasons = "\n".join(str(reason) for _, reason in failures)
                raise EnvironmentFailedError(f"{reasons}\n{traceback.format_exc()}") from None
        for worker in self._workers:
            failures += self._wait(worker, must_reset=command == RESET)
        return failures

    def _finish_requests(self) -> None:
        """Waits for all requests that have not been waited for; new episodes follow."""
        for worker in self._workers:
            if worker.is_busy or worker.is_lost:
                self._wait(worker, must_reset=True)

    def _wait(self, worker: WorkerProcess, *, must_reset: bool) -> list[_Failure]:
        """Waits for a worker; if it is lost, starts it again, and truncates the running episodes of its environments.

        Args:
          worker: the worker.
          must_reset: whether all of its environments start an episode, instead of having one that is truncated.

        Returns:
          The environments that have failed.

        Raises:
          EnvironmentFailedError: If failures are not to be survived, or the worker is lost again and again.
        """
        try:
            return worker.wait(self._spin_secs, self._timeout_secs)
        except LostProcessError as lost:
            reason = str(lost)
        worker.stop(time.monotonic())
        if self._on_failure == "raise":
            raise EnvironmentFailedError(f"{worker.places} failed:\n{reason}")
        rows = np.arange(worker.first, worker.end)
        is_new = must_reset | (self._last.step_type[rows] == LAST)
        self._restart(worker, reason, is_new)
        self._truncate(rows[~is_new])
        return [(index, reason) for index in rows.tolist()]

    def _restart(self, worker: WorkerProcess, reason: str, is_new: np.ndarray) -> None:
        """Starts a worker again, and starts the episodes of those environments that need one.

        Raises:
          EnvironmentFailedError: If the worker is lost again and again.
        """
        while worker.count_failure() <= _MAX_FAILURES:
            try:
                worker.stop(time.monotonic())
                worker.start()
                worker.receive(self._construction_timeout_secs)
                worker.connect(self._channel, self._layout, self._timeout_secs)
                self._channel.num_episodes[worker.first : worker.end] += is_new  # The episodes that failed to start.
                worker.call("replace", None, worker.seeds, is_new.tolist(), timeout_secs=self._timeout_secs)
                worker.is_lost = False
                return
            except (EnvironmentFailedError, LostProcessError) as error:
                reason = str(error)
        raise EnvironmentFailedError(f"{worker.places} failed {worker.num_failures} times in a row:\n{reason}")

    def _truncate(self, rows: np.ndarray) -> None:
        """Ends the episodes of lost environments: their last observations are repeated."""
        shared = self._channel.time_step
        # Some environments may have made the step.
        write_nest(shared, rows, map_structure(lambda leaf: leaf[rows], self._last))
        shared.step_type[rows], shared.has_failed[rows] = LAST, True
        shared.reward[rows] = 0

    def _handle(self, failures: list[_Failure]) -> None:
        for _, reason in failures:
            if isinstance(reason, Exception):
                raise reason
        places = ", ".join(dict.fromkeys(str(index) for index, _ in failures))
        reasons = "\n".join(dict.fromkeys(str(reason) for _, reason in failures))
        name = "environments" if "," in places else "environment"
        if self._on_failure == "raise":
            raise EnvironmentFailedError(f"{name} {places} failed:\n{reasons}")
        previous, failed = self._current_time_step, list({index for index, _ in failures})
        if previous is not None:
            self._num_failures[previous.step_type == MID] = 0
        self._num_failures[failed] += 1
        if self._num_failures.max() > _MAX_FAILURES:
            raise EnvironmentFailedError(f"{name} {places} failed {_MAX_FAILURES + 1} times without a step:\n{reasons}")
        warnings.warn(f"{name} {places} failed and started new episodes:\n{reasons}", RuntimeWarning, stacklevel=5)

    def _make_time_step(self, action: Nest) -> TimeStep:
        shared = self._channel.time_step
        step_type = shared.step_type.copy()
        if action is None or _FIRST in step_type.tolist():
            action = make_prev_action(self._first_action, action, step_type == FIRST)
        observation = shared.observation
        return new_time_step(
            (
                step_type,
                shared.reward.copy(),
                shared.discount.copy(),
                observation.copy() if type(observation) is np.ndarray else copy_arrays(observation),
                action,
                self._ids,
                (),
                copy_arrays(shared.env_info) if shared.env_info else (),
                shared.has_failed.copy(),
            )
        )
