"""Runs of a plan: one after the other in this process, or several at a time in worker processes.

A *placement* is a function `(runs, root, report)` that runs all of them and returns the name of the signal that stopped
it, or ''. It calls `report(name, outcome)` in the calling thread whenever a run ends. Placements know nothing of plans
or tables, so that others, such as one on a cluster, can take their place.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlds2reverb._system.platform import available_cores
from rlds2reverb._system.signals import Terminated, stop_on_signal
from rlds2reverb._system.text import last_line
from rlds2reverb.errors import Rlds2ReverbError, get_message

from .plans import PlannedRun
from .progress import Progress

#: How a run ended. A run that was stopped by a signal or that failed can be continued.
State = Literal["complete", "stopped", "failed"]
_EXIT_SECS, _POLL_SECS = 10.0, 0.2
_CODE = "import sys; sys.path[:] = sys.argv[2:]; from rlds2reverb.training.worker import main; main(int(sys.argv[1]))"


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Attributes:
      state: 'complete', 'stopped' by a signal, or 'failed'.
      step: number of completed updates; 0 if unknown.
      reason: why it failed, or the name of the signal; '' if it is complete.
    """

    state: State
    step: int = 0
    reason: str = ""


OutcomeCallback = Callable[[str, Outcome], None]
Placement = Callable[[Sequence[PlannedRun], Path, OutcomeCallback], str]


def run_here(
    runs: Sequence[PlannedRun],
    root: Path,
    report: OutcomeCallback,
    *,
    quiet: bool = False,
    describe: Callable[[str], str] = str,
) -> str:
    """Runs one run after the other in this process; a run that fails does not affect the others.

    Args:
      runs: the runs.
      root: directory that contains the directories of the runs.
      report: function called with the name and the outcome of each run that ends.
      quiet: whether to print only notes and warnings.
      describe: see `Progress`.

    Returns:
      The name of the signal that stopped a run, after which no other run is started; '' if none did.
    """
    for number, run in enumerate(runs, 1):
        if not quiet:
            print(f"{run.name} ({number} of {len(runs)})", file=sys.stderr, flush=True)
        outcome = execute(run, root / run.name, Progress(quiet=quiet, describe=describe))
        gc.collect()  # Agents and their graphs refer to each other, and so are not freed when the run ends.
        report(run.name, outcome)
        if outcome.state == "stopped":
            return outcome.reason
    return ""


