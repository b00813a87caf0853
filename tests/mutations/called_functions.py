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
#: Maximum number of tests that are recorded for one function.
_MAX_TESTS = 200
_seconds: dict[str, float] = {}
_tests: dict[str, dict[str, None]] = defaultdict(dict)
_names: dict[object, str | None] = {}
_current = ""


def _record(frame, event, _) -> None:
    code = frame.f_code
    if event != "call" or not _current:
        return
    if code not in _names:
        _names[code] = _find_name(code)
    name = _names[code]
    if name is not None and len(_tests[name]) < _MAX_TESTS:
        _tests[name][_current] = None


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
        content = {"seconds": _seconds, "tests": {name: list(tests) for name, tests in _tests.items()}}
        (CALLED / f"{os.getpid()}.json").write_text(json.dumps(content))


def read_called() -> dict[str, list[tuple[float, str]]]:
    """Returns the seconds and names of the tests that call each function, the fastest first."""
    called: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for path in CALLED.glob("*.json"):
        content = json.loads(path.read_text())
        for name, tests in content["tests"].items():
            # Names with addresses differ between processes.
            called[name] += [(content["seconds"][test], test) for test in tests if " at 0x" not in test]
    return {name: sorted(tests) for name, tests in called.items()}
