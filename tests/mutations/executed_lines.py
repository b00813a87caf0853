"""A plugin of pytest that records which test executes which lines, for `mutations.py`:

    pip install coverage
    python -m pytest -n 2 -p executed_lines -m "not slow" tests

Each process writes a folder in `build/executed`: a file of coverage.py, whose contexts are the tests, the seconds of
each test, and a copy of the sources. Lines that programs execute, or that ran while modules were imported, are missing.
"""

import json
import os
import shutil
import time
from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import coverage

ROOT = Path(__file__).parent.parent.parent
EXECUTED = ROOT / "build/executed"
#: The folders of sources.
FOLDERS = ("rlds2reverb", "adders", "learners", "envs", "training", "cli")
_seconds: dict[str, float] = {}
_recorders: list["coverage.Coverage"] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    if not _recorders:
        _recorders.append(_start(EXECUTED / str(os.getpid())))
    _recorders[0].switch_context(item.nodeid)
    start = time.monotonic()
    try:
        return (yield)
    finally:
        _seconds[item.nodeid] = time.monotonic() - start
        _recorders[0].switch_context("")


def _start(folder: Path) -> "coverage.Coverage":
    import coverage

    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    sources = [str(ROOT / name) for name in FOLDERS]
    recorder = coverage.Coverage(str(folder / "lines"), config_file=False, source=sources)
    recorder.start()
    return recorder


def pytest_sessionfinish() -> None:
    if _recorders:
        _recorders[0].stop()
        _recorders[0].save()
        (EXECUTED / f"{os.getpid()}/seconds.json").write_text(json.dumps(_seconds))


class ExecutedLines:
    """What the plugin recorded, apart from tests whose files have been renamed since.

    Attributes:
      seconds: the seconds of each test.
    """

    def __init__(self) -> None:
        import coverage

        files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
        self.seconds: dict[str, float] = {}
        self._records: list[tuple[Path, coverage.CoverageData]] = []
        for path in EXECUTED.glob("*/seconds.json"):
            tests = json.loads(path.read_text()).items()
            # Names with addresses differ between processes.
            self.seconds |= {
                test: secs for test, secs in tests if " at 0x" not in test and test.split("::")[0] in files
            }
            record = coverage.CoverageData(str(path.parent / "lines"))
            record.read()
            self._records.append((path.parent, record))
        self._tests: dict[str, dict[int, set[str]]] = {}

    def find_tests(self, file: str, lines: Iterable[int]) -> set[str]:
        """Returns the tests that execute any of the lines of a file."""
        if file not in self._tests:
            self._tests[file] = self._read(file)
        return {test for line in lines for test in self._tests[file].get(line, ())}

    def _read(self, file: str) -> dict[int, set[str]]:
        """Returns the tests of each line of a file, whose lines may have moved since."""
        found: dict[int, set[str]] = {}
        new = (ROOT / file).read_text().splitlines()
        for folder, record in self._records:
            old = (folder / file).read_text().splitlines() if (folder / file).is_file() else []
            tests = record.contexts_by_lineno(str(ROOT / file))
            for old_start, new_start, size in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
                for line in range(1, size + 1):
                    known = (test for test in tests.get(old_start + line, ()) if test in self.seconds)
                    found.setdefault(new_start + line, set()).update(known)
        return found
