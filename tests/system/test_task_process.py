"""Calls in other processes: results, errors, output, and the ends of processes."""

import contextlib
import operator
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from process_resources import find_children
from process_signals import wait_for_end

from rlds2reverb.system import task_process
from rlds2reverb.system.task_process import TaskFailedError, TaskProcess


def call(function, *arguments, **options):
    with TaskProcess(function, *arguments, **options) as process:
        return process.result()


def test_results_and_errors_reach_the_caller():
    before = len(os.listdir("/proc/self/fd"))
    assert call(operator.add, [1], [2], on_line=print) == [1, 2]
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(KeyError, match="'a'"):
        call(operator.getitem, {}, "a")


@pytest.mark.parametrize(
    ("function", "arguments", "message", "code"),
    [
        (os._exit, (3,), "ended with exit code 3", 3),
        (signal.raise_signal, (signal.SIGKILL,), "was ended by signal 9", -9),
        (sys.exit, (3,), "raised SystemExit: 3", 0),
        (bytes.decode, (b"\xff",), "codec can't decode", None),
        (threading.Lock, (), "cannot pickle", None),
    ],
)
def test_calls_without_a_result_raise(function, arguments, message, code):
    with pytest.raises((TaskFailedError, ValueError, TypeError), match=message) as caught:
        call(function, *arguments)
    assert getattr(caught.value, "code", None) == code


def test_arguments_that_cannot_be_sent_raise_before_the_process_starts():
    with pytest.raises(TypeError, match="cannot be sent to another process .*lock"):
        TaskProcess(len, threading.Lock())


def test_output_is_passed_on_by_lines_and_ends_the_message():
    lines = []
    script = "print('one'); print(); import os; os.write(2, b'two'); os._exit(1)"
    with pytest.raises(TaskFailedError, match="ended with exit code 1: two"):
        call(exec, script, on_line=lines.append, environment={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert lines == ["one", "two"]


@pytest.mark.timeout(30)
def test_process_that_hangs_after_its_call_is_ended(monkeypatch):
    monkeypatch.setattr(task_process, "EXIT_SECS", 0.1)
    script = "import threading, time; threading.Thread(target=time.sleep, args=(300,)).start()"
    with TaskProcess(exec, script) as process:
        while not process.is_done():
            time.sleep(0.05)
        assert process.result() is None


@pytest.mark.timeout(30)
def test_processes_end_with_their_caller_and_when_they_are_closed():
    code = (
        "import time; from rlds2reverb.system.task_process import TaskProcess; "
        "process = TaskProcess(time.sleep, 300); print('started', flush=True); time.sleep(300)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert caller.stdout.readline() == "started\n"
    (pid,) = find_children(caller.pid)
    try:
        caller.kill()
        caller.communicate()
        wait_for_end(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process = TaskProcess(time.sleep, 60)
    process.close()
    process.close()
    assert process.is_done()
