"""Short training commands for the drill, and how to compare the runs that they leave."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from rlds2reverb import ReplayServer

DATA = Path(__file__).parents[1] / "data/d4rl/pendulum_mixed-v2.hdf5"
NUM_UPDATES = 400


def make_arguments(run_dir, *options):
    return [
        *("train", "--algo", "td3_bc", "--data", str(DATA), "--run-dir", str(run_dir), "--steps", str(NUM_UPDATES)),
        *("--set", "hidden_sizes=(8,8)", "--eval-every", "100", "--eval-episodes", "1", "--log-every", "50"),
        *("--checkpoint-every", "100", *(() if "--seeds" in options else ("--seed", "3")), *options),
    ]


def serve_directory(channel, directory, port):
    """Serves a directory until the test ends; sends the port."""
    with ReplayServer(directory=directory, port=port) as server:
        channel.send(server.port)
        channel.recv()


def train_by_command(channel, arguments, log):
    """Runs a command; sends 'updates' after some updates, and finally its exit code."""
    from rlds2reverb.cli import run
    from rlds2reverb.learners.train_loop import TrainLoop

    call = TrainLoop.__call__

    def call_and_report(loop, *inputs, **options):
        result = call(loop, *inputs, **options)
        if loop.step == 100:
            channel.send("updates")
            channel.recv()
        return result

    TrainLoop.__call__ = call_and_report
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.stdout = sys.stderr = os.fdopen(os.dup(2), "w")
    code = run(arguments)
    sys.stderr.flush()
    channel.send(code)


def read_rows(run_dir):
    """Returns the rows of `progress.csv` without the columns of times, and the content of `evaluations.csv`, if any."""
    names, *rows = (line.split(",") for line in (run_dir / "progress.csv").read_text().splitlines())
    kept = [number for number, name in enumerate(names) if not name.endswith(("secs", "_ms", "_share", "per_sec"))]
    evaluations = run_dir / "evaluations.csv"
    return [[row[number] for number in kept] for row in rows], evaluations.read_text() if evaluations.exists() else ""


def read_weights(run_dir):
    """Returns the content of the last checkpoint's variables, by name."""
    import tensorflow as tf

    path = max((run_dir / "checkpoints").glob("[0-9]*"))
    prefix = tf.train.latest_checkpoint(str(path)) or str(next(path.glob("**/*.index")).with_suffix(""))
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if "OBJECT" not in name}


def require_equal_runs(one, other):
    assert read_rows(one) == read_rows(other)
    first, second = read_weights(one), read_weights(other)
    assert first.keys() == second.keys() and len(first) > 10
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
