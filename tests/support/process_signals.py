"""Suspends and kills processes, and waits until that has happened, which takes a while on a busy machine."""

import os
import signal
import time
from pathlib import Path


def suspend_process(pid):
    """Sends SIGSTOP, and waits until all threads of the process have stopped."""
    os.kill(pid, signal.SIGSTOP)
    while not all(_has_state(thread, "TtZX") for thread in Path(f"/proc/{pid}/task").iterdir()):
        time.sleep(0.001)


def kill_process(pid):
    """Sends SIGKILL, and waits until the process has released what it held."""
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)


def wait_for_end(pid):
    """Waits until a process has ended; the time limit of the test applies."""
    while not _has_state(Path(f"/proc/{pid}"), "ZX"):
        time.sleep(0.01)


def _has_state(folder, states):
    """Returns whether a process or thread is in one of some states, or has ended."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0] in states
    except (FileNotFoundError, ProcessLookupError):
        return True
