"""Trials that use each library once. `doctor` runs them in a subprocess, so that it can report a crash.

python -m rlds2reverb.cli.trials h5py reverb
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Sequence

from . import output


def try_reverb() -> str:
    """Starts a server, writes one item and reads it back."""
    import numpy as np

    from rlds2reverb._server.replay_server import ReplayServer
    from rlds2reverb.ingestion import ingest
    from rlds2reverb.tables import TableConfig

    flags = {name: np.array([name == "is_first", name == "is_last"]) for name in ("is_first", "is_last", "is_terminal")}
    numbers = {name: np.arange(2, dtype=np.float32) for name in ("observation", "action", "reward", "discount")}
    with ReplayServer([TableConfig()]) as server:
        ingest([{**numbers, **flags}], server, timeout_secs=10)
        observations = [float(step.data[1]) for step in next(iter(server.client.sample("replay")))]
        if observations != [0.0, 1.0]:
            raise RuntimeError(f"wrote the observations 0 and 1, read {observations}")
    return "wrote an item to a server and read it back"


def try_tensorflow() -> str:
    """Adds two numbers."""
    import tensorflow as tf

    total = int(tf.reduce_sum(tf.constant([1, 2])))
    if total != 3:
        raise RuntimeError(f"1 + 2 is {total}")
    return f"{tf.__version__}, {output.count(len(tf.config.list_physical_devices('GPU')), 'GPU')}"


def try_tf_agents() -> str:
    """Builds a trajectory."""
    import numpy as np
    from tf_agents.trajectories import trajectory

    boundary = trajectory.boundary((), (), (), np.zeros(2, np.float32), np.ones(2, np.float32))
    return f"built a {type(boundary).__name__}"


def try_tfds() -> str:
    """Imports TFDS, and the package that it needs to prepare datasets."""
    import importlib_resources
    import tensorflow_datasets as tfds

    importlib_resources.files("tensorflow_datasets")
    return f"{tfds.__version__} loads"


def try_h5py() -> str:
    """Writes and reads a file in memory."""
    import h5py

    with h5py.File(io.BytesIO(), "w") as file:
        file["x"] = [1, 2, 3]
        return f"HDF5 {h5py.version.hdf5_version}, wrote and read {len(file['x'])} numbers"


TRIALS: dict[str, Callable[[], str]] = {
    "h5py": try_h5py,
    "tensorflow": try_tensorflow,
    "tf_agents": try_tf_agents,
    "tfds": try_tfds,
    "reverb": try_reverb,
}


def main(names: Sequence[str]) -> None:
    """Prints one line of JSON per trial as soon as it ends: `{"result": ...}` or `{"error": ...}`."""
    for name in names:
        try:
            outcome = {"result": TRIALS[name]()}
        except Exception as error:  # A broken installation may raise anything.
            outcome = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(outcome), flush=True)
    os._exit(0)  # Skips destructors, which could crash after successful trials.


if __name__ == "__main__":
    main(sys.argv[1:])
