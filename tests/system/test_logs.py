"""Tests that other libraries print nothing to stderr in a user's script."""

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
        logging.warning("a line of the script")
os.write(2, b"and a second one\\n")
"""


@pytest.mark.slow
def test_script_prints_only_its_own_lines_unless_logs_are_enabled(data):
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
    quiet, verbose = (run.communicate(timeout=100)[1] for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert quiet == "WARNING:root:a line of the script\nand a second one\n"
    assert (
        "Started replay server" in verbose and "Gym has been unmaintained" in verbose and len(verbose.splitlines()) > 8
    )


@pytest.mark.parametrize(("log", "expected"), [("", ""), ("1", "notice\n")])
def test_notices_of_tensorflow_s_import_are_hidden_unless_logs_are_enabled(tmp_path, log, expected):
    (tmp_path / "tensorflow.py").write_text('import os\nos.write(2, b"notice\\n")\nnumber = 3\n')
    script = "import importlib.util, rlds2reverb\nimportlib.util.find_spec('tensorflow')\nimport tensorflow as tf\n"
    run = subprocess.run(
        [sys.executable, "-c", f"{script}print(tf.number)"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "RLDS2REVERB_LOG": log},
        timeout=100,
    )
    assert (run.stdout, run.stderr) == ("3\n", expected)


def test_errors_of_tensorflow_s_import_are_raised(tmp_path):
    (tmp_path / "tensorflow.py").write_text('raise ImportError("no AVX")\n')
    command = [sys.executable, "-c", "import rlds2reverb, tensorflow"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "RLDS2REVERB_LOG": ""}
    run = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=100)
    assert run.returncode == 1 and run.stderr.endswith("ImportError: no AVX\n")
