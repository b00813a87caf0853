"""A plugin of pytest that records which test calls which functions, for `mutations.py`:

    python -m pytest -n 2 -p called_functions -m "not slow" tests

Each process writes the file `build/called/PID.json`: the seconds of each test, and the tests that call each function, by
'FILE:FUNCTION'. Functions that programs call, or that ran while modules were imported, are missing.
"""

import json
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CALLED = ROOT / "build/called"
_FOLDERS = tuple(f"{ROOT / name}/" for name in ("rlds2reverb", "adders", "learners", "envs", "training", "cli"))
_seconds: dict[str, float] = {}
_tests: dict[str, set[str]] = defaultdict(set)
_names: dict[object, str | None] = {}
_current = ""


def _record(frame, event, _) -> None:
    code = frame.f_code
    if event != "call" or not _current:
        return
    if code not in _names:
        _names[code] = _find_name(code)
    name = _names[code]
    if name is not None:
        _tests[name].add(_current)


def _find_name(code) -> str | None:
    if not code.co_filename.startswith(_FOLDERS):
        return None
    function = code.co_qualname.replace(".<locals>", "").partition(".<")[0]  # Python 3.11.
    return f"{Path(code.co_filename).relative_to(ROOT)}:{function}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    global _current
    _current, start = item.nodeid, time.monotonic()
    threading.setprofile(_record)
    sys.setprofile(_record)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        _seconds[item.nodeid], _current = time.monotonic() - start, ""


def pytest_sessionfinish() -> None:
    if _seconds:
        CALLED.mkdir(parents=True, exist_ok=True)
        numbers = {test: number for number, test in enumerate(_seconds)}
        tests = {name: [numbers[test] for test in tests] for name, tests in _tests.items()}
        content = {"seconds": list(_seconds.items()), "tests": tests}
        (CALLED / f"{os.getpid()}.json").write_text(json.dumps(content))


def read_called() -> dict[str, list[tuple[float, str]]]:
    """Returns the seconds and names of the tests that call each function, the fastest first."""
    called: dict[str, list[tuple[float, str]]] = defaultdict(list)
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    for path in CALLED.glob("*.json"):
        content = json.loads(path.read_text())
        for name, numbers in content["tests"].items():
            tests = [content["seconds"][number] for number in numbers]
            # Names with addresses differ between processes, and files may have been renamed since.
            called[name] += [
                (secs, test) for test, secs in tests if " at 0x" not in test and test.split("::")[0] in files
            ]
    return {name: sorted(tests) for name, tests in called.items()}
