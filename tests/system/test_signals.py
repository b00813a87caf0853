"""Tests of signals: those of forked processes."""

import subprocess
import sys

FORKED = """
import os, signal, time
from rlds2reverb.system.signals import stop_on_signal

def fork():
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    return pid

signals = []
with stop_on_signal(signals.append):
    *ended, left = [fork() for _ in range(3)]
    for pid in ended:
        os.kill(pid, signal.SIGTERM)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ended]
os.kill(left, signal.SIGKILL)
print(codes, signals)
"""


def test_a_context_neither_waits_for_forked_processes_nor_gets_their_signals():
    result = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "[-15, -15] []\n"
