"""Fixtures for all tests: where the data are, and one Reverb server a module."""

import os
import warnings
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

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


@pytest.fixture(scope="session")
def data() -> Path:
    return Path(__file__).parent / "data"
