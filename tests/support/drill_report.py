"""The reliability drill: tests that are marked with the fault that they inject, and the table of their results.

    pytest -m drill --drill-trials 20 --drill-table docs/drill.md tests

A test marked `@pytest.mark.drill("F1")` is a scenario of that fault. One with the argument `drill_seed` is repeated with
the seeds 0, 1, ...; the seed that reproduces a failure is part of its name. `recovery` measures how long it takes until
the product works again. All functions here are imported by `conftest.py`.
"""

from __future__ import annotations

import os
import platform
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pytest

#: What each fault is, in the order of the table.
FAULTS = {
    "F1": "server killed during ingestion",
    "F2": "writer killed",
    "F3": "server and writer killed",
    "F4": "SIGTERM to a server and to a conversion",
    "F5": "SIGTERM or SIGINT, once and twice, in each phase of training",
    "F6": "training killed at random moments",
    "F7": "crash at each write, fsync and rename of a save",
    "F8": "newest checkpoint truncated, flipped, emptied, or without a file",
    "F9": "disk full",
    "F10": "foreign file in a checkpoint root",
    "F11": "wrong dtype, shape or key, ragged input",
    "F12": "policy that returns NaN or Inf",
    "F13": "invalid priorities",
    "F14": "server down at the start",
    "F15": "server that does not answer (SIGSTOP)",
    "F16": "slow consumer",
    "F17": "misconfigured rate limiters",
    "F18": "port in use",
    "F19": "environment worker killed, raising, hanging, or not starting",
    "F20": "non-finite losses",
    "F21": "hostile HDF5 files",
    "F22": "hostile TFRecords, features and names",
    "F23": "pickled data in files",
    "F24": "SavedModels of strangers",
    "F25": "server reachable from other machines",
    "F26": "clock set back",
    "F27": "two learners in one directory",
    "F28": "server restarted with a different signature",
    "F29": "every bundle of a conversion on Beam fails once",
    "F30": "hostile chunks",
    "F31": "written directories on Reverb's own server",
    "F32": "SIGSTOP for 30 s",
    "F33": "random faults for a long time",
    "user code": "exceptions and hangs in hooks, environments and datasets",
    "moved": "data changed, run directory moved, served table restarted",
    "replay": "in-process replay killed in a checkpoint, and used by many threads",
    "network": "network between a server and its clients cut for some seconds",
    "cluster": "a process or a node of a cluster killed, a network cut",
    "fuzzing": "random bytes in every file that is parsed",
}
#: The line after the table; what follows it is kept when the table is written again.
_END = "<!-- `make drill` writes everything above this line. -->"
_FAULT, _RECOVERY = "drill_fault", "drill_recovery_secs"


def pytest_addoption(parser):
    group = parser.getgroup("drill")
    group.addoption("--drill-trials", type=int, default=2, help="number of seeds of scenarios in which chance decides")
    group.addoption("--drill-table", type=Path, help="write the table of faults, trials and failures to this file")


def pytest_configure(config):
    config.addinivalue_line("markers", "drill(fault): a scenario of the reliability drill; run by `make drill`")
    path = config.getoption("--drill-table")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Table(path.resolve()))


def pytest_generate_tests(metafunc):
    if "drill_seed" in metafunc.fixturenames:
        metafunc.parametrize("drill_seed", range(metafunc.config.getoption("--drill-trials")), ids="seed{}".format)


def pytest_collection_modifyitems(config, items):
    if config.getoption("--drill-table") is not None:
        # These count the descriptors of their process, which the connections of earlier tests would change.
        items.sort(key=lambda item: "tests/envs/" not in item.nodeid)
    for item in items:
        marker = item.get_closest_marker("drill")
        if marker is not None:
            (fault,) = marker.args
            assert fault in FAULTS, f"{item.nodeid} is marked with the unknown fault {fault!r}"
            item.user_properties.append((_FAULT, fault))


@pytest.fixture
def recovery(record_property):
    """Returns a context that measures one recovery: from the fault to the first success after it."""

    @contextmanager
    def measure():
        began = time.monotonic()
        yield
        record_property(_RECOVERY, time.monotonic() - began)

    return measure


class _Table:
    """Collects the results of marked tests, and writes them at the end."""

    def __init__(self, path):
        self._path, self._began = path, time.monotonic()
        self._trials, self._failures, self._skips = defaultdict(int), defaultdict(list), defaultdict(set)
        self._slowest = defaultdict(float)
        self._notes = path.read_text(encoding="utf-8").partition(_END)[2] if path.exists() else "\n"

    def pytest_runtest_logreport(self, report):
        properties = report.user_properties
        fault = dict(properties).get(_FAULT)
        if fault is None:
            return
        if report.when == "call" and not report.skipped:
            self._trials[fault] += 1
        if report.failed:
            self._failures[fault].append(report.nodeid)
        if report.skipped and isinstance(report.longrepr, tuple):
            self._skips[fault].add(report.longrepr[2].removeprefix("Skipped: "))
        if report.when == "call":
            secs = [value for name, value in properties if name == _RECOVERY]
            self._slowest[fault] = max([self._slowest[fault], *secs])
            self._path.write_text(f"{self._format()}\n{_END}{self._notes}", encoding="utf-8")

    def _format(self):
        minutes = (time.monotonic() - self._began) / 60
        total, failed = sum(self._trials.values()), sum(map(len, self._failures.values()))
        lines = [
            "# Reliability drill",
            "",
            f"`make drill` on {time.strftime('%d %B %Y')}, {os.cpu_count()} cores, Python {platform.python_version()}: "
            f"{total:,} trials, {failed} failures, {minutes:.0f} minutes. A recovery is the time from the fault until the "
            "product works again; it is measured where a process has to be restarted.",
            "",
            "| fault | | trials | failures | slowest recovery |",
            "|---|---|---|---|---|",
        ]
        for fault, text in FAULTS.items():
            secs = f"{self._slowest[fault]:.1f} s" if self._slowest[fault] else ""
            lines.append(f"| {fault} | {text} | {self._trials[fault]} | {len(self._failures[fault])} | {secs} |")
        for title, names in (("Failures", self._failures), ("Skipped", self._skips)):
            found = [f"- {fault}: {name}" for fault, tests in names.items() for name in sorted(tests)]
            lines += ["", f"{title}:", "", *found] if found else []
        return "\n".join(lines) + "\n"
