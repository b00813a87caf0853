"""Short training commands for the drill, and how to compare the runs that they leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data/d4rl/pendulum_mixed-v2.hdf5"
NUM_UPDATES = 400


def make_arguments(run_dir, *options):
    return [
        *("train", "--algo", "td3_bc", "--data", str(DATA), "--run-dir", str(run_dir), "--steps", str(NUM_UPDATES)),
        *("--set", "hidden_sizes=(8,8)", "--eval-every", "100", "--eval-episodes", "1", "--log-every", "50"),
        *("--checkpoint-every", "100", *(() if "--seeds" in options else ("--seed", "3")), *options),
    ]


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
