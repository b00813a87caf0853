"""Runs of a plan: one after the other in this process, or several at a time in worker processes.

A *placement* is a function `(runs, root, report)` that runs all of them and returns the name of the signal that stopped
it, or ''. It calls `report(name, outcome)` in the calling thread whenever a run ends. Placements know nothing of plans
or tables, so that others, such as one on a cluster, can take their place.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.system.platform import available_cores
from rlds2reverb.system.signals import Terminated, raise_on_sigterm, stop_on_signal
from rlds2reverb.system.task_process import TaskFailedError, TaskProcess
from rlds2reverb.system.text import last_line

from .plans import PlannedRun
from .progress import Progress

#: How a run ended. A run that was stopped by a signal or that failed can be continued.
State = Literal["complete", "stopped", "failed"]
_POLL_SECS = 0.2


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
    make_progress: Callable[[], Progress] = Progress,
) -> str:
    """Runs one run after the other in this process; a run that fails does not affect the others.

    Args:
      runs: the runs.
      root: directory that contains the directories of the runs.
      report: function called with the name and the outcome of each run that ends.
      make_progress: function that returns what prints the notes and the progress of a run.

    Returns:
      The name of the signal that stopped a run, after which no other run is started; '' if none did.
    """
    for number, run in enumerate(runs, 1):
        progress = make_progress()
        progress.note(f"{run.name} ({number} of {len(runs)})")
        outcome = execute(run, root / run.name, progress)
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
    make_progress: Callable[[], Progress] = Progress,
) -> str:
    """Runs each run in its own process, `jobs` at a time; the processes share the cores of this machine.

    SIGTERM and SIGINT are passed on to the processes, which save checkpoints and end; a second signal ends all of them
    immediately. If this process is killed, the workers end as well.

    Args:
      runs: the runs. Data and options that are objects in memory are sent to the process with cloudpickle.
      root: directory that contains the directories of the runs.
      report: function called with the name and the outcome of each run that ends.
      jobs: maximum number of processes at a time, at least 1.
      make_progress: function that returns what prints the notes and the progress of a run.

    Returns:
      The name of the signal that stopped the runs; '' if none did.
    """
    threads = {"TF_NUM_INTRAOP_THREADS": str(max(1, available_cores() // jobs))}
    environment = {**threads, "TF_FORCE_GPU_ALLOW_GROWTH": "true", **os.environ}
    waiting, workers, stopped_by = deque(runs), dict[str, TaskProcess](), ""

    def stop(signal_name: str) -> None:
        nonlocal stopped_by
        stopped_by = signal_name
        for worker in workers.values():
            worker.terminate()

    with ExitStack() as stack, stop_on_signal(stop):
        while workers or (waiting and not stopped_by):
            while waiting and len(workers) < jobs and not stopped_by:
                run = waiting.popleft()
                arguments, on_line = (run, root / run.name, make_progress), partial(_print_line, run.name)
                try:
                    worker = TaskProcess(_execute_here, *arguments, environment=environment, on_line=on_line)
                except TypeError as error:
                    advice = "pass the data as a path, or run one at a time"
                    report(run.name, Outcome("failed", 0, f"the run {error}; {advice}"))
                    continue
                workers[run.name] = stack.enter_context(worker)
                if stopped_by:  # The signal arrived while the worker was started.
                    worker.terminate()
            time.sleep(_POLL_SECS)
            for name in [name for name, worker in workers.items() if worker.is_done()]:
                with workers.pop(name) as worker:  # Closes its pipes, of which many runs would have too many.
                    report(name, _find_outcome(worker, stopped_by))
    return stopped_by


def _print_line(name: str, line: str) -> None:
    sys.stderr.write(f"{name}: {line}\n")  # In one call, so that those of several threads do not mix.
    sys.stderr.flush()


def _execute_here(run: PlannedRun, run_dir: Path, make_progress: Callable[[], Progress]) -> Outcome:
    """Executes a run in the process that was started for it, until SIGTERM arrives."""
    try:
        with raise_on_sigterm():
            outcome = execute(run, run_dir, make_progress())
    except Terminated:
        outcome = Outcome("stopped", 0, signal.SIGTERM.name)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # The outcome is still to be sent.
    return outcome


def _find_outcome(worker: TaskProcess, stopped_by: str) -> Outcome:
    """Returns the outcome of a run whose process has ended.

    Args:
      worker: the process.
      stopped_by: name of the signal that was passed on to it; '' if none was.
    """
    try:
        outcome: Outcome = worker.result()
    except TaskFailedError as error:
        if error.code == -signal.SIGTERM and stopped_by:  # The process was not ready to handle it.
            return Outcome("stopped", 0, stopped_by)
        advice = "; it may have run out of memory" if error.code < 0 else ""
        return Outcome("failed", 0, f"the process {error}{advice}")
    except Exception as error:  # Unpickling imports modules of users.
        return Outcome("failed", 0, f"the run cannot be read in another process ({error}); run one at a time")
    return outcome


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
            if learner.is_stopped_by_signal and not training.is_complete:
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
    message = last_line(describe(str(error))) or kind
    if isinstance(error, (Rlds2ReverbError, OSError, ImportError)):
        return message
    reason = message if isinstance(error, ValueError) or message == kind else f"{kind}: {message}"
    return f"{reason}; see {report}" if report.exists() else reason
