"""Losses of a hundred updates are equal on all versions of Python, TensorFlow and NumPy, up to float tolerance.

The losses in `tests/data/losses.json` are those of Python 3.11, TensorFlow 2.15.1 and NumPy 1.26. They depend on the order of
the data, on the initial weights and on every update. `python tests/training/test_losses.py` writes the file again.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from rlds2reverb import train

DATA = Path(__file__).parents[1] / "data"
FILE = DATA / "losses.json"
ALGORITHMS = ("bc", "td3_bc", "iql", "cql", "awac", "rebrac")


def compute_losses(algorithm, run_dir):
    """Returns the loss after every tenth update."""
    options = {"hyperparameters": {"hidden_sizes": (32, 32)}, "env": None, "progress": False}
    options |= {"normalize_observations": False} if algorithm == "bc" else {}
    run = train(DATA / "d4rl/pendulum_mixed-v2.hdf5", algorithm, run_dir, steps=100, log_every=10, **options)
    return [float(loss) for loss in run.progress["loss"]]


@pytest.mark.usefixtures("no_policies")
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_losses_equal_those_of_other_versions(algorithm, tmp_path):
    expected = json.loads(FILE.read_text())[algorithm]
    losses = compute_losses(algorithm, tmp_path / "run")
    assert len(losses) == len(expected) == 10
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


if __name__ == "__main__":
    FILE.write_text(
        json.dumps({name: compute_losses(name, tempfile.mkdtemp()) for name in ALGORITHMS}, indent=1) + "\n"
    )
