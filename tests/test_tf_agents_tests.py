"""Runs the tests that TF-Agents ships for `rlds_to_reverb` against rlds2reverb's module."""

import importlib.util
from pathlib import Path

import pytest

from rlds2reverb import rlds_to_reverb

pytest.importorskip("rlds", reason="TF-Agents' module requires rlds")
from tf_agents.replay_buffers import rlds_to_reverb as reference

pytestmark = pytest.mark.filterwarnings("ignore:policy_info is left out")


def load_shipped_tests():
    path = Path(reference.__file__).with_name("rlds_to_reverb_test.py")
    spec = importlib.util.spec_from_file_location("shipped_rlds_to_reverb_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.rlds_to_reverb = rlds_to_reverb
    return module


SHIPPED = load_shipped_tests()


@pytest.mark.slow
class TestRldsToReverb(SHIPPED.RldsToReverbTest):
    test_session = None  # This inherited helper of TensorFlow's TestCase is not a test.


class TestRldsToTrajectories(SHIPPED.RldsToTrajectoriesTest):
    test_session = None


#: The tests of all kinds of episodes are fast; those of fewer kinds take as long, and are slow.
FAST = ("with_policy_multiple_episodes", "invalid_episodes_incorrect_ending")
for name in [name for name in dir(TestRldsToTrajectories) if name.startswith("test_conversion_")]:
    if not name.endswith(FAST) and "no_step_episodes" not in name:
        setattr(TestRldsToTrajectories, name, pytest.mark.slow(getattr(TestRldsToTrajectories, name)))


def test_all_39_shipped_tests_run():
    names = [name for case in (TestRldsToReverb, TestRldsToTrajectories) for name in dir(case) if name[:5] == "test_"]
    assert len([name for name in names if name != "test_session"]) == 39
