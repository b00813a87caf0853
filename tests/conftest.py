"""Fixtures for all tests: where the data are, and one Reverb server a module."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import portpicker
import pytest
from hypothesis import HealthCheck, settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import rlds
    import tensorflow_datasets
    import tf_agents.replay_buffers.reverb_utils
    import tf_agents.trajectories

IMPORTED = (rlds, tensorflow_datasets, tf_agents)

settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)
settings.load_profile("tests")


@pytest.fixture(autouse=True, scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Journals of the tests go to a folder of their own."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True, scope="session")
def new_ports() -> Iterator[None]:
    """No port is given to two servers: what is connected to the first would keep others from the second for a while."""
    pick, given = portpicker.pick_unused_port, set()

    def pick_new() -> int:
        while (port := pick()) in given:
            pass
        given.add(port)
        return port

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portpicker, "pick_unused_port", pick_new)
        yield


@pytest.fixture(scope="session")
def data() -> Path:
    return Path(__file__).parent / "data"
