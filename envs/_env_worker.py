"""A process that steps some of the environments of a `ParallelEnvironment`, and what it shares with the caller."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.specs import Nest, map_structure

from ._shared_arrays import Channel, Rows
from .batched_environment import make_row_reader
from .environment import Environment, require_single
from .suite_gym import register_specs
from .time_steps import LAST

STEP, RESET = 1, 2
#: First byte of messages: a wake-up, a failed environment, a call, its result or error, and the error that ends the
#: process. Calls and results have numbers: 0 is the construction of the environments, 1 the connection of the arrays.
WAKE, FAILURE, CALL, RESULT, ERROR = b"w", b"f", b"c", b"r", b"e"
_F_SETSIG = 10
_MAX_ATTEMPTS = 3
_CHECK_SECS = 0.5


def create(constructor: Callable[[], Environment], index: int) -> Environment:
    """Creates one environment of a batch.

    Raises:
      TypeError: If the constructor returns something else than an environment that is not batched.
    """
    return require_single(constructor(), f"ParallelEnvironment (constructors[{index}])")


class Share:
    """The environments that one process steps, created again when one of them fails."""

    def __init__(self, constructors: Sequence[Callable[[], Environment]], first: int):
        """Creates environments `first`, `first + 1` and so on of the batch."""
        self._constructors, self._first = constructors, first
        self.envs = [create(constructor, first + row) for row, constructor in enumerate(constructors)]
        self._rows: Rows | None = None
        self._seeds: list[int | None] = [None] * len(self.envs)

    def connect(self, channel: Channel) -> None:
        """Lets the environments read and write the shared arrays."""
        self._rows = Rows(self.envs, self._first, channel)

    def read_actions(self) -> Nest:
        """Returns a copy of the shared actions of the environments, a nest of arrays [len(envs), ...]."""
        return map_structure(np.ndarray.copy, self._rows.actions)  # type: ignore[union-attr]

    def seed(self, seeds: Sequence[int]) -> None:
        """Sets the seed of each environment."""
        for env, seed in zip(self.envs, seeds, strict=True):
            env.seed(seed)
        self._seeds = list(seeds)

    def replace(self, seeds: Sequence[int] | None, is_new: Sequence[bool]) -> None:
        """Lets the environments of a new process continue after lost ones, and resets those that start an episode."""
        self._seeds = list(seeds) if seeds is not None else self._seeds
        for row, env in enumerate(self.envs):
            self._continue_seeds(row)
            if is_new[row]:
                self._rows.write(row, env.reset(), is_reset=True)  # type: ignore[union-attr]

    def _continue_seeds(self, row: int) -> None:
        """Gives a new environment other seeds than those of the episodes that a lost one has started."""
        number, seed = int(self._rows.num_episodes[row]), self._seeds[row]  # type: ignore[union-attr]
        self.envs[row].skip_episodes(number)
        if seed is not None:
            self.envs[row].seed(seed + 1_000_003 * number)

    def run(
        self,
        command: int,
        actions: Nest,
        report: Callable[[int, str | Exception], None],
        stepping: np.ndarray | None = None,
    ) -> None:
        """Steps or resets all environments, and writes their time steps.

        An environment that raises an error is created again, and its episode is truncated.

        Args:
          command: STEP or RESET.
          actions: nest of arrays, the actions of the environments in its first rows; unused by RESET.
          report: function called with the index of an environment that has failed and its stack trace, or the error of
            one that does not match its specs, which is not created again.
          stepping: array whose first element is set to the index of each environment before it is called.

        Raises:
          RuntimeError: If an environment that has failed cannot be created again.
        """
        rows: Any = self._rows
        is_step = command == STEP
        read = make_row_reader(actions) if is_step else None
        write, first = rows.write, self._first
        for row, env in enumerate(self.envs):
            if stepping is not None:
                stepping[0] = first + row
            try:
                if read is not None:
                    write(row, env.advance(read(row)))
                else:
                    write(row, env.reset(), is_reset=True)
            except SpecMismatchError as error:  # Another environment of the same constructor would not match either.
                report(self._first + row, error)
            except (Exception, SystemExit):
                report(self._first + row, traceback.format_exc())
                self._replace(row, must_reset=not is_step or rows.step_type[row] == LAST)

    def _replace(self, row: int, *, must_reset: bool) -> None:
        """Creates an environment again, in several attempts, and truncates its episode or starts a new one."""
        rows: Any = self._rows
        with contextlib.suppress(Exception):
            self.envs[row].close()
        for attempt in range(_MAX_ATTEMPTS):
            try:
                rows.num_episodes[row] += must_reset  # The episode that has failed to start.
                self.envs[row] = create(self._constructors[row], self._first + row)
                self._continue_seeds(row)
                if must_reset:
                    rows.write(row, self.envs[row].reset(), is_reset=True)
                else:
                    rows.truncate(row)
                return
            except Exception as error:
                if attempt == _MAX_ATTEMPTS - 1:
                    raise RuntimeError(f"environment {self._first + row} cannot be created again") from error

    def close(self) -> None:
        """Closes all environments, and drops the shared arrays."""
        self._rows = None
        for env in self.envs:
            with contextlib.suppress(Exception):
                env.close()


def main(connection: int, memory: int, lifeline: int, trace: int, worker: int) -> None:
    """Runs the worker until the caller ends or closes the connection.

    Args:
      connection: file descriptor of the socket for messages.
      memory: file descriptor of the shared memory.
      lifeline: file descriptor of a pipe whose other end is closed when the caller ends, however it ends. The kernel
        then kills this process, even if an environment hangs.
      trace: file descriptor of a file for stack traces of crashes, and on SIGUSR1.
      worker: index of the worker.
    """
    _follow(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(trace)
    faulthandler.register(signal.SIGUSR1, trace, all_threads=True)
    peer = Connection(connection)
    try:
        registered, constructors, first = pickle.loads(peer.recv_bytes())
        register_specs(registered)
        share = Share([pickle.loads(constructor) for constructor in constructors], first)
        peer.send_bytes(RESULT + pickle.dumps((0, [env.time_step_spec() for env in share.envs], None)))
        spec, batch_size, num_workers, spin_secs = pickle.loads(peer.recv_bytes())
        channel = Channel(memory, spec, batch_size, num_workers)
        share.connect(channel)
        rows = channel.get_rows(worker)
        rows.replies[0] = rows.requests[0]  # A request that was lost with a process is not repeated.
        peer.send_bytes(RESULT + pickle.dumps((1, None, None)))
    except EOFError:
        return
    except Exception:
        with contextlib.suppress(OSError):  # The caller may have closed the connection.
            peer.send_bytes(ERROR + pickle.dumps(traceback.format_exc()))
        return
    with contextlib.suppress(EOFError, OSError):
        _serve(share, rows, peer, spin_secs)
    share.close()


def _follow(lifeline: int) -> None:
    if sys.platform != "linux":  # The process then ends when it reads the next message.
        return
    import fcntl

    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # It was closed before.
        os._exit(1)


def _serve(share: Share, rows: Any, peer: Connection, spin_secs: float) -> None:
    done = int(rows.replies[0])

    def report(index: int, reason: str | Exception) -> None:
        rows.failures[0] += 1
        peer.send_bytes(FAILURE + pickle.dumps((index, reason)))

    while True:
        _wait(share, rows, done, peer, spin_secs)
        done = int(rows.requests[0])
        rows.failures[0] = 0
        try:
            share.run(int(rows.commands[0]), share.read_actions(), report, rows.stepping)
        except Exception:
            peer.send_bytes(ERROR + pickle.dumps(traceback.format_exc()))
            return
        rows.stepping[0] = -1
        rows.replies[0] = done
        if rows.caller_sleeps[0]:
            peer.send_bytes(WAKE)


def _wait(share: Share, rows: Any, done: int, peer: Connection, spin_secs: float) -> None:
    """Waits for the next request: actively for a short time, then for a message."""
    requests, sleeps = rows.requests, rows.worker_sleeps
    deadline = time.perf_counter() + spin_secs
    while requests[0] == done:
        if time.perf_counter() < deadline:
            continue
        sleeps[0] = 1
        if requests[0] != done:
            break
        if peer.poll(_CHECK_SECS):
            _answer(share, peer)
    sleeps[0] = 0


def _answer(share: Share, peer: Connection) -> None:
    """Reads a message, and executes the call in it if it is one."""
    message = peer.recv_bytes()
    if message[:1] != CALL:
        return
    number, name, row, arguments = pickle.loads(message[1:])
    result: Any = None
    error: tuple[bool, str] | None = None
    try:
        target = share if row is None else share.envs[row]
        result = getattr(target, name)(*arguments)
    except Exception as caught:
        is_unsupported = isinstance(caught, NotImplementedError)
        error = is_unsupported, str(caught) if is_unsupported else traceback.format_exc()
    peer.send_bytes(RESULT + pickle.dumps((number, result, error)))
