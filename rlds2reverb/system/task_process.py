"""Calls of functions in other processes, each of which makes one call and ends with the calling process."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from rlds2reverb.errors import find_messages

from .closing import Closing
from .threads import call_in_thread

_CODE = "import sys; sys.path[:] = sys.argv[1:]; from rlds2reverb.system.task_process import main; main()"
#: Maximum time to wait for the rest of the output of a process that has ended, and for its end after its result.
_READ_SECS, EXIT_SECS = 5.0, 10.0


class TaskFailedError(RuntimeError):
    """A process has ended without a result, or with an error that cannot be sent; the message is a predicate.

    Attributes:
      code: exit code of the process; the negative number of the signal if one ended it.
    """

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code


class TaskProcess(Closing):
    """A process that calls one function. It has its own session, so that Ctrl-C reaches only the calling process."""

    def __init__(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ):
        """Starts the process.

        Args:
          function: the function.
          *arguments: its arguments.
          environment: environment variables of the process; None for those of this process.
          on_line: function called in another thread with each line that the process prints; None to print the lines on
            stderr.

        Raises:
          TypeError: If the function or an argument cannot be pickled.
        """
        import cloudpickle

        try:
            task = cloudpickle.dumps((function, arguments))
        except Exception as error:  # Objects raise errors of any type.
            raise TypeError(f"cannot be sent to another process ({error})") from error
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if on_line is None else subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._stdin: Any = self._process.stdin
        stdout: Any = self._process.stdout
        stderr: Any = self._process.stderr
        self._last_line, self._result_secs = "", 0.0
        # The process would wait for readers of long results and many lines.
        self._result = call_in_thread(stdout.read, daemon=True)
        self._readers: dict[Any, Future[Any]] = {stdout: self._result}
        if on_line is not None:
            self._readers[stderr] = call_in_thread(lambda: self._read_lines(stderr, on_line), daemon=True)
        with contextlib.suppress(BrokenPipeError):  # It has ended; `result` raises the reason.
            self._stdin.write(len(task).to_bytes(8, "little") + task)
            self._stdin.flush()

    def _read_lines(self, pipe: Any, on_line: Callable[[str], None]) -> None:
        for raw in pipe:
            if line := raw.decode(errors="replace").rstrip():
                self._last_line = line
                on_line(line)

    def terminate(self) -> None:
        """Sends SIGTERM to the process."""
        self._process.terminate()

    def is_done(self) -> bool:
        """Returns whether the process has ended; ends one that hangs after its call has returned."""
        if self._process.poll() is not None:
            return True
        if self._result.done():
            self._result_secs = self._result_secs or time.monotonic()
            if time.monotonic() > self._result_secs + EXIT_SECS:
                self._process.kill()
        return False

    def result(self) -> Any:
        """Waits for the end of the process, and returns what the function has returned, or raises its error.

        Raises:
          TaskFailedError: If the process has ended without a result.
        """
        code = self._process.wait()
        wait(self._readers.values(), _READ_SECS)  # Processes that it has started may keep the pipes open.
        try:
            is_error, value, _ = pickle.loads(self._result.result() if self._result.done() else b"")
        except Exception:  # It was killed before it had sent everything.
            reason = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise TaskFailedError(f"{reason}: {self._last_line}" if self._last_line else reason, code) from None
        if is_error:
            raise value
        return value

    def close(self) -> None:
        """Kills the process if it is still running. Idempotent."""
        self._process.kill()
        self._process.wait()
        done, _ = wait(self._readers.values(), _READ_SECS)
        for pipe in (self._stdin, *(pipe for pipe, reader in self._readers.items() if reader in done)):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def main() -> None:
    """Makes the call that the calling process has sent, writes its result to stdout, and ends this process."""
    stream = sys.stdin.buffer
    task = stream.read(int.from_bytes(stream.read(8), "little"))
    threading.Thread(target=_end_with_caller, args=(stream.fileno(),), daemon=True).start()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Anything that libraries print is not part of the result.
    try:
        function, arguments = pickle.loads(task)
        content = pickle.dumps((False, function(*arguments), ()))
    except BaseException as error:
        # The messages that its text contains are known to the calling process afterwards.
        content = pickle.dumps((True, _make_portable(error), find_messages(str(error))))
    with output:
        output.write(content)
    sys.exit()


def _make_portable(error: BaseException) -> Exception:
    """Returns an error for the calling process: a `TaskFailedError` for one that is no `Exception`, or that cannot be
    pickled, or created again from its arguments.
    """
    with contextlib.suppress(Exception):
        pickle.loads(pickle.dumps(error))
        if isinstance(error, Exception):
            return error
    return TaskFailedError(f"raised {type(error).__name__}: {error}")


def _end_with_caller(stdin: int) -> None:
    os.read(stdin, 1)  # Python's own stream cannot be used by a thread while the process ends.
    os._exit(1)
