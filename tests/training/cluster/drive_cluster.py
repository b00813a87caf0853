"""Trains on a Ray cluster of three nodes, kills each of its processes and a node, and prints what happened as JSON.

Run by `test_cluster.py` in a process of its own, without pydantic.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from rlds2reverb.training import TrainingConfig
from rlds2reverb.training.cluster import ClusterConfig, ClusterTraining

_KINDS = {
    "collector_0": "CollectorActor",
    "replay_0": "ReplayActor",
    "evaluator": "EvaluatorActor",
    "learner": "LearnerActor",
    "coordinator": "Coordinator",
}
_NODE = {"num_cpus": 2, "object_store_memory": 80 << 20}


def find_processes(kind: str) -> set[int]:
    """Returns the ids of the processes of a kind of actor."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(f"ray::{kind}".encode()):
                found.add(int(path.parent.name))
    return found


def wait_for(is_true, what: str, secs: float = 180.0) -> float:
    """Waits for a condition; returns the seconds that it took."""
    start = time.monotonic()
    while not is_true():
        if time.monotonic() - start > secs:
            raise TimeoutError(f"waited {secs:g} s for {what}")
        time.sleep(0.2)
    return time.monotonic() - start


def read_step(training: ClusterTraining) -> int:
    """Returns the number of updates; -1 while the coordinator is restarted."""
    with contextlib.suppress(Exception):
        return int(training.status()["step"])
    return -1


def break_everything(training: ClusterTraining, cluster: Cluster, nodes: list, report: dict) -> None:
    """Kills one process of each kind, and then a node; after each, waits until the learner has made progress."""
    try:
        wait_for(lambda: "learner" in training.actors and read_step(training) > 200, "the first updates")
        for name, kind in _KINDS.items():
            before, step = find_processes(kind), read_step(training)
            os.kill(min(before), signal.SIGKILL)
            secs = wait_for(lambda: find_processes(kind) - before, f"a new {name}")  # noqa: B023
            secs += wait_for(lambda: read_step(training) > step + 100, f"updates after the kill of {name}")  # noqa: B023
            report["recovery_secs"][name] = round(secs, 1)
        state = ray._private.state.actors(training.actors["learner"]._actor_id.hex())
        node = next((each for each in nodes if each.node_id == state["Address"]["NodeID"]), nodes[-1])
        step = read_step(training)
        cluster.remove_node(node, allow_graceful=False)
        report["recovery_secs"]["node"] = round(
            wait_for(lambda: read_step(training) > step + 300, "updates after the loss of a node"), 1
        )
    except BaseException as error:
        report["error"] = f"{type(error).__name__}: {error}"
        os.kill(os.getpid(), signal.SIGTERM)


def main(data: str, run_dir: str, num_steps: int) -> None:
    """Runs the experiment."""
    report: dict = {"recovery_secs": {}, "error": ""}
    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "include_dashboard": False})
    nodes = [cluster.add_node(**_NODE) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    config = TrainingConfig(
        "sac",
        env="Pendulum-v1",
        steps=500,
        online_steps=num_steps,
        warmup_steps=500,
        eval_every=1_000,
        eval_episodes=5,
        checkpoint_every=250,
        hyperparameters={"hidden_sizes": (64, 64)},
    )
    options = ClusterConfig(num_shards=2, num_collectors=2, num_cpus=0.1, checkpoint_secs=5)
    try:
        with ClusterTraining(data, config, run_dir, options) as training:
            saboteur = threading.Thread(target=break_everything, args=(training, cluster, nodes, report), daemon=True)
            saboteur.start()
            run = training.run()
            saboteur.join(10)
            report["is_broken"] = not saboteur.is_alive()
            report["status"] = training.status()
            report["means"], report["steps"] = run.evaluations["mean"].tolist(), run.evaluations["step"].tolist()
    finally:
        ray.shutdown()
        cluster.shutdown()
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
