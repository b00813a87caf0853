"""A user's script has nothing on stderr but what it writes there itself."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import logging, os, sys
from rlds2reverb import ReplayServer, TableConfig, TrajectoryWindows, ingest, load, sample_dataset

source = load(sys.argv[1])
adder = TrajectoryWindows(2)
with ReplayServer([TableConfig("replay")], adder.item_spec(source.step_spec)) as server:
    ingest(source, server, "replay", adder=adder)
    for batch in sample_dataset(server, "replay", batch_size=256).take(1):
        logging.warning("my own line")
os.write(2, b"and another\\n")
"""


@pytest.mark.slow
def test_a_script_is_quiet_unless_the_logs_are_asked_for(data):
    path = str(data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5")
    variables = {
        name: value for name, value in os.environ.items() if name not in ("TF_CPP_MIN_LOG_LEVEL", "GRPC_VERBOSITY")
    }
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, path],
            stderr=subprocess.PIPE,
            text=True,
            env={**variables, "RLDS2REVERB_LOG": log},
        )
        for log in ("", "1")
    ]
    quiet, loud = (run.communicate(timeout=100)[1] for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert quiet == "WARNING:root:my own line\nand another\n"
    assert "Started replay server" in loud and "Gym has been unmaintained" in loud and len(loud.splitlines()) > 8
