"""Fixtures for all tests: the data folder, unused ports, and folders for journals and temporary files."""

import atexit
import gc
import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Several test processes share the cores; threads that spin while they wait for work would slow all of them down.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import portpicker
import pytest
from drill_report import (  # noqa: F401 - hooks and fixtures for pytest
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_generate_tests,
    recovery,
)
from skipped_exports import skip_exports
from skipped_images import choose_rendering

HAS_REVERB = find_spec("reverb") is not None

_FIRST_PORT, _LAST_PORT = 25_000, 32_000


#: Why a test is skipped if dm-reverb, which has no wheels for this Python, is imported in the process of the tests.
NO_REVERB = "requires dm-reverb, which is not installed"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Prepares this process for tests, unless it only distributes them to others."""
    if not session.config.getoption("numprocesses", None):
        # Tracing creates many objects that stay, among which Python would otherwise look for garbage all the time.
        gc.set_threshold(50_000, 50, 1000)
        # Modules and collected tests are no garbage, either.
        gc.disable()
        import_libraries()


def import_libraries() -> None:
    """Imports libraries whose warnings would be errors in tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import properties  # noqa: F401 - imports Hypothesis
        import tensorflow_datasets  # noqa: F401
        import tf_agents.trajectories

        if HAS_REVERB:
            import rlds  # noqa: F401 - imports dm-reverb
            import tf_agents.replay_buffers.reverb_utils  # noqa: F401


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Executes graphs of fast tests as they were traced, because they run too few steps to repay TensorFlow's optimizer.

    Images of their figures are empty unless they use the fixture `drawn`, since most tests look at the figures only.
    Slow tests, and processes that tests start, use the optimizer and draw all figures.
    """
    import tensorflow as tf

    is_fast = item.get_closest_marker("slow") is None and not os.environ.get("THOROUGH")
    if is_fast != tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False):
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": is_fast})
    choose_rendering(is_drawn=not is_fast or "drawn" in getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Skips test modules that import dm-reverb if it is not installed."""
    report: Any = yield
    return _skip_without_reverb(report, str(collector.path), 1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Skips tests in which dm-reverb is imported if it is not installed."""
    report: Any = yield
    return _skip_without_reverb(report, str(item.path), item.location[1])


def _skip_without_reverb(report: Any, path: str, line: int | None) -> Any:
    if report.outcome == "failed" and not HAS_REVERB and "No module named 'reverb'" in str(report.longrepr):
        report.outcome, report.longrepr = "skipped", (path, line, NO_REVERB)
    return report


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Makes processes that xdist started exit without deleting each of their objects, which would take seconds."""
    if hasattr(session.config, "workerinput"):
        atexit.register(exit_without_cleanup)


def exit_without_cleanup() -> None:
    """Runs the other exit handlers, and exits."""
    atexit.unregister(exit_without_cleanup)
    atexit._run_exitfuncs()
    os._exit(0)


@pytest.fixture(autouse=True, scope="module")
def frozen_objects() -> Iterator[None]:
    """Freezes what the tests of a module leave behind, such as caches of TensorFlow."""
    yield
    freeze_objects()


def freeze_objects() -> None:
    """Excludes all existing objects from garbage collection.

    Learners collect garbage when they are closed, which would take longer than everything else that they do in a test.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Redirects journals to a temporary folder."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True, scope="session")
def temporary_files() -> Iterator[None]:
    """Redirects temporary files to a folder that is deleted at the end, since killed processes leave files behind.

    The folder has a short name because paths of sockets are limited to 107 characters.
    """
    folder = tempfile.mkdtemp(prefix="tests-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", None)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def unique_ports() -> Iterator[None]:
    """Makes portpicker and servers choose each port only once, and different ports in each test process.

    If two servers used the same port, connections to the first would block clients of the second for a while.
    """
    from rlds2reverb.reverb.server import ports as ports_of_servers

    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = itertools.count(_FIRST_PORT + number * (_LAST_PORT - _FIRST_PORT) // count)

    def pick_port() -> int:
        return next(port for port in ports if portpicker.is_port_free(port))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portpicker, "pick_unused_port", pick_port)
        patch.setattr(ports_of_servers, "find_port", pick_port)
        yield


@pytest.fixture
def no_policies() -> Iterator[None]:
    """Prevents runs from exporting their policies."""
    with skip_exports():
        yield


@pytest.fixture
def drawn() -> None:
    """Requests that figures are drawn."""


@pytest.fixture(scope="session")
def data() -> Path:
    return Path(__file__).parent / "data"
