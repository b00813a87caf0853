"""How fast episodes get into a live Reverb table: ours and TF-Agents' reference, on the same data, in one run.

    python benchmarks/bench_ingest.py [--runs 5] [--episodes N]

Every way writes the same items: windows of two trajectories, one table, one server a run.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
warnings.simplefilter("ignore")

import h5py
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tf_agents.replay_buffers import reverb_utils
from tf_agents.replay_buffers import rlds_to_reverb as reference

from rlds2reverb import ReplayServer, TableConfig, ingest, item_signature, load, trajectory_columns, trajectory_spec
from rlds2reverb import rlds_to_reverb as ours

DATA = Path(__file__).parents[1] / "tests/data"
PREPARED = DATA / "rlds/physics_rlds/hopper_flat/1.0.0"


def write_d4rl(path: Path, episodes: list[dict]) -> None:
    """The same episodes as a D4RL file."""
    columns: dict[str, list] = {}
    for steps in episodes:
        terminal = bool(steps["is_terminal"][-1])
        last = np.arange(len(steps["reward"]) - 1) == len(steps["reward"]) - 2
        rows = {
            "observations": steps["observation"][:-1],
            "next_observations": steps["observation"][1:],
            "actions": steps["action"][:-1],
            "rewards": steps["reward"][:-1],
            "terminals": last & terminal,
            "timeouts": last & (not terminal),
        }
        for name, column in rows.items():
            columns.setdefault(name, []).append(column)
    with h5py.File(path, "w") as file:
        for name, parts in columns.items():
            file.create_dataset(name, data=np.concatenate(parts), compression="gzip")


def through_observer(push: Callable, dataset: tf.data.Dataset, spec: object) -> int:
    """A push through TF-Agents' trajectory observer, until the server has all items."""
    with ReplayServer([TableConfig()], None) as server:
        observer = reverb_utils.ReverbAddTrajectoryObserver(server.client, "replay", sequence_length=2)
        observer.get_table_signature = lambda: spec
        steps = push(dataset, observer)
        observer.close()
        require_items(server, steps)
        return steps


def through_ingest(source: object, **options: object) -> int:
    opened = load(source)
    with ReplayServer([TableConfig()], item_signature(trajectory_spec(opened.step_spec), 2)) as server:
        report = ingest(opened, server.address, **options)
        assert server.client.server_info(timeout=10)["replay"].current_size == report.items
        return report.steps


def require_items(server: ReplayServer, steps: int) -> None:
    assert 0 < server.client.server_info(timeout=10)["replay"].current_size < steps


def read_only(source: object) -> int:
    """The floor below writing: read and convert, write nothing."""
    return sum(len(trajectory_columns(episode.steps).step_type) for episode in load(source))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=9, help="of hopper_flat, at most 9")
    arguments = parser.parse_args()
    dataset = tfds.builder_from_directory(PREPARED).as_dataset(split="train").take(arguments.episodes).cache()
    episodes = [episode.steps for episode in load(dataset)]
    spec = reference.tensor_spec.add_outer_dim(reference.create_trajectory_data_spec(dataset))
    with tempfile.TemporaryDirectory() as folder:
        d4rl = Path(folder) / "hopper.hdf5"
        write_d4rl(d4rl, episodes)
        ways = {
            "TF-Agents push_rlds_to_reverb, trajectory observer (the peer)": lambda: through_observer(
                reference.push_rlds_to_reverb, dataset, spec
            ),
            "ours: push_rlds_to_reverb, the same observer": lambda: through_observer(
                ours.push_rlds_to_reverb, dataset, spec
            ),
            "ours: ingest, RLDS data set -> table": lambda: through_ingest(dataset),
            "ours: ingest, D4RL HDF5 -> table": lambda: through_ingest(d4rl),
            "floor: RLDS read and converted, nothing written": lambda: read_only(dataset),
            "floor: D4RL read and converted, nothing written": lambda: read_only(d4rl),
        }
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, TF {tf.__version__}")
        print(f"{sum(len(steps['reward']) for steps in episodes):,} steps in {len(episodes)} episodes of Hopper shape")
        print(f"items of 2 steps, table prioritized; median of {arguments.runs} after a warm-up\n")
        peer = None
        for name, way in ways.items():
            way()
            rates = []
            for _ in range(arguments.runs):
                began = time.perf_counter()
                steps = way()
                rates.append(steps / (time.perf_counter() - began))
            rate = statistics.median(rates)
            peer = peer or rate
            print(f"{name:<64} {rate:>10,.0f} steps/s {rate / peer:>8.1f}x", flush=True)


if __name__ == "__main__":
    main()