def run_in_processes(
    runs: Sequence[PlannedRun],
    root: Path,
    report: OutcomeCallback,
    *,
    jobs: int,
    quiet: bool = False,
    describe: Callable[[str], str] = str,
) -> str:
    """Runs each run in its own process, `jobs` at a time; the processes share the cores of this machine.

    SIGTERM and SIGINT are passed on to the processes, which save checkpoints and end; a second signal ends all of them
    immediately. If this process is killed, the kernel kills the workers as well.

    Args:
      runs: the runs. Data and options that are objects in memory are sent to the process with cloudpickle.
      root: directory that contains the directories of the runs.
      report: function called with the name and the outcome of each run that ends.
      jobs: maximum number of processes at a time, at least 1.
      quiet: whether to print only notes and warnings.
      describe: see `Progress`.

    Returns:
      The name of the signal that stopped the runs; '' if none did.
    """
    waiting, pool = deque(runs), _WorkerPool((quiet, describe), num_threads=available_cores() // jobs)
    with pool, stop_on_signal(pool.stop):
        while pool.workers or (waiting and not pool.stopped_by):
            while waiting and len(pool.workers) < jobs and not pool.stopped_by:
                run = waiting.popleft()
                failure = pool.start(run, root / run.name)
                if failure is not None:
                    report(run.name, failure)
            for name, outcome in pool.wait():
                report(name, outcome)
    return pool.stopped_by


def execute(run: PlannedRun, run_dir: Path, progress: Progress) -> Outcome:
    """Trains a run to its end, and returns how it ended; errors are part of the outcome."""
    from .training import Training

    learner, report = None, run_dir / "exception.txt"
    with contextlib.suppress(OSError):
        report.unlink()
    try:
        with Training(run.source, run.config, run_dir, progress=progress) as training:
            learner = training.learner
            training.run()
            if learner.is_stopped_by_signal:
                return Outcome("stopped", learner.step, learner.stop_reason)
            return Outcome("complete", learner.step)
    except (KeyboardInterrupt, Terminated) as stop:
        step = learner.step if learner else 0
        return Outcome("stopped", step, "SIGTERM" if isinstance(stop, Terminated) else "SIGINT")
    except Exception as error:
        with contextlib.suppress(OSError):
            run_dir.mkdir(parents=True, exist_ok=True)
            if not report.exists():  # The learner reports errors in its loop itself.
                report.write_text(traceback.format_exc(), encoding="utf-8")
        return Outcome("failed", learner.step if learner else 0, _explain(error, report, progress.describe))


def _explain(error: Exception, report: Path, describe: Callable[[str], str]) -> str:
    """Returns a sentence about an error, and the path of its traceback if it may come from the user's own code."""
    kind = type(error).__name__
    message = last_line(describe(get_message(error))) or kind
    if isinstance(error, (Rlds2ReverbError, OSError, ImportError)):
        return message
    reason = message if isinstance(error, ValueError) or message == kind else f"{kind}: {message}"
    return f"{reason}; see {report}" if report.exists() else reason


class _Worker:
    """A process that executes one run, with the pipes of its result and of what it prints."""

    def __init__(self, run: PlannedRun, job: bytes, environment: dict[str, str]):
        self.name = run.name
        self._result, self._line, self._last_line = b"", b"", ""
        self._ended_secs: float | None = None
        # Its own session, so that Ctrl-C in a terminal reaches only this process, which passes it on once.
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(os.getpid()), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        stdin: Any = self.process.stdin
        self.pipes: tuple[Any, ...] = (self.process.stdout, self.process.stderr)
        with contextlib.suppress(BrokenPipeError):  # The process has died, which `find_outcome` reports.
            stdin.write(job)
            stdin.close()

    def read(self, pipe: Any) -> list[str] | None:
        """Reads what is available from a pipe; returns complete lines to print, or None at the end of the pipe."""
        chunk = os.read(pipe.fileno(), 1 << 16)
        if pipe is self.process.stdout:
            self._result += chunk
            return [] if chunk else None
        *complete, self._line = (self._line + chunk).split(b"\n") if chunk else (self._line, b"")
        lines = [line for raw in complete if (line := raw.decode(errors="replace").rstrip())]
        self._last_line = lines[-1] if lines else self._last_line
        return lines if chunk else None

    def find_outcome(self, code: int | None, stopped_by: str) -> Outcome | None:
        """Returns the outcome if the process has ended; ends one that hangs after its run has ended.

        Args:
          code: exit code of the process, whose output has been read; None if it has not ended.
          stopped_by: name of the signal that was passed on to the process; '' if none was.
        """
        if code is None:
            if self._result and self._ended_secs is None:
                self._ended_secs = time.monotonic()
            if self._ended_secs is not None and time.monotonic() > self._ended_secs + _EXIT_SECS:
                self.process.kill()
            return None
        try:
            return Outcome(**json.loads(self._result))
        except ValueError:
            pass
        if code == -signal.SIGTERM and stopped_by:  # The worker was not ready to handle it.
            return Outcome("stopped", 0, stopped_by)
        if code < 0:
            return Outcome("failed", 0, f"the process was ended by signal {-code}; it may have run out of memory")
        return Outcome("failed", 0, f"the process ended with exit code {code}: {self._last_line}")


class _WorkerPool(AbstractContextManager["_WorkerPool"]):
    """The running workers, the lines that they print, and the signal that stops them."""

    def __init__(self, output: tuple[bool, Callable[[str], str]], *, num_threads: int):
        self.workers: list[_Worker] = []
        self.stopped_by = ""
        self._output = output
        self._selector = selectors.DefaultSelector()
        threads = {"TF_NUM_INTRAOP_THREADS": str(max(1, num_threads))}
        self._environment = {**threads, "TF_FORCE_GPU_ALLOW_GROWTH": "true", **os.environ}

    def __exit__(self, *raised: Any) -> None:
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()
        self._selector.close()

    def start(self, run: PlannedRun, run_dir: Path) -> Outcome | None:
        """Starts a worker; returns the outcome if the run cannot be sent to another process."""
        import cloudpickle

        try:
            job = cloudpickle.dumps((run, run_dir, *self._output))
        except Exception as error:  # Objects raise errors of any type.
            advice = "pass the data as a path, or run one at a time"
            return Outcome("failed", 0, f"the run cannot be sent to another process ({error}); {advice}")
        worker = _Worker(run, job, self._environment)
        self.workers.append(worker)
        for pipe in worker.pipes:
            self._selector.register(pipe, selectors.EVENT_READ, worker)
        if self.stopped_by:  # The signal arrived while the worker was started.
            worker.process.terminate()
        return None

    def stop(self, signal_name: str) -> None:
        """Asks all workers to save checkpoints and to end."""
        self.stopped_by = signal_name
        for worker in self.workers:
            worker.process.terminate()

    def wait(self) -> list[tuple[str, Outcome]]:
        """Prints what the workers print, and returns the names and outcomes of those that have ended."""
        if not self._selector.get_map():
            time.sleep(_POLL_SECS)
        for key, _ in self._selector.select(_POLL_SECS):
            self._read(key.data, key.fileobj)
        ended = []
        for worker in list(self.workers):
            code = worker.process.poll()
            if code is not None:
                self._read_rest(worker)
            outcome = worker.find_outcome(code, self.stopped_by)
            if outcome is not None:
                self.workers.remove(worker)
                ended.append((worker.name, outcome))
        return ended

    def _read(self, worker: _Worker, pipe: Any) -> None:
        lines = worker.read(pipe)
        if lines is None:
            self._selector.unregister(pipe)
        for line in lines or []:
            print(f"{worker.name}: {line}", file=sys.stderr, flush=True)

    def _read_rest(self, worker: _Worker) -> None:
        """Reads and closes the pipes of a process that has ended."""
        for pipe in worker.pipes:
            os.set_blocking(pipe.fileno(), False)  # A process that the worker started may keep the pipe open.
            with contextlib.suppress(BlockingIOError):
                while pipe in self._selector.get_map():
                    self._read(worker, pipe)
            if pipe in self._selector.get_map():
                self._selector.unregister(pipe)
            pipe.close()
