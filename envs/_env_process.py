"""The caller's side of a worker of a `ParallelEnvironment`: its process, its messages, and its requests."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from rlds2reverb.system.platform import create_anonymous_file
from rlds2reverb.system.signals import defer_signals

from ._env_worker import CALL, ERROR, FAILURE, RESULT, WAKE
from ._shared_arrays import Channel
from .environment import Environment

_CODE = (
    "import sys; sys.path[:] = sys.argv[6:]; from rlds2reverb.envs._env_worker import main; "
    "main(*map(int, sys.argv[1:6]))"
)
_CHECK_SECS, _TRACE_SECS = 0.05, 1.0
#: Ends of pipes that tell workers, by being closed, that this process has ended. Forked processes must not keep them.
_lifelines: set[int] = set()
#: A worker that has completed this many requests since it was lost has recovered.
_RECOVERED = 100


def _close_lifelines() -> None:
    while _lifelines:
        os.close(_lifelines.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_lifelines)


class EnvironmentFailedError(RuntimeError):
    """An environment has failed: it raised an error, its process died, or it did not answer in time."""


class LostProcessError(Exception):
    """A worker has died, does not answer, or cannot continue; its message is the reason and its stack traces."""


class WorkerProcess:
    """A worker, which can be started again after it was lost.

    Attributes:
      index: index of the worker.
      first, end: its environments are `first` to `end - 1`.
      seeds: the seeds of its environments; None if they have none.
      num_failures: how often it was lost without completing 100 requests in between.
      is_busy: whether a request was made whose completion was not waited for.
      is_lost: whether the process has to be started again; unset by the caller when its environments are ready.
    """

    def __init__(
        self,
        index: int,
        constructors: Sequence[Callable[[], Environment]],
        first: int,
        memory: int,
        registered: Sequence[bytes],
    ):
        """Serialises the constructors; `start` starts the process, in which the specs `registered` will be known.

        Raises:
          TypeError: If a constructor cannot be sent to another process.
        """
        self.index, self.first, self.end = index, first, first + len(constructors)
        self.seeds: list[int] | None = None
        self.num_failures = self._num_completed = 0
        self._memory, self._registered = memory, registered
        self._constructors = [_serialise(constructor, first + row) for row, constructor in enumerate(constructors)]
        self._process: subprocess.Popen[bytes] | None = None
        self._peer: Any = None
        self._lifeline = self._trace = -1
        self._number = self._call_number = 0
        self.is_busy = False
        self.is_lost = True
        self._reported: list[tuple[int, str | Exception]] = []
        #: Its rows of the shared arrays.
        self._rows: Any = None

    def count_failure(self) -> int:
        """Counts that the worker was lost; returns `num_failures`."""
        self.num_failures, self._num_completed = self.num_failures + 1, 0
        return self.num_failures

    def start(self) -> None:
        """Starts the process, which creates its environments; `receive` then returns their specs."""
        own, other = socket.socketpair()
        lifeline, self_end = os.pipe()
        trace = create_anonymous_file("rlds2reverb_trace")
        passed = [other.fileno(), self._memory, lifeline, trace]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, *map(str, passed), str(self.index), *sys.path],
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
            start_new_session=True,  # Ctrl-C in a terminal is handled by the caller.
        )
        other.close()
        os.close(lifeline)
        self._lifeline, self._trace = self_end, trace
        _lifelines.add(self_end)
        self._peer = Connection(own.detach())
        self._call_number = 0
        self._send(pickle.dumps((self._registered, self._constructors, self.first)))

    def receive(self, timeout_secs: float) -> Any:
        """Returns the result of the last call; results of earlier ones, which were interrupted, are ignored.

        Raises:
          EnvironmentFailedError: If it has failed, or there is no result in time.
          NotImplementedError: If the environment does not support the call.
        """
        deadline = time.monotonic() + timeout_secs
        try:
            while True:
                if not self._peer.poll(max(deadline - time.monotonic(), 0)):
                    raise LostProcessError(f"no answer within {timeout_secs:g} s\n{self._dump_stacks()}")
                if (content := self._read()) is not None:
                    number, result, error = pickle.loads(content)
                    if number == self._call_number:
                        if error is None:
                            return result
                        is_unsupported, reason = error
                        raise NotImplementedError(reason) if is_unsupported else LostProcessError(reason)
        except (EOFError, OSError):
            reason = self._describe_end()
        except LostProcessError as error:
            reason = str(error)
        raise EnvironmentFailedError(f"{self.places} cannot be created or called:\n{reason}") from None

    def connect(self, channel: Channel, layout: Any, timeout_secs: float) -> None:
        """Sends the layout of the shared arrays, and waits until the worker uses them."""
        self._call_number = 1
        self._send(pickle.dumps(layout))
        self.receive(timeout_secs)
        self._rows = channel.get_rows(self.index)
        self._number, self._rows.worker_sleeps[0] = int(self._rows.replies[0]), 0

    def call(self, name: str, row: int | None, *arguments: Any, timeout_secs: float) -> Any:
        """Calls a method of one of the environments, or of the `Share` of the worker if `row` is None.

        Raises:
          EnvironmentFailedError: If the call fails.
          NotImplementedError: If the environment does not support it.
        """
        self._call_number += 1
        self._send(CALL + pickle.dumps((self._call_number, name, row, arguments)))
        return self.receive(timeout_secs)

    def request(self, command: int) -> None:
        """Starts a step or a reset of all environments; see `wait`."""
        self._number += 1
        self.is_busy = True
        self._rows.commands[0] = command
        self._rows.requests[0] = self._number
        if self._rows.worker_sleeps[0]:
            self._send(WAKE)

    def wait(self, spin_secs: float, timeout_secs: float) -> list[tuple[int, str | Exception]]:
        """Waits until the request is completed.

        Returns:
          The indices of environments that have failed and were created again, with their stack traces.

        Raises:
          LostProcessError: If the process has died or does not answer.
        """
        if self.is_lost:
            raise LostProcessError(f"the process of {self.places} has been stopped")
        replies, number = self._rows.replies, self._number
        start = time.perf_counter()
        while replies[0] != number and time.perf_counter() - start < spin_secs:
            pass
        if replies[0] != number:
            self._sleep(number, start + timeout_secs)
        self._num_completed += 1
        if self._num_completed >= _RECOVERED:
            self.num_failures = 0
        while len(self._reported) < self._rows.failures[0]:
            self._read()
        failures, self._reported, self.is_busy = self._reported, [], False
        return failures

    def _sleep(self, number: int, deadline: float) -> None:
        rows = self._rows
        rows.caller_sleeps[0] = 1
        try:
            while rows.replies[0] != number:
                if time.perf_counter() > deadline:
                    index = int(rows.stepping[0])
                    raise LostProcessError(f"environment {index} did not answer in time\n{self._dump_stacks()}")
                if rows.worker_sleeps[0]:  # It fell asleep while the request was made.
                    self._send(WAKE)
                if self._peer.poll(_CHECK_SECS):
                    self._read()
        except (EOFError, OSError):
            raise LostProcessError(self._describe_end()) from None
        finally:
            rows.caller_sleeps[0] = 0

    def _read(self) -> bytes | None:
        """Reads a message: returns the result of a call, remembers a failure, and raises the error of the process."""
        with defer_signals():  # If Ctrl-C interrupted it, the rest of the message would follow; and no failure is lost.
            try:
                message: bytes = self._peer.recv_bytes()
            except (EOFError, OSError):
                raise LostProcessError(self._describe_end()) from None
            kind, content = message[:1], message[1:]
            if kind == FAILURE:
                self._reported.append(pickle.loads(content))
            elif kind == ERROR:
                raise LostProcessError(pickle.loads(content))
            return content if kind == RESULT else None

    def disconnect(self) -> None:
        """Asks the process to close its environments and to end."""
        if self._peer is not None:
            # Forked processes may have inherited the socket, so closing it is not enough.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._peer.fileno())) as own:
                own.shutdown(socket.SHUT_RDWR)
            self._peer.close()

    def stop(self, deadline: float) -> None:
        """Ends the process, which is killed at a deadline of `time.monotonic`, and drops the shared arrays."""
        self.disconnect()
        self.is_lost = True
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, deadline - time.monotonic()))
            self._process.kill()
            self._process.wait()
            if self._lifeline in _lifelines:  # In a forked process, it is closed.
                _lifelines.remove(self._lifeline)
                os.close(self._lifeline)
            os.close(self._trace)
        self._process = self._peer = self._rows = None
        self._reported, self.is_busy = [], False

    @property
    def places(self) -> str:
        """The environments, for messages."""
        return f"environment {self.first}" if self.end == self.first + 1 else (
            f"environments {self.first} to {self.end - 1}"
        )  # fmt: skip

    def _send(self, message: bytes) -> None:
        with defer_signals(), contextlib.suppress(OSError):  # Its end is found when its answer is read.
            if self._peer is not None:
                self._peer.send_bytes(message)

    def _dump_stacks(self) -> str:
        """Returns the Python stack of a process that hangs."""
        process: Any = self._process
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _TRACE_SECS
        while time.monotonic() < deadline and not self._read_trace().endswith("\n"):
            time.sleep(0.02)
        return self._read_trace()

    def _describe_end(self) -> str:
        process: Any = self._process
        try:
            code = process.wait(1)
        except subprocess.TimeoutExpired:
            return "its process has closed the connection"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the process of {self.places} {how}\n{self._read_trace()}"

    def _read_trace(self) -> str:
        size = os.fstat(self._trace).st_size
        return os.pread(self._trace, size, 0).decode(errors="replace")


def _serialise(constructor: Callable[[], Environment], index: int) -> bytes:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(constructor))
    except Exception as error:  # Objects raise errors of any type.
        raise TypeError(
            f"constructors[{index}] cannot be sent to another process ({error}); create everything that it needs "
            "inside of the function"
        ) from error
